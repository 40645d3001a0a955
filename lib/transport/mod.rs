//! Two kinds of link.
//!
//! Mapped: both ends see the memory; boxes are copied from tensor to tensor by either end.
//! Message: [`MessageLink`], one-sided puts and signals between registered regions.
//!
//! Guarantee of every message link: a ticket completes when its source bytes may be reused; a signal is seen
//! only after the bytes put before it on that connection are visible to the receiver; after `abort(peer)`
//! returns, no write of that peer can land.

mod check;
#[cfg(test)]
mod contract;
pub mod error;
pub mod fault;
mod region;
pub mod shm;
pub mod tcp;

pub use error::{FrameFault, TransportError};
pub use fault::{FaultOptions, FaultyLink};
pub use shm::{ShmLink, ShmOptions};
pub use tcp::{Authenticate, AuthenticateError, TcpLink, TcpOptions};

use crate::base::{Deadline, Rank};
use crate::memory::{SegmentId, Span};
use bitflags::bitflags;
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::time::Duration;

bitflags! {
    /// What a peer may do with a registered region. Buffers are registered with the least rights.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Rights: u8 {
        /// This rank may put from it.
        const LOCAL_READ = 1;
        /// Peers may put into it.
        const REMOTE_WRITE = 2;
    }
}

bitflags! {
    /// What a link can do.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Capabilities: u8 {
        /// Regions may be any private memory of this process.
        const ANY_MEMORY = 1;
        /// Crosses hosts.
        const CROSSES_HOSTS = 2;
    }
}

/// A registered region of this rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RegionId(pub u32);

/// A registered region of a peer, as it exported it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RemoteRegion {
    /// What names it in a put; a bearer token, sent only inside the authenticated mesh.
    pub key: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Where it is in a shared segment; `None` on links whose peers do not map it.
    pub segment: Option<SegmentPlace>,
}

/// A place in a shared segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SegmentPlace {
    /// The segment.
    pub segment: SegmentId,
    /// First byte in it.
    pub offset: u64,
}

/// Bytes of a local region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalSlice {
    /// Region.
    pub region: RegionId,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// Where in a peer's region bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemotePlace {
    /// Region.
    pub region: RemoteRegion,
    /// First byte.
    pub offset: u64,
}

/// Chosen by the caller of a put, given back when its source bytes may be reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

impl Ticket {
    /// Its completion is not reported.
    pub const SILENT: Ticket = Ticket(u64::MAX);
}

/// An arrival notice: 8 bits of epoch, 24 bits of index, the size of a verbs immediate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Signal {
    /// Low 8 bits of the start count; rejects late signals.
    pub epoch: u8,
    /// Index of the arrival, below [`Signal::INDICES`].
    pub index: u32,
}

impl Signal {
    /// Number of distinct indices.
    pub const INDICES: u32 = 1 << 24;
}

/// What a poll found.
#[derive(Debug)]
pub enum Event {
    /// The source bytes of this put may be reused.
    Completed(Ticket),
    /// `peer` signalled.
    Signalled {
        /// Who.
        peer: Rank,
        /// What.
        signal: Signal,
    },
    /// The connection to `peer` is gone. Tickets of puts to it are not reported any more; their source bytes may
    /// be reused.
    Lost {
        /// Who.
        peer: Rank,
        /// Why.
        cause: TransportError,
    },
}

/// Whether a put or signal was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Posted {
    /// Taken; it will be sent in posting order.
    Queued,
    /// The queue to that peer is full; post again after a poll.
    Busy,
}

