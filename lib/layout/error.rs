//! What can be wrong with a layout. Each message says the value, what is allowed and what to do.

use super::Dtype;
use crate::base::{Rank, bytes::SizeError};
use thiserror::Error;

/// A layout, mesh or view that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// Shape product and number of ranks differ.
    #[error("mesh of shape {shape:?} has {slots} slots and {ranks} ranks are listed; list one rank per slot")]
    MeshSize {
        /// Mesh shape.
        shape: Vec<u32>,
        /// Its product.
        slots: u64,
        /// Listed ranks.
        ranks: usize,
    },
    /// A mesh axis of length zero.
    #[error("mesh of shape {shape:?} has no slots; every axis must have at least one rank")]
    MeshEmpty {
        /// Mesh shape.
        shape: Vec<u32>,
    },
    /// Not one stride per mesh axis.
    #[error("strides {strides:?} for a mesh of {axes} axes; give one per axis")]
    MeshStrides {
        /// Mesh axes.
        axes: usize,
        /// Given.
        strides: Vec<u32>,
    },
    /// Ranks beyond 32 bits.
    #[error(
        "mesh of shape {shape:?} from rank {first} with strides {strides:?} reaches past rank {}; use fewer ranks",
        u32::MAX
    )]
    MeshTooLarge {
        /// Mesh shape.
        shape: Vec<u32>,
        /// First rank.
        first: Rank,
        /// Ranks between neighbours, per axis.
        strides: Vec<u32>,
    },
    /// Coordinates that the axis does not have.
    #[error(
        "coordinates {coordinates:?} along mesh axis {axis}, which has length {length}; give at least one, each below that"
    )]
    MeshSelection {
        /// Mesh axis.
        axis: usize,
        /// Its length; 0 when there is no such axis.
        length: u32,
        /// Given.
        coordinates: Vec<u32>,
    },
    /// A rank stands twice in a mesh.
    #[error("rank {rank} stands in the mesh twice; every rank may stand in a mesh once")]
    MeshRepeats {
        /// The rank.
        rank: Rank,
    },
    /// A mesh rank is outside the communicator.
    #[error("the {side} mesh names rank {rank}; the communicator has ranks 0 to {last}")]
    MeshOutside {
        /// `source` or `destination`.
        side: &'static str,
        /// The rank.
        rank: Rank,
        /// Last valid rank.
        last: u32,
    },
    /// Not one placement per mesh axis.
    #[error("{placements} placements for a mesh of {axes} axes; give one per axis")]
    PlacementCount {
        /// Given.
        placements: usize,
        /// Mesh axes.
        axes: usize,
    },
    /// A shard placement names a dimension that the tensor does not have.
    #[error("mesh axis {axis} shards dimension {dim}; the tensor has {rank} dimensions, counted from 0")]
    NoSuchDimension {
        /// Mesh axis.
        axis: usize,
        /// Named dimension.
        dim: usize,
        /// Tensor rank.
        rank: usize,
    },
    /// Elements that cannot be reduced.
    #[error(
        "mesh axis {axis} holds partial terms of dtype {dtype}; allowed are {}: use another dtype, or reduce before the transfer",
        crate::layout::Reduction::DTYPES.map(|dtype| dtype.name()).join(", ")
    )]
    PartialDtype {
        /// Mesh axis.
        axis: usize,
        /// The type.
        dtype: Dtype,
    },
    /// A list of sizes has the wrong length.
    #[error("mesh axis {axis} has {ranks} ranks and {sizes} sizes are given; give one size per rank")]
    SizesCount {
        /// Mesh axis.
        axis: usize,
        /// Its length.
        ranks: u32,
        /// Given sizes.
        sizes: usize,
    },
    /// A list of sizes does not cover what it splits.
    #[error(
        "sizes {sizes:?} of mesh axis {axis} sum to {sum}; they split dimension {dim} in a part of {extent} and must sum to that"
    )]
    SizesSum {
        /// Mesh axis.
        axis: usize,
        /// Tensor dimension.
        dim: usize,
        /// Given.
        sizes: Vec<u64>,
        /// Their sum.
        sum: u64,
        /// What they must sum to.
        extent: u64,
    },
    /// The nesting order does not list exactly the axes that shard the dimension.
    #[error(
        "nesting order {given:?} for dimension {dim}; it must list the axes {axes:?} that shard it, outermost first"
    )]
    Nesting {
        /// Dimension.
        dim: usize,
        /// As given.
        given: Vec<usize>,
        /// The axes that shard it.
        axes: Vec<usize>,
    },
    /// More dimensions than supported.
    #[error(
        "a tensor of {rank} dimensions; at most {} are supported: merge dimensions that are not sharded",
        crate::layout::Layout::MAX_RANK
    )]
    TooManyDimensions {
        /// Tensor rank.
        rank: usize,
    },
    /// Does not fit 64 bits.
    #[error("size of the tensor: {0}")]
    Size(#[from] SizeError),
    /// A view's number of strides differs from the tensor rank.
    #[error("view with {strides} strides for a local tensor of {rank} dimensions; give one stride per dimension")]
    ViewRank {
        /// Given strides.
        strides: usize,
        /// Tensor rank.
        rank: usize,
    },
    /// A view reaches outside its buffer.
    #[error(
        "view reaches byte {end} of a buffer of {bytes} bytes (offset {offset}, local shape {shape:?}, strides {strides:?} elements); pass a larger buffer or correct the view"
    )]
    ViewOutside {
        /// One past the last byte needed.
        end: u128,
        /// Buffer size.
        bytes: u64,
        /// View offset.
        offset: u64,
        /// Local shape.
        shape: Vec<u64>,
        /// Strides in elements.
        strides: Vec<u64>,
    },
    /// Two elements of a destination view share bytes.
    #[error(
        "destination view with strides {strides:?} elements and local shape {shape:?} writes some bytes twice; use strides under which elements do not overlap"
    )]
    ViewOverlaps {
        /// Strides in elements.
        strides: Vec<u64>,
        /// Local shape.
        shape: Vec<u64>,
    },
}
