//! What peers may send here, for fuzzing. In: any bytes, the first of which chooses a decoder. Out: whether it took them.
//! Guarantee: both packets of the segment server are reached.

use super::SegmentId;
use super::wire::{Answer, decode_answer, decode_request, encode_answer, encode_request};

/// Reads `bytes`.
pub fn read(bytes: &[u8]) -> bool {
    let Some((&decoder, bytes)) = bytes.split_first() else { return false };
    match decoder {
        0 => decode_request(bytes).is_some_and(|segment| encode_request(segment) == bytes),
        1 => decode_answer(bytes).is_some_and(|answer| encode_answer(answer) == bytes),
        _ => false,
    }
}

/// Bytes that are read, of every kind.
pub fn examples() -> Vec<Vec<u8>> {
    let segment = SegmentId(*b"0123456789abcdef");
    let answers = [Answer::Found { segment, bytes: 4096 }, Answer::Missing { segment }];
    let requests = [[&[0][..], &encode_request(segment)].concat()];
    requests.into_iter().chain(answers.map(|answer| [&[1][..], &encode_answer(answer)].concat())).collect()
}
