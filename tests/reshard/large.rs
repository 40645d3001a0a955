//! A tensor of more bytes than 32 bits count, over every kind of link. Asked for by `CROSSMESH_TEST_LARGE=1`, because
//! it wants 10 GiB of memory.

use super::transfer::mix;
use super::{finalize, world};
use crate::planner::layout;
use crate::rig::spmd::{Job, said};
use crossmesh::base::{Deadline, Rank};
use crossmesh::comm::{Buffer, Buffers, ReshardOptions, Side};
use crossmesh::layout::{Dtype, Placement, View};
use crossmesh::plan::Manifest;
use std::sync::Arc;

/// 4 GiB and a row.
const ROWS: u64 = (1 << 20) + 1;
const COLUMNS: u64 = 512;
const DTYPE: Dtype = Dtype::F64;

fn asked_for() -> bool {
    let asked = std::env::var("CROSSMESH_TEST_LARGE").is_ok_and(|value| value == "1");
    if !asked {
        println!("not run: set CROSSMESH_TEST_LARGE=1 on a machine with 10 GiB of free memory");
    }
    asked
}

/// From rank 0 to rank 1, whole.
fn one_large_tensor() {
    let world = world();
    let deadline = || Deadline::seconds(100);
    let side = |rank| layout(&[ROWS, COLUMNS], DTYPE, &[1], [rank], &[Placement::Replicate]);
    let mut manifest = Manifest::new();
    manifest.push("lm_head", side(0), side(1)).expect("one shape");
    let manifest = Arc::new(manifest);
    let buffer = Buffer::shared(ROWS * COLUMNS * DTYPE.bytes()).expect("memory");
    let mut buffers = Buffers::new(&manifest);
    let source = world.rank() == Rank(0);
    if source {
        let mut bytes = buffer.write().expect("fresh");
        bytes
            .chunks_exact_mut(8)
            .enumerate()
            .for_each(|(at, word)| word.copy_from_slice(&mix(at as u64).to_le_bytes()));
    }
    buffers.set(if source { Side::Source } else { Side::Destination }, 0, buffer.clone(), View::contiguous());
    world.barrier(deadline()).expect("both are here");
    world.reshard(&manifest, &buffers, ReshardOptions::default(), deadline()).expect("it moves");
    let bytes = buffer.read().expect("finished");
    let wrong = bytes.chunks_exact(8).enumerate().find(|&(at, word)| word != mix(at as u64).to_le_bytes());
    assert_eq!(wrong.map(|(at, _)| at), None, "first wrong element on rank {}", world.rank());
    drop(bytes);
    println!("compared: {} bytes", buffer.bytes());
    finalize(world);
}

macro_rules! jobs {
    ($($name:ident: $domains:literal domains, $mapped:literal;)*) => {$(
        #[test]
        fn $name() {
            if asked_for() {
                let job = Job::of(2).env("CROSSMESH_DOMAINS", $domains).env("CROSSMESH_MAPPED", $mapped);
                let job = job.run(|| one_large_tensor()).expect_success();
                assert_eq!(said(&job, "compared: "), ["4294971392 bytes"; 2]);
            }
        }
    )*};
}

jobs! {
    mapped: 1 domains, "auto";
    staged: 1 domains, "staged";
    tcp: 2 domains, "auto";
}
