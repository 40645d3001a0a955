//! Every pair of ranks moves bytes. In: a communicator. Out: what each pair reached, and findings. Guarantee: collective;
//! every byte is compared; a pair that looks slow is measured again while all others wait, before it is called slow.

use super::error::DoctorError;
use super::finding::{Finding, Severity};
use super::outliers;
use crossmesh::base::{Deadline, Rank};
use crossmesh::comm::{Buffer, Buffers, CommError, Communicator, Reshard, ReshardOptions, Side};
use crossmesh::layout::{Dtype, Layout, Mesh, Placement, View};
use crossmesh::plan::Manifest;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Instant;

/// Bytes of one transfer: long enough that its start does not count.
const BYTES: u64 = 8 << 20;
/// The best of so many transfers counts.
const REPEATS: u32 = 5;
/// Up to so many ranks every pair is tried; of more, each rank tries those at distances of powers of two.
const ALL_PAIRS: u32 = 16;

/// What one pair did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Pair {
    pub(crate) ranks: [u32; 2],
    /// `tcp` between domains, `mapped` inside.
    pub(crate) link: String,
    /// From the first to the second, and back; 0 where it failed.
    pub(crate) gb_per_s: [f64; 2],
    /// Why it failed.
    pub(crate) error: Option<String>,
}

impl Pair {
    fn slower(&self) -> f64 {
        self.gb_per_s[0].min(self.gb_per_s[1])
    }
}

/// Distances of the rounds: in a round, rank `r` meets `r ^ distance`.
fn distances(ranks: u32) -> Vec<u32> {
    let all = ranks.max(1).next_power_of_two();
    (1..all).filter(|distance| ranks <= ALL_PAIRS || distance.is_power_of_two()).collect()
}

/// Tries the pairs, round by round; every rank gets all results. `done` is told the share of rounds that are over.
pub(super) fn probe(world: &Communicator, mut done: impl FnMut(usize, usize)) -> Result<Vec<Pair>, DoctorError> {
    let ranks = world.size() as u32;
    let mut pairs = Vec::new();
    let distances = distances(ranks);
    for (round, distance) in distances.iter().enumerate() {
        let partner = world.rank().0 ^ distance;
        let mine = (partner < ranks).then(|| [world.rank().0.min(partner), world.rank().0.max(partner)]);
        pairs.extend(meet(world, mine)?);
        done(round + 1, distances.len());
    }
    // Others used the cores and cards meanwhile: what looks slow is tried again, one pair at a time.
    for (number, _) in slow(&pairs) {
        let ranks = pairs[number].ranks;
        let again = meet(world, ranks.contains(&world.rank().0).then_some(ranks))?;
        if let Some(again) = again.into_iter().next() {
            let before = pairs[number].gb_per_s;
            let best = [before[0].max(again.gb_per_s[0]), before[1].max(again.gb_per_s[1])];
            pairs[number] = Pair { gb_per_s: best, ..again };
        }
    }
    pairs.sort_by_key(|pair| pair.ranks);
    Ok(pairs)
}

/// One round: ranks with a partner move bytes both ways; everybody hears of all pairs.
fn meet(world: &Communicator, mine: Option<[u32; 2]>) -> Result<Vec<Pair>, DoctorError> {
    let group = world.split(mine.map(|ranks| ranks[0]), world.rank().0, deadline()?)?;
    let result = match (mine, &group) {
        (Some(ranks), Some(group)) => Some(try_pair(world, group, ranks)?),
        _ => None,
    };
    drop(group);
    let encoded = serde_json::to_vec(&result).map_err(DoctorError::Encode)?;
    let all = world.allgather(&encoded, deadline()?)?;
    let told = all.iter().map(|bytes| serde_json::from_slice::<Option<Pair>>(bytes).map_err(DoctorError::Encode));
    let mut pairs: Vec<Pair> = told.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    // Both ranks tell the same, or one of them failed: that one is kept.
    pairs.sort_by_key(|pair| (pair.ranks, pair.error.is_none()));
    pairs.dedup_by_key(|pair| pair.ranks);
    Ok(pairs)
}

