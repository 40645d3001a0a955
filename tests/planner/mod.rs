//! Planner tests through the public interface: layouts, plan and route against a slow model that looks at every
//! element on its own, the examples of NCCL M2N worked through, balance, digests, and a whole model's scale.

mod balance;
mod cases;
mod cells;
mod digests;
mod files;
mod layouts;
mod level;
pub(crate) mod oracle;
mod paper;
mod partial;
mod proofs;
pub(crate) mod random;
mod routes;
mod scale;
mod slices;

pub(crate) use layouts::layout;

use crossmesh::layout::Layout;
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

/// A plan of tensors named by their position.
fn plan(tensors: impl IntoIterator<Item = (Arc<Layout>, Arc<Layout>)>, size: usize) -> Plan {
    let mut manifest = Manifest::new();
    for (index, (source, destination)) in tensors.into_iter().enumerate() {
        manifest.push(format!("tensor{index}"), source, destination).expect("tensor of the test");
    }
    Plan::compile(Arc::new(manifest), size).expect("plan of the test")
}
