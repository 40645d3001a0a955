//! Why a kernel gave up, in words. In: a verdict. Out: a [`CollectiveError`] that names ranks and calls. Guarantee: pure.

use super::CollectiveError;
use crate::base::Rank;
use crate::collective::call::{difference, read};
use crate::memory::device::collective::params::{CollectiveVerdict, Header, reason, wait};
use std::time::Duration;

/// The error of rank `rank` whose kernel left `verdict`; waits were limited to `limit`.
pub(super) fn error_of(verdict: &CollectiveVerdict, rank: Rank, limit: Duration) -> CollectiveError {
    let (peer, sequence, mine) = (Rank(verdict.peer), verdict.sequence, described(&verdict.mine));
    let differs = if verdict.theirs.sequence() == sequence { difference(&verdict.mine, &verdict.theirs) } else { None };
    match (verdict.reason, differs) {
        (reason::MISMATCH | reason::POISON, Some((field, my_value, their_value))) if peer != rank => {
            mismatch(sequence, (rank, &verdict.mine), (peer, &verdict.theirs), (field, my_value, their_value))
        }
        (reason::ABORT, _) => CollectiveError::Aborted { rank, sequence, mine },
        (reason::POISON, _) => {
            CollectiveError::Poisoned { rank, peer, sequence, mine, theirs: last_call(verdict, peer) }
        }
        _ => CollectiveError::TimedOut {
            rank,
            peer,
            phase: phase(verdict.wait),
            sequence,
            mine,
            block: verdict.block,
            theirs: last_call(verdict, peer),
            seconds: limit.as_secs_f64(),
        },
    }
}

/// Two ranks make different calls.
pub(super) fn mismatch(
    sequence: u64,
    (rank, mine): (Rank, &Header),
    (peer, theirs): (Rank, &Header),
    (field, my_value, their_value): (&'static str, String, String),
) -> CollectiveError {
    let (mine, theirs) = (described(mine), described(theirs));
    CollectiveError::Mismatch { sequence, rank, mine, peer, theirs, field, my_value, their_value }
}

fn described(header: &Header) -> String {
    match read(header) {
        Some((call, launch)) => format!("{call} by {}", launch.algorithm),
        None => "no call".into(),
    }
}

/// What the peer did last, as far as its header shows.
fn last_call(verdict: &CollectiveVerdict, peer: Rank) -> String {
    let theirs = verdict.theirs;
    match theirs.sequence() {
        0 => format!("rank {peer} has made no call yet"),
        sequence if sequence == verdict.sequence => format!("rank {peer} has come to the same call"),
        sequence => format!("rank {peer} came to call {sequence} last ({})", described(&theirs)),
    }
}

fn phase(of: u32) -> &'static str {
    match of {
        wait::WORD => "data",
        wait::ENTER => "the arrival",
        wait::MIDDLE => "the results",
        wait::LEAVE => "the end",
        wait::CLEAN => "the cleared slots",
        _ => "the start",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::{Algorithm, Call, Kind, Launch, ReduceOperation, header};
    use crate::layout::Dtype;

    fn header_of(count: u64, sequence: u64) -> Header {
        let operation = ReduceOperation::Sum;
        let call = Call { kind: Kind::AllReduce, count, dtype: Dtype::BF16, operation, root: 0 };
        let launch = Launch { algorithm: Algorithm::OneShotPush, blocks: 2, threads: 64, registered: false };
        let (low, high) = (sequence as u32, (sequence >> 32) as u32);
        Header { sequence_low: low, sequence_again: low, sequence_high: high, ..header(&call, &launch) }
    }

    fn text(reason: u32, mine: Header, theirs: Header) -> String {
        let sequence = mine.sequence();
        let verdict = CollectiveVerdict { reason, peer: 1, sequence, mine, theirs, ..CollectiveVerdict::default() };
        error_of(&verdict, Rank(0), Duration::from_secs(5)).to_string()
    }

    #[test]
    fn both_ranks_and_both_calls_are_named() {
        for reason in [reason::MISMATCH, reason::POISON] {
            let text = text(reason, header_of(4096, 9), header_of(8192, 9));
            for part in ["call 9", "rank 0", "rank 1", "4096 BF16", "8192 BF16", "count: 4096 and 8192"] {
                assert!(text.contains(part), "{part:?} is not in {text}");
            }
        }
    }

    #[test]
    fn a_rank_that_did_not_come_is_named_with_its_last_call() {
        let late = text(reason::LIMIT, header_of(4096, 9), header_of(512, 7));
        assert!(late.contains("came to call 7 last") && late.contains("512 BF16") && late.contains("5.0 s"), "{late}");
        let never = text(reason::LIMIT, header_of(4096, 9), Header::default());
        assert!(never.contains("rank 1 has made no call"), "{never}");
        let same = text(reason::POISON, header_of(4096, 9), header_of(4096, 9));
        assert!(same.contains("rank 1 gave up") && same.contains("the same call"), "{same}");
    }
}
