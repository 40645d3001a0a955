//! Crossmesh's side of one shape. In: shape, variants. Out: times and wrong elements. Guarantee: every run moves new values
//! into poisoned memory; a rank that is done sleeps until all are; then every element is compared.

use super::arena::Arena;
use super::arguments::{Memory, Variant};
use super::shape::Shape;
use crate::bench::error::BenchError;
use crate::bench::pattern::POISON;
use crate::bench::{clock, deadline};
use crossmesh::base::Rank;
use crossmesh::comm::{Buffer, Buffers, CommError, Communicator, Reshard, ReshardOptions, Side};
use crossmesh::layout::{Layout, View};
use crossmesh::plan::Manifest;
use std::sync::Arc;
use std::time::Duration;

/// One run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Timing {
    /// From the first rank's start to the last rank's end.
    pub(super) seconds: f64,
    /// From the first rank's start to the last rank's.
    pub(super) start_spread: f64,
    /// Elements that were not what they should be.
    pub(super) wrong: u64,
}

/// A rank's memory of one side.
#[derive(Debug)]
struct Held {
    arena: Arena,
    buffer: Buffer,
}

/// A rank's memory of one kind.
#[derive(Debug)]
struct Sides {
    kind: Memory,
    source: Option<Held>,
    destination: Option<Held>,
}

/// The transfers of one shape.
pub(super) struct Moving<'a> {
    shape: &'a Shape,
    // Before the memory: a transfer holds it.
    transfers: Vec<Reshard>,
    sides: Vec<Sides>,
    /// Which sides each transfer moves.
    sides_of: Vec<usize>,
    /// Ranks that take part; `None` on the others.
    group: Option<Communicator>,
}

impl<'a> Moving<'a> {
    /// Prepares every variant; collective over the world.
    pub(super) fn new(world: &Communicator, shape: &'a Shape, variants: &[Variant]) -> Result<Self, BenchError> {
        let takes_part = world.rank().0 < shape.ranks();
        let group = world.split(takes_part.then_some(0), 0, deadline()?)?;
        let mut moving = Self { shape, transfers: Vec::new(), sides: Vec::new(), sides_of: Vec::new(), group };
        let Some(group) = &moving.group else { return Ok(moving) };
        let [source, destination] = shape.layouts()?;
        let mut manifest = Manifest::new();
        for tensor in 0..shape.tensors {
            manifest.push(format!("{}.{tensor}", shape.name), source.clone(), destination.clone())?;
        }
        let manifest = Arc::new(manifest);
        for variant in variants {
            let known = moving.sides.iter().position(|sides| sides.kind == variant.memory);
            let number = match known {
                Some(number) => number,
                None => {
                    moving.sides.push(Sides::new(shape, [&source, &destination], group.rank(), variant.memory)?);
                    moving.sides.len() - 1
                }
            };
            let buffers = moving.sides[number].buffers(&manifest);
            let options = ReshardOptions { route: variant.route };
            let transfer = group.reshard_init(&manifest, &buffers, options, deadline()?)?;
            let forced = transfer.report().route;
            if forced != variant.route {
                let name = |route: crossmesh::route::RouteOptions| format!("{} ({})", route.kind, route.injection);
                return Err(BenchError::RouteForced { wanted: name(variant.route), forced: name(forced) });
            }
            moving.transfers.push(transfer);
            moving.sides_of.push(number);
        }
        Ok(moving)
    }

    /// Runs a variant once; collective over the world, all ranks get the same.
    pub(super) fn run(&mut self, world: &Communicator, variant: usize, seed: u32) -> Result<Timing, BenchError> {
        let mine = self.run_here(variant, seed)?;
        let encoded = mine.map(|rank| rank.encode()).unwrap_or_default();
        let all = world.allgather(&encoded, deadline()?)?;
        Ok(RankTiming::join(all.iter().filter_map(|bytes| RankTiming::decode(bytes))))
    }

