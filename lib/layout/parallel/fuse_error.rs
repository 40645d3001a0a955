//! What can be wrong with a rule that fuses tensors. Each message says the value, what is allowed, what to do.

use super::PatternError;
use crate::layout::FusedError;
use thiserror::Error;

/// A fuse rule that cannot be used, or that cannot be applied to a model.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FuseRuleError {
    /// Fewer than two tensors.
    #[error("parts lists {parts} patterns; list at least two, and for attention the queries, keys and values")]
    Parts {
        /// Patterns.
        parts: usize,
    },
    /// A pattern that cannot be used.
    #[error("a name pattern cannot be used")]
    Pattern(#[from] PatternError),
    /// Patterns with different numbers of what they leave open.
    #[error(
        "pattern {pattern:?} leaves {open} components open and {first:?} leaves {first_open}; what * and {{a,b}} stand for \
         is put into the others in the same order, so all need the same number of them"
    )]
    Open {
        /// The pattern.
        pattern: String,
        /// What it leaves open.
        open: usize,
        /// The first of the rule.
        first: String,
        /// What that leaves open.
        first_open: usize,
    },
    /// A key with an unknown word.
    #[error("{key} = {value:?}; allowed are {allowed}")]
    Word {
        /// The key.
        key: &'static str,
        /// As written.
        value: String,
        /// The words.
        allowed: &'static str,
    },
    /// `split` or `default_heads` without `heads`, or `heads` for other than three tensors.
    #[error(
        "heads, split and default_heads are for attention, with three parts: queries, keys and values; remove them, or give heads and three parts"
    )]
    HeadKeys,
    /// No tensor of the model fits.
    #[error("no tensor of model {model:?} is one of its parts {parts:?}; correct the names or remove the rule")]
    MatchesNothing {
        /// The model.
        model: String,
        /// The patterns.
        parts: Vec<String>,
    },
    /// A part that the model lacks.
    #[error(
        "tensor {present:?} has no companion {missing:?}, with which it makes {into:?}; narrow the rule to tensors that have all parts"
    )]
    Missing {
        /// A tensor that is there.
        present: String,
        /// The name of the missing one.
        missing: String,
        /// What they make.
        into: String,
    },
    /// A tensor in two groups, or a name that is taken.
    #[error("{name:?} is made or used by rule {first} too; a tensor can be fused once, under a name of its own")]
    Twice {
        /// The name.
        name: String,
        /// The other rule, or the model.
        first: String,
    },
    /// Parts that cannot be one tensor.
    #[error(
        "tensors {first:?} of shape {first_shape:?} and {second:?} of shape {second_shape:?} cannot be fused along dimension \
         {dim}; they must have that dimension, agree in all others and in dtype, and be sharded alike by the other rules"
    )]
    Differ {
        /// One.
        first: String,
        /// Its shape.
        first_shape: Vec<u64>,
        /// The other.
        second: String,
        /// Its shape.
        second_shape: Vec<u64>,
        /// The fused dimension.
        dim: usize,
    },
    /// The number of heads is not known.
    #[error(
        "model {model:?} does not say how many attention heads it has; put config.json beside it, or give heads = {{ query = N, key_value = N }}"
    )]
    HeadsUnknown {
        /// The model.
        model: String,
    },
    /// Heads that are not those of the tensors.
    #[error(
        "{into:?} is made of {extents:?} indices, which are not {query} query heads and twice {key_value} key-value heads of one size; correct the heads"
    )]
    HeadsDiffer {
        /// What is made.
        into: String,
        /// Of the parts.
        extents: Vec<u64>,
        /// Query heads.
        query: u64,
        /// Key-value heads.
        key_value: u64,
    },
    /// No axis of the mesh can carry the arrangement.
    #[error(
        "{into:?} needs an axis that cuts dimension {dim} or nothing, and {spec} has none; write tp=1 beside the others"
    )]
    NoAxis {
        /// What is made.
        into: String,
        /// The fused dimension.
        dim: usize,
        /// Sizes of the axes.
        spec: String,
    },
    /// Fused storage that is not possible.
    #[error("{into:?} cannot be stored")]
    Fused {
        /// What is made.
        into: String,
        /// Why.
        #[source]
        source: FusedError,
    },
}
