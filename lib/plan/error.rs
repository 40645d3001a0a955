//! What can be wrong with a manifest.

use crate::layout::parallel::{ParallelError, RulesError};
use crate::layout::{Dtype, LayoutError};
use thiserror::Error;

/// A manifest that cannot be planned.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Source and destination disagree about the shape.
    #[error(
        "tensor {name:?}: source shape {source_shape:?} and destination shape {destination_shape:?} differ; both layouts must describe the same tensor"
    )]
    Shape {
        /// Tensor.
        name: String,
        /// Source layout's shape.
        source_shape: Vec<u64>,
        /// Destination layout's shape.
        destination_shape: Vec<u64>,
    },
    /// Source and destination disagree about the type.
    #[error(
        "tensor {name:?}: source dtype {source_dtype} and destination dtype {destination_dtype} differ; give both sides one dtype, or ask for a cast (Manifest::push_with and Transform::Cast, refit --cast)"
    )]
    Dtype {
        /// Tensor.
        name: String,
        /// Source layout's type.
        source_dtype: Dtype,
        /// Destination layout's type.
        destination_dtype: Dtype,
    },
    /// A cast that cannot be made.
    #[error(
        "tensor {name:?}: elements cannot be cast from {source_dtype} to {destination_dtype}; allowed are F32, F16 and BF16, each to each: give both sides one dtype, or convert before or after the transfer"
    )]
    Cast {
        /// Tensor.
        name: String,
        /// Source layout's type.
        source_dtype: Dtype,
        /// Destination layout's type.
        destination_dtype: Dtype,
    },
    /// A destination of terms.
    #[error(
        "tensor {name:?}: the destination layout has a partial mesh axis; only sources can be partial: replicate or shard along it"
    )]
    PartialDestination {
        /// Tensor.
        name: String,
    },
    /// Two tensors of one name.
    #[error("tensor {name:?} stands in the manifest twice, at {first} and {second}; give every tensor its own name")]
    Duplicate {
        /// Tensor.
        name: String,
        /// First position.
        first: usize,
        /// Second position.
        second: usize,
    },
    /// A layout does not fit the communicator.
    #[error("tensor {name:?}")]
    Layout {
        /// Tensor.
        name: String,
        /// What is wrong.
        #[source]
        layout: LayoutError,
    },
    /// A parallel spec does not fit its ranks or the model.
    #[error("the {side} cannot be laid out")]
    Spec {
        /// `source` or `destination`.
        side: &'static str,
        /// Why.
        #[source]
        source: ParallelError,
    },
    /// Rules do not fit the model.
    #[error("the rules of the {side} do not fit the model")]
    Rules {
        /// `source` or `destination`.
        side: &'static str,
        /// Why.
        #[source]
        source: RulesError,
    },
    /// More cells than a cell number can count.
    #[error(
        "tensor {name:?} falls into {cells} cells; at most {} can be numbered: shard fewer dimensions or use fewer ranks",
        u32::MAX
    )]
    TooManyCells {
        /// Tensor.
        name: String,
        /// Its cells.
        cells: u128,
    },
    /// More tensors than a tensor number can count.
    #[error("the manifest has {tensors} tensors; at most {} can be numbered: split it", u32::MAX)]
    TooManyTensors {
        /// Its tensors.
        tensors: usize,
    },
    /// More than can be counted.
    #[error(
        "{tensors} tensor{} of {bytes} bytes, the largest of them {largest:?}, on {ranks} ranks would be more than the {} bytes \
         that 64 bits can count; split the manifest",
        if *tensors == 1 { "" } else { "s" },
        u64::MAX
    )]
    TooLarge {
        /// Tensors of the manifest.
        tensors: usize,
        /// Their bytes, each once.
        bytes: u128,
        /// The tensor of the most bytes.
        largest: String,
        /// Ranks that may receive all of them.
        ranks: usize,
    },
}
