//! Which algorithm a call takes. In: what all ranks know alike ([`Situation`]), a table, what the user forces. Out: a
//! [`Choice`] with its reason. Guarantee: pure, so that ranks that agree in the inputs agree in the choice; an algorithm that
//! cannot run here is never chosen, and one that is forced all the same is an error that says why it cannot.

use super::{Algorithm, Determinism, Kind, Table};
use crate::memory::device::collective::params::MAX_BLOCKS;
use std::fmt;
use thiserror::Error;

/// Blocks and threads where no table holds.
const BLOCKS: u16 = 32;
const THREADS: u16 = 256;

/// How the GPUs of a group reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connection {
    /// Each reaches each over NVLink.
    FullNvlink,
    /// Each reaches each, some over PCIe or through other GPUs.
    Partial,
    /// Some cannot reach each other, or several processes share a GPU: no kernel may wait for another.
    Ordered,
}

/// What decides, the same on every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Situation {
    /// What is called.
    pub kind: Kind,
    /// Bytes in all, as [`Call::total_bytes`](super::Call::total_bytes) counts them.
    pub bytes: u64,
    /// What the caller asks for.
    pub determinism: Determinism,
    /// Whether the call is recorded into a graph.
    pub captured: bool,
    /// Whether peers can reach the buffers.
    pub registered: bool,
    /// How GPUs reach each other.
    pub connection: Connection,
    /// Number of ranks.
    pub ranks: u32,
    /// Bytes in all that fit the slots of a push.
    pub push_capacity: u64,
    /// The same of a push by lines.
    pub line_capacity: u64,
    /// Blocks of 512 threads that can be resident at once.
    pub most_blocks: u16,
}

/// How a call runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// Algorithm.
    pub algorithm: Algorithm,
    /// Blocks of the launch.
    pub blocks: u16,
    /// Threads of a block.
    pub threads: u16,
    /// Time by the table, microseconds.
    pub predicted: Option<f64>,
    /// Why.
    pub reason: String,
}

impl fmt::Display for Choice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}, {} blocks of {} threads", self.algorithm, self.blocks, self.threads)?;
        if let Some(microseconds) = self.predicted {
            write!(formatter, ", {microseconds:.2} us expected")?;
        }
        write!(formatter, ": {}", self.reason)
    }
}

/// An algorithm that cannot run.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{kind} of {bytes} bytes cannot run by {algorithm}: {why}; allowed here: {allowed}")]
pub struct ChooseError {
    /// What was called.
    pub kind: Kind,
    /// Bytes in all.
    pub bytes: u64,
    /// What was asked for.
    pub algorithm: Algorithm,
    /// Why not.
    pub why: String,
    /// What can run.
    pub allowed: String,
}

/// The algorithm for `situation`: the forced one; else the table's; else, where that cannot run, the first that can of
/// [`PREFERENCE`].
pub fn choose(situation: &Situation, table: Option<&Table>, forced: Option<Algorithm>) -> Result<Choice, ChooseError> {
    if let Some(algorithm) = forced {
        if let Some(why) = obstacle(situation, algorithm) {
            let (kind, bytes) = (situation.kind, situation.bytes);
            return Err(ChooseError { kind, bytes, algorithm, why, allowed: allowed(situation) });
        }
        return Ok(plain(situation, algorithm, "asked for".into()));
    }
    let Situation { kind, captured, registered, bytes, .. } = *situation;
    let row = table.and_then(|table| Some((table, table.row(kind, captured, registered, bytes)?)));
    let Some((table, row)) = row else {
        return Ok(first_possible(situation, "no table holds for these GPUs"));
    };
    let Ok(algorithm) = row.algorithm.parse::<Algorithm>() else {
        return Ok(first_possible(situation, "the table names an algorithm that this build has not"));
    };
    if let Some(why) = obstacle(situation, algorithm) {
        return Ok(first_possible(situation, &format!("the table's {algorithm} cannot run, {why}")));
    }
    let most = most_blocks(situation.kind, algorithm, situation.bytes, (situation.most_blocks, row.threads));
    Ok(Choice {
        algorithm,
        blocks: row.blocks.min(most).max(1),
        threads: row.threads,
        predicted: row.microseconds.filter(|_| row.up_to == situation.bytes),
        reason: format!("best up to {} bytes ({})", row.up_to, table.origin),
    })
}

/// Order of trial where no table decides; lines are tried for two ranks alone, since for more nobody has measured them.
pub const PREFERENCE: [Algorithm; 7] = [
    Algorithm::OneShotPush,
    Algorithm::LinePush,
    Algorithm::TwoShot,
    Algorithm::OneShotPull,
    Algorithm::TwoShotPush,
    Algorithm::Ring,
    Algorithm::HostOrdered,
];

