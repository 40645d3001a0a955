//! This rank's memory for a model. In: model, layouts, rank. Out: manifest, one buffer per side with every tensor's
//! view, filled sources. Guarantee: tensors start on multiples of 64 bytes; sources hold what the model says.

use super::error::RefitError;
use super::sides::{MemoryChoice, Request};
use crate::checkpoint::{Model, Region};
use crate::plain_file;
use crossmesh::base::Rank;
use crossmesh::comm::{Buffer, Buffers, CommError, Side};
use crossmesh::layout::model::ModelTensor;
use crossmesh::layout::parallel::Rules;
use crossmesh::layout::{self, AxisMap, View};
use crossmesh::plan::{Manifest, ModelManifest, ModelSide, model_manifest};
use std::path::Path;

const ALIGNMENT: u64 = 64;

/// A box of a tensor as a rank stores it: global first index, extent, local first index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredBox {
    pub(super) lo: Vec<u64>,
    pub(super) extent: Vec<u64>,
    pub(super) local: Vec<u64>,
}

/// One side's memory of this rank.
#[derive(Debug)]
pub(super) struct SideMemory {
    pub(super) buffer: Buffer,
    /// Per tensor: byte offset and local shape; `None` when the rank is not in its mesh.
    pub(super) tensors: Vec<Option<(u64, Vec<u64>)>>,
}

/// Rules from the embedded files and, before them, the user's.
pub(super) fn rules(path: Option<&Path>) -> Result<Rules, RefitError> {
    let embedded = Rules::embedded()?;
    let Some(path) = path else { return Ok(embedded) };
    let text =
        plain_file::read_text(path).map_err(|source| RefitError::RulesFile { path: path.to_path_buf(), source })?;
    Ok(embedded.with_overrides(Rules::parse(&text, &path.display().to_string())?))
}

/// Every tensor of the model with both layouts, and the names that no rule knows.
pub(super) fn manifest(
    model: &Model,
    rules: &Rules,
    request: &Request,
    sources: &[Rank],
    destinations: &[Rank],
) -> Result<(Manifest, Vec<String>), RefitError> {
    let tensors =
        model.tensors().iter().map(|tensor| ModelTensor::new(&tensor.name, tensor.shape.clone(), tensor.dtype));
    let described = layout::model::Model::new("given", tensors.collect())?;
    let source = ModelSide { spec: &request.src.spec, ranks: sources, rules };
    let destination = ModelSide { spec: &request.dst.spec, ranks: destinations, rules };
    let ModelManifest { manifest, unmatched } = model_manifest(&described, source, destination)?;
    match request.cast {
        Some(dtype) => Ok((manifest.cast_to(dtype)?, unmatched)),
        None => Ok((manifest, unmatched)),
    }
}

impl SideMemory {
    /// Lays this rank's tensors of one side out in one buffer.
    pub(super) fn allocate(
        manifest: &Manifest,
        rank: Rank,
        side: Side,
        memory: MemoryChoice,
    ) -> Result<Self, RefitError> {
        let mut next = 0u64;
        let mut tensors = Vec::with_capacity(manifest.tensors().len());
        for tensor in manifest.tensors() {
            let layout = match side {
                Side::Source => &tensor.source,
                Side::Destination => &tensor.destination,
            };
            let shape = layout.local_shape(rank);
            let offset = next;
            if shape.is_some() {
                let end = offset.checked_add(layout.local_bytes(rank)).ok_or(RefitError::TooLarge)?;
                next = end.checked_next_multiple_of(ALIGNMENT).ok_or(RefitError::TooLarge)?;
            }
            tensors.push(shape.map(|shape| (offset, shape)));
        }
        let buffer = match memory {
            MemoryChoice::Shared => Buffer::shared(next),
            MemoryChoice::Private => Buffer::private(next),
        };
        Ok(Self { buffer: buffer.map_err(CommError::from)?, tensors })
    }

    /// Hands the tensors to a transfer.
    pub(super) fn give(&self, buffers: &mut Buffers, side: Side) {
        for (index, tensor) in self.tensors.iter().enumerate() {
            if let Some((offset, _)) = tensor {
                buffers.set(side, index, self.buffer.clone(), View::at(*offset));
            }
        }
    }
}

