//! Transfers between two ranks. In: group, size, link. Out: completion times, round-trip times, wrong bytes. Guarantee: the
//! data is new for every measurement, destinations are poisoned before it and compared after it.

use super::arguments::Link;
use crate::bench::error::BenchError;
use crate::bench::pattern::{self, Element, POISON};
use crate::bench::{clock, deadline};
use crossmesh::base::Rank;
use crossmesh::comm::{Buffer, Buffers, CommError, Communicator, Reshard, ReshardOptions, Side};
use crossmesh::layout::{Dtype, Layout, Mesh, Placement, View};
use crossmesh::plan::Manifest;
use crossmesh::route::{Injection, RouteKind, RouteOptions};
use std::sync::Arc;
use std::time::Duration;

/// One persistent transfer of one contiguous tensor.
pub(super) struct Lane {
    transfer: Reshard,
    side: Side,
    buffer: Buffer,
}

/// What one size took on this rank.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Measured {
    pub(super) times: Vec<Duration>,
    /// Bytes of this rank's destinations that are not what they should be.
    pub(super) wrong: u64,
}

impl Lane {
    /// From one rank of a group of two to the other; collective.
    pub(super) fn new(group: &Communicator, from: Rank, link: Link, bytes: u64) -> Result<Self, BenchError> {
        let to = Rank(1 - from.0);
        let on = |rank| -> Result<Arc<Layout>, BenchError> {
            let mesh = Arc::new(Mesh::new(vec![1], vec![rank])?);
            Ok(Arc::new(Layout::new(vec![bytes], Dtype::U8, mesh, vec![Placement::Replicate])?))
        };
        let mut manifest = Manifest::new();
        manifest.push("lane", on(from)?, on(to)?)?;
        let manifest = Arc::new(manifest);
        let side = if group.rank() == from { Side::Source } else { Side::Destination };
        let buffer = if link == Link::Process { Buffer::private(bytes) } else { Buffer::shared(bytes) };
        let buffer = buffer.map_err(CommError::from)?;
        let mut buffers = Buffers::new(&manifest);
        buffers.set(side, 0, buffer.clone(), View::contiguous());
        let route = RouteOptions { kind: RouteKind::Flat, injection: Injection::Single };
        let transfer = group.reshard_init(&manifest, &buffers, ReshardOptions { route }, deadline()?)?;
        Ok(Self { transfer, side, buffer })
    }

    /// Staging memory that this rank needs for it.
    pub(super) fn staging(&self) -> u64 {
        self.transfer.report().staging_bytes
    }

    fn start(&mut self) -> Result<(), BenchError> {
        Ok(self.transfer.start().map_err(CommError::from)?)
    }

    fn wait(&mut self) -> Result<(), BenchError> {
        Ok(self.transfer.wait(deadline()?).map_err(CommError::from)?)
    }

    fn prepare(&self, seed: u32) -> Result<(), BenchError> {
        let mut bytes = self.buffer.write().map_err(CommError::from)?;
        match self.side {
            Side::Source => fill(&mut bytes, seed),
            Side::Destination => bytes.fill(POISON),
        }
        Ok(())
    }

    fn count_wrong(&self, seed: u32) -> Result<u64, BenchError> {
        if self.side == Side::Source {
            return Ok(0);
        }
        Ok(count_wrong(&self.buffer.read().map_err(CommError::from)?, seed))
    }
}

/// Many transfers one after the other, as many in flight as there are lanes: when each was finished, from the start.
pub(super) fn rate(group: &Communicator, lanes: &mut [Lane], count: u64, seed: u32) -> Result<Measured, BenchError> {
    // Once before, so that nothing is done for the first time.
    for lane in lanes.iter_mut() {
        lane.start()?;
        lane.wait()?;
    }
    for lane in lanes.iter() {
        lane.prepare(seed)?;
    }
    let lane_count = lanes.len() as u64;
    let mut times = Vec::with_capacity(count as usize);
    clock::start_together(group, deadline()?)?;
    let begun = clock::now()?;
    for lane in lanes.iter_mut().take(count as usize) {
        lane.start()?;
    }
    for number in 0..count {
        let lane = &mut lanes[(number % lane_count) as usize];
        lane.wait()?;
        times.push(clock::now()?.saturating_sub(begun));
        if number + lane_count < count {
            lane.start()?;
        }
    }
    group.barrier(deadline()?)?;
    // A lane whose turn never came holds poison.
    let used = lanes.iter().take(count as usize);
    let wrong = used.map(|lane| lane.count_wrong(seed)).sum::<Result<u64, _>>()?;
    Ok(Measured { times, wrong })
}

/// There and back, over and over: half of each round trip, as rank 0 sees it.
pub(super) fn latency(
    group: &Communicator,
    [there, back]: [&mut Lane; 2],
    count: u64,
    seed: u32,
) -> Result<Measured, BenchError> {
    let leads = group.rank() == Rank(0);
    let mut times = Vec::with_capacity(count as usize);
    there.prepare(seed)?;
    back.prepare(seed)?;
    clock::start_together(group, deadline()?)?;
    // The first round warms up.
    for round in 0..=count {
        let begun = clock::now()?;
        there.start()?;
        if leads {
            // The answer is awaited before it is due.
            back.start()?;
            there.wait()?;
        } else {
            there.wait()?;
            back.start()?;
        }
        back.wait()?;
        if round > 0 {
            times.push(clock::now()?.saturating_sub(begun) / 2);
        }
    }
    group.barrier(deadline()?)?;
    Ok(Measured { times, wrong: there.count_wrong(seed)? + back.count_wrong(seed)? })
}

/// Any number of bytes, the last ones cut from an element.
fn fill(bytes: &mut [u8], seed: u32) {
    let whole = bytes.len() / 4 * 4;
    pattern::fill_row(&mut bytes[..whole], Element::F32, 0, seed);
    let last = last_element(whole, seed);
    let rest = bytes.len() - whole;
    bytes[whole..].copy_from_slice(&last[..rest]);
}

fn count_wrong(bytes: &[u8], seed: u32) -> u64 {
    let whole = bytes.len() / 4 * 4;
    let last = last_element(whole, seed);
    let rest = bytes[whole..].iter().zip(last).filter(|(byte, wanted)| *byte != wanted).count() as u64;
    pattern::wrong_in_row(&bytes[..whole], Element::F32, 0, seed) + rest
}

fn last_element(whole: usize, seed: u32) -> [u8; 4] {
    let mut last = [0; 4];
    pattern::fill_row(&mut last, Element::F32, (whole / 4) as u32, seed);
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_any_length_counts() {
        for length in [1, 3, 4, 8, 1001] {
            let mut bytes = vec![0; length];
            fill(&mut bytes, 77);
            assert_eq!(count_wrong(&bytes, 77), 0, "{length}");
            for at in 0..length {
                bytes[at] ^= 0x80;
                assert_eq!(count_wrong(&bytes, 77), 1, "{length}, {at}");
                bytes[at] ^= 0x80;
            }
        }
    }
}
