//! How GPUs of a domain pass on what is there and what comes into it. In: the shape of domains, what ranks have to do inside
//! them. Out: steps, and the ranks that take each together. Guarantee: pure, the same on all ranks of a domain, and named
//! unlike any other transfer's.

use super::gpu::{Shape, StageFlows};
use super::{Group, agree};
use crate::base::Rank;
use serde::{Deserialize, Serialize};

/// Chunks that a rank passes on in a part, and most parts: the last one is passed on when nothing else comes.
const PART: u64 = 16;
const MOST_PARTS: u64 = 8;

/// What there is to do inside a domain: of one rank, or of all of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Inside {
    /// Something is read that is there from the start.
    pub(super) held: bool,
    /// What was read so is read again by others.
    pub(super) relayed: bool,
    /// Most bytes that come to a rank for others.
    pub(super) passes_on: u64,
}

impl Inside {
    /// Of both.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            held: self.held || other.held,
            relayed: self.relayed || other.relayed,
            passes_on: self.passes_on.max(other.passes_on),
        }
    }
}

/// What ranks of a domain do together, one after the other on the stream of a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Read what is there from the start: when all have started.
    Held,
    /// Read what others read so: when all have that.
    Relayed,
    /// Read a part of what comes from outside: when all have it that pass it on.
    Part(u32),
    /// End: when nobody reads from another any more.
    Done,
}

/// The steps of one transfer at one rank; none where its GPU passes nothing on and reads nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Passing {
    /// How many parts of what comes there are.
    pub(super) parts: u32,
    pub(super) steps: Vec<Step>,
    /// A name for each step.
    pub(super) contexts: Vec<u64>,
    /// World ranks that take them together.
    pub(super) members: Vec<Rank>,
}

impl Passing {
    /// The steps of this rank, given what there is to do in each domain of the shape; `context` names the transfer.
    pub(super) fn of(group: &Group, shape: &Shape, inside: &[Inside], (context, chunk): (u64, u64)) -> Self {
        let inside = inside[shape.topology.domain(group.rank).index()];
        if !shape.has(group.rank) || inside == Inside::default() {
            return Self::default();
        }
        let parts = match inside.passes_on {
            0 => 0,
            bytes => (bytes / chunk.saturating_mul(PART).max(1)).clamp(1, MOST_PARTS) as u32,
        };
        let held = inside.held.then_some(Step::Held);
        let relayed = inside.relayed.then_some(Step::Relayed);
        let steps: Vec<Step> =
            held.into_iter().chain(relayed).chain((0..parts).map(Step::Part)).chain([Step::Done]).collect();
        let members: Vec<Rank> = shape.neighbours(group.rank).map(|rank| group.world(rank)).collect();
        let first = members.first().copied().unwrap_or_default();
        let name = |step| agree::context("steps of a transfer", &[context, first.0.into(), step]);
        let contexts = (0..steps.len() as u64).map(name).collect();
        Self { parts, steps, contexts, members }
    }

    /// What each step but the last moves, of the groups of flows that [`in_parts`](crate::route::in_parts) makes.
    pub(super) fn stages(&self) -> Vec<StageFlows> {
        let stage = |step: &Step| match step {
            Step::Held => Some(StageFlows { flows: 0, relayed: false }),
            Step::Relayed => Some(StageFlows { flows: 0, relayed: true }),
            Step::Part(part) => Some(StageFlows { flows: 1 + *part as usize, relayed: false }),
            Step::Done => None,
        };
        self.steps.iter().filter_map(stage).collect()
    }
}