fn first_possible(situation: &Situation, why: &str) -> Choice {
    // The fused call has a block for each row, which words would keep busy for longer.
    let first = (situation.kind == Kind::AllReduceNorm).then_some(Algorithm::LinePush);
    let is_tried = |algorithm| algorithm != Algorithm::LinePush || situation.ranks == 2;
    let mut order = first.into_iter().chain(PREFERENCE).filter(|&algorithm| is_tried(algorithm));
    let possible = order.find(|&algorithm| obstacle(situation, algorithm).is_none());
    plain(situation, possible.unwrap_or(Algorithm::HostOrdered), why.into())
}

/// Most blocks of `threads` threads that a table's launch gets: those that are resident where `resident` of 512 threads are, and
/// have something to do in a call of `bytes` bytes in all.
pub fn most_blocks(kind: Kind, algorithm: Algorithm, bytes: u64, (resident, threads): (u16, u16)) -> u16 {
    let resident = resident.saturating_mul(512 / threads.clamp(1, 512)).min(MAX_BLOCKS as u16);
    resident.min(busy_blocks(kind, algorithm, bytes, threads))
}

/// Blocks of `threads` threads that have something to do in a call of `bytes` bytes in all, as far as it matters: a push of one
/// shot has a word of 8 bytes for each thread. Every block more delays the end of the launch.
fn busy_blocks(kind: Kind, algorithm: Algorithm, bytes: u64, threads: u16) -> u16 {
    match (algorithm, kind) {
        (Algorithm::OneShotPush, Kind::AllReduce) => {
            let blocks = bytes.div_ceil(8).div_ceil(threads.max(1).into()).max(1);
            u16::try_from(blocks).unwrap_or(u16::MAX)
        }
        _ => u16::MAX,
    }
}

fn plain(situation: &Situation, algorithm: Algorithm, reason: String) -> Choice {
    let busy = busy_blocks(situation.kind, algorithm, situation.bytes, THREADS);
    let blocks = BLOCKS.min(situation.most_blocks).min(busy).max(1);
    Choice { algorithm, blocks, threads: THREADS, predicted: None, reason }
}

fn allowed(situation: &Situation) -> String {
    let possible = Algorithm::ALL.into_iter().filter(|&algorithm| obstacle(situation, algorithm).is_none());
    possible.map(Algorithm::name).collect::<Vec<_>>().join(", ")
}

