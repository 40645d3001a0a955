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
    /// A mesh that was not written by this library.
    #[error(
        "mesh of shape {shape:?} is written as strides {strides:?}, which do not nest; list its ranks, or write it again"
    )]
    MeshUnlisted {
        /// Mesh shape.
        shape: Vec<u32>,
        /// As written.
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
    /// A stated padding that another type would read as another value.
    #[error("padding stated for elements of {from} cannot be taken over to {to}; state it with the layout of {to}")]
    PaddingDtype {
        /// Type of the layout.
        from: Dtype,
        /// Type asked for.
        to: Dtype,
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
    /// More local positions than 64 bits can count.
    #[error("an axis map of {local} positions cannot grow by {count}: 64 bits cannot count that; use smaller parts")]
    AxisTooLong {
        /// Positions so far, or indices that are spread out.
        local: u64,
        /// Positions to be added, or for each index.
        count: u64,
    },
    /// A place among interleaved tensors that does not exist.
    #[error("place {place} of {of} interleaved tensors does not exist; places count from 0")]
    InterleavePlace {
        /// The place.
        place: u64,
        /// Number of tensors.
        of: u64,
    },
    /// A block of no indices.
    #[error("blocks of {block} indices; a block has at least one")]
    Block {
        /// Indices of a block.
        block: u64,
    },
    /// Not one block size per dimension.
    #[error(
        "{blocks} block sizes for a tensor of {rank} dimensions; give one per dimension, 1 where there are no blocks"
    )]
    BlockRank {
        /// Given.
        blocks: usize,
        /// Tensor rank.
        rank: usize,
    },
    /// Blocks of blocks.
    #[error("the layout is that of block scales already; derive scales from the layout of the weight")]
    BlockTwice,
    /// Interleaved indices have no blocks.
    #[error("indices stored {step} positions apart have no common scale in blocks of {block}; store them in one piece")]
    BlockStep {
        /// Distance of neighbours.
        step: u64,
        /// Indices of a block.
        block: u64,
    },
    /// Positions of other tensors that are no whole blocks.
    #[error(
        "{count} positions that belong to other tensors, or padding in front, are no whole blocks of {block}; derive the          scales of fused tensors together (FusedAxis::blocks)"
    )]
    BlockHole {
        /// Positions.
        count: u64,
        /// Indices of a block.
        block: u64,
    },
    /// A padding value that is no element.
    #[error("padding of {bytes} bytes for elements of {element}; give one element")]
    PaddingValue {
        /// Given bytes.
        bytes: usize,
        /// Bytes of an element.
        element: u64,
    },
    /// Fewer positions than indices.
    #[error("dimension {dim} has {extent} indices and is padded to {padded}; pad to no less than it has")]
    PaddedExtent {
        /// Tensor dimension.
        dim: usize,
        /// Its extent.
        extent: u64,
        /// What it is padded to.
        padded: u64,
    },
    /// Not one axis map per coordinate.
    #[error("mesh axis {axis} has {ranks} ranks and {maps} axis maps are given; give one per rank")]
    MapsCount {
        /// Mesh axis.
        axis: usize,
        /// Its length.
        ranks: u32,
        /// Given maps.
        maps: usize,
    },
    /// An axis map names indices that do not exist.
    #[error(
        "the axis map of coordinate {coordinate} of mesh axis {axis} names indices {lo} to {hi} (excluded); dimension {dim} has {extent} there"
    )]
    MapOutside {
        /// Mesh axis.
        axis: usize,
        /// Coordinate along it.
        coordinate: usize,
        /// Tensor dimension.
        dim: usize,
        /// First index.
        lo: u64,
        /// One past the last index.
        hi: u64,
        /// Indices that exist.
        extent: u64,
    },
    /// Maps that lie in each other make too many runs.
    #[error(
        "the axis maps of dimension {dim} may cut it into {segments} runs; at most {most} are allowed: state longer runs, or fewer axes"
    )]
    MapsTooFine {
        /// Tensor dimension.
        dim: usize,
        /// The product of the most runs of each axis.
        segments: u64,
        /// Most runs.
        most: u64,
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
    #[error(transparent)]
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
    /// A map that was read and contradicts itself.
    #[error(
        "a map of dimension {dim} has a segment or padding outside its extent of {extent}, or out of order; write the file again"
    )]
    MapTorn {
        /// Tensor dimension.
        dim: usize,
        /// The map's extent.
        extent: u64,
    },
}
