//! Checks of a call's arguments that all links share. In: what a caller passed. Out: it is usable, or an error
//! that names the value. Guarantee: nothing that a correct peer would refuse is sent.

use super::{RemotePlace, Signal, TransportError};
use crate::base::Rank;

/// `bytes` bytes at `place` are inside the region that `peer` exported.
pub(super) fn remote(peer: Rank, place: RemotePlace, bytes: u64) -> Result<(), TransportError> {
    let RemotePlace { region, offset } = place;
    match offset.checked_add(bytes) {
        Some(end) if end <= region.bytes => Ok(()),
        _ => Err(TransportError::RemoteRange { peer, offset, bytes, limit: region.bytes }),
    }
}

/// A word may be put at `place`.
pub(super) fn remote_word(peer: Rank, place: RemotePlace) -> Result<(), TransportError> {
    if !place.offset.is_multiple_of(8) {
        return Err(TransportError::MisalignedWord { peer, offset: place.offset });
    }
    remote(peer, place, 8)
}

/// The index fits its bits.
pub(super) fn signal(signal: Signal) -> Result<(), TransportError> {
    if signal.index < Signal::INDICES { Ok(()) } else { Err(TransportError::SignalIndex { index: signal.index }) }
}
