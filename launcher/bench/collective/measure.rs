//! Chains of calls on this rank's GPU, timed and checked. In: a chain, how often. Out: figures over all ranks, elements that were
//! wrong. Guarantee: collective; a chain begins on all devices together, behind a call that waits for all ranks; what is checked
//! is the same graph, or the same calls, as what is timed.

use super::chain::{Chain, Expected, Form};
use super::norm::NormChain;
use super::rig::Rig;
use super::samples::Figures;
use crate::bench::deadline;
use crate::bench::error::BenchError;
use crossmesh::collective::device::{CollectiveError, Rehearsal};
use crossmesh::collective::{Call, Kind, ReduceOperation};
use crossmesh::comm::Communicator;
use crossmesh::layout::Dtype;
use std::time::Instant;

/// How often a chain runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Effort {
    /// Chains that are not timed.
    pub(super) warmups: u32,
    /// Chains that are.
    pub(super) samples: u32,
}

/// Times of a chain's calls.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Timed {
    pub(super) figures: Figures,
    /// Time of the slowest rank's host for a call, microseconds; of calls that are made one by one.
    pub(super) host: Option<f64>,
}

/// What a chain consists of.
#[derive(Debug, Clone)]
pub(super) enum Work {
    Calls(Chain),
    Norms(NormChain),
}

impl Work {
    fn form(&self) -> Form {
        match self {
            Self::Calls(chain) => chain.form,
            Self::Norms(chain) => chain.form,
        }
    }

    fn calls(&self) -> u32 {
        match self {
            Self::Calls(chain) => chain.calls,
            Self::Norms(chain) => chain.calls,
        }
    }

    /// Bytes of memory that it needs.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Calls(chain) => chain.bytes(),
            Self::Norms(chain) => chain.bytes(),
        }
    }

    fn make(&self, rehearsal: &mut Rehearsal, number: u32) -> Result<(), CollectiveError> {
        match self {
            Self::Calls(chain) => {
                let (call, input, output) = chain.step(number);
                rehearsal.call(&call, input, output)
            }
            Self::Norms(chain) => rehearsal.call_norm(chain.shape(), chain.step(number)),
        }
    }

    fn make_all(&self, rehearsal: &mut Rehearsal) -> Result<(), CollectiveError> {
        (0..self.calls()).try_for_each(|number| self.make(rehearsal, number))
    }
}

/// Captures the chain where it is to be captured; afterwards all ranks go on together.
pub(super) fn prepare(rig: &mut Rig<'_>, work: &Work) -> Result<(), BenchError> {
    if work.form().captured {
        rig.rehearsal.record(|rehearsal| work.make_all(rehearsal))?;
    }
    Ok(rig.world.barrier(deadline()?)?)
}

/// Fills the operands, runs the prepared chain once, and counts wrong elements, those of all ranks.
pub(super) fn check(rig: &mut Rig<'_>, work: &Work) -> Result<u64, BenchError> {
    let before = match work {
        Work::Calls(chain) => chain.before(),
        Work::Norms(chain) => chain.before(),
    };
    for Expected { offset, values, first, count } in before {
        rig.rehearsal.write(offset, &values.repeated(first, count), deadline()?)?;
    }
    once(&mut rig.rehearsal, work)?;
    rig.rehearsal.finish(deadline()?)?;
    let mine = match work {
        Work::Calls(chain) => count_wrong(&mut rig.rehearsal, &chain.after()?, chain.call.dtype)?,
        Work::Norms(chain) => chain.count_wrong(&mut rig.rehearsal)?,
    };
    total(rig.world, mine)
}

/// The numbers of all ranks, added up.
pub(super) fn total(world: &Communicator, mine: u64) -> Result<u64, BenchError> {
    let all = world.allgather(&mine.to_le_bytes(), deadline()?)?;
    Ok(all.iter().filter_map(|bytes| bytes.as_slice().try_into().ok()).map(u64::from_le_bytes).sum())
}

/// Elements at places that are not as expected.
pub(super) fn count_wrong(rehearsal: &mut Rehearsal, expected: &[Expected], dtype: Dtype) -> Result<u64, BenchError> {
    let mut wrong = 0;
    for Expected { offset, values, first, count } in expected {
        let mut found = vec![0; (count * dtype.bytes()) as usize];
        rehearsal.read(*offset, &mut found, deadline()?)?;
        wrong += values.wrong(*first, &found);
    }
    Ok(wrong)
}

/// Times the prepared chain.
pub(super) fn time(rig: &mut Rig<'_>, work: &Work, effort: Effort) -> Result<Option<Timed>, BenchError> {
    let rehearsal = &mut rig.rehearsal;
    let cold = work.form().cold;
    let calls = f64::from(work.calls().max(1));
    let mut hosts = Vec::new();
    align(rehearsal)?;
    for number in 0..effort.warmups + effort.samples {
        if cold {
            rehearsal.sweep()?;
            align(rehearsal)?;
        }
        let counts = number >= effort.warmups;
        // Where nothing comes between chains, the end of one is the start of the next.
        if counts && (cold || number == effort.warmups) {
            rehearsal.mark()?;
        }
        let begun = Instant::now();
        once(rehearsal, work)?;
        if counts {
            hosts.push(begun.elapsed().as_secs_f64() * 1e6 / calls);
            rehearsal.mark()?;
        }
    }
    let lengths = rehearsal.finish(deadline()?)?;
    let mine: Vec<f64> = lengths.iter().step_by(if cold { 2 } else { 1 }).map(|length| length / calls).collect();
    let figures = Figures::of(&everyones(rig.world, &mine)?);
    let host = match work.form().captured {
        true => None,
        false => Figures::of(&everyones(rig.world, &hosts)?).map(|figures| figures.p50),
    };
    Ok(figures.map(|figures| Timed { figures, host }))
}

fn once(rehearsal: &mut Rehearsal, work: &Work) -> Result<(), CollectiveError> {
    if work.form().captured { rehearsal.replay() } else { work.make_all(rehearsal) }
}

/// A call without elements: no rank's stream passes it before all have come to it.
pub(super) fn align(rehearsal: &mut Rehearsal) -> Result<(), CollectiveError> {
    let (kind, operation) = (Kind::AllReduce, ReduceOperation::Sum);
    rehearsal.call(&Call { kind, count: 0, dtype: Dtype::U8, operation, root: 0 }, 0, 0)
}

/// The numbers of every rank, on every rank.
pub(super) fn everyones(world: &Communicator, mine: &[f64]) -> Result<Vec<Vec<f64>>, BenchError> {
    let encoded: Vec<u8> = mine.iter().flat_map(|number| number.to_le_bytes()).collect();
    let all = world.allgather(&encoded, deadline()?)?;
    let decode = |bytes: &Vec<u8>| bytes.as_chunks::<8>().0.iter().map(|&word| f64::from_le_bytes(word)).collect();
    Ok(all.iter().map(decode).collect())
}
