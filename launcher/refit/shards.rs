//! This rank's memory for a model. In: model, layouts, rank. Out: manifest, one buffer per side with every tensor's
//! view, filled sources. Guarantee: tensors start on multiples of 64 bytes; sources hold what the model says.

use super::error::RefitError;
use super::sides::{MemoryChoice, Request};
use crate::checkpoint::{Model, Region};
use crossmesh::base::Rank;
use crossmesh::comm::{Buffer, Buffers, CommError, Side};
use crossmesh::layout::parallel::{FusedTensor, Rules};
use crossmesh::layout::{AxisMap, View};
use crossmesh::plan::{Manifest, ModelManifest, ModelSide, model_manifest};
use std::collections::{BTreeSet, HashMap};

const ALIGNMENT: u64 = 64;

/// A box of a tensor as a rank stores it: global first index, extent, local first index, and local distance between
/// neighbours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredBox {
    pub(super) lo: Vec<u64>,
    pub(super) extent: Vec<u64>,
    pub(super) local: Vec<u64>,
    pub(super) step: Vec<u64>,
}

impl StoredBox {
    /// First byte of the box in its local tensor of `strides` bytes, and the distances between its own neighbours.
    pub(super) fn place(&self, strides: &[u64]) -> (u64, Vec<u64>) {
        let start = self.local.iter().zip(strides).map(|(&index, &stride)| index * stride).sum();
        (start, self.step.iter().zip(strides).map(|(&step, &stride)| step * stride).collect())
    }
}

/// Where one side's tensors of this rank will lie in one buffer, those of a fused tensor in the same place of it.
#[derive(Debug)]
pub(super) struct SideLayout {
    bytes: u64,
    tensors: Vec<Option<(u64, Vec<u64>)>>,
    transposed: BTreeSet<usize>,
}

/// One side's memory of this rank.
#[derive(Debug)]
pub(super) struct SideMemory {
    pub(super) buffer: Buffer,
    /// Per tensor: byte offset and local shape; `None` when the rank is not in its mesh. Parts of a fused tensor have
    /// those of the whole.
    pub(super) tensors: Vec<Option<(u64, Vec<u64>)>>,
    /// Numbers of tensors whose last two dimensions change places in memory.
    transposed: BTreeSet<usize>,
}

/// Every tensor of the model with both layouts, what each side stores fused, and the names that no rule knows.
pub(super) fn manifest(
    model: &Model,
    rules: &Rules,
    request: &Request,
    sources: &[Rank],
    destinations: &[Rank],
) -> Result<ModelManifest, RefitError> {
    let described = model.description(&request.model.display().to_string())?;
    let source = ModelSide { spec: &request.src.spec, ranks: sources, rules };
    let destination = ModelSide { spec: &request.dst.spec, ranks: destinations, rules };
    let made = model_manifest(&described, source, destination)?;
    match request.cast {
        Some(dtype) => {
            let manifest = made.manifest.cast_to(dtype, &made.keep_dtype)?;
            Ok(ModelManifest { manifest, ..made })
        }
        None => Ok(made),
    }
}

impl SideLayout {
    /// Lays this rank's tensors of one side out.
    pub(super) fn new(manifest: &Manifest, fused: &[FusedTensor], rank: Rank, side: Side) -> Result<Self, RefitError> {
        let mut next = 0u64;
        let mut tensors: Vec<Option<(u64, Vec<u64>)>> = Vec::with_capacity(manifest.tensors().len());
        let parts = |(number, fused): (usize, &FusedTensor)| {
            fused.tensors.iter().map(move |&part| (part, number)).collect::<Vec<_>>()
        };
        let fused: HashMap<usize, usize> = fused.iter().enumerate().flat_map(parts).collect();
        let mut placed: HashMap<usize, u64> = HashMap::new();
        for (index, tensor) in manifest.tensors().iter().enumerate() {
            let layout = match side {
                Side::Source => &tensor.source,
                Side::Destination => &tensor.destination,
            };
            let Some(shape) = layout.local_shape(rank) else {
                tensors.push(None);
                continue;
            };
            let whole = fused.get(&index);
            let offset = match whole.and_then(|whole| placed.get(whole)) {
                Some(&offset) => offset,
                None => {
                    let end = next.checked_add(layout.local_bytes(rank)).ok_or(RefitError::TooLarge)?;
                    std::mem::replace(&mut next, end.checked_next_multiple_of(ALIGNMENT).ok_or(RefitError::TooLarge)?)
                }
            };
            if let Some(&whole) = whole {
                placed.insert(whole, offset);
            }
            tensors.push(Some((offset, shape)));
        }
        Ok(Self { bytes: next, tensors, transposed: BTreeSet::new() })
    }

