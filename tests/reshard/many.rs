//! A model of ten thousand tiny tensors in one plan: adapters, norms and biases are such.

use super::random::Memory;
use super::transfer::{Spot, Transfer};
use super::{finalize, soon, world};
use crate::planner::{all_options, layout};
use crate::rig::spmd::Job;
use crossmesh::comm::{ReshardOptions, Side};
use crossmesh::layout::{Dtype, Layout, Placement, View};
use crossmesh::plan::Manifest;
use std::sync::Arc;
use std::time::{Duration, Instant};

const TENSORS: usize = 10_000;

/// From two ranks to two others, by rows, columns and whole, of 256 to 1024 bytes.
fn tiny() -> Arc<Manifest> {
    let pairs: Vec<(Arc<Layout>, Arc<Layout>)> =
        [(8, Placement::shard(0)), (16, Placement::shard(1)), (4, Placement::Replicate)]
            .into_iter()
            .map(|(rows, to)| {
                let side = |first, placement| layout(&[rows, 8], Dtype::F64, &[2], first..first + 2, &[placement]);
                (side(0, Placement::shard(0)), side(2, to))
            })
            .collect();
    let mut manifest = Manifest::new();
    for number in 0..TENSORS {
        let (source, destination) = &pairs[number % pairs.len()];
        manifest.push(format!("layer{number}"), source.clone(), destination.clone()).expect("one shape");
    }
    Arc::new(manifest)
}

fn all_at_once(memory: Memory) {
    let world = world();
    let (manifest, rank) = (tiny(), world.rank());
    let mut ends = [0, 0];
    // One buffer for each side, with a byte between tensors, as an arena has.
    let place = |_, side, layout: &Layout| {
        let buffer = usize::from(side == Side::Destination);
        let view = View::at(ends[buffer]);
        ends[buffer] += layout.local_bytes(rank) + 1;
        Spot { buffer: 0, view }
    };
    let name = format!("tiny tensors, rank {rank}");
    let part = Transfer::new(&name, &manifest, rank, place, |number, bytes| memory.buffer(rank, number, bytes));
    for route in [all_options()[0], all_options()[2]] {
        let begun = Instant::now();
        let options = ReshardOptions { route };
        let mut reshard = world.reshard_init(&manifest, &part.buffers, options, soon()).expect("a good manifest");
        for round in 0..2 {
            part.fill(round);
            reshard.start().expect("not active");
            reshard.wait(soon()).unwrap_or_else(|error| panic!("{name}, {route:?}: {error}"));
            part.check(round);
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{route:?} took {:?}", begun.elapsed());
    }
    finalize(world);
}

#[test]
fn mapped() {
    Job::of(4).run(|| all_at_once(Memory::PerRank)).expect_success();
}

#[test]
fn staged() {
    Job::of(4).env("CROSSMESH_MAPPED", "staged").run(|| all_at_once(Memory::Private)).expect_success();
}

#[test]
fn tcp() {
    Job::of(4).env("CROSSMESH_DOMAINS", 2).run(|| all_at_once(Memory::Private)).expect_success();
}
