//! What moves.
//!
//! In: a [`Manifest`] of tensors with a source and a destination layout each. Out: a [`Plan`]: cells, maximal
//! boxes of the global tensors with one set of holders and one set of wanters, grouped into classes that share
//! both sets. Guarantee: pure and deterministic; cells come from per-dimension interval refinement, never from
//! testing pairs of ranks; cells of one tensor are disjoint and cover every index that any rank wants.

mod cell;
mod compile;
pub mod digest;
mod error;
mod family;
mod manifest;
mod model;
#[cfg(test)]
mod tests;
mod transform;

pub use cell::{Cell, TensorCells};
pub use compile::{CellClass, CellId, ClassId, Plan};
pub use digest::{Difference, Digest, ManifestDigest};
pub use error::PlanError;
pub use manifest::{Manifest, TensorSpec};
pub use model::{ModelManifest, ModelSide, model_manifest};
pub use transform::Transform;
