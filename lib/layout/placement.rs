//! What a mesh axis does to a tensor. In: a choice. Out: the interval of every shard, the type of a sum. Guarantee: the
//! shards of a split are disjoint, in order, and cover what is split.

use super::{Dtype, Interval};
use serde::{Deserialize, Serialize};

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
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
