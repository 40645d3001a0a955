//! One exchange under way at the hub. Exchanges of disjoint members may share a context: the parts of a split do.
//!
//! In: the contributions of its members. Out: one outcome per member, once all have contributed. Guarantee: members
//! that describe the exchange differently are found before anything is delivered; nothing is delivered in part.
//!
//! A contribution is: number of runs (32 bits), runs of ascending ranks (first, count; 32 bits each), and then for
//! an exchange the length (64 bits) of each member's byte string and the strings, for a gather one string.
//! An outcome is: the length (64 bits) of each member's string, and the strings.

use super::error::Absentees;
use super::wire::{Header, Kind, Reader, Segment};
use crate::base::Rank;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Strings from this size on are sent from where they arrived; shorter ones are copied together.
const SHARED: usize = 16 << 10;

/// What to do about contradictory calls.
const SAME: &str = "all members must make the same calls in the same order";

/// The runs of consecutive ranks that make up `members`, coded.
pub(super) fn encode_members(members: &[Rank]) -> Vec<u8> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &Rank(rank) in members {
        match runs.last_mut() {
            Some((first, count)) if first.checked_add(*count) == Some(rank) => *count += 1,
            _ => runs.push((rank, 1)),
        }
    }
    let mut bytes = (runs.len() as u32).to_le_bytes().to_vec();
    for (first, count) in runs {
        bytes.extend(first.to_le_bytes());
        bytes.extend(count.to_le_bytes());
    }
    bytes
}

/// The members of a contribution and the bytes that describe them; ranks are below `size` and differ.
fn decode_members(payload: &[u8], size: u32) -> Option<(Vec<Rank>, usize)> {
    let mut rest = Reader::new(payload);
    let runs = rest.word32().filter(|runs| *runs <= size)?;
    let mut members = Vec::new();
    for _ in 0..runs {
        let (first, count) = (rest.word32()?, rest.word32()?);
        let end = first.checked_add(count).filter(|end| *end <= size)?;
        members.extend((first..end).map(Rank));
        if members.len() > size as usize {
            return None;
        }
    }
    Some((members, 4 + 8 * runs as usize))
}

/// One member's contribution: where its strings lie in the bytes that came.
#[derive(Debug)]
struct Contribution {
    bytes: Arc<Vec<u8>>,
    strings: Vec<Range<usize>>,
}

/// An exchange that some members have begun.
#[derive(Debug)]
pub(super) struct Gathering {
    kind: Kind,
    opener: Rank,
    described: Vec<u8>,
    members: Vec<Rank>,
    positions: HashMap<Rank, usize>,
    contributions: Vec<Option<Contribution>>,
    missing: usize,
}

impl Gathering {
    /// Opens the exchange that `opener`'s contribution describes; `None` when it describes none.
    pub(super) fn open(kind: Kind, opener: Rank, payload: &[u8], size: u32) -> Option<Self> {
        let (members, end) = decode_members(payload, size)?;
        let positions: HashMap<Rank, usize> = members.iter().copied().zip(0..).collect();
        (positions.len() == members.len()).then(|| Self {
            kind,
            opener,
            described: payload[..end].to_vec(),
            contributions: members.iter().map(|_| None).collect(),
            missing: members.len(),
            members,
            positions,
        })
    }

    /// Adds `rank`'s contribution; the error says how it contradicts the opener's.
    pub(super) fn add(&mut self, kind: Kind, rank: Rank, payload: Vec<u8>) -> Result<(), String> {
        let opener = self.opener;
        let Some(&position) = self.positions.get(&rank) else {
            return Err(format!("listed members of an exchange of rank {opener} that does not list it; {SAME}"));
        };
        if kind != self.kind || !payload.starts_with(&self.described) {
            return Err(format!("made another collective call than rank {opener}, or with other members; {SAME}"));
        }
        if self.contributions[position].is_some() {
            return Err("contributed twice to one exchange".into());
        }
        let strings = match kind {
            Kind::Gather => std::iter::once(self.described.len()..payload.len()).collect(),
            _ => split(&payload, self.described.len(), self.members.len())
                .ok_or("sent lengths that contradict the bytes that came")?,
        };
        self.contributions[position] = Some(Contribution { bytes: Arc::new(payload), strings });
        self.missing -= 1;
        Ok(())
    }

    /// Whether `rank` is a member.
    pub(super) fn lists(&self, rank: Rank) -> bool {
        self.positions.contains_key(&rank)
    }

    /// Whether some rank is a member of both.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.members.iter().any(|rank| other.lists(*rank))
    }

    /// Whether all have contributed.
    pub(super) fn is_complete(&self) -> bool {
        self.missing == 0
    }

    /// Members that have not contributed.
    pub(super) fn absent(&self) -> impl Iterator<Item = Rank> {
        self.members.iter().zip(&self.contributions).filter(|(_, given)| given.is_none()).map(|(rank, _)| *rank)
    }

    /// Members that have contributed.
    pub(super) fn present(&self) -> impl Iterator<Item = Rank> {
        self.members.iter().zip(&self.contributions).filter(|(_, given)| given.is_some()).map(|(rank, _)| *rank)
    }

    /// Names the absent, lowest first.
    pub(super) fn absentees(&self) -> Absentees {
        let mut absent: Vec<Rank> = self.absent().collect();
        absent.sort_unstable();
        Absentees::new(absent)
    }

    /// The frames that tell each member the outcome; call once complete.
    pub(super) fn outcomes(&self, context: u64, sequence: u64) -> impl Iterator<Item = (Rank, Vec<Segment>)> {
        let common = (self.kind == Kind::Gather).then(|| Arc::new(concatenated(&self.outcome(0))));
        self.members.iter().enumerate().map(move |(position, rank)| {
            let segments = match &common {
                Some(bytes) => vec![Segment::new(Arc::clone(bytes), 0..bytes.len())],
                None => self.outcome(position),
            };
            let length = segments.iter().map(Segment::len).sum();
            let header = Header { kind: Kind::Outcome, rank: Rank(0), context, sequence, length };
            let head = Segment::from(header.encode().to_vec());
            (*rank, std::iter::once(head).chain(segments).collect())
        })
    }

    /// What the member at `position` receives.
    fn outcome(&self, position: usize) -> Vec<Segment> {
        let position = if self.kind == Kind::Gather { 0 } else { position };
        let strings = || self.contributions.iter().flatten().map(|given| (&given.bytes, &given.strings[position]));
        let mut copied: Vec<u8> = strings().flat_map(|(_, range)| (range.len() as u64).to_le_bytes()).collect();
        let mut segments = Vec::new();
        for (bytes, range) in strings() {
            if range.len() < SHARED {
                copied.extend_from_slice(&bytes[range.clone()]);
            } else {
                segments.push(std::mem::take(&mut copied).into());
                segments.push(Segment::new(Arc::clone(bytes), range.clone()));
            }
        }
        segments.push(copied.into());
        segments
    }
}

