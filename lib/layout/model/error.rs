//! What can be wrong with a model. Each message says the value, what is allowed, what to do.

use crate::layout::Dtype;
use thiserror::Error;

/// A model that cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// Two tensors of one name.
    #[error("tensor {tensor:?} stands in model {model:?} twice; give every tensor its own name")]
    Repeated {
        /// The model.
        model: String,
        /// The tensor.
        tensor: String,
    },
    /// A tensor beyond 64 bits.
    #[error("tensor {tensor:?} of model {model:?} with shape {shape:?} and dtype {dtype} has more than 2^64 - 1 bytes")]
    Size {
        /// The model.
        model: String,
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<u64>,
        /// Its type.
        dtype: Dtype,
    },
    /// A model beyond 64 bits.
    #[error("the tensors of model {model:?} have more than 2^64 - 1 bytes together; split the model")]
    TotalSize {
        /// The model.
        model: String,
    },
}
