//! Proof that every byte arrived. In: model, manifest, both sides' memory. Out: nothing, or the first difference.
//! Guarantee: digests are computed from the source ranks' own memory and from the destinations'; and where the model is
//! on the host, every destination byte is compared with what the model says.

use super::cast;
use super::error::RefitError;
use super::shards::{SideMemory, StoredBox, byte_strides, for_each_row, stored_boxes};
use crate::checkpoint::{Model, Region};
use crossmesh::base::Rank;
use crossmesh::comm::CommError;
use crossmesh::layout::content_digest::{TensorBox, digest_box, name_seed};
use crossmesh::layout::{Dtype, Interval, Layout, Location};
use crossmesh::plan::{Manifest, Plan};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Byte that destinations are filled with before a transfer, so that nothing passes by being there already.
pub(super) const POISON: u8 = 0xa5;

/// Digests by (destination rank, tensor); they add up over disjoint parts.
pub(super) type Digests = BTreeMap<(u32, u32), u64>;

/// What a rank's memory of one side says.
pub(super) struct Held<'a> {
    pub(super) memory: &'a SideMemory,
    pub(super) rank: Rank,
}

/// Digests that this rank's sources promise: for every cell of which it is the lowest holder, to every wanter, as often
/// as that stores it. And how many of their finite values a cast makes infinite.
pub(super) fn promised(manifest: &Arc<Manifest>, size: usize, held: &Held<'_>) -> Result<(Digests, u64), RefitError> {
    let plan = Plan::compile(manifest.clone(), size)?;
    let bytes = held.memory.buffer.read().map_err(CommError::from)?;
    let mut digests = Digests::new();
    let mut saturated = 0;
    for class in plan.classes().iter().filter(|class| class.holders.first() == Some(&held.rank)) {
        for &cell in &class.cells {
            let tensor = &manifest.tensors()[cell.tensor as usize];
            let intervals = &plan.cell(cell).intervals;
            let Some(maps) = tensor.source.axis_maps(held.rank) else { continue };
            let places = maps.iter().zip(intervals).map(|(map, &interval)| map.locate(interval));
            let Some(places) = places.collect::<Option<Vec<Location>>>() else { continue };
            let part = StoredBox {
                lo: intervals.iter().map(|interval| interval.lo).collect(),
                extent: intervals.iter().map(Interval::len).collect(),
                local: places.iter().map(|place| place.local).collect(),
                step: places.iter().map(|place| place.step).collect(),
            };
            let wanted = tensor.destination.dtype();
            let (digest, infinite) = digest(&part, (&tensor.name, cell.tensor), &tensor.source, wanted, held, &bytes)?;
            saturated += infinite;
            for &wanter in &class.wanters {
                let copies = copies(&tensor.destination, wanter, intervals);
                let sum = digests.entry((wanter.0, cell.tensor)).or_default();
                *sum = sum.wrapping_add(digest.wrapping_mul(copies));
            }
        }
    }
    Ok((digests, saturated))
}

/// How often `rank` stores a box.
fn copies(layout: &Layout, rank: Rank, intervals: &[Interval]) -> u64 {
    if !layout.has_parts() {
        return 1;
    }
    let maps = layout.axis_maps(rank).unwrap_or_default();
    maps.iter().zip(intervals).map(|(map, &interval)| map.places(interval).count() as u64).product()
}

