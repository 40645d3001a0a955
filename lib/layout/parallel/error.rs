//! What can be wrong with a parallel spec or with rules. Each message says the value, what is allowed, what to do.

use super::{ExpertFileError, FuseRuleError, ParallelAxis, PatternError, StorageError};
use crate::layout::{ExpertError, LayoutError};
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
    /// A name that is no axis.
    #[error(
        "axis {axis:?} in parallel spec {text:?} is unknown; allowed are tp, cp, ep, fsdp, dp and pp, and etp, efsdp and edp \
         for expert weights"
    )]
    UnknownAxis {
        /// The name.
        axis: String,
        /// The whole text.
        text: String,
    },
    /// An unknown word before the colon.
    #[error(
        "parallel spec {text:?} begins with {name:?}; allowed are m2n: (ep multiplies) and megatron: (expert weights have a \
         view of their own), or nothing"
    )]
    Convention {
        /// The word.
        name: String,
        /// The whole text.
        text: String,
    },
    /// An axis of the expert view in a spec that has none.
    #[error(
        "axis {axis} in parallel spec {text:?} belongs to a view of expert weights, which m2n specs do not have; \
         leave it out, or begin with megatron:"
    )]
    ExpertAxis {
        /// The axis.
        axis: ParallelAxis,
        /// The whole text.
        text: String,
    },
    /// The two views are of different numbers of ranks.
    #[error(
        "parallel spec {text:?} contradicts itself: the view of dense weights {dense_view} is {dense} ranks and the view of \
         expert weights {expert_view} is {expert}{}; both must be the number of ranks",
        ranks.map_or(String::new(), |ranks| format!(", of {ranks} ranks"))
    )]
    Views {
        /// The whole text.
        text: String,
        /// Axes of all weights but experts.
        dense_view: String,
        /// Their product.
        dense: u32,
        /// Axes of expert weights.
        expert_view: String,
        /// Their product.
        expert: u32,
        /// Ranks at hand, where they are known.
        ranks: Option<u64>,
    },
    /// The two views cut the ranks into different pipeline stages.
    #[error(
        "parallel spec {text:?} puts {dense} ranks before the next pipeline stage in the view of dense weights and {expert} \
         in that of expert weights; write pp last"
    )]
    Stages {
        /// The whole text.
        text: String,
        /// Ranks inside pp in the one view.
        dense: u64,
        /// Ranks inside pp in the other.
        expert: u64,
    },
    /// A list of stages that is no list of numbers.
    #[error(
        "pp={size} in parallel spec {text:?} is no list of layers per stage; write numbers joined by +, such as 8+8+7"
    )]
    StageLayers {
        /// As written.
        size: String,
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
    /// Stated stages have other layers than the model.
    #[error(
        "the pipeline stages of parallel spec {spec} have {sum} layers together and the model has {layers}; state {layers}"
    )]
    StageSum {
        /// The spec.
        spec: String,
        /// Its layers.
        sum: u64,
        /// The model's.
        layers: u64,
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

impl ParallelError {
    /// The same, with the number of ranks where that says more.
    pub(super) fn of_ranks(mut self, count: u32) -> Self {
        if let Self::Views { ranks, .. } = &mut self {
            *ranks = Some(u64::from(count));
        }
        self
    }
}

/// Rules that cannot be used, or that cannot be applied to a tensor. A `rule` is named by file and line.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RulesError {
    /// Not a rules file.
    #[error(
        "{origin} is no rules file: {}{reason}; it holds [[rule]] tables with names and tp, ep, cp, dp, fsdp, experts or \
         stage, and [[fuse]], [[split]], [[store]], [[scales]] and [[tied]] tables",
        line.map_or(String::new(), |line| format!("line {line}: "))
    )]
    Unreadable {
        /// Where the text comes from.
        origin: String,
        /// Line of the text, where it is known.
        line: Option<usize>,
        /// What the TOML reader says; of an unknown key which are allowed.
        reason: String,
    },
    /// A rule without names.
    #[error("rule {rule} lists no names; give at least one pattern, such as names = [\"*.q_proj.weight\"]")]
    NoNames {
        /// The rule.
        rule: String,
    },
    /// A rule that says nothing.
    #[error(
        "rule {rule} says nothing about tp, ep, cp, dp, fsdp, experts, stage or cast; write for instance tp = 0 or tp = \"replicate\""
    )]
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
    /// `heads` with an unknown word.
    #[error("rule {rule} has heads = {value:?}; allowed are {allowed}")]
    HeadsValue {
        /// The rule.
        rule: String,
        /// The value as written.
        value: String,
        /// The words.
        allowed: &'static str,
    },
    /// `heads` without a dimension that tensor parallelism cuts.
    #[error("rule {rule} has heads = {value:?}, which tp deals out; add the dimension that tp cuts, such as tp = 0")]
    HeadsUncut {
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
    /// An expert of a number behind which nothing can be counted.
    #[error(
        "rule {rule} reads expert {expert} from tensor {tensor:?}; experts are counted from 0 to {}: correct the name",
        u64::MAX - 1
    )]
    ExpertNumber {
        /// The rule.
        rule: String,
        /// The tensor.
        tensor: String,
        /// The index.
        expert: u64,
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
    /// A family of rules that the library does not have.
    #[error("there are no built-in rules called {family:?}; allowed are {known}, or the path of a rules file")]
    NoFamily {
        /// As given.
        family: String,
        /// All of them.
        known: String,
    },
    /// `stage` with an unknown word.
    #[error("rule {rule} has stage = {value:?}; allowed are {allowed}")]
    StageValue {
        /// The rule.
        rule: String,
        /// The value as written.
        value: String,
        /// The words.
        allowed: &'static str,
    },
    /// `cast` with an unknown word.
    #[error("rule {rule} has cast = {value:?}; the one allowed value is \"never\"")]
    CastValue {
        /// The rule.
        rule: String,
        /// The value as written.
        value: String,
    },
    /// A rule of a user's file that decides nothing.
    #[error(
        "rule {rule} with names {names:?} matches no tensor of model {model:?}; correct the names or remove the rule"
    )]
    MatchesNothing {
        /// The rule.
        rule: String,
        /// Its patterns.
        names: Vec<String>,
        /// The model.
        model: String,
    },
    /// A tied group of fewer than two names.
    #[error("tied group {group} lists fewer than two names; list all names of one tensor")]
    TiedAlone {
        /// The group.
        group: String,
    },
    /// A tied group without a tensor.
    #[error(
        "tied group of {group} lists {names:?}, and the model has no tensor of any of these names; correct or remove it"
    )]
    TiedMatchesNothing {
        /// Where it is stated.
        group: String,
        /// The names.
        names: Vec<String>,
    },
    /// Tied tensors that cannot be one.
    #[error(
        "tied group of {group}: tensors {first:?} and {second:?} differ in shape, dtype or how rules shard them, or one is in \
         two groups; a tied tensor lies alike under all its names"
    )]
    TiedDiffer {
        /// Where it is stated.
        group: String,
        /// The name that the tensor moves under.
        first: String,
        /// The other name.
        second: String,
    },
    /// A rule that fuses tensors or takes them apart.
    #[error("rule {rule}")]
    Fuse {
        /// The rule.
        rule: String,
        /// Why.
        #[source]
        source: FuseRuleError,
    },
    /// A rule about the storage of tensors.
    #[error("rule {rule}")]
    Storage {
        /// The rule.
        rule: String,
        /// Why.
        #[source]
        source: StorageError,
    },
    /// Tensors taken apart are no model.
    #[error("the tensors that [[split]] rules make are no model: {reason}")]
    Model {
        /// What is wrong with them.
        reason: String,
    },
    /// An expert map.
    #[error(transparent)]
    Experts(#[from] ExpertFileError),
    /// Slots of experts.
    #[error("the experts of {tensor:?} cannot be dealt out as the expert map says")]
    Slots {
        /// A tensor of the layer.
        tensor: String,
        /// Why.
        #[source]
        source: ExpertError,
    },
    /// A layout that cannot be made.
    #[error("the layout of tensor {tensor:?} cannot be made")]
    Layout {
        /// The tensor.
        tensor: String,
        /// Why.
        #[source]
        source: LayoutError,
    },
}
