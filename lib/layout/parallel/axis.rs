//! Kinds of parallelism. In: short names. Out: [`ParallelAxis`]. Guarantee: one spelling each.

use std::fmt;

/// A kind of parallelism, which becomes a mesh axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ParallelAxis {
    /// Tensor parallel: every weight is cut along one dimension.
    Tensor,
    /// Expert parallel: the experts of a layer are dealt out.
    Expert,
    /// Data parallel: every rank along it holds the same weights.
    Data,
}

impl ParallelAxis {
    /// All of them.
    pub const ALL: [ParallelAxis; 3] = [ParallelAxis::Tensor, ParallelAxis::Expert, ParallelAxis::Data];

    /// Kinds that other systems have and that have no axis here.
    pub(super) const UNSUPPORTED: [&'static str; 4] = ["pp", "cp", "etp", "fsdp"];

    /// The short name: `tp`, `ep` or `dp`.
    pub const fn name(self) -> &'static str {
        match self {
            ParallelAxis::Tensor => "tp",
            ParallelAxis::Expert => "ep",
            ParallelAxis::Data => "dp",
        }
    }

    /// The axis of that short name.
    pub fn from_name(name: &str) -> Option<ParallelAxis> {
        ParallelAxis::ALL.into_iter().find(|axis| axis.name() == name)
    }
}

impl fmt::Display for ParallelAxis {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}
