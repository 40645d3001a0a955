//! What peers may send here, for fuzzing. In: any bytes, the first of which chooses a message. Out: whether it was read.
//! Guarantee: the messages of agreement and of host transfers are reached, with the checks that follow reading.

use super::agree::Hello;
use super::exchange::{Export, ExportedMemory, Invitation};
use crate::base::Rank;
use crate::memory::SegmentId;
use serde::Serialize;

/// Reads `bytes`.
pub fn read(bytes: &[u8]) -> bool {
    let Some((&message, bytes)) = bytes.split_first() else { return false };
    match message {
        0 => postcard::from_bytes::<Hello>(bytes).is_ok(),
        1 => postcard::from_bytes::<Vec<String>>(bytes).is_ok(),
        2 => postcard::from_bytes::<Invitation>(bytes).is_ok_and(|invitation| invitation.check(Rank(1), 2, 3).is_ok()),
        _ => false,
    }
}

/// Bytes that are read, of every kind.
pub fn examples() -> Vec<Vec<u8>> {
    let memory = [
        ExportedMemory::Shared { segment: SegmentId([3; 16]), offset: 64 },
        ExportedMemory::Private { address: 1 << 40 },
    ];
    let invitation = Invitation {
        segment: Some(SegmentId([1; 16])),
        source: memory.map(|memory| Export { tensor: 1, memory, offset: 8, strides: vec![16, 2] }).to_vec(),
        available_words: vec![1, 2],
        release_words: vec![3, 4],
        direct: vec![true, false, true],
        ..Invitation::default()
    };
    vec![encoded(0, &Hello::default()), encoded(1, &["w", "[8, 6]"].as_slice()), encoded(2, &invitation)]
}

/// Empty where a message cannot be encoded, which is then not read.
fn encoded(message: u8, value: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(value).map_or_else(|_| Vec::new(), |bytes| [&[message], &bytes[..]].concat())
}