/// Digest of what the elements of a box of a local tensor are as elements of `wanted`, and how many become infinite.
fn digest(
    part: &StoredBox,
    (name, tensor): (&str, u32),
    layout: &Layout,
    wanted: Dtype,
    held: &Held<'_>,
    bytes: &[u8],
) -> Result<(u64, u64), RefitError> {
    let Some((offset, shape)) = &held.memory.tensors[tensor as usize] else { return Ok((0, 0)) };
    let (start, strides) = part.place(&byte_strides(shape, layout.dtype().bytes()));
    let region = TensorBox {
        bytes: &bytes[(offset + start) as usize..(offset + layout.local_bytes(held.rank)) as usize],
        dtype: layout.dtype(),
        shape: layout.shape(),
        lo: &part.lo,
        extent: &part.extent,
        strides: &strides,
    };
    let digest = |region: &TensorBox<'_>| {
        let digest = digest_box(region, name_seed(name));
        digest.map_err(|source| RefitError::Digest { tensor: name.to_string(), source })
    };
    if layout.dtype() == wanted {
        return Ok((digest(&region)?, 0));
    }
    let (bytes, saturated) = cast::cast(&cast::packed(&region), layout.dtype(), wanted);
    let strides = byte_strides(&part.extent, wanted.bytes());
    let region = TensorBox { bytes: &bytes, dtype: wanted, strides: &strides, ..region };
    Ok((digest(&region)?, saturated))
}

/// Digests for the other ranks.
pub(super) fn encode(promised: &Digests) -> Vec<u8> {
    let listed: Vec<(u32, u32, u64)> = promised.iter().map(|(&(rank, tensor), &sum)| (rank, tensor, sum)).collect();
    // Plain numbers always have a JSON form.
    serde_json::to_vec(&listed).unwrap_or_default()
}

/// Adds up what all source ranks, in `all` by rank, promised to `rank`.
pub(super) fn expected(rank: Rank, all: &[Vec<u8>]) -> Result<BTreeMap<u32, u64>, RefitError> {
    let mut expected = BTreeMap::new();
    for (from, bytes) in all.iter().enumerate() {
        let theirs: Vec<(u32, u32, u64)> =
            serde_json::from_slice(bytes).map_err(|source| RefitError::Digests { rank: Rank(from as u32), source })?;
        for (_, tensor, digest) in theirs.into_iter().filter(|&(to, _, _)| to == rank.0) {
            let sum: &mut u64 = expected.entry(tensor).or_default();
            *sum = sum.wrapping_add(digest);
        }
    }
    Ok(expected)
}

/// Compares this rank's destinations with the digests and with the model.
pub(super) fn check(
    model: &Model,
    manifest: &Manifest,
    held: &Held<'_>,
    expected: &BTreeMap<u32, u64>,
) -> Result<(), RefitError> {
    let bytes = held.memory.buffer.read().map_err(CommError::from)?;
    for (index, tensor) in manifest.tensors().iter().enumerate() {
        let layout = &tensor.destination;
        let (Some((offset, shape)), Some(maps)) = (&held.memory.tensors[index], layout.axis_maps(held.rank)) else {
            continue;
        };
        let wrong = |what: String| RefitError::Wrong {
            tensor: tensor.name.clone(),
            dtype: layout.dtype(),
            rank: held.rank,
            what,
        };
        let strides = byte_strides(shape, layout.dtype().bytes());
        let local = &bytes[*offset as usize..][..layout.local_bytes(held.rank) as usize];
        let mut found = 0u64;
        for stored in stored_boxes(&maps) {
            let (sum, _) = digest(&stored, (&tensor.name, index as u32), layout, layout.dtype(), held, &bytes)?;
            found = found.wrapping_add(sum);
            let region = Region { lo: &stored.lo, extent: &stored.extent };
            let dtypes = (tensor.source.dtype(), layout.dtype());
            let matched = if !model.is_here() {
                Ok(())
            } else if stored.extent == *shape {
                cast::matches(model, index, region, dtypes, local)
            } else {
                let mut packed = vec![0u8; (stored.extent.iter().product::<u64>() * layout.dtype().bytes()) as usize];
                for_each_row(&stored, &strides, layout.dtype().bytes(), |to, from, count| {
                    packed[to..to + count].copy_from_slice(&local[from..from + count]);
                });
                cast::matches(model, index, region, dtypes, &packed)
            };
            matched.map_err(|error| wrong(error.to_string()))?;
        }
        let promised = expected.get(&(index as u32)).copied().unwrap_or(0);
        if found != promised {
            return Err(wrong(format!("digest {found:016x}, its sources say {promised:016x}")));
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "verify_tests.rs"]
mod tests;