/// A message link: puts and signals between registered regions of connected ranks. Ranks are world ranks.
pub trait MessageLink: Send {
    /// What it can do.
    fn capabilities(&self) -> Capabilities;
    /// What peers need to connect here; exchanged by all ranks at start.
    fn address(&self) -> Vec<u8>;
    /// Makes `bytes` bytes at `start` usable by this link.
    ///
    /// # Safety
    /// The memory must stay valid and mapped until `deregister` has returned `Ok` or the link is dropped, and with
    /// `REMOTE_WRITE` nothing in this process may rely on its contents while peers may put into it.
    unsafe fn register(&mut self, start: *mut u8, bytes: u64, rights: Rights) -> Result<RegionId, TransportError>;
    /// What a peer needs to put into `region`.
    fn export(&self, region: RegionId) -> Result<RemoteRegion, TransportError>;
    /// Prepares puts into a peer's region, so that the first one is as fast as the others. Not needed otherwise.
    fn import(&mut self, peer: Rank, region: RemoteRegion, deadline: Deadline) -> Result<(), TransportError> {
        let _ = (peer, region, deadline);
        Ok(())
    }
    /// Ends a registration; later puts into it are refused and end their connection. An error, and no change,
    /// while queued puts still read the region.
    fn deregister(&mut self, region: RegionId) -> Result<(), TransportError>;
    /// Connects to all `peers` not yet connected, this rank left out; both ends call it. The lower rank dials. On
    /// an error the peers that did come stay connected, and the call may be repeated.
    fn connect(&mut self, peers: &[(Rank, Vec<u8>)], deadline: Deadline) -> Result<(), TransportError>;
    /// Posts a put of a local slice.
    fn put(
        &mut self,
        peer: Rank,
        local: LocalSlice,
        remote: RemotePlace,
        ticket: Ticket,
    ) -> Result<Posted, TransportError>;
    /// Posts a put of one 64-bit word (native byte order, 8-byte aligned place), without a ticket. The word
    /// appears whole, by a Release store.
    fn put_word(&mut self, peer: Rank, word: u64, remote: RemotePlace) -> Result<Posted, TransportError>;
    /// Posts a signal behind everything posted to `peer` before.
    fn signal(&mut self, peer: Rank, signal: Signal) -> Result<Posted, TransportError>;
    /// Whether everything posted to `peer` is on its way, so that it arrives without another poll of this rank. A
    /// completed ticket does not say that: a signal may wait behind its put.
    fn is_flushed(&self, peer: Rank) -> bool;
    /// Makes received bytes of `region` visible to every reader on this machine, where signals do not imply it.
    fn flush_received(&mut self, region: RegionId) -> Result<(), TransportError>;
    /// Moves bytes; appends what happened to `events`; never blocks. One call does a bounded amount of work per
    /// connection. Posted puts move only here.
    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), TransportError>;
    /// Sleeps until a poll may find something, for `limit` at most; `false` when nothing came. A link that cannot
    /// sleep returns `false` at once, and the caller waits its own way.
    fn wait(&mut self, limit: Duration) -> Result<bool, TransportError> {
        let _ = limit;
        Ok(false)
    }
    /// A descriptor that poll(2) finds readable when a poll of the link may find something, so that a caller can sleep
    /// without keeping the link; only after `wait` with no limit has found nothing.
    fn readiness(&self) -> Option<OwnedFd> {
        None
    }
    /// Ends the connection to `peer`; once it returns no write of that peer can land. Tickets of puts to it are
    /// not reported any more.
    fn abort(&mut self, peer: Rank);
    /// Flushes what is queued and ends all connections; returns once every peer has said goodbye too, which a
    /// peer does in `poll` or `close`.
    fn close(&mut self, deadline: Deadline) -> Result<(), TransportError>;
    /// `Err` with the cause when the connection to `peer` is lost or was ended by either side.
    fn health(&self, peer: Rank) -> Result<(), TransportError>;
}

/// Registers a span; the caller keeps a clone of it until the region is deregistered.
pub(crate) fn register_span(
    link: &mut dyn MessageLink,
    memory: &Span,
    rights: Rights,
) -> Result<RegionId, TransportError> {
    if memory.device().is_some() {
        return Err(TransportError::NotShared { address: memory.start() as u64, bytes: memory.bytes() });
    }
    // SAFETY: the span's owner keeps the memory mapped, the caller keeps the span, and buffers that peers may write
    // are held for writing while a transfer runs, so that no reference to them exists.
    unsafe { link.register(memory.start(), memory.bytes(), rights) }
}
