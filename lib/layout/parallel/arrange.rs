//! What the axes of a mesh do to one tensor. In: placements, one by one. Out: a layout. Guarantee: axes that cut one
//! dimension nest in a fixed order, whatever the order of the axes in the spec.

use super::ParallelAxis;
use super::effect::Effect;
use crate::layout::{AxisMap, Dtype, Layout, LayoutError, Mesh, Placement};
use std::sync::Arc;

/// Axes that carry arrangements, outermost first, in front of those that only cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Nesting {
    /// What a side wants of a dimension, and its padding: all axes cut what that leaves.
    Whole,
    Expert,
    Tensor,
    Context,
    Data,
    FullySharded,
}

/// A tensor on a mesh, in the making.
#[derive(Debug)]
pub(super) struct Arrangement {
    pub(super) placements: Vec<Placement>,
    nesting: Vec<Nesting>,
    /// Axes of length 1 behind those of the spec.
    units: usize,
}

impl Nesting {
    fn of(axis: ParallelAxis) -> Self {
        match axis.in_rules() {
            ParallelAxis::Expert => Nesting::Expert,
            ParallelAxis::Tensor => Nesting::Tensor,
            ParallelAxis::Context => Nesting::Context,
            ParallelAxis::Data => Nesting::Data,
            _ => Nesting::FullySharded,
        }
    }
}

impl Arrangement {
    /// What the rules say.
    pub(super) fn new(axes: &[(ParallelAxis, u32)], effect: &Effect, shape: TensorShape<'_>) -> Self {
        let placements = axes.iter().map(|&(axis, _)| placement(effect, axis, shape)).collect();
        Self { placements, nesting: axes.iter().map(|&(axis, _)| Nesting::of(axis)).collect(), units: 0 }
    }

    /// Makes `axis` of the spec place the tensor otherwise, or an axis of length 1 that nests as it would.
    pub(super) fn set(&mut self, axis: Option<usize>, nesting: Nesting, placement: Placement) {
        match axis {
            Some(axis) => self.placements[axis] = placement,
            None => {
                self.placements.push(placement);
                self.nesting.push(nesting);
                self.units += 1;
            }
        }
    }

    /// Stores `map` of dimension `dim`, of which all axes cut what they get.
    pub(super) fn arrange(&mut self, dim: usize, map: AxisMap) {
        self.set(None, Nesting::Whole, Placement::parts(dim, [map]));
    }

    /// The layout on `mesh`, which has the axes of the spec. Axes nest with `ep` outermost and `fsdp` innermost: `fsdp`
    /// cuts what tensor parallelism left, as PyTorch's `fully_shard` does.
    pub(super) fn place(self, shape: &[u64], dtype: Dtype, mesh: Arc<Mesh>) -> Result<Layout, LayoutError> {
        let mesh = match self.units {
            0 => mesh,
            units => Arc::new(mesh.as_ref().clone().with_unit_axes(units)),
        };
        let along = |dim: usize| {
            let mut axes: Vec<usize> =
                (0..self.placements.len()).filter(|&axis| self.placements[axis].dim() == Some(dim)).collect();
            axes.sort_by_key(|&axis| self.nesting[axis]);
            axes
        };
        let nesting = (0..shape.len()).map(along).collect();
        Layout::nested(shape.to_vec(), dtype, mesh, self.placements, nesting)
    }
}

/// A tensor's dimensions as rules count them.
#[derive(Debug, Clone, Copy)]
pub(super) struct TensorShape<'a> {
    /// All of them.
    pub(super) extents: &'a [u64],
    /// Dimensions in front that rules do not count.
    pub(super) leading: usize,
    /// Whether the tensor is stored in a stack, along the first of these.
    pub(super) stacked: bool,
}

/// What an axis does to a tensor.
fn placement(effect: &Effect, axis: ParallelAxis, shape: TensorShape<'_>) -> Placement {
    let rank = shape.extents.len() - shape.leading;
    let dim = match axis {
        ParallelAxis::Pipeline => None,
        // A stack is one tensor of which the first dimension is cut.
        axis if axis.in_rules() == ParallelAxis::FullySharded && shape.stacked && effect.cuts_first() => Some(0),
        axis => effect.dim(axis.in_rules(), rank).map(|dim| dim + shape.leading),
    };
    match (dim, axis.in_rules()) {
        (None, _) => Placement::Replicate,
        (Some(dim), ParallelAxis::FullySharded) => Placement::chunk(dim),
        (Some(dim), _) => Placement::shard(dim),
    }
}
