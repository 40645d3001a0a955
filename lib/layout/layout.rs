//! A tensor's layout. In: shape, dtype, mesh, placements. Out: axis maps per dimension and rank. Guarantee: see
//! the module head; construction checks everything, accessors cannot fail.

use super::value::LayoutFields;
use super::{AxisMap, Dtype, Interval, LayoutError, Mesh, Placement, Reduction, Split};
use crate::base::{Rank, bytes};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// How a tensor lies on a mesh.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "LayoutFields", into = "LayoutFields")]
pub struct Layout {
    shape: Vec<u64>,
    dtype: Dtype,
    mesh: Arc<Mesh>,
    placements: Vec<Placement>,
    /// Per dimension the mesh axes that shard it, outermost first.
    nesting: Vec<Vec<usize>>,
    /// For block scales: shape of the weight and indices of a block, per dimension.
    blocks: Option<(Vec<u64>, Vec<u64>)>,
    /// One element, which destinations hold in padding; the bytes behind it are zero.
    padding: Option<[u8; 8]>,
}

/// One combination of coordinates along the axes that shard a dimension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AxisShard {
    /// What those coordinates add to the slot number.
    pub slot_offset: usize,
    /// What ranks there hold of the dimension.
    pub map: AxisMap,
}

/// All shards of one dimension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DimensionMap {
    /// One entry per combination of coordinates.
    pub shards: Vec<AxisShard>,
}

impl Layout {
    /// Most tensor dimensions.
    pub const MAX_RANK: usize = 8;
    /// Most runs of indices of one dimension that maps of several axes together may make.
    const MOST_SEGMENTS: u64 = 1 << 22;

    /// A layout; axes on one dimension nest in mesh axis order, the first outermost.
    pub fn new(
        shape: Vec<u64>,
        dtype: Dtype,
        mesh: Arc<Mesh>,
        placements: Vec<Placement>,
    ) -> Result<Self, LayoutError> {
        let layout = Self::unchecked(shape, dtype, mesh, placements)?;
        layout.check_parts()?;
        Ok(layout)
    }

    /// A layout whose axes nest as stated: for every dimension those that shard it, outermost first.
    pub fn nested(
        shape: Vec<u64>,
        dtype: Dtype,
        mesh: Arc<Mesh>,
        placements: Vec<Placement>,
        nesting: Vec<Vec<usize>>,
    ) -> Result<Self, LayoutError> {
        let layout = Self::unchecked(shape, dtype, mesh, placements)?;
        if nesting.len() != layout.shape.len() {
            return Err(LayoutError::Nesting { dim: nesting.len(), given: Vec::new(), axes: Vec::new() });
        }
        for (dim, (given, axes)) in nesting.iter().zip(&layout.nesting).enumerate() {
            let mut sorted = given.clone();
            sorted.sort_unstable();
            if sorted != *axes {
                return Err(LayoutError::Nesting { dim, given: given.clone(), axes: axes.clone() });
            }
        }
        let layout = Self { nesting, ..layout };
        layout.check_parts()?;
        Ok(layout)
    }

    /// A layout in mesh axis order, whose parts may not exist yet.
    fn unchecked(
        shape: Vec<u64>,
        dtype: Dtype,
        mesh: Arc<Mesh>,
        placements: Vec<Placement>,
    ) -> Result<Self, LayoutError> {
        if shape.len() > Self::MAX_RANK {
            return Err(LayoutError::TooManyDimensions { rank: shape.len() });
        }
        let mut extents = shape.clone();
        extents.push(dtype.bytes());
        bytes::product(&extents)?;
        if placements.len() != mesh.shape().len() {
            return Err(LayoutError::PlacementCount { placements: placements.len(), axes: mesh.shape().len() });
        }
        let mut nesting = vec![Vec::new(); shape.len()];
        for (axis, placement) in placements.iter().enumerate() {
            if matches!(placement, Placement::Partial(_)) && !Reduction::DTYPES.contains(&dtype) {
                return Err(LayoutError::PartialDtype { axis, dtype });
            }
            if let Some(dim) = placement.dim() {
                let Some(axes) = nesting.get_mut(dim) else {
                    return Err(LayoutError::NoSuchDimension { axis, dim, rank: shape.len() });
                };
                axes.push(axis);
                check_count(placement, axis, mesh.shape()[axis])?;
            }
        }
        Ok(Self { shape, dtype, mesh, placements, nesting, blocks: None, padding: None })
    }

