//! What can be wrong with a parallel spec or with rules. Each message says the value, what is allowed, what to do.

use super::{ParallelAxis, PatternError};
use crate::layout::LayoutError;
use thiserror::Error;

/// A parallel spec that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ParallelError {
    /// No axis at all.
    #[error("the parallel spec is empty; write sizes such as tp=4 or tp=2,ep=4,dp=1 (tp=1 is a single rank)")]
    Empty,
    /// An item that is not `axis=size`.
    #[error("{item:?} in parallel spec {text:?} is not of the form axis=size, such as tp=4; separate items by commas")]
    Unreadable {
        /// The item.
        item: String,
        /// The whole text.
        text: String,
    },
    /// An axis of other systems.
    #[error("axis {axis:?} in parallel spec {text:?} is not supported by refit yet; use tp, ep and dp")]
    Unsupported {
        /// The axis.
        axis: String,
        /// The whole text.
        text: String,
    },
    /// A name that is no axis.
    #[error("axis {axis:?} in parallel spec {text:?} is unknown; allowed are tp, ep and dp")]
    UnknownAxis {
        /// The name.
        axis: String,
        /// The whole text.
        text: String,
    },
    /// A size that is not 1 to 2^32 - 1.
    #[error("size {size:?} of axis {axis} in parallel spec {text:?} is no whole number from 1 to {max}", max = u32::MAX)]
    Size {
        /// The axis.
        axis: ParallelAxis,
        /// The size as written.
        size: String,
        /// The whole text.
        text: String,
    },
    /// An axis stands twice.
    #[error("axis {axis} stands in parallel spec {text:?} twice; give each axis one size")]
    Repeated {
        /// The axis.
        axis: ParallelAxis,
        /// The whole text.
        text: String,
    },
    /// The product of the sizes is no rank count.
    #[error("parallel spec {text:?} asks for more than {max} ranks; use smaller sizes", max = u32::MAX)]
    Overflow {
        /// The whole text.
        text: String,
    },
    /// The product of the sizes differs from the number of ranks.
    #[error(
        "parallel spec {spec} needs {needed} ranks and {given} are given; \
         give {needed} ranks or sizes that multiply to {given}"
    )]
    RankCount {
        /// The spec.
        spec: String,
        /// Its product.
        needed: u32,
        /// Ranks at hand.
        given: usize,
    },
    /// The ranks form no mesh.
    #[error("the ranks of parallel spec {spec} form no mesh")]
    Mesh {
        /// The spec.
        spec: String,
        /// Why.
        #[source]
        source: LayoutError,
    },
}

/// Rules that cannot be used, or that cannot be applied to a tensor. A `rule` is named by file and line.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RulesError {
    /// Not a rules file.
    #[error("{origin} is no rules file; it holds [[rule]] tables with names and tp, ep, dp or experts")]
    Unreadable {
        /// Where the text comes from.
        origin: String,
        /// What the TOML reader says.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// A rule without names.
    #[error("rule {rule} lists no names; give at least one pattern, such as names = [\"*.q_proj.weight\"]")]
    NoNames {
        /// The rule.
        rule: String,
    },
    /// A rule that says nothing.
    #[error("rule {rule} says nothing about tp, ep, dp or experts; write for instance tp = 0 or tp = \"replicate\"")]
    NoAxis {
        /// The rule.
        rule: String,
    },
    /// A pattern that cannot be used.
    #[error("a name pattern of rule {rule} cannot be used")]
    Pattern {
        /// The rule.
        rule: String,
        /// Why.
        #[source]
        source: PatternError,
    },
    /// An axis with a value that is neither a dimension nor `"replicate"`.
    #[error("rule {rule} has {axis} = {value}; give a tensor dimension counted from 0, or \"replicate\"")]
    AxisValue {
        /// The rule.
        rule: String,
        /// The axis.
        axis: ParallelAxis,
        /// The value as written.
        value: String,
    },
    /// `experts` with an unknown word.
    #[error("rule {rule} has experts = {value:?}; the one allowed value is \"per-tensor\"")]
    ExpertsValue {
        /// The rule.
        rule: String,
        /// The value as written.
        value: String,
    },
    /// `experts = "per-tensor"` beside `ep`.
    #[error(
        "rule {rule} has both experts = \"per-tensor\" and ep; keep experts for one tensor per expert, \
         ep for experts stacked in one tensor"
    )]
    ExpertsAndExpertAxis {
        /// The rule.
        rule: String,
    },
    /// `{expert}` in the pattern and `experts` in the rule do not go together.
    #[error(
        "pattern {pattern:?} of rule {rule}: {{expert}} and experts = \"per-tensor\" need each other; \
         write both, or use * for the index"
    )]
    ExpertCapture {
        /// The rule.
        rule: String,
        /// The pattern.
        pattern: String,
    },
    /// Two rules treat a tensor differently.
    #[error("tensor {tensor:?} is matched by rules {first} and {second} with different results; narrow one of them")]
    Ambiguous {
        /// The tensor.
        tensor: String,
        /// One rule.
        first: String,
        /// The other.
        second: String,
    },
    /// A rule shards a dimension that the tensor lacks.
    #[error(
        "rule {rule} shards dimension {dim} of tensor {tensor:?} over {axis}; its shape {shape:?} has {} dimensions, \
         counted from 0: correct the rule, or override it for this tensor",
        shape.len()
    )]
    NoSuchDimension {
        /// The rule.
        rule: String,
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<u64>,
        /// The axis.
        axis: ParallelAxis,
        /// The dimension.
        dim: usize,
    },
    /// Experts cannot be dealt out without their number.
    #[error(
        "rule {rule} deals out expert tensor {tensor:?} over ep={ranks}, and the number of experts is not known; \
         pass it, or shard the whole model at once"
    )]
    ExpertCount {
        /// The rule.
        rule: String,
        /// The tensor.
        tensor: String,
        /// Length of the expert axis.
        ranks: u32,
    },
    /// An expert beyond the stated number.
    #[error(
        "rule {rule} reads expert {expert} from tensor {tensor:?}, and the model has {count} experts, counted from 0"
    )]
    ExpertIndex {
        /// The rule.
        rule: String,
        /// The tensor.
        tensor: String,
        /// The index.
        expert: u64,
        /// The number of experts.
        count: u64,
    },
    /// The expert axis lies inside axes that cut every dimension unevenly.
    #[error(
        "expert tensor {tensor:?} of shape {shape:?} is cut unevenly by the axes that vary slower than ep in {spec}; \
         write ep last in the parallel spec"
    )]
    ExpertNesting {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<u64>,
        /// The parallel spec.
        spec: String,
    },
}
