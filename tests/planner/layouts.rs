//! Layouts of tests. In: shapes, ranks, placements. Out: a layout.

use crossmesh::base::Rank;
use crossmesh::layout::{Dtype, Layout, Mesh, Placement};
use std::sync::Arc;

/// A layout over listed ranks.
pub(crate) fn layout(
    shape: &[u64],
    dtype: Dtype,
    mesh: &[u32],
    ranks: impl IntoIterator<Item = u32>,
    placements: &[Placement],
) -> Arc<Layout> {
    let mesh = Mesh::new(mesh.to_vec(), ranks.into_iter().map(Rank).collect()).expect("mesh of the test");
    Arc::new(Layout::new(shape.to_vec(), dtype, Arc::new(mesh), placements.to_vec()).expect("layout of the test"))
}