    /// The same with another nesting order of the axes that shard `dim`, outermost first; an inner axis splits
    /// what the outer one left (PyTorch's strided shard is the reversed order).
    pub fn with_nesting(mut self, dim: usize, axes: &[usize]) -> Result<Self, LayoutError> {
        let current = self.nesting.get(dim).cloned().unwrap_or_default();
        let mut sorted = axes.to_vec();
        sorted.sort_unstable();
        if sorted != current || axes.is_empty() {
            return Err(LayoutError::Nesting { dim, given: axes.to_vec(), axes: current });
        }
        self.nesting[dim] = axes.to_vec();
        self.check_parts()?;
        Ok(self)
    }

    /// The same layout of elements of another type. Stated padding must be zeros, which are zeros in every type.
    pub fn with_dtype(&self, dtype: Dtype) -> Result<Self, LayoutError> {
        let mut extents = self.shape.clone();
        extents.push(dtype.bytes());
        bytes::product(&extents)?;
        if dtype != self.dtype && self.padding.is_some_and(|padding| padding != [0; 8]) {
            return Err(LayoutError::PaddingDtype { from: self.dtype, to: dtype });
        }
        let partial = self.placements.iter().position(|placement| matches!(placement, Placement::Partial(_)));
        match partial.filter(|_| !Reduction::DTYPES.contains(&dtype)) {
            Some(axis) => Err(LayoutError::PartialDtype { axis, dtype }),
            None => Ok(Self { dtype, ..self.clone() }),
        }
    }

    /// The same with padding that every transfer writes to destinations, as the bytes of one element. Without it
    /// padding is left as it is.
    pub fn with_padding(mut self, element: &[u8]) -> Result<Self, LayoutError> {
        let size = self.dtype.bytes();
        if element.len() as u64 != size {
            return Err(LayoutError::PaddingValue { bytes: element.len(), element: size });
        }
        let mut padding = [0; 8];
        padding[..element.len()].copy_from_slice(element);
        self.padding = Some(padding);
        Ok(self)
    }

    /// The layout of a tensor of `dtype` with one element for every block of this one, of so many indices per dimension:
    /// the scales beside a block-quantised weight. A rank stores the scale of every block of which it stores an index,
    /// so that a block cut by a shard border is on both sides of it.
    pub fn block_scales(&self, blocks: &[u64], dtype: Dtype) -> Result<Self, LayoutError> {
        if self.blocks.is_some() {
            return Err(LayoutError::BlockTwice);
        }
        if blocks.len() != self.shape.len() {
            return Err(LayoutError::BlockRank { blocks: blocks.len(), rank: self.shape.len() });
        }
        for (dim, &block) in blocks.iter().enumerate() {
            self.dimension(dim).shards.iter().try_for_each(|shard| shard.map.blocks(block).map(|_| ()))?;
        }
        let shape = self.shape.iter().zip(blocks).map(|(extent, &block)| extent.div_ceil(block)).collect();
        let blocks = Some((self.shape.clone(), blocks.to_vec()));
        let scales = Self { shape, dtype, blocks, padding: None, ..self.clone() };
        scales.check_parts()?;
        Ok(scales)
    }

    /// Global shape.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The mesh, which layouts share.
    pub(super) fn shared_mesh(&self) -> Arc<Mesh> {
        self.mesh.clone()
    }

    /// One placement per mesh axis.
    pub fn placements(&self) -> &[Placement] {
        &self.placements
    }

    /// The element that destinations hold in padding.
    pub fn padding(&self) -> Option<&[u8]> {
        Some(&self.padding.as_ref()?[..self.dtype.bytes() as usize])
    }

    /// For block scales the shape of the weight and the indices of a block, per dimension.
    pub fn blocks(&self) -> Option<(&[u64], &[u64])> {
        self.blocks.as_ref().map(|(shape, blocks)| (shape.as_slice(), blocks.as_slice()))
    }

    /// Indices that the axes cut: those of the weight for block scales.
    fn indices(&self, dim: usize) -> u64 {
        self.blocks.as_ref().map_or(self.shape[dim], |(weight, _)| weight[dim])
    }

    /// Whether any axis has stated parts, so that ranks may repeat, reorder or leave out indices.
    pub fn has_parts(&self) -> bool {
        self.placements.iter().any(|placement| matches!(placement, Placement::Parts { .. }))
    }

    /// Axes that shard each dimension, outermost first.
    pub fn nesting(&self) -> &[Vec<usize>] {
        &self.nesting
    }

    /// Bytes of the whole tensor.
    pub fn global_bytes(&self) -> u64 {
        byte_count(&self.shape, self.dtype)
    }

    /// What `rank` holds of every dimension; `None` when it is not in the mesh.
    pub fn axis_maps(&self, rank: Rank) -> Option<Vec<AxisMap>> {
        let coordinates = self.mesh.coordinates(self.mesh.slot(rank)?);
        Some((0..self.shape.len()).map(|dim| self.axis_map(dim, &coordinates)).collect())
    }

