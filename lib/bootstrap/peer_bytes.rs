//! What peers may send here, for fuzzing. In: any bytes, the first of which chooses a decoder. Out: whether it took them.
//! Guarantee: every decoder of control connections and of the unique id is reached, the hub's exchanges among them.

use super::UniqueId;
use super::cause::Cause;
use super::error::Absentees;
use super::gathering::{Gathering, decode_outcome, encode_members};
use super::wire::{Header, Kind};
use crate::base::Rank;

/// Ranks of the job that exchanges are read for.
const SIZE: u32 = 8;

/// Reads `bytes`.
pub fn read(bytes: &[u8]) -> bool {
    let Some((&decoder, bytes)) = bytes.split_first() else { return false };
    match decoder {
        0 => Header::decode(bytes).is_ok_and(|header| header.encode() == bytes),
        1 => Absentees::decode(bytes).is_some(),
        2 => Cause::decode(bytes).is_some_and(|cause| Cause::decode(&cause.encode()).is_some()),
        3 => exchange(Kind::Exchange, bytes),
        4 => exchange(Kind::Gather, bytes),
        5 => decode_outcome(bytes, 3).is_some_and(|strings| strings.len() == 3),
        6 => std::str::from_utf8(bytes).is_ok_and(|text| text.parse::<UniqueId>().is_ok()),
        _ => false,
    }
}

/// Rank 0 opens an exchange, then every member contributes the same.
fn exchange(kind: Kind, payload: &[u8]) -> bool {
    let Some(mut gathering) = Gathering::open(kind, Rank(0), payload, SIZE) else { return false };
    let members: Vec<Rank> = gathering.absent().collect();
    let added = members.into_iter().all(|rank| gathering.add(kind, rank, payload.to_vec()).is_ok());
    added && gathering.is_complete() && gathering.outcomes(1, 2).all(|(_, segments)| !segments.is_empty())
}

/// Bytes that are read, of every kind.
pub fn examples() -> Vec<Vec<u8>> {
    let with = |decoder: u8, bytes: &[u8]| [&[decoder], bytes].concat();
    let header = Header { kind: Kind::Gather, rank: Rank(3), context: 7, sequence: 1, length: 99 };
    let cause = Cause { rank: Rank(1), host: "a".into(), phase: "start".into(), message: "is dead".into() };
    let strings = |mut payload: Vec<u8>, lengths: [u64; 3]| {
        lengths.iter().for_each(|length| payload.extend(length.to_le_bytes()));
        payload.extend(vec![7; lengths.iter().sum::<u64>() as usize]);
        payload
    };
    let members = encode_members(&[Rank(0), Rank(1), Rank(5)]);
    let unique_id = format!("crossmesh-{}@127.0.0.1:4000,[::1]:4000", "0a".repeat(32));
    vec![
        with(0, &header.encode()),
        with(1, &Absentees::new(vec![Rank(2), Rank(4)]).encode()),
        with(2, &cause.encode()),
        with(3, &strings(members.clone(), [0, 5, 2])),
        with(4, &[members, b"a string".to_vec()].concat()),
        with(5, &strings(Vec::new(), [1, 0, 6])),
        with(6, unique_id.as_bytes()),
    ]
}
