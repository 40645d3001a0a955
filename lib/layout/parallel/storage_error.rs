//! What can be wrong with a rule about the storage of tensors. Each message says the value, what is allowed, what to do.

use super::{FuseRuleError, PatternError};
use crate::layout::{Dtype, FusedError};
use thiserror::Error;

/// A `[[store]]` or `[[scales]]` rule that cannot be used, or that cannot be applied to a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StorageError {
    /// No names.
    #[error("it lists no names; give at least one pattern, such as names = [\"*.embed_tokens.weight\"]")]
    NoNames,
    /// A pattern that cannot be used.
    #[error("a name pattern cannot be used")]
    Pattern(#[from] PatternError),
    /// A rule that says nothing.
    #[error("it says nothing about storage; write pad, crop, transposed = true or heads")]
    SaysNothing,
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
    /// A number that must be at least one.
    #[error("{key} has a number of 0; give at least 1")]
    Zero {
        /// The key.
        key: &'static str,
    },
    /// `crop` on the source.
    #[error(
        "crop leaves out indices that no destination wants, so it is for side = \"destination\"; to cut off what sources hold behind the last index write pad for the source"
    )]
    CropSource,
    /// Neither one of `to` and `multiple`, or `per` without `multiple`.
    #[error(
        "pad has either to = N or multiple = N, and per = \"rank\" beside multiple only; write for instance pad = {{ dim = 0, multiple = 64 }}"
    )]
    PadKeys,
    /// `value` on the source.
    #[error(
        "pad states a value for the source, whose padding is never read; leave the value out, or use side = \"destination\" or \"both\""
    )]
    PadValueSource,
    /// Padding to less than there is.
    #[error("pad to {to} indices of a tensor that has {extent}; give at least as many, or crop it first")]
    PadShort {
        /// Indices.
        extent: u64,
        /// With padding.
        to: u64,
    },
    /// Padding beyond 64 bits.
    #[error("pad of {extent} indices by {pad} is more than 64 bits can count; use a smaller number")]
    PadTooLarge {
        /// Indices.
        extent: u64,
        /// As asked for.
        pad: String,
    },
    /// A value that the type does not have.
    #[error(
        "pad value {value} cannot be stored exactly as {dtype} of tensor {tensor:?}; give a value that this type has"
    )]
    PadValue {
        /// The tensor.
        tensor: String,
        /// The value.
        value: String,
        /// The type.
        dtype: Dtype,
    },
    /// Heads that are padded.
    #[error("it has heads beside pad or crop; a tensor is cut at heads or padded, so leave one out")]
    HeadsPadded,
    /// One number of heads without the other.
    #[error("heads has one of query and key_value; give both numbers, or none to take those of the model")]
    HeadCounts,
    /// Heads that are not those of the tensor.
    #[error(
        "tensor {tensor:?} has {extent} indices, which are not {heads} heads of one size; correct the heads, or cut rows by a [[rule]] without heads"
    )]
    Heads {
        /// The tensor.
        tensor: String,
        /// Indices of the dimension.
        extent: u64,
        /// Number of heads.
        heads: u64,
    },
    /// Numbers of heads.
    #[error("the heads cannot be counted")]
    HeadNumbers(#[from] FuseRuleError),
    /// Heads that cannot be dealt out.
    #[error("the heads of tensor {tensor:?} cannot be dealt out under tp={ranks}")]
    Shares {
        /// The tensor.
        tensor: String,
        /// Size of `tp`.
        ranks: u32,
        /// Why.
        #[source]
        source: FusedError,
    },
    /// `heads` for a tensor that `tp` does not cut.
    #[error(
        "heads are dealt out by tp, and no rule says which dimension of tensor {tensor:?} it cuts; add a [[rule]] with tp"
    )]
    HeadsUncut {
        /// The tensor.
        tensor: String,
    },
    /// A dimension that the tensor lacks.
    #[error("{key} is for dimension {dim}, and tensor {tensor:?} has shape {shape:?}; dimensions are counted from 0")]
    Dimension {
        /// The key.
        key: &'static str,
        /// The dimension.
        dim: usize,
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// A crop to more than there is.
    #[error("crop to {to} indices of tensor {tensor:?}, which has {extent}; give a smaller number")]
    CropLong {
        /// The tensor.
        tensor: String,
        /// Indices.
        extent: u64,
        /// As asked for.
        to: u64,
    },
    /// A tensor that is stored within another one.
    #[error(
        "{key} of tensor {tensor:?}, which is stored within {into:?}; only transposed = true can be said of parts of other tensors"
    )]
    Part {
        /// The key.
        key: &'static str,
        /// The tensor.
        tensor: String,
        /// What it is part of.
        into: String,
    },
    /// A tensor with two rules.
    #[error("tensor {tensor:?} is matched by rule {other} too; say all about a tensor's storage on a side in one rule")]
    Twice {
        /// The tensor.
        tensor: String,
        /// The other rule.
        other: String,
    },
    /// No tensor of the model fits.
    #[error("no tensor of model {model:?} is one of {names:?}; correct the names or remove the rule")]
    MatchesNothing {
        /// The model.
        model: String,
        /// The patterns.
        names: Vec<String>,
    },
    /// Lists that are no pairs.
    #[error("{names} names and {weights} weights; give one pattern of weights for each pattern of scales")]
    ScalePairs {
        /// Patterns of scales.
        names: usize,
        /// Patterns of weights.
        weights: usize,
    },
    /// Patterns with different numbers of what they leave open.
    #[error(
        "pattern {pattern:?} leaves {open} components open and {first:?} leaves {first_open}; what * and {{a,b}} stand for \
         is put into the other in the same order, so both need the same number of them"
    )]
    Open {
        /// The pattern.
        pattern: String,
        /// What it leaves open.
        open: usize,
        /// The other.
        first: String,
        /// What that leaves open.
        first_open: usize,
    },
    /// Blocks of nothing.
    #[error(
        "block = {block:?}; give the indices of a block, at least 1 in each of the last dimensions, such as [128, 128]"
    )]
    Block {
        /// As written.
        block: Vec<u64>,
    },
    /// Scales without their weight.
    #[error("scales {scales:?} have no weight {weight:?}; correct the names, or write a [[rule]] for the scales")]
    NoWeight {
        /// The scales.
        scales: String,
        /// The name of the weight.
        weight: String,
    },
    /// Scales that are not those of the blocks.
    #[error(
        "scales {scales:?} have shape {shape:?}, and weight {weight:?} of shape {weight_shape:?} has {} blocks of {block:?}; \
         correct the block in a [[scales]] rule",
        expected.as_ref().map_or("no".to_string(), |expected| format!("{expected:?}"))
    )]
    ScaleShape {
        /// The scales.
        scales: String,
        /// Their shape.
        shape: Vec<u64>,
        /// The weight.
        weight: String,
        /// Its shape.
        weight_shape: Vec<u64>,
        /// Indices of a block.
        block: Vec<u64>,
        /// The shape that they should have.
        expected: Option<Vec<u64>>,
    },
    /// Scales that are stored otherwise than their weight.
    #[error(
        "scales {scales:?} and their weight {weight:?} are stored differently: fuse, stack, or leave both as they are, with rules of one form"
    )]
    ScalesApart {
        /// The scales.
        scales: String,
        /// The weight.
        weight: String,
    },
    /// Scales of fused weights that several axes cut.
    #[error(
        "dimension {dim} of fused scales {scales:?} is cut by {spec}; scales of fused tensors are cut by tp alone: leave out the other axes or the fuse rule"
    )]
    ScalesCut {
        /// The scales.
        scales: String,
        /// The dimension.
        dim: usize,
        /// The axes.
        spec: String,
    },
    /// Blocks of fused weights.
    #[error("the scales {scales:?} of a fused weight cannot be dealt out")]
    FusedScales {
        /// The scales.
        scales: String,
        /// Why.
        #[source]
        source: FusedError,
    },
}
