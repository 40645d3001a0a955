//! Which part of a tensor a rank holds.
//!
//! In: shape, dtype, mesh of ranks, one placement per mesh axis. Out: per dimension an [`AxisMap`] for every
//! rank; their product is the rank's local tensor. Guarantee: pure and checked; a [`Layout`] that exists is
//! consistent, covers only its shape and fits 64-bit sizes.

mod axis_map;
pub mod content_digest;
mod dtype;
mod error;
#[allow(clippy::module_inception)]
mod layout;
mod mesh;
pub mod parallel;
mod placement;
mod placement_text;
mod view;

pub use axis_map::{AxisMap, Interval};
pub use dtype::{Dtype, DtypeError};
pub use error::LayoutError;
pub use layout::{AxisShard, DimensionMap, Layout};
pub use mesh::Mesh;
pub use placement::{Placement, Split};
pub use placement_text::PlacementError;
pub use view::View;
