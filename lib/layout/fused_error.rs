//! What can be wrong with fused tensors and expert maps. Each message says the value, what is allowed, what to do.

use super::LayoutError;
use thiserror::Error;

/// Fused tensors that cannot be stored as asked for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FusedError {
    /// Head counts that make no attention layer.
    #[error(
        "{query} query heads and {key_value} key-value heads of {size} indices form no attention layer; give numbers \
         above 0, query heads that are a multiple of the key-value heads, and no more indices than 64 bits count"
    )]
    Heads {
        /// Query heads.
        query: u64,
        /// Key-value heads.
        key_value: u64,
        /// Indices of a head.
        size: u64,
    },
    /// Heads that do not divide among the ranks.
    #[error(
        "{query} query heads and {key_value} key-value heads cannot be dealt out evenly to {ranks} ranks; use a number of \
         ranks that divides the query heads and divides the key-value heads or is a multiple of them, or state another rule \
         in a file for --rules: [[store]] tables with side = \"both\" and heads = {{ of = \"query\", split = \"as-needed\" }} for \
         q_proj and o_proj, {{ of = \"key-value\", split = \"as-needed\" }} for k_proj and v_proj deal out query heads by the \
         floor rule, and the key-value heads that they use; a [[rule]] without heads for all four cuts rows, also inside a \
         head; a [[fuse]] table has split = \"as-needed\" or \"rows\""
    )]
    Uneven {
        /// Query heads.
        query: u64,
        /// Key-value heads.
        key_value: u64,
        /// Ranks.
        ranks: u32,
    },
    /// Interleaved attention with fewer key-value heads.
    #[error(
        "queries, keys and values of {query} query heads and {key_value} key-value heads cannot be interleaved; their \
         numbers must be equal: use the grouped form"
    )]
    InterleavedHeads {
        /// Query heads.
        query: u64,
        /// Key-value heads.
        key_value: u64,
    },
    /// Interleaved tensors of different extents.
    #[error("tensors of extents {extents:?} cannot be interleaved; their extents must be equal")]
    InterleavedExtents {
        /// The extents.
        extents: Vec<u64>,
    },
    /// Groups without heads.
    #[error("the grouped form is made of attention heads; state the heads, or use concatenated or interleaved")]
    GroupsWithoutHeads,
    /// Sizes that do not fit the tensors.
    #[error(
        "sizes {sizes:?} for tensors of extents {extents:?} over {ranks} ranks; give one size per rank, which sum to each extent"
    )]
    Sizes {
        /// Given.
        sizes: Vec<u64>,
        /// Of the tensors.
        extents: Vec<u64>,
        /// Ranks.
        ranks: u32,
    },
    /// No tensors or no ranks.
    #[error("{tensors} tensors fused over {ranks} ranks; there must be at least one of each")]
    Nothing {
        /// Tensors.
        tensors: usize,
        /// Ranks.
        ranks: u32,
    },
    /// A part that does not exist.
    #[error(
        "rank {rank} stores indices {lo} to {hi} (excluded) of fused tensor {tensor}; there are {tensors} tensors, counted from 0, and that one has {extent} indices"
    )]
    Outside {
        /// The rank, counted along the mesh axis.
        rank: usize,
        /// The tensor.
        tensor: usize,
        /// First index.
        lo: u64,
        /// One past the last.
        hi: u64,
        /// Its extent.
        extent: u64,
        /// Number of tensors.
        tensors: usize,
    },
    /// Two descriptions of different tensors.
    #[error(
        "tensors of extents {extents:?} are not those of extents {whole:?}, stored by one rank, that the fused tensor consists of"
    )]
    Whole {
        /// As dealt out.
        extents: Vec<u64>,
        /// As fused.
        whole: Vec<u64>,
    },
    /// An axis map.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// An expert map that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ExpertError {
    /// No slots, experts or ranks, or slots that do not divide.
    #[error(
        "{slots} expert slots over {ranks} ranks; there must be at least one of each, and the same number on every rank"
    )]
    Slots {
        /// Physical slots.
        slots: usize,
        /// Ranks.
        ranks: u32,
    },
    /// A slot with an expert that does not exist.
    #[error("slot {slot} of the expert map holds expert {expert}; the model has {experts}, counted from 0")]
    Unknown {
        /// The slot.
        slot: usize,
        /// Its expert.
        expert: u64,
        /// Number of experts.
        experts: u64,
    },
    /// An expert that no slot holds.
    #[error(
        "no slot of the expert map holds expert {expert} of {experts}; every expert needs a slot (a map of as many slots as experts is a permutation)"
    )]
    Missing {
        /// The expert.
        expert: u64,
        /// Number of experts.
        experts: u64,
    },
}
