//! Plans saved by a job and loaded by one. In: plans for topologies like that of the job and unlike it. Out: nothing.
//! Guarantee: only a plan for the same topology is taken, by every rank alike.

use super::{finalize, soon, world};
use crate::planner::layout;
use crate::rig::spmd::{said, spmd};
use crossmesh::base::Rank;
use crossmesh::comm::{Buffer, Buffers, ReshardOptions, Side};
use crossmesh::layout::{Dtype, Placement, View};
use crossmesh::plan::Manifest;
use crossmesh::route::{RouteOptions, SavedPlan};
use crossmesh::topology::Seat;
use crossmesh::topology::cluster::NicSeat;
use std::sync::Arc;

const BYTES: u64 = 1000;

/// One tensor from rank 0 to rank 1.
fn manifest() -> Arc<Manifest> {
    let mut manifest = Manifest::new();
    let side = |rank| layout(&[BYTES], Dtype::U8, &[1], [rank], &[Placement::Replicate]);
    manifest.push("weight", side(0), side(1)).expect("one shape");
    Arc::new(manifest)
}

fn card(rail: u32) -> Seat {
    let device = format!("mlx5_{rail}");
    let nic = NicSeat { device, port: 1, pci: None, rail, rail_is_given: true, bytes_per_second: 50_000_000_000 };
    Seat { nics: vec![nic], ..Seat::default() }
}

#[test]
fn plans_are_taken_for_their_own_topology_only() {
    let body = || {
        let world = world();
        let folder = tempfile::tempdir().expect("a folder");
        let save = |name: &str, topology: &crossmesh::topology::Topology| {
            let path = folder.path().join(name);
            let plan = SavedPlan::new(manifest(), topology, RouteOptions::default()).expect("ranks 0 and 1");
            plan.save(&path).expect("a place");
            path
        };
        let here = world.topology().clone().with_seats(vec![Seat::default(); 2]);
        let own = save("own", &here);
        // Cards of which this job knows nothing.
        let other = save("other", &here.clone().with_seats(vec![card(0), card(3)]));
        let apart = save("apart", &here.with_domains(&[0, 1]).expect("one host"));
        let options = ReshardOptions::default();
        for (path, differs) in [
            (&other, "rank 0 with network cards on rail 0 of 50000000000 bytes/s, and here it is"),
            (&apart, "rank 1 in domain 1, and here it is 0"),
        ] {
            let error = world.load_plan(path, options).expect_err("for another topology").to_string();
            assert!(error.contains(differs), "{error}");
        }
        if world.topology().nics(world.rank()).is_empty() {
            let plan = world.load_plan(&own, options).expect("for this topology");
            let mut buffers = Buffers::new(&plan.manifest);
            let buffer = Buffer::shared(BYTES).expect("memory");
            let side = if world.rank() == Rank(0) { Side::Source } else { Side::Destination };
            buffer.write().expect("fresh").fill(if side == Side::Source { 7 } else { 0 });
            buffers.set(side, 0, buffer.clone(), View::contiguous());
            world.reshard(&plan.manifest, &buffers, options, soon()).expect("a good manifest");
            assert!(buffer.read().expect("finished").iter().all(|&byte| byte == 7));
        }
        finalize(world);
        println!("here: done");
    };
    let job = spmd(2, body).expect_success();
    assert_eq!(said(&job, "here: ").len(), 2, "{job:#?}");
}
