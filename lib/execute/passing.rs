//! How GPUs of a domain pass on what comes into it. In: the shape of domains, the number of parts. Out: stages, and the ranks
//! that begin each together. Guarantee: pure, the same on all ranks of a domain, and unlike any other transfer's.

use super::Group;
use super::gpu::Shape;
use crate::base::Rank;
use sha2::{Digest as _, Sha256};

/// The stages of one transfer at one rank: what is there from the start, then each part of what comes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Passing {
    /// How many parts.
    pub(super) parts: u32,
    /// A name for each stage; none for a rank whose GPU passes nothing on.
    pub(super) contexts: Vec<u64>,
    /// World ranks of its domain whose GPUs do.
    pub(super) members: Vec<Rank>,
}

impl Passing {
    /// The stages of this rank; `context` names the transfer.
    pub(super) fn of(group: &Group, shape: Option<&Shape>, context: u64, parts: u32) -> Self {
        let Some(shape) = shape.filter(|shape| shape.has(group.rank)) else { return Self { parts, ..Self::default() } };
        let members: Vec<Rank> = shape.neighbours(group.rank).map(|rank| group.world(rank)).collect();
        let first = members.first().copied().unwrap_or_default();
        let contexts = (0..=parts).map(|stage| name(context, first, stage)).collect();
        Self { parts, contexts, members }
    }

    /// How many stages there are.
    pub(super) fn stages(&self) -> u32 {
        self.contexts.len() as u32
    }
}

/// Names a stage of a transfer in the domain that `first` is the first rank of.
fn name(context: u64, first: Rank, stage: u32) -> u64 {
    let mut hasher = Sha256::new();
    hasher.update(b"stages of a transfer");
    hasher.update(context.to_le_bytes());
    hasher.update(first.0.to_le_bytes());
    hasher.update(stage.to_le_bytes());
    hasher.finalize().iter().take(8).fold(0u64, |sum, &byte| sum << 8 | u64::from(byte)) >> 1 | 1
}
