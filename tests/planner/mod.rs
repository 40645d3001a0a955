//! Planner tests through the public interface: layouts, plan and route against a slow model that looks at every
//! element on its own, the examples of NCCL M2N worked through, balance, digests, and a whole model's scale.

mod balance;
mod cases;
mod cells;
mod digests;
mod files;
mod level;
pub(crate) mod oracle;
mod paper;
mod partial;
mod proofs;
pub(crate) mod random;
mod routes;
mod scale;
mod slices;

use crossmesh::base::Rank;
use crossmesh::layout::{Dtype, Layout, Mesh, Placement};
use crossmesh::plan::{Manifest, Plan};
use crossmesh::route::{Injection, RouteKind, RouteOptions};
use std::sync::Arc;

/// Every combination of route and injection.
pub(crate) fn all_options() -> [RouteOptions; 6] {
    let kinds = [RouteKind::Hierarchical, RouteKind::Flat, RouteKind::GatherBroadcast];
    std::array::from_fn(|index| RouteOptions {
        kind: kinds[index / 2],
        injection: [Injection::Striped, Injection::Single][index % 2],
    })
}

fn options(kind: RouteKind, injection: Injection) -> RouteOptions {
    RouteOptions { kind, injection }
}

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

/// A plan of tensors named by their position.
fn plan(tensors: impl IntoIterator<Item = (Arc<Layout>, Arc<Layout>)>, size: usize) -> Plan {
    let mut manifest = Manifest::new();
    for (index, (source, destination)) in tensors.into_iter().enumerate() {
        manifest.push(format!("tensor{index}"), source, destination).expect("tensor of the test");
    }
    Plan::compile(Arc::new(manifest), size).expect("plan of the test")
}
