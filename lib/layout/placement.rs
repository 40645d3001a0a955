//! What a mesh axis does to a tensor. In: a choice. Out: what every coordinate stores, the type of a sum. Guarantee: the
//! shards of a split are disjoint, in order, and cover what is split; stated parts may repeat, leave out and reorder.

use super::{AxisMap, Dtype, Interval, LayoutError, Part};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How an extent is split into shards.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Split {
    /// Shard i of D is `[floor(i S / D), floor((i+1) S / D))`: NCCL M2N, Eq. 2.
    Floor,
    /// Shards of `ceil(S / D)` with the rest in the last ones, some maybe empty: PyTorch DTensor, `torch.chunk`.
    Chunk,
    /// Shards of these sizes.
    Sizes(Vec<u64>),
}

/// What one mesh axis does.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Placement {
    /// Every rank along the axis holds the same.
    Replicate,
    /// The axis splits a tensor dimension.
    Shard {
        /// Tensor dimension.
        dim: usize,
        /// Rule of the split.
        split: Split,
    },
    /// Every coordinate of the axis stores stated parts of a tensor dimension. Indices count within what outer axes
    /// left of it.
    Parts {
        /// Tensor dimension.
        dim: usize,
        /// One map per coordinate.
        maps: Arc<[AxisMap]>,
    },
    /// Every rank along the axis holds a term of each element, which is what the reduction makes of them. Sources only.
    Partial(Reduction),
}

/// How terms make an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reduction {
    /// Their sum.
    Sum,
}

impl Placement {
    /// Shard `dim` by the floor rule.
    pub fn shard(dim: usize) -> Self {
        Self::Shard { dim, split: Split::Floor }
    }

    /// Shard `dim` by PyTorch's rule.
    pub fn chunk(dim: usize) -> Self {
        Self::Shard { dim, split: Split::Chunk }
    }

    /// Shard `dim` into given sizes.
    pub fn sizes(dim: usize, sizes: impl Into<Vec<u64>>) -> Self {
        Self::Shard { dim, split: Split::Sizes(sizes.into()) }
    }

    /// Store these parts of `dim`, one map per coordinate.
    pub fn parts(dim: usize, maps: impl Into<Arc<[AxisMap]>>) -> Self {
        Self::Parts { dim, maps: maps.into() }
    }

    /// Split `dim`, of `extent` indices, as if it had `padded`: what a rank gets behind the last index is padding. For
    /// [`Split::Sizes`] the sizes sum to `padded`.
    pub fn padded(dim: usize, extent: u64, padded: u64, split: &Split, ranks: u32) -> Result<Self, LayoutError> {
        if padded < extent {
            return Err(LayoutError::PaddedExtent { dim, extent, padded });
        }
        if let Split::Sizes(sizes) = split {
            let sum = sizes.iter().try_fold(0u64, |sum, &size| sum.checked_add(size)).unwrap_or(u64::MAX);
            if sizes.len() != ranks as usize || sum != padded {
                return Err(LayoutError::SizesSum { axis: 0, dim, sizes: sizes.clone(), sum, extent: padded });
            }
        }
        let map = |rank| {
            let Interval { lo, hi } = split.part(Interval { lo: 0, hi: padded }, rank, ranks);
            let stored = Interval { lo: lo.min(extent), hi: hi.min(extent) };
            AxisMap::of_parts([Part::Global(stored), Part::Padding(hi - lo - stored.len())])
        };
        Ok(Self::parts(dim, (0..ranks).map(map).collect::<Result<Vec<_>, _>>()?))
    }

    /// Most runs of indices that any coordinate stores.
    pub(super) fn most_segments(&self) -> u64 {
        match self {
            Self::Parts { maps, .. } => maps.iter().map(|map| map.segments().len() as u64).max().unwrap_or(0).max(1),
            _ => 1,
        }
    }

    /// The tensor dimension that the axis cuts or arranges.
    pub fn dim(&self) -> Option<usize> {
        match self {
            Self::Replicate | Self::Partial(_) => None,
            Self::Shard { dim, .. } | Self::Parts { dim, .. } => Some(*dim),
        }
    }
}

impl Reduction {
    /// Types whose terms can be reduced.
    pub const DTYPES: [Dtype; 12] = [
        Dtype::F64,
        Dtype::F32,
        Dtype::F16,
        Dtype::BF16,
        Dtype::I64,
        Dtype::I32,
        Dtype::I16,
        Dtype::I8,
        Dtype::U64,
        Dtype::U32,
        Dtype::U16,
        Dtype::U8,
    ];

    /// Type in which terms of `dtype` are reduced: F32 for all smaller floats, their own for others. Integers wrap.
    pub fn dtype(self, dtype: Dtype) -> Dtype {
        match dtype {
            Dtype::F16 | Dtype::BF16 => Dtype::F32,
            other => other,
        }
    }
}