/// Boxes that `maps` store: the product of their intervals.
pub(super) fn stored_boxes(maps: &[AxisMap]) -> Vec<StoredBox> {
    let mut boxes = vec![StoredBox { lo: vec![], extent: vec![], local: vec![] }];
    for map in maps {
        let mut local = 0;
        let mut extended = Vec::with_capacity(boxes.len() * map.intervals().len());
        for interval in map.intervals() {
            extended.extend(boxes.iter().cloned().map(|mut stored| {
                stored.lo.push(interval.lo);
                stored.extent.push(interval.len());
                stored.local.push(local);
                stored
            }));
            local += interval.len();
        }
        boxes = extended;
    }
    boxes
}

/// Row-major byte strides of a local tensor.
pub(super) fn byte_strides(shape: &[u64], element: u64) -> Vec<u64> {
    let mut strides = vec![element; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim].saturating_mul(shape[dim].max(1));
    }
    strides
}

/// First byte of a box in its local tensor.
pub(super) fn local_start(stored: &StoredBox, strides: &[u64]) -> u64 {
    stored.local.iter().zip(strides).map(|(&index, &stride)| index * stride).sum()
}

/// Reads this rank's source shards from the model.
pub(super) fn fill(model: &Model, manifest: &Manifest, rank: Rank, memory: &SideMemory) -> Result<(), RefitError> {
    let mut bytes = memory.buffer.write().map_err(CommError::from)?;
    for (index, tensor) in manifest.tensors().iter().enumerate() {
        let (Some((offset, shape)), Some(maps)) = (&memory.tensors[index], tensor.source.axis_maps(rank)) else {
            continue;
        };
        let local = &mut bytes[*offset as usize..][..tensor.source.local_bytes(rank) as usize];
        let element = tensor.source.dtype().bytes();
        for stored in stored_boxes(&maps) {
            let region = Region { lo: &stored.lo, extent: &stored.extent };
            if stored.extent == *shape {
                model.gather(index, region, local)?;
            } else {
                gather_part(model, index, region, &stored, shape, element, local)?;
            }
        }
    }
    Ok(())
}

/// Reads a box that is part of the local tensor, row by row.
fn gather_part(
    model: &Model,
    tensor: usize,
    region: Region<'_>,
    stored: &StoredBox,
    shape: &[u64],
    element: u64,
    local: &mut [u8],
) -> Result<(), RefitError> {
    let strides = byte_strides(shape, element);
    let mut packed = vec![0u8; (stored.extent.iter().product::<u64>() * element) as usize];
    model.gather(tensor, region, &mut packed)?;
    for_each_row(stored, &strides, element, |packed_at, local_at, bytes| {
        local[local_at..local_at + bytes].copy_from_slice(&packed[packed_at..packed_at + bytes]);
    });
    Ok(())
}

/// Rows of a box: (offset in the packed box, offset in the local tensor, bytes).
pub(super) fn for_each_row(
    stored: &StoredBox,
    strides: &[u64],
    element: u64,
    mut each: impl FnMut(usize, usize, usize),
) {
    let row = stored.extent.last().map_or(1, |&extent| extent) * element;
    let outer = &stored.extent[..stored.extent.len().saturating_sub(1)];
    let rows: u64 = outer.iter().product();
    let start = local_start(stored, strides);
    for number in 0..rows {
        let mut rest = number;
        let mut at = start;
        for dim in (0..outer.len()).rev() {
            at += rest % outer[dim] * strides[dim];
            rest /= outer[dim];
        }
        each((number * row) as usize, at as usize, row as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossmesh::layout::Interval;

    #[test]
    fn boxes_are_products_of_intervals() {
        let at = |lo, hi| Interval { lo, hi };
        let boxes = stored_boxes(&[AxisMap::new([at(4, 6), at(0, 1)]), AxisMap::new([at(2, 5)])]);
        assert_eq!(boxes.len(), 2);
        assert_eq!(boxes[1], StoredBox { lo: vec![0, 2], extent: vec![1, 3], local: vec![2, 0] });
        let mut rows = Vec::new();
        for_each_row(&boxes[0], &byte_strides(&[3, 3], 2), 2, |packed, local, bytes| rows.push((packed, local, bytes)));
        assert_eq!(rows, [(0, 0, 6), (6, 6, 6)]);
        assert!(stored_boxes(&[AxisMap::new([])]).is_empty());
        assert_eq!(stored_boxes(&[]).len(), 1);
    }
}