    /// Extents of `rank`'s local tensor; `None` when it is not in the mesh.
    pub fn local_shape(&self, rank: Rank) -> Option<Vec<u64>> {
        Some(self.axis_maps(rank)?.iter().map(AxisMap::extent).collect())
    }

    /// Bytes of `rank`'s local tensor, zero when it is not in the mesh.
    pub fn local_bytes(&self, rank: Rank) -> u64 {
        self.local_shape(rank).map_or(0, |shape| byte_count(&shape, self.dtype))
    }

    /// All shards of `dim`.
    pub fn dimension(&self, dim: usize) -> DimensionMap {
        let mut shards = Vec::new();
        let mut coordinates = vec![0u32; self.mesh.shape().len()];
        let axes = &self.nesting[dim];
        loop {
            let slot_offset = axes.iter().map(|&axis| coordinates[axis] as usize * self.mesh.stride(axis)).sum();
            shards.push(AxisShard { slot_offset, map: self.axis_map(dim, &coordinates) });
            if !step(&mut coordinates, axes, self.mesh.shape()) {
                return DimensionMap { shards };
            }
        }
    }

    /// The shards of `dim` that hold any index of `part`; where axes split it, found by descending them, without
    /// listing the others.
    pub fn dimension_within(&self, dim: usize, part: Interval) -> DimensionMap {
        let splits = |&axis: &usize| matches!(self.placements[axis], Placement::Shard { .. });
        if self.blocks.is_some() || !self.nesting[dim].iter().all(splits) {
            let mut all = self.dimension(dim);
            let meets = |held: Interval| held.lo.max(part.lo) < held.hi.min(part.hi);
            all.shards.retain(|shard| shard.map.intervals().any(meets));
            return all;
        }
        let mut shards = Vec::new();
        let mut coordinates = vec![0u32; self.mesh.shape().len()];
        let whole = Interval { lo: 0, hi: self.shape[dim] };
        self.descend(dim, &self.nesting[dim], whole, part, &mut coordinates, &mut shards);
        DimensionMap { shards }
    }

    /// Collects the shards of `whole`, which the outer axes left, that meet `part`.
    fn descend(
        &self,
        dim: usize,
        axes: &[usize],
        whole: Interval,
        part: Interval,
        coordinates: &mut Vec<u32>,
        shards: &mut Vec<AxisShard>,
    ) {
        let Some((&axis, inner)) = axes.split_first() else {
            let slot_offset =
                self.nesting[dim].iter().map(|&axis| coordinates[axis] as usize * self.mesh.stride(axis)).sum();
            shards.push(AxisShard { slot_offset, map: self.axis_map(dim, coordinates) });
            return;
        };
        let Placement::Shard { split, .. } = &self.placements[axis] else { return };
        for coordinate in split.meeting(whole, part, self.mesh.shape()[axis]) {
            coordinates[axis] = coordinate;
            self.descend(dim, inner, split.part(whole, coordinate, self.mesh.shape()[axis]), part, coordinates, shards);
        }
        coordinates[axis] = 0;
    }

    /// Slot offsets of the replicas, or of their terms: every combination of coordinates along the axes that shard nothing.
    pub fn replica_offsets(&self) -> Vec<usize> {
        self.offsets_along(|placement| placement.dim().is_none())
    }

    /// Slot offsets of the terms of an element: every combination of coordinates along the partial axes, ascending, the
    /// last axis fastest; one where no axis is partial.
    pub fn term_offsets(&self) -> Vec<usize> {
        self.offsets_along(|placement| matches!(placement, Placement::Partial(_)))
    }

    /// How ranks reduce their terms; `None` where every rank holds whole elements.
    pub fn reduction(&self) -> Option<Reduction> {
        let axes = self.placements.iter().zip(self.mesh.shape());
        axes.filter(|&(_, &ranks)| ranks > 1).find_map(|(placement, _)| match placement {
            Placement::Partial(reduction) => Some(*reduction),
            _ => None,
        })
    }

    fn offsets_along(&self, along: impl Fn(&Placement) -> bool) -> Vec<usize> {
        let axes: Vec<usize> = (0..self.placements.len()).filter(|&axis| along(&self.placements[axis])).collect();
        let mut coordinates = vec![0u32; self.mesh.shape().len()];
        let mut offsets = Vec::new();
        loop {
            offsets.push(axes.iter().map(|&axis| coordinates[axis] as usize * self.mesh.stride(axis)).sum());
            if !step(&mut coordinates, &axes, self.mesh.shape()) {
                return offsets;
            }
        }
    }