/// Both directions; an end of the whole job is an error, anything else is the pair's.
fn try_pair(world: &Communicator, group: &Communicator, ranks: [u32; 2]) -> Result<Pair, DoctorError> {
    let topology = world.topology();
    let same = topology.domain(Rank(ranks[0])) == topology.domain(Rank(ranks[1]));
    let mut pair = Pair { ranks, link: if same { "mapped" } else { "tcp" }.into(), gb_per_s: [0.0; 2], error: None };
    for from in [0, 1] {
        match move_bytes(group, Rank(from)) {
            Ok(rate) => pair.gb_per_s[from as usize] = rate,
            Err(DoctorError::Comm(error @ CommError::Aborted(_))) => return Err(error.into()),
            Err(error) => {
                pair.error = Some(error.message());
                break;
            }
        }
    }
    Ok(pair)
}

/// The best rate of some transfers in one direction, as both ranks agree on it; collective over a pair.
fn move_bytes(group: &Communicator, from: Rank) -> Result<f64, DoctorError> {
    let on = |rank| -> Result<Arc<Layout>, DoctorError> {
        let mesh = Arc::new(Mesh::new(vec![1], vec![rank])?);
        Ok(Arc::new(Layout::new(vec![BYTES], Dtype::U8, mesh, vec![Placement::Replicate])?))
    };
    let mut manifest = Manifest::new();
    manifest.push("pair", on(from)?, on(Rank(1 - from.0))?)?;
    let manifest = Arc::new(manifest);
    let sends = group.rank() == from;
    let buffer = Buffer::shared(BYTES).map_err(CommError::from)?;
    let mut buffers = Buffers::new(&manifest);
    buffers.set(if sends { Side::Source } else { Side::Destination }, 0, buffer.clone(), View::contiguous());
    let mut transfer = group.reshard_init(&manifest, &buffers, ReshardOptions::default(), deadline()?)?;
    let mut best = 0.0f64;
    for repeat in 0..REPEATS {
        fill(&mut buffer.write().map_err(CommError::from)?, sends, repeat);
        group.barrier(deadline()?)?;
        let begun = Instant::now();
        run(&mut transfer)?;
        let seconds = begun.elapsed().as_secs_f64();
        let wrong = if sends { 0 } else { wrong(&buffer.read().map_err(CommError::from)?, repeat) };
        let mine = [if sends { f64::INFINITY } else { seconds }, wrong as f64];
        let all = group.allgather(&mine.map(f64::to_le_bytes).concat(), deadline()?)?;
        let word = |bytes: &[u8], at: usize| bytes[at..].first_chunk().map_or(0.0, |&word| f64::from_le_bytes(word));
        let told = all.iter().filter(|bytes| bytes.len() == 16);
        let (seconds, wrong) =
            told.fold((f64::INFINITY, 0.0), |(least, sum), bytes| (word(bytes, 0).min(least), sum + word(bytes, 8)));
        if wrong > 0.0 {
            return Err(DoctorError::WrongBytes { wrong: wrong as u64, bytes: BYTES });
        }
        best = best.max(BYTES as f64 / seconds.max(1e-9) / 1e9);
    }
    Ok(best)
}

fn run(transfer: &mut Reshard) -> Result<(), DoctorError> {
    transfer.start().map_err(CommError::from)?;
    Ok(transfer.wait(deadline()?).map_err(CommError::from)?)
}

/// A sequence that depends on place and repeat, or what no repeat writes.
fn fill(bytes: &mut [u8], sends: bool, repeat: u32) {
    for (number, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&if sends { value(number, repeat) } else { u64::MAX }.to_le_bytes());
    }
}

fn wrong(bytes: &[u8], repeat: u32) -> u64 {
    let words = bytes.chunks_exact(8).enumerate();
    words.filter(|(number, word)| *word != value(*number, repeat).to_le_bytes()).count() as u64 * 8
}

fn value(number: usize, repeat: u32) -> u64 {
    (number as u64) << 8 | u64::from(repeat)
}

fn deadline() -> Result<Deadline, DoctorError> {
    Ok(Communicator::default_deadline()?)
}

