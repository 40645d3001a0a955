//! Models as values.
//!
//! In: names, shapes and types of tensors, with what is known of the model's dimensions; read from files, or made from
//! published dimensions. Out: [`Model`]. Guarantee: pure; a model from here has no name twice and no tensor whose
//! bytes do not fit 64 bits.

mod decoder;
mod error;
mod file;
mod published;
mod value;

pub use error::ModelError;
pub use published::published_names;
pub use value::{Dimensions, Model, ModelTensor, Role};