/// Why an algorithm cannot run.
pub fn obstacle(situation: &Situation, algorithm: Algorithm) -> Option<String> {
    let Situation { kind, bytes, push_capacity, line_capacity, .. } = *situation;
    let computes = kind.reduces();
    if computes && algorithm.determinism() < situation.determinism {
        return Some(format!("it is {}, the call asks for {}", "rank-identical", situation.determinism.name()));
    }
    if situation.connection == Connection::Ordered && algorithm != Algorithm::HostOrdered {
        return Some(
            "GPUs are shared by processes or do not reach each other, so no kernel may wait for another".into(),
        );
    }
    match algorithm {
        Algorithm::OneShotPush if bytes > push_capacity => Some(format!("its slots hold {push_capacity} bytes")),
        Algorithm::LinePush if situation.connection != Connection::FullNvlink => {
            Some("its lines are kept together by NVLink alone".into())
        }
        Algorithm::LinePush if !matches!(kind, Kind::AllReduce | Kind::AllReduceNorm) => {
            Some("it is an algorithm of all_reduce".into())
        }
        Algorithm::LinePush if bytes > line_capacity => Some(format!("its slots hold {line_capacity} bytes")),
        Algorithm::TwoShotPush | Algorithm::TwoShot | Algorithm::ShardPush | Algorithm::Ring | Algorithm::Multicast
            if kind != Kind::AllReduce =>
        {
            Some("it is an algorithm of all_reduce".into())
        }
        Algorithm::ShardPush if !situation.registered => Some("its outputs must be registered".into()),
        Algorithm::OneShotPull | Algorithm::Ring if kind == Kind::AllReduceNorm => {
            Some("the fused call has no such kernel".into())
        }
        Algorithm::Multicast => Some("its kernel is compiled and inspected, but has run nowhere yet".into()),
        Algorithm::HostOrdered if situation.captured => Some("hosts cannot act in a graph".into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::{Launch, TableMachine as Machine};

    const SITUATION: Situation = Situation {
        kind: Kind::AllReduce,
        bytes: 8192,
        determinism: Determinism::RankIdentical,
        captured: true,
        registered: false,
        connection: Connection::FullNvlink,
        ranks: 2,
        push_capacity: 1 << 20,
        line_capacity: 8 << 20,
        most_blocks: 132,
    };

    #[test]
    fn the_table_decides() {
        let table = Table::built_in("sm_90", 2).unwrap();
        let at = |bytes| choose(&Situation { bytes, ..SITUATION }, Some(&table), None).unwrap();
        assert_eq!(at(0).algorithm, Algorithm::OneShotPush);
        assert_eq!(at(1 << 30).algorithm, Algorithm::TwoShot);
        assert!(at(8192).to_string().contains("one-shot-push"));
        let few = Situation { most_blocks: 2, bytes: 64 << 10, ..SITUATION };
        assert_eq!(choose(&few, Some(&table), None).unwrap().blocks, 2 * (512 / 64));
    }

    #[test]
    fn no_block_is_launched_for_nothing() {
        let table = Table::built_in("sm_90", 2).unwrap();
        for (table, forced) in [(Some(&table), None), (None, None), (None, Some(Algorithm::OneShotPush))] {
            for bytes in [0, 1, 8, 1000, 2048, 16 << 10, 64 << 10] {
                let choice = choose(&Situation { bytes, ..SITUATION }, table, forced).unwrap();
                let busy = bytes.div_ceil(8).div_ceil(choice.threads.into()).max(1);
                assert!(u64::from(choice.blocks) <= busy, "{bytes} bytes: {choice:?}");
            }
        }
    }

    #[test]
    fn what_cannot_run_is_not_chosen() {
        let table = Table::built_in("sm_90", 2).unwrap();
        let small = Situation { push_capacity: 100, line_capacity: 100, ..SITUATION };
        let choice = choose(&small, Some(&table), None).unwrap();
        assert_eq!(choice.algorithm, Algorithm::TwoShot);
        assert!(choice.reason.contains("its slots hold 100 bytes"), "{}", choice.reason);
        let shared = Situation { connection: Connection::Ordered, captured: false, ..SITUATION };
        assert_eq!(choose(&shared, Some(&table), None).unwrap().algorithm, Algorithm::HostOrdered);
        assert_eq!(choose(&SITUATION, None, None).unwrap().algorithm, Algorithm::OneShotPush);
    }

    #[test]
    fn every_choice_can_run() {
        let connections = [Connection::FullNvlink, Connection::Partial, Connection::Ordered];
        for kind in Kind::ALL {
            for (bytes, determinism) in [
                (0, Determinism::RankIdentical),
                (1 << 20, Determinism::SizeInvariant),
                (1 << 30, Determinism::default()),
            ] {
                for connection in connections {
                    for ranks in [1, 2, 3, 8, 72] {
                        let captured = false;
                        let situation =
                            Situation { kind, bytes, determinism, connection, captured, ranks, ..SITUATION };
                        let table = Table::built_in("sm_100", ranks);
                        let choice = choose(&situation, table.as_ref(), None).unwrap();
                        let obstacle = obstacle(&situation, choice.algorithm);
                        assert!(obstacle.is_none(), "{situation:?}: {choice:?}: {obstacle:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn lines_are_for_any_number_of_ranks_where_they_are_asked_for() {
        for ranks in [2, 3, 4, 5, 8, 16, 72] {
            for kind in [Kind::AllReduce, Kind::AllReduceNorm] {
                let situation = Situation { kind, ranks, bytes: 4 << 20, ..SITUATION };
                let forced = choose(&situation, None, Some(Algorithm::LinePush)).unwrap();
                assert_eq!(forced.algorithm, Algorithm::LinePush, "{ranks} ranks");
                let launch = Launch { algorithm: Algorithm::LinePush, blocks: 7, threads: 96, registered: false };
                let machine = Table::built_in("sm_90", 2).unwrap().machine;
                let tuned = Table::of_launch(Machine { ranks, ..machine }, kind, situation.captured, &launch);
                let tuned = choose(&situation, Some(&tuned), None).unwrap();
                assert_eq!((tuned.algorithm, tuned.blocks), (Algorithm::LinePush, 7), "{ranks} ranks");
            }
        }
    }

    #[test]
    fn lines_are_taken_unasked_by_two_ranks_alone() {
        let small = Situation { push_capacity: 0, ..SITUATION };
        let by_lines = |ranks, architecture, kind, captured| {
            let table = Table::built_in(architecture, ranks);
            (4..24).any(|power| {
                let situation = Situation { ranks, kind, captured, bytes: 1 << power, ..small };
                choose(&situation, table.as_ref(), None).unwrap().algorithm == Algorithm::LinePush
            })
        };
        for architecture in ["sm_80", "sm_90", "sm_100"] {
            for kind in [Kind::AllReduce, Kind::AllReduceNorm] {
                for captured in [false, true] {
                    assert!(by_lines(2, architecture, kind, captured), "{architecture} {kind}");
                    for ranks in [3, 4, 5, 6, 7, 8, 16, 72] {
                        assert!(!by_lines(ranks, architecture, kind, captured), "{ranks} ranks, {architecture} {kind}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_forced_runs_or_says_why_not() {
        let forced = |algorithm| choose(&SITUATION, None, Some(algorithm));
        assert_eq!(forced(Algorithm::Ring).unwrap().algorithm, Algorithm::Ring);
        let error = forced(Algorithm::Multicast).unwrap_err().to_string();
        assert!(error.contains("has run nowhere") && error.contains("two-shot"), "{error}");
        let invariant = Situation { determinism: Determinism::SizeInvariant, ..SITUATION };
        let error = choose(&invariant, None, Some(Algorithm::Ring)).unwrap_err().to_string();
        assert!(error.contains("size-invariant"), "{error}");
    }
}
