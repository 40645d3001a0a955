//! One transfer and its verification. In: ranks, a model, its manifest, this rank's memory. Out: seconds of every run.
//! Guarantee: every step is reached by every rank, or fails on all; nothing passes verification by having been there
//! already.

use super::consent::agree;
use super::error::RefitError;
use super::job::{SPEAKER, deadline};
use super::progress::Progress;
use super::shards::SideMemory;
use super::verify::{self, Held};
use crate::checkpoint::Model;
use crossmesh::comm::{Buffers, CommError, Communicator, Reshard, ReshardOptions, Side};
use crossmesh::plan::Manifest;
use crossmesh::route::RouteOptions;
use std::sync::Arc;
use std::time::Instant;

/// What moves between which ranks.
pub(super) struct Transfer<'a> {
    pub(super) world: &'a Communicator,
    pub(super) model: &'a Model,
    pub(super) manifest: &'a Arc<Manifest>,
    pub(super) source: &'a SideMemory,
    pub(super) destination: &'a SideMemory,
    pub(super) repeat: u32,
    pub(super) verify: bool,
}

impl Transfer<'_> {
    /// Prepares it.
    pub(super) fn init(&self, route: RouteOptions) -> Result<Reshard, RefitError> {
        let mut buffers = Buffers::new(self.manifest);
        self.source.give(&mut buffers, Side::Source);
        self.destination.give(&mut buffers, Side::Destination);
        let prepared = self.world.reshard_init(self.manifest, &buffers, ReshardOptions { route }, deadline()?);
        agree(self.world, prepared.map_err(RefitError::from), deadline()?)
    }

    /// Runs it as often as asked; seconds of this rank.
    pub(super) fn run(&self, transfer: &mut Reshard) -> Result<Vec<f64>, RefitError> {
        let mut seconds = Vec::new();
        let progress = Progress::new(transfer, self.repeat, self.world.rank() == SPEAKER)?;
        for run in 0..self.repeat {
            progress.between(transfer, run);
            if self.verify {
                self.destination.buffer.write().map_err(CommError::from)?.fill(verify::POISON);
            }
            self.world.barrier(deadline()?)?;
            let begun = Instant::now();
            transfer.start().map_err(CommError::from)?;
            progress.wait(transfer, run, deadline()?).map_err(CommError::from)?;
            seconds.push(begun.elapsed().as_secs_f64());
        }
        Ok(seconds)
    }

    /// The sum of all ranks' counts.
    pub(super) fn sum(&self, count: u64) -> Result<u64, RefitError> {
        let all = self.world.allgather(&count.to_le_bytes(), deadline()?)?;
        // Every rank sends eight bytes.
        Ok(all.iter().filter_map(|bytes| bytes.as_slice().try_into().ok()).map(u64::from_le_bytes).sum())
    }

    /// Compares every byte and every digest, and the count of values that became infinite.
    pub(super) fn check(&self, saturated: u64) -> Result<(), RefitError> {
        let held = |memory| Held { memory, rank: self.world.rank() };
        let promised = verify::promised(self.manifest, self.world.size(), &held(self.source));
        let (promised, counted) = agree(self.world, promised, deadline()?)?;
        let counted = self.sum(counted)?;
        let same = if counted == saturated { Ok(()) } else { Err(RefitError::Saturated { saturated, counted }) };
        agree(self.world, same, deadline()?)?;
        let all = self.world.allgather(&verify::encode(&promised), deadline()?)?;
        let expected = verify::expected(self.world.rank(), &all);
        let mine =
            expected.and_then(|expected| verify::check(self.model, self.manifest, &held(self.destination), &expected));
        agree(self.world, mine, deadline()?)
    }
}