/// Working pairs below their kind: their numbers, with the median of the slower directions of all working pairs of the
/// link.
fn slow(pairs: &[Pair]) -> Vec<(usize, f64)> {
    let working = || pairs.iter().enumerate().filter(|(_, pair)| pair.error.is_none());
    let rates: Vec<(&str, f64)> = working().map(|(_, pair)| (pair.link.as_str(), pair.slower())).collect();
    let numbers: Vec<usize> = working().map(|(number, _)| number).collect();
    outliers::low(&rates).into_iter().map(|(place, median)| (numbers[place], median)).collect()
}

/// What is wrong with which pairs; `name` says who a rank is.
pub(super) fn findings(pairs: &[Pair], name: impl Fn(u32) -> String) -> Vec<Finding> {
    let place = |pair: &Pair| format!("{} and {}", name(pair.ranks[0]), name(pair.ranks[1]));
    let failed = pairs.iter().filter_map(|pair| {
        let error = pair.error.as_ref()?;
        let what = format!("two ranks cannot move bytes over {}", pair.link);
        let cure = match pair.link.as_str() {
            "tcp" => "let the hosts of the job reach each other on all ports above 1023: nc -zv HOST PORT; CROSSMESH_INTERFACE chooses the network",
            _ => "share the host's namespaces between containers: docker --ipc=host --pid=host; CROSSMESH_MAPPED=staged goes without",
        };
        Some(Finding::new("pair-failure", Severity::Failure, what, place(pair)).seen(error, "right bytes both ways").cure(cure))
    });
    let slow = slow(pairs).into_iter().map(|(number, median)| {
        let pair = &pairs[number];
        let what = format!("two ranks are slower than others over {}", pair.link);
        Finding::new("pair-bandwidth", Severity::Warning, what, place(pair))
            .seen(
                format!("{:.2} GB/s and {:.2} GB/s back", pair.gb_per_s[0], pair.gb_per_s[1]),
                format!("{:.2} GB/s, {} of the median", outliers::LOW * median, outliers::LOW),
            )
            .cure("crossmesh run --host HOST,HOST -n 2 -- crossmesh bench p2p measures the two alone; compare ethtool or ibstat of both hosts")
    });
    failed.chain(slow).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_pair_meets_once_in_a_small_job() {
        for ranks in 1..=16u32 {
            let mut met = BTreeSet::new();
            for distance in distances(ranks) {
                for rank in (0..ranks).filter(|rank| rank ^ distance < ranks && *rank < rank ^ distance) {
                    assert!(met.insert((rank, rank ^ distance)));
                }
            }
            assert_eq!(met.len() as u32, ranks * (ranks - 1) / 2, "{ranks} ranks");
        }
        assert_eq!(distances(1000), [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]);
    }

    #[test]
    fn slow_and_failed_pairs_are_named() {
        let pair = |ranks, link: &str, rate, error: Option<&str>| Pair {
            ranks,
            link: link.into(),
            gb_per_s: [rate, rate + 1.0],
            error: error.map(String::from),
        };
        let pairs = [
            pair([0, 1], "mapped", 10.0, None),
            pair([0, 2], "tcp", 2.0, None),
            pair([0, 3], "tcp", 2.1, None),
            pair([1, 2], "tcp", 1.5, None),
            pair([1, 3], "tcp", 0.0, Some("refused")),
            pair([2, 3], "mapped", 9.0, None),
        ];
        let findings = findings(&pairs, |rank| format!("rank {rank}"));
        let told: Vec<(&str, &str)> = findings.iter().map(|finding| (finding.id, finding.place[0].as_str())).collect();
        assert_eq!(told, [("pair-failure", "rank 1 and rank 3"), ("pair-bandwidth", "rank 1 and rank 2")]);
        assert_eq!(findings[0].value, "refused");
        assert!(findings[1].value.starts_with("1.50") && findings[1].limit.starts_with("1.60"), "{:?}", findings[1]);
    }

    #[test]
    fn wrong_bytes_are_counted() {
        let mut bytes = vec![0; 64];
        fill(&mut bytes, true, 3);
        assert_eq!((wrong(&bytes, 3), wrong(&bytes, 4)), (0, 64));
        bytes.rotate_left(8);
        assert_eq!(wrong(&bytes, 3), 64);
        fill(&mut bytes, false, 3);
        assert_eq!(wrong(&bytes, 3), 64);
    }
}