    fn axis_map(&self, dim: usize, coordinates: &[u32]) -> AxisMap {
        // Indices of `map`, or of the whole dimension while no axis has arranged it.
        let mut part = Interval { lo: 0, hi: self.indices(dim) };
        let mut map: Option<AxisMap> = None;
        for &axis in &self.nesting[dim] {
            let coordinate = coordinates[axis];
            match &self.placements[axis] {
                Placement::Replicate | Placement::Partial(_) => {}
                Placement::Shard { split, .. } => part = split.part(part, coordinate, self.mesh.shape()[axis]),
                Placement::Parts { maps, .. } => {
                    let next = cut(map, part).compose(&maps[coordinate as usize]);
                    part = Interval { lo: 0, hi: next.extent() };
                    map = Some(next);
                }
            }
        }
        let map = cut(map, part);
        match &self.blocks {
            // Tried for every shard when the layout was made.
            Some((_, blocks)) => map.blocks(blocks[dim]).unwrap_or_default(),
            None => map,
        }
    }

    /// Every list of sizes must sum to each part that it splits, every stated part must exist, in runs that memory can
    /// hold, and the largest local tensor must fit 64 bits.
    fn check_parts(&self) -> Result<(), LayoutError> {
        let mut largest = vec![self.dtype.bytes()];
        for (dim, axes) in self.nesting.iter().enumerate() {
            // All that the axes so far may leave.
            let mut extents = BTreeSet::from([self.indices(dim)]);
            let mut segments = 1u64;
            for &axis in axes {
                extents = self.extents_left(dim, axis, &extents)?;
                segments = segments.saturating_mul(self.placements[axis].most_segments());
            }
            if segments > Self::MOST_SEGMENTS {
                return Err(LayoutError::MapsTooFine { dim, segments, most: Self::MOST_SEGMENTS });
            }
            largest.push(extents.last().copied().unwrap_or(0));
        }
        bytes::product(&largest)?;
        Ok(())
    }

    /// What `axis` leaves of dimension `dim` at any coordinate, from any of `extents`.
    fn extents_left(&self, dim: usize, axis: usize, extents: &BTreeSet<u64>) -> Result<BTreeSet<u64>, LayoutError> {
        let count = self.mesh.shape()[axis];
        match &self.placements[axis] {
            Placement::Replicate | Placement::Partial(_) => Ok(extents.clone()),
            Placement::Shard { split, .. } => {
                if let Split::Sizes(sizes) = split {
                    let sum = sizes.iter().try_fold(0u64, |sum, &size| sum.checked_add(size));
                    if let Some(&extent) = extents.iter().find(|&&extent| sum != Some(extent)) {
                        let (sizes, sum) = (sizes.clone(), sum.unwrap_or(u64::MAX));
                        return Err(LayoutError::SizesSum { axis, dim, sizes, sum, extent });
                    }
                }
                Ok(extents.iter().flat_map(|&extent| split.lengths(extent, count)).collect())
            }
            Placement::Parts { maps, .. } => {
                let extent = extents.first().copied().unwrap_or(0);
                for (coordinate, map) in maps.iter().enumerate() {
                    if let Some(Interval { lo, hi }) = map.intervals().find(|interval| interval.hi > extent) {
                        return Err(LayoutError::MapOutside { axis, coordinate, dim, lo, hi, extent });
                    }
                }
                Ok(maps.iter().map(AxisMap::extent).collect())
            }
        }
    }
}

/// Indices `part` of `map`, or of the whole dimension.
fn cut(map: Option<AxisMap>, part: Interval) -> AxisMap {
    match map {
        None => AxisMap::new([part]),
        Some(map) if part.len() == map.extent() => map,
        Some(map) => map.compose(&AxisMap::new([part])),
    }
}

/// Lists must have an entry for every coordinate.
fn check_count(placement: &Placement, axis: usize, ranks: u32) -> Result<(), LayoutError> {
    match placement {
        Placement::Shard { split: Split::Sizes(sizes), .. } if sizes.len() != ranks as usize => {
            Err(LayoutError::SizesCount { axis, ranks, sizes: sizes.len() })
        }
        Placement::Parts { maps, .. } if maps.len() != ranks as usize => {
            Err(LayoutError::MapsCount { axis, ranks, maps: maps.len() })
        }
        _ => Ok(()),
    }
}

/// Bytes of a checked shape; a zero extent counts first, since the others may multiply beyond 64 bits.
fn byte_count(shape: &[u64], dtype: Dtype) -> u64 {
    if shape.contains(&0) { 0 } else { shape.iter().product::<u64>() * dtype.bytes() }
}

/// Advances `coordinates` along `axes`, the last fastest; false after the last combination.
fn step(coordinates: &mut [u32], axes: &[usize], shape: &[u32]) -> bool {
    for &axis in axes.iter().rev() {
        coordinates[axis] += 1;
        if coordinates[axis] < shape[axis] {
            return true;
        }
        coordinates[axis] = 0;
    }
    false
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
