//! Messages between segment server and client.
//!
//! In: an id, an answer. Out: packets of fixed size, one per message of a sequenced-packet socket, so that no
//! length is ever read from the wire. Guarantee: any other packet is refused.

use super::SegmentId;

/// Size of a request.
pub(super) const REQUEST: usize = 24;
/// Size of an answer.
pub(super) const ANSWER: usize = 32;

const MAGIC: u64 = 0x6d65_7368_7365_6731;

/// What a client asks: the descriptor of one segment.
pub(super) fn encode_request(segment: SegmentId) -> [u8; REQUEST] {
    let mut packet = [0; REQUEST];
    packet[..8].copy_from_slice(&MAGIC.to_le_bytes());
    packet[8..].copy_from_slice(&segment.0);
    packet
}

/// The segment a packet asks for.
pub(super) fn decode_request(packet: &[u8]) -> Option<SegmentId> {
    let packet: &[u8; REQUEST] = packet.try_into().ok()?;
    (word(packet, 0) == MAGIC).then(|| SegmentId(id(packet, 8)))
}

/// What the server answers; with `Found` comes the descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Found { segment: SegmentId, bytes: u64 },
    Missing { segment: SegmentId },
}

/// The packet of an answer; a missing segment is one of `u64::MAX` bytes, which no segment has.
pub(super) fn encode_answer(answer: Answer) -> [u8; ANSWER] {
    let (segment, bytes) = match answer {
        Answer::Found { segment, bytes } => (segment, bytes),
        Answer::Missing { segment } => (segment, u64::MAX),
    };
    let mut packet = [0; ANSWER];
    packet[..8].copy_from_slice(&MAGIC.to_le_bytes());
    packet[8..24].copy_from_slice(&segment.0);
    packet[24..].copy_from_slice(&bytes.to_le_bytes());
    packet
}

/// The answer in a packet.
pub(super) fn decode_answer(packet: &[u8]) -> Option<Answer> {
    let packet: &[u8; ANSWER] = packet.try_into().ok()?;
    if word(packet, 0) != MAGIC {
        return None;
    }
    let segment = SegmentId(id(packet, 8));
    Some(match word(packet, 24) {
        u64::MAX => Answer::Missing { segment },
        bytes => Answer::Found { segment, bytes },
    })
}

fn word(packet: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&packet[at..at + 8]);
    u64::from_le_bytes(bytes)
}

fn id(packet: &[u8], at: usize) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&packet[at..at + 16]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_come_back_and_others_are_refused() {
        let segment = SegmentId(*b"0123456789abcdef");
        let request = encode_request(segment);
        assert_eq!(decode_request(&request), Some(segment));
        assert_eq!(decode_request(&request[..23]), None);
        let mut wrong = request;
        wrong[0] ^= 1;
        assert_eq!(decode_request(&wrong), None);
        for answer in
            [Answer::Found { segment, bytes: 0 }, Answer::Found { segment, bytes: 77 }, Answer::Missing { segment }]
        {
            let packet = encode_answer(answer);
            assert_eq!(decode_answer(&packet), Some(answer));
            assert_eq!(decode_answer(&packet[1..]), None);
        }
        assert_eq!(decode_answer(&[]), None);
    }
}