fn concatenated(segments: &[Segment]) -> Vec<u8> {
    segments.iter().fold(Vec::new(), |mut bytes, segment| {
        bytes.extend_from_slice(segment.as_slice());
        bytes
    })
}

/// The ranges of `count` strings whose lengths begin at `offset` and that fill the rest of `payload` exactly.
fn split(payload: &[u8], offset: usize, count: usize) -> Option<Vec<Range<usize>>> {
    let table = count.checked_mul(8)?;
    let mut lengths = Reader::new(payload.get(offset..offset.checked_add(table)?)?);
    let mut start = offset + table;
    let mut ranges = Vec::with_capacity(count);
    while let Some(length) = lengths.word64() {
        let end = start.checked_add(usize::try_from(length).ok()?)?;
        ranges.push(start..end);
        start = end;
    }
    (start == payload.len()).then_some(ranges)
}

/// The strings of an outcome for `count` members.
pub(super) fn decode_outcome(payload: &[u8], count: usize) -> Option<Vec<Vec<u8>>> {
    Some(split(payload, 0, count)?.into_iter().map(|range| payload[range].to_vec()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(list: &[u32]) -> Vec<Rank> {
        list.iter().copied().map(Rank).collect()
    }

    fn exchange(members: &[Rank], strings: &[&[u8]]) -> Vec<u8> {
        let mut payload = encode_members(members);
        strings.iter().for_each(|string| payload.extend((string.len() as u64).to_le_bytes()));
        strings.iter().for_each(|string| payload.extend_from_slice(string));
        payload
    }

    #[test]
    fn members_round_trip_in_order() {
        for list in [vec![], vec![0], vec![0, 1, 2, 3], vec![3, 2, 1, 0], vec![5, 6, 0, 1, 7]] {
            let members = ranks(&list);
            let mut coded = encode_members(&members);
            let length = coded.len();
            coded.extend([1, 2, 3]);
            assert_eq!(decode_members(&coded, 8), Some((members, length)));
        }
        assert_eq!(encode_members(&ranks(&(0..1000).collect::<Vec<_>>())).len(), 12);
    }

    #[test]
    fn hostile_descriptions_open_nothing() {
        let coded = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        for words in [&[1, 0, 9][..], &[1, u32::MAX, 2], &[u32::MAX], &[2, 0, 4, 3, 1], &[1, 0], &[9]] {
            assert!(Gathering::open(Kind::Gather, Rank(0), &coded(words), 8).is_none(), "{words:?}");
        }
    }

    #[test]
    fn every_string_reaches_its_member() {
        let members = ranks(&[4, 1]);
        let long = vec![9u8; SHARED + 1];
        let mut gathering = Gathering::open(Kind::Exchange, Rank(1), &exchange(&members, &[b"", b""]), 5).unwrap();
        gathering.add(Kind::Exchange, Rank(1), exchange(&members, &[b"1to4", &long])).unwrap();
        assert_eq!(gathering.absentees().to_string(), "rank 4");
        gathering.add(Kind::Exchange, Rank(4), exchange(&members, &[b"", b"4to1"])).unwrap();
        assert!(gathering.is_complete());
        let outcomes: Vec<_> = gathering
            .outcomes(0, 0)
            .map(|(rank, segments)| (rank, decode_outcome(&concatenated(&segments[1..]), 2).unwrap()))
            .collect();
        assert_eq!(outcomes[0], (Rank(4), vec![b"".to_vec(), b"1to4".to_vec()]));
        assert_eq!(outcomes[1], (Rank(1), vec![b"4to1".to_vec(), long]));
    }

    #[test]
    fn contradictions_are_found() {
        let members = ranks(&[0, 1]);
        let mut gathering = Gathering::open(Kind::Exchange, Rank(0), &exchange(&members, &[b"", b""]), 3).unwrap();
        let good = exchange(&members, &[b"a", b"b"]);
        let mut short = good.clone();
        short.pop();
        assert!(gathering.add(Kind::Exchange, Rank(2), good.clone()).is_err());
        assert!(gathering.add(Kind::Gather, Rank(1), good.clone()).is_err());
        assert!(gathering.add(Kind::Exchange, Rank(1), exchange(&ranks(&[1, 0]), &[b"", b""])).is_err());
        assert!(gathering.add(Kind::Exchange, Rank(1), short).is_err());
        gathering.add(Kind::Exchange, Rank(1), good.clone()).unwrap();
        assert!(gathering.add(Kind::Exchange, Rank(1), good).is_err());
        assert!(!gathering.is_complete());
    }
}
