//! What one NIC moves. In: the world. Out: bytes per second between two ranks of different domains. Guarantee: an
//! ordinary transfer of one contiguous tensor, alone on the network, best of a few; all ranks get the same number.

use super::error::RefitError;
use crossmesh::base::{Deadline, Rank};
use crossmesh::comm::{Buffer, Buffers, CommError, Communicator, ReshardOptions, Side};
use crossmesh::layout::{Dtype, Layout, LayoutError, Mesh, Placement, View};
use crossmesh::plan::Manifest;
use crossmesh::route::{Injection, RouteKind, RouteOptions};
use std::sync::Arc;
use std::time::Instant;

const BYTES: u64 = 32 << 20;
const ROUNDS: usize = 4;

/// Measures the rate from `from` to `to`; collective.
pub(super) fn measure(world: &Communicator, from: Rank, to: Rank, deadline: Deadline) -> Result<f64, RefitError> {
    let on = |rank: Rank| -> Result<Arc<Layout>, LayoutError> {
        let mesh = Arc::new(Mesh::new(vec![1], vec![rank])?);
        Ok(Arc::new(Layout::new(vec![BYTES], Dtype::U8, mesh, vec![Placement::Replicate])?))
    };
    let layout = |side, rank| on(rank).map_err(|source| RefitError::Layout { tensor: "nic rate".into(), side, source });
    let mut manifest = Manifest::new();
    manifest.push("nic rate", layout("src", from)?, layout("dst", to)?)?;
    let manifest = Arc::new(manifest);
    let mut buffers = Buffers::new(&manifest);
    for (rank, side) in [(from, Side::Source), (to, Side::Destination)] {
        if world.rank() == rank {
            buffers.set(side, 0, Buffer::shared(BYTES).map_err(CommError::from)?, View::contiguous());
        }
    }
    let route = RouteOptions { kind: RouteKind::Flat, injection: Injection::Single };
    let mut transfer = world.reshard_init(&manifest, &buffers, ReshardOptions { route }, deadline)?;
    let mut best = 0f64;
    for _ in 0..ROUNDS {
        world.barrier(deadline)?;
        let begun = Instant::now();
        transfer.start().map_err(CommError::from)?;
        transfer.wait(deadline).map_err(CommError::from)?;
        best = best.max(BYTES as f64 / begun.elapsed().as_secs_f64());
    }
    // The receiver's clock counts: it began before the first byte and ended after the last.
    let all = world.allgather(&best.to_le_bytes(), deadline)?;
    let bytes = all.get(to.index()).and_then(|bytes| bytes.as_slice().try_into().ok()).unwrap_or([0; 8]);
    Ok(f64::from_le_bytes(bytes))
}