impl Split {
    /// The part of `whole` that shard `index` of `count` gets. For [`Split::Sizes`] the sizes must have been
    /// checked against `whole`.
    pub(crate) fn part(&self, whole: Interval, index: u32, count: u32) -> Interval {
        let extent = whole.len();
        let (lo, hi) = match self {
            Split::Floor => {
                let at = |i: u64| (u128::from(extent) * u128::from(i) / u128::from(count)) as u64;
                (at(u64::from(index)), at(u64::from(index) + 1))
            }
            Split::Chunk => {
                let chunk = extent.div_ceil(u64::from(count));
                let at = |i: u64| (u128::from(chunk) * u128::from(i)).min(u128::from(extent)) as u64;
                (at(u64::from(index)), at(u64::from(index) + 1))
            }
            Split::Sizes(sizes) => {
                let lo: u64 = sizes[..index as usize].iter().sum();
                (lo, lo + sizes[index as usize])
            }
        };
        Interval { lo: whole.lo + lo, hi: whole.lo + hi }
    }

    /// Lengths of the shards of `extent` indices, each once for the rules, however many shards there are. For
    /// [`Split::Sizes`] the sizes must have been checked against the extent.
    pub(crate) fn lengths(&self, extent: u64, count: u32) -> Vec<u64> {
        let count = u64::from(count);
        match self {
            Split::Floor => {
                let (short, longer) = (extent / count, extent % count);
                let mut lengths = vec![short];
                lengths.extend((longer > 0).then_some(short + 1));
                lengths
            }
            Split::Chunk => {
                let chunk = extent.div_ceil(count);
                let (whole, rest) = (extent.checked_div(chunk).unwrap_or(0), extent.checked_rem(chunk).unwrap_or(0));
                let mut lengths: Vec<u64> = [chunk, rest].into_iter().filter(|&length| length > 0).collect();
                lengths.extend((whole + u64::from(rest > 0) < count).then_some(0));
                lengths
            }
            Split::Sizes(sizes) => sizes.clone(),
        }
    }

    /// Shards of `whole` that hold any index of `part`, ascending.
    pub(crate) fn meeting(&self, whole: Interval, part: Interval, count: u32) -> impl Iterator<Item = u32> + '_ {
        // Shards are in order: those below end at or before the first index, those above begin at or after the last.
        let first = first_where(count, |index| self.part(whole, index, count).hi > part.lo);
        (first..count)
            .map(move |index| (index, self.part(whole, index, count)))
            .take_while(move |(_, shard)| shard.lo < part.hi)
            .filter(|(_, shard)| !shard.is_empty())
            .map(|(index, _)| index)
            .filter(move |_| !part.is_empty())
    }
}

/// The first index below `count` for which a predicate holds that holds for all after it; `count` when none does.
fn first_where(count: u32, holds: impl Fn(u32) -> bool) -> u32 {
    let (mut lo, mut hi) = (0, count);
    while lo < hi {
        let middle = lo + (hi - lo) / 2;
        if holds(middle) { hi = middle } else { lo = middle + 1 }
    }
    lo
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn parts(split: &Split, extent: u64, count: u32) -> Vec<(u64, u64)> {
        let whole = Interval { lo: 10, hi: 10 + extent };
        (0..count).map(|index| split.part(whole, index, count)).map(|part| (part.lo - 10, part.hi - 10)).collect()
    }

    #[test]
    fn conventions_differ_where_they_must() {
        assert_eq!(parts(&Split::Floor, 5, 3), [(0, 1), (1, 3), (3, 5)]);
        assert_eq!(parts(&Split::Chunk, 5, 3), [(0, 2), (2, 4), (4, 5)]);
        assert_eq!(parts(&Split::Chunk, 5, 4), [(0, 2), (2, 4), (4, 5), (5, 5)]);
        assert_eq!(parts(&Split::Floor, 2, 4), [(0, 0), (0, 1), (1, 1), (1, 2)]);
        assert_eq!(parts(&Split::Sizes(vec![5, 0, 3]), 8, 3), [(0, 5), (5, 5), (5, 8)]);
        let huge = u64::MAX - 10;
        assert_eq!(parts(&Split::Floor, huge, 2)[1].1, huge);
        assert_eq!(parts(&Split::Chunk, huge, 3)[2].1, huge);
    }

    #[test]
    fn lengths_are_those_of_the_parts() {
        let sizes = |extent: u64| Split::Sizes(vec![extent - extent / 3, 0, extent / 3]);
        for (extent, count) in (0..40u64).flat_map(|extent| (1..17).map(move |count| (extent, count))) {
            let splits = [(Split::Floor, count), (Split::Chunk, count), (sizes(extent), 3)];
            for (split, count) in splits {
                let expected: BTreeSet<u64> = parts(&split, extent, count).iter().map(|(lo, hi)| hi - lo).collect();
                let found: BTreeSet<u64> = split.lengths(extent, count).into_iter().collect();
                assert_eq!(found, expected, "{split:?} of {extent} into {count}");
            }
        }
        // Not one for every shard.
        assert_eq!(Split::Floor.lengths(u64::MAX, u32::MAX).len(), 1);
        assert_eq!(Split::Floor.lengths(7, u32::MAX), [0, 1]);
        assert_eq!(Split::Chunk.lengths(7, u32::MAX), [1, 0]);
    }
}