    fn run_here(&mut self, variant: usize, seed: u32) -> Result<Option<RankTiming>, BenchError> {
        let Some(group) = &self.group else { return Ok(None) };
        let sides = &self.sides[self.sides_of[variant]];
        sides.prepare(self.shape, seed)?;
        clock::start_together(group, deadline()?)?;
        let began = clock::now()?;
        self.transfers[variant].start().map_err(CommError::from)?;
        self.transfers[variant].wait(deadline()?).map_err(CommError::from)?;
        let ended = clock::now()?;
        // Sleeps: the others get the core.
        group.barrier(deadline()?)?;
        Ok(Some(RankTiming { began, ended, wrong: sides.count_wrong(self.shape, seed)? }))
    }
}

impl Sides {
    fn new(shape: &Shape, layouts: [&Layout; 2], rank: Rank, kind: Memory) -> Result<Self, BenchError> {
        let held = |side: u64, layout: &Layout| -> Result<Option<Held>, BenchError> {
            let Some(arena) = Arena::new(shape, layout, rank, side) else { return Ok(None) };
            let buffer = match kind {
                Memory::Shared => Buffer::shared(arena.bytes),
                Memory::Private => Buffer::private(arena.bytes),
            };
            Ok(Some(Held { buffer: buffer.map_err(CommError::from)?, arena }))
        };
        Ok(Self { kind, source: held(0, layouts[0])?, destination: held(1, layouts[1])? })
    }

    fn buffers(&self, manifest: &Manifest) -> Buffers {
        let mut buffers = Buffers::new(manifest);
        for (side, held) in [(Side::Source, &self.source), (Side::Destination, &self.destination)] {
            let Some(held) = held else { continue };
            for (tensor, &offset) in held.arena.offsets.iter().enumerate() {
                buffers.set(side, tensor, held.buffer.clone(), View::at(offset));
            }
        }
        buffers
    }

    /// New values in sources, poison in destinations.
    fn prepare(&self, shape: &Shape, seed: u32) -> Result<(), BenchError> {
        if let Some(source) = &self.source {
            source.arena.fill(shape, &mut source.buffer.write().map_err(CommError::from)?, seed);
        }
        if let Some(destination) = &self.destination {
            destination.buffer.write().map_err(CommError::from)?.fill(POISON);
        }
        Ok(())
    }

    fn count_wrong(&self, shape: &Shape, seed: u32) -> Result<u64, BenchError> {
        let Some(destination) = &self.destination else { return Ok(0) };
        Ok(destination.arena.count_wrong(shape, &destination.buffer.read().map_err(CommError::from)?, seed))
    }
}

/// One rank's part of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RankTiming {
    began: Duration,
    ended: Duration,
    wrong: u64,
}

impl RankTiming {
    fn encode(self) -> Vec<u8> {
        let words = [self.began.as_nanos() as u64, self.ended.as_nanos() as u64, self.wrong];
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks::<8>();
        let [began, ended, wrong] = *words else { return None };
        let nanos = |word| Duration::from_nanos(u64::from_le_bytes(word));
        let whole = Self { began: nanos(began), ended: nanos(ended), wrong: u64::from_le_bytes(wrong) };
        rest.is_empty().then_some(whole)
    }

    fn join(ranks: impl Iterator<Item = Self> + Clone) -> Timing {
        let first = ranks.clone().map(|rank| rank.began).min().unwrap_or_default();
        let last_start = ranks.clone().map(|rank| rank.began).max().unwrap_or_default();
        let last = ranks.clone().map(|rank| rank.ended).max().unwrap_or_default();
        Timing {
            seconds: last.saturating_sub(first).as_secs_f64(),
            start_spread: last_start.saturating_sub(first).as_secs_f64(),
            wrong: ranks.map(|rank| rank.wrong).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_from_the_first_start_to_the_last_end() {
        let rank = |began, ended, wrong| RankTiming {
            began: Duration::from_millis(began),
            ended: Duration::from_millis(ended),
            wrong,
        };
        let ranks = [rank(1000, 1500, 0), rank(1100, 1300, 3), rank(1050, 2000, 1)];
        assert_eq!(RankTiming::join(ranks.into_iter()), Timing { seconds: 1.0, start_spread: 0.1, wrong: 4 });
        assert_eq!(RankTiming::decode(&ranks[1].encode()), Some(ranks[1]));
        assert_eq!(RankTiming::decode(&[]), None);
        assert_eq!(RankTiming::decode(&[0; 25]), None);
    }
}
