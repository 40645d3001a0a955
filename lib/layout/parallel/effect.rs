//! What a rule does. In: the values of its keys. Out: [`Effect`]. Guarantee: two rules that do the same have equal effects.

use super::heads::HeadKind;
use super::{ParallelAxis, WeightView};

/// What a rule does to a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Effect {
    /// Axes that shard, with the dimension, in axis order; `fsdp` stands apart.
    pub(super) dims: Vec<(ParallelAxis, usize)>,
    /// The heads that tensor parallelism does not cut, of a model that says how many it has.
    pub(super) heads: Option<HeadKind>,
    /// What fully sharded data parallelism cuts.
    pub(super) fully_sharded: FullySharded,
    /// Whether the tensor is one expert.
    pub(super) per_tensor_experts: bool,
    /// Where it stands in the pipeline when its name has no layer.
    pub(super) stage: Option<StageWord>,
    /// Whether its layer predicts further tokens and stands behind the main stack.
    pub(super) predicts: bool,
    /// Whether a cast of the whole model leaves it as it is.
    pub(super) keeps_dtype: bool,
}

/// What fully sharded data parallelism cuts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) enum FullySharded {
    /// The first dimension, as PyTorch's `fully_shard`; nothing of a scalar.
    #[default]
    First,
    /// A dimension that a rule states.
    Stated(usize),
    /// Nothing.
    Whole,
}

/// A place in the pipeline for a tensor outside the layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum StageWord {
    First,
    Last,
    All,
}

impl Effect {
    /// The same but for heads, of which the parts of a fused tensor have different kinds.
    pub(super) fn without_heads(&self) -> Self {
        Self { heads: None, ..self.clone() }
    }

    /// Which mesh the tensor lies on.
    pub(super) fn view(&self) -> WeightView {
        let stacked = self.dims.iter().any(|&(axis, _)| axis == ParallelAxis::Expert);
        if self.per_tensor_experts || stacked { WeightView::Expert } else { WeightView::Dense }
    }

    /// The dimension of a tensor of `rank` dimensions that an axis shards, in the words of rules.
    pub(super) fn dim(&self, axis: ParallelAxis, rank: usize) -> Option<usize> {
        if axis != ParallelAxis::FullySharded {
            return self.dims.iter().find(|&&(kind, _)| kind == axis).map(|&(_, dim)| dim);
        }
        match self.fully_sharded {
            FullySharded::First => (rank > 0).then_some(0),
            FullySharded::Stated(dim) => Some(dim),
            FullySharded::Whole => None,
        }
    }

    /// Whether fully sharded data parallelism cuts the first dimension, whichever that is.
    pub(super) fn cuts_first(&self) -> bool {
        self.fully_sharded == FullySharded::First
    }

    /// An axis that shards a dimension which a tensor of `rank` dimensions lacks.
    pub(super) fn outside(&self, rank: usize) -> Option<(ParallelAxis, usize)> {
        let stated = match self.fully_sharded {
            FullySharded::Stated(dim) => Some((ParallelAxis::FullySharded, dim)),
            FullySharded::First | FullySharded::Whole => None,
        };
        self.dims.iter().copied().chain(stated).find(|&(_, dim)| dim >= rank)
    }
}

impl StageWord {
    pub(super) const ALLOWED: &'static str = "first, last, all";

    pub(super) fn parse(text: &str) -> Option<Self> {
        match text {
            "first" => Some(Self::First),
            "last" => Some(Self::Last),
            "all" => Some(Self::All),
            _ => None,
        }
    }
}
