//! Kinds of parallelism. In: short names. Out: [`ParallelAxis`]. Guarantee: one spelling each.

use std::fmt;

/// A kind of parallelism, which becomes a mesh axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ParallelAxis {
    /// Tensor parallel: every weight is cut along one dimension.
    Tensor,
    /// Context parallel: sequences are cut, weights are not.
    Context,
    /// Expert parallel: the experts of a layer are dealt out.
    Expert,
    /// Tensor parallel inside an expert, where it differs from the other weights'.
    ExpertTensor,
    /// Fully sharded data parallel: every weight is cut along its first dimension in addition.
    FullySharded,
    /// The same for expert weights, where it differs from the other weights'.
    ExpertFullySharded,
    /// Data parallel: every rank along it holds the same weights.
    Data,
    /// The same for expert weights, where it differs from the other weights'.
    ExpertData,
    /// Pipeline parallel: the layers are dealt out to stages.
    Pipeline,
}

impl ParallelAxis {
    /// All of them.
    pub const ALL: [ParallelAxis; 9] = [
        ParallelAxis::Tensor,
        ParallelAxis::Context,
        ParallelAxis::Expert,
        ParallelAxis::ExpertTensor,
        ParallelAxis::FullySharded,
        ParallelAxis::ExpertFullySharded,
        ParallelAxis::Data,
        ParallelAxis::ExpertData,
        ParallelAxis::Pipeline,
    ];

    /// The short name.
    pub const fn name(self) -> &'static str {
        match self {
            ParallelAxis::Tensor => "tp",
            ParallelAxis::Context => "cp",
            ParallelAxis::Expert => "ep",
            ParallelAxis::ExpertTensor => "etp",
            ParallelAxis::FullySharded => "fsdp",
            ParallelAxis::ExpertFullySharded => "efsdp",
            ParallelAxis::Data => "dp",
            ParallelAxis::ExpertData => "edp",
            ParallelAxis::Pipeline => "pp",
        }
    }

    /// The axis of that short name.
    pub fn from_name(name: &str) -> Option<ParallelAxis> {
        ParallelAxis::ALL.into_iter().find(|axis| axis.name() == name)
    }

    /// Whether only specs with two views have it.
    pub(super) const fn is_expert_only(self) -> bool {
        matches!(self, ParallelAxis::ExpertTensor | ParallelAxis::ExpertFullySharded | ParallelAxis::ExpertData)
    }

    /// The kind that rules speak of: what `etp` does to an expert, `tp` does to other weights.
    pub(super) const fn in_rules(self) -> ParallelAxis {
        match self {
            ParallelAxis::ExpertTensor => ParallelAxis::Tensor,
            ParallelAxis::ExpertFullySharded => ParallelAxis::FullySharded,
            ParallelAxis::ExpertData => ParallelAxis::Data,
            other => other,
        }
    }
}

impl fmt::Display for ParallelAxis {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}
