//! Which part of a tensor a rank holds.
//!
//! In: shape, dtype, mesh of ranks, one placement per mesh axis. Out: per dimension an [`AxisMap`] for every
//! rank; their product is the rank's local tensor. Guarantee: pure and checked; a [`Layout`] that exists is
//! consistent, covers only its shape and fits 64-bit sizes. [`FusedAxis`] and [`ExpertMap`] make placements for
//! tensors that are stored together, `Layout::block_scales` the layout of scales beside a weight.

mod axis_map;
pub mod content_digest;
mod dtype;
mod element;
mod error;
mod experts;
mod fused;
mod fused_error;
#[allow(clippy::module_inception)]
mod layout;
mod mesh;
pub mod model;
pub mod parallel;
mod placement;
mod placement_text;
pub mod positions;
mod value;
mod view;

pub use axis_map::{AxisMap, Interval, Location, Part, Segment};
pub use dtype::{Dtype, DtypeError};
pub use error::LayoutError;
pub use experts::ExpertMap;
pub use fused::{FusedAxis, FusedForm, HeadSplit, Heads};
pub use fused_error::{ExpertError, FusedError};
pub use layout::{AxisShard, DimensionMap, Layout};
pub use mesh::Mesh;
pub use placement::{Placement, Reduction, Split};
pub use placement_text::PlacementError;
pub use value::LayoutFields;
pub use view::View;