    /// The same where the last two dimensions of these tensors change places in memory.
    pub(super) fn with_transposed(self, transposed: &[usize]) -> Self {
        Self { transposed: transposed.iter().copied().collect(), ..self }
    }

    /// What the buffer takes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The same with its buffer.
    pub(super) fn allocate(self, memory: MemoryChoice) -> Result<SideMemory, RefitError> {
        let Self { bytes, tensors, transposed } = self;
        let buffer = match memory {
            MemoryChoice::Shared => Buffer::shared(bytes),
            MemoryChoice::Private => Buffer::private(bytes),
        };
        Ok(SideMemory { buffer: buffer.map_err(CommError::from)?, tensors, transposed })
    }
}

impl SideMemory {
    /// Whether the last two dimensions of tensor number `index` change places in memory.
    pub(super) fn is_transposed(&self, index: usize) -> bool {
        self.transposed.contains(&index)
    }

    /// Byte strides of local tensor number `index`, of `shape`, with elements of `element` bytes.
    pub(super) fn strides(&self, index: usize, shape: &[u64], element: u64) -> Vec<u64> {
        if !self.is_transposed(index) {
            return byte_strides(shape, element);
        }
        let mut strides = byte_strides(&swapped(shape), element);
        let last = strides.len() - 1;
        strides.swap(last - 1, last);
        strides
    }

    /// Hands the tensors to a transfer.
    pub(super) fn give(&self, buffers: &mut Buffers, side: Side) {
        for (index, tensor) in self.tensors.iter().enumerate() {
            if let Some((offset, shape)) = tensor {
                let view = match self.is_transposed(index) {
                    true => View::strided(*offset, self.strides(index, shape, 1)),
                    false => View::at(*offset),
                };
                buffers.set(side, index, self.buffer.clone(), view);
            }
        }
    }
}

/// The same with the last two dimensions in the other order.
pub(super) fn swapped(shape: &[u64]) -> Vec<u64> {
    let mut shape = shape.to_vec();
    if let [.., rows, columns] = shape.as_mut_slice() {
        std::mem::swap(rows, columns);
    }
    shape
}

/// Boxes that `maps` store: the product of their intervals.
pub(super) fn stored_boxes(maps: &[AxisMap]) -> Vec<StoredBox> {
    let mut boxes = vec![StoredBox { lo: vec![], extent: vec![], local: vec![], step: vec![] }];
    for map in maps {
        let mut extended = Vec::with_capacity(boxes.len() * map.segments().len());
        for segment in map.segments() {
            extended.extend(boxes.iter().cloned().map(|mut stored| {
                stored.lo.push(segment.global.lo);
                stored.extent.push(segment.global.len());
                stored.local.push(segment.local);
                stored.step.push(segment.step);
                stored
            }));
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
            if stored.extent == *shape && !memory.is_transposed(index) {
                model.gather(index, region, local)?;
            } else {
                gather_part(model, index, region, &stored, &memory.strides(index, shape, element), element, local)?;
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
    strides: &[u64],
    element: u64,
    local: &mut [u8],
) -> Result<(), RefitError> {
    let mut packed = vec![0u8; (stored.extent.iter().product::<u64>() * element) as usize];
    model.gather(tensor, region, &mut packed)?;
    for_each_row(stored, strides, element, |packed_at, local_at, bytes| {
        local[local_at..local_at + bytes].copy_from_slice(&packed[packed_at..packed_at + bytes]);
    });
    Ok(())
}

/// Contiguous rows of a box: (offset in the packed box, offset in the local tensor, bytes).
pub(super) fn for_each_row(
    stored: &StoredBox,
    strides: &[u64],
    element: u64,
    mut each: impl FnMut(usize, usize, usize),
) {
    let (start, strides) = stored.place(strides);
    // The last dimension is a row unless its elements lie apart.
    let inner = strides.last().is_some_and(|&stride| stride == element);
    let outer = &stored.extent[..stored.extent.len() - usize::from(inner)];
    let row = if inner { stored.extent.last().map_or(1, |&extent| extent) } else { 1 } * element;
    let rows: u64 = outer.iter().product();
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
        assert_eq!(boxes[1], StoredBox { lo: vec![0, 2], extent: vec![1, 3], local: vec![2, 0], step: vec![1, 1] });
        let mut rows = Vec::new();
        for_each_row(&boxes[0], &byte_strides(&[3, 3], 2), 2, |packed, local, bytes| rows.push((packed, local, bytes)));
        assert_eq!(rows, [(0, 0, 6), (6, 6, 6)]);
        assert!(stored_boxes(&[AxisMap::new([])]).is_empty());
        assert_eq!(stored_boxes(&[]).len(), 1);
    }
}
