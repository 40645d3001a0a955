//! A tensor's layout. In: shape, dtype, mesh, placements. Out: axis maps per dimension and rank. Guarantee: see
//! the module head; construction checks everything, accessors cannot fail.

use super::{AxisMap, Dtype, Interval, LayoutError, Mesh, Placement, Reduction, Split};
use crate::base::{Rank, bytes};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How a tensor lies on a mesh.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Layout {
    shape: Vec<u64>,
    dtype: Dtype,
    mesh: Arc<Mesh>,
    placements: Vec<Placement>,
    /// Per dimension the mesh axes that shard it, outermost first.
    nesting: Vec<Vec<usize>>,
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

    /// A layout; axes on one dimension nest in mesh axis order, the first outermost.
    pub fn new(
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
            if let Placement::Shard { dim, split } = placement {
                let Some(axes) = nesting.get_mut(*dim) else {
                    return Err(LayoutError::NoSuchDimension { axis, dim: *dim, rank: shape.len() });
                };
                axes.push(axis);
                let ranks = mesh.shape()[axis];
                if let Split::Sizes(sizes) = split
                    && sizes.len() != ranks as usize
                {
                    return Err(LayoutError::SizesCount { axis, ranks, sizes: sizes.len() });
                }
            }
        }
        let layout = Self { shape, dtype, mesh, placements, nesting };
        layout.check_sizes()?;
        Ok(layout)
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
        self.check_sizes()?;
        Ok(self)
    }

    /// The same layout of elements of another type.
    pub fn with_dtype(&self, dtype: Dtype) -> Result<Self, LayoutError> {
        let mut extents = self.shape.clone();
        extents.push(dtype.bytes());
        bytes::product(&extents)?;
        let partial = self.placements.iter().position(|placement| matches!(placement, Placement::Partial(_)));
        match partial.filter(|_| !Reduction::DTYPES.contains(&dtype)) {
            Some(axis) => Err(LayoutError::PartialDtype { axis, dtype }),
            None => Ok(Self { dtype, ..self.clone() }),
        }
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

    /// One placement per mesh axis.
    pub fn placements(&self) -> &[Placement] {
        &self.placements
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

    /// Slot offsets of the replicas: every combination of coordinates along the axes that shard nothing.
    pub fn replica_offsets(&self) -> Vec<usize> {
        self.offsets_along(|placement| *placement == Placement::Replicate)
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
        let mut part = Interval { lo: 0, hi: self.shape[dim] };
        for &axis in &self.nesting[dim] {
            if let Placement::Shard { split, .. } = &self.placements[axis] {
                part = split.part(part, coordinates[axis], self.mesh.shape()[axis]);
            }
        }
        AxisMap::new([part])
    }

    /// Every list of sizes must sum to each part that it splits.
    fn check_sizes(&self) -> Result<(), LayoutError> {
        for (dim, axes) in self.nesting.iter().enumerate() {
            let mut parts = vec![Interval { lo: 0, hi: self.shape[dim] }];
            for &axis in axes {
                let Placement::Shard { split, .. } = &self.placements[axis] else { continue };
                if let Split::Sizes(sizes) = split {
                    let sum = sizes.iter().try_fold(0u64, |sum, &size| sum.checked_add(size));
                    if let Some(part) = parts.iter().find(|part| sum != Some(part.len())) {
                        let (sum, extent) = (sum.unwrap_or(u64::MAX), part.len());
                        return Err(LayoutError::SizesSum { axis, dim, sizes: sizes.clone(), sum, extent });
                    }
                }
                let count = self.mesh.shape()[axis];
                parts = parts
                    .iter()
                    .flat_map(|&part| (0..count).map(move |index| split.part(part, index, count)))
                    .collect();
                parts.sort_unstable_by_key(Interval::len);
                parts.dedup_by_key(|part| part.len());
            }
        }
        Ok(())
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
mod tests {
    use super::*;

    fn mesh(shape: &[u32]) -> Arc<Mesh> {
        Arc::new(Mesh::contiguous(shape.to_vec(), Rank(0)).unwrap())
    }

    fn first(layout: &Layout, rank: u32, dim: usize) -> (u64, u64) {
        let maps = layout.axis_maps(Rank(rank)).unwrap();
        maps[dim].intervals().first().map_or((0, 0), |interval| (interval.lo, interval.hi))
    }

    #[test]
    fn two_axes_on_one_dimension_nest_in_either_order() {
        let placements = vec![Placement::shard(0), Placement::shard(0)];
        let outer_first = Layout::new(vec![12, 4], Dtype::BF16, mesh(&[2, 3]), placements).unwrap();
        assert_eq!(first(&outer_first, 4, 0), (8, 10));
        let inner_first = outer_first.clone().with_nesting(0, &[1, 0]).unwrap();
        assert_eq!(first(&inner_first, 4, 0), (6, 8));
        assert!(outer_first.with_nesting(0, &[0]).is_err());
    }

    #[test]
    fn dimension_maps_agree_with_axis_maps() {
        let placements = vec![Placement::shard(1), Placement::Replicate, Placement::chunk(0)];
        let layout = Layout::new(vec![5, 7], Dtype::F32, mesh(&[2, 2, 3]), placements).unwrap();
        let (rows, columns) = (layout.dimension(0), layout.dimension(1));
        let mut seen = 0;
        for row in &rows.shards {
            for column in &columns.shards {
                for replica in layout.replica_offsets() {
                    let rank = Rank((row.slot_offset + column.slot_offset + replica) as u32);
                    assert_eq!(layout.axis_maps(rank).unwrap(), [row.map.clone(), column.map.clone()]);
                    seen += 1;
                }
            }
        }
        assert_eq!(seen, 12);
    }

    #[test]
    fn bad_layouts() {
        let build = |shape: &[u64], placements| Layout::new(shape.to_vec(), Dtype::F64, mesh(&[2]), placements);
        assert!(matches!(build(&[4], vec![]), Err(LayoutError::PlacementCount { .. })));
        assert!(matches!(build(&[4], vec![Placement::shard(1)]), Err(LayoutError::NoSuchDimension { .. })));
        assert!(matches!(build(&[4], vec![Placement::sizes(0, [1])]), Err(LayoutError::SizesCount { .. })));
        assert!(matches!(build(&[4], vec![Placement::sizes(0, [1, 2])]), Err(LayoutError::SizesSum { sum: 3, .. })));
        assert!(matches!(build(&[4], vec![Placement::sizes(0, [u64::MAX, 5])]), Err(LayoutError::SizesSum { .. })));
        assert!(matches!(build(&[1 << 62], vec![Placement::Replicate]), Err(LayoutError::Size(_))));
        assert!(matches!(build(&[1; 9], vec![Placement::Replicate]), Err(LayoutError::TooManyDimensions { rank: 9 })));
        assert_eq!(build(&[], vec![Placement::Replicate]).unwrap().global_bytes(), 8);
        let empty = build(&[1 << 40, 1 << 40, 0], vec![Placement::shard(0)]).unwrap();
        assert_eq!((empty.global_bytes(), empty.local_bytes(Rank(1))), (0, 0));
    }
}
