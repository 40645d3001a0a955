//! What can be wrong with a model. Each message says the value, what is allowed, what to do.

use crate::base::json::JsonError;
use crate::layout::{Dtype, DtypeError};
use thiserror::Error;

/// A model that cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// Not JSON of a form that we read.
    #[error(
        "{origin} is no model description, which holds {{tensor: {{\"shape\": [...], \"dtype\": \"BF16\"}}}} or what \
         crossmesh writes"
    )]
    Unreadable {
        /// The file.
        origin: String,
        /// What the JSON reader says.
        #[source]
        source: JsonError,
    },
    /// Another version of our own form.
    #[error("{origin} is a model file of version {version}; this program reads version {known}")]
    Version {
        /// The file.
        origin: String,
        /// Its version.
        version: String,
        /// Ours.
        known: u64,
    },
    /// A dtype that we do not have.
    #[error("tensor {tensor:?} of {origin} has an unusable dtype")]
    Dtype {
        /// The file.
        origin: String,
        /// The tensor.
        tensor: String,
        /// Why.
        #[source]
        source: DtypeError,
    },
    /// A tensor without elements.
    #[error("tensor {tensor:?} of {origin} has shape {shape:?}, which holds nothing; every extent must be at least 1")]
    EmptyTensor {
        /// The file.
        origin: String,
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// A role that we do not have.
    #[error(
        "tensor {tensor:?} of {origin} has role {role:?}; allowed are {}",
        super::Role::ALL.map(super::Role::name).join(", ")
    )]
    Role {
        /// The file.
        origin: String,
        /// The tensor.
        tensor: String,
        /// As written.
        role: String,
    },
    /// A name that no built-in model has.
    #[error(
        "there is no built-in model {name:?}; allowed are {known}, each of them also as NAME-stacked where it has experts"
    )]
    NotPublished {
        /// As given.
        name: String,
        /// All of them.
        known: String,
    },
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
