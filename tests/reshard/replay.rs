//! Many starts of one transfer, with a source that changes its tensor at once and a destination that is late.

use super::random::Memory;
use super::transfer::{Spot, Transfer, mix};
use super::{finalize, soon, world};
use crate::planner::layout;
use crate::rig::spmd::Job;
use crossmesh::base::Rank;
use crossmesh::comm::ReshardOptions;
use crossmesh::layout::{Dtype, Placement, Reduction, View};
use crossmesh::plan::{Manifest, Transform};
use std::sync::Arc;
use std::time::Duration;

const STARTS: u64 = 10_000;

/// Two tensors from ranks 0 and 1 to ranks 1 and 2: one goes straight, one has rows too short for that. A third is cast
/// on its way, the fourth added up.
fn small() -> Arc<Manifest> {
    let mut manifest = Manifest::new();
    for (name, shape, to) in [("rows", [6, 5], Placement::shard(0)), ("columns", [5, 6], Placement::shard(1))] {
        let source = layout(&shape, Dtype::F32, &[2], [0, 1], &[Placement::shard(0)]);
        let destination = layout(&shape, Dtype::F32, &[2], [1, 2], &[to]);
        manifest.push(name, source, destination).expect("one shape");
    }
    for (name, from) in [("cast", Placement::shard(0)), ("sum", Placement::Partial(Reduction::Sum))] {
        let source = layout(&[4, 6], Dtype::F32, &[2], [0, 1], &[from]);
        let destination = layout(&[4, 6], Dtype::BF16, &[2], [1, 2], &[Placement::shard(1)]);
        manifest.push_with(name, source, destination, Transform::Cast).expect("one shape");
    }
    Arc::new(manifest)
}

fn changes_at_once(memory: Memory) {
    let world = world();
    let rank = world.rank();
    let manifest = small();
    let mut next = 0;
    let place = |_, _, _: &_| {
        next += 1;
        Spot { buffer: next - 1, view: View::at(3) }
    };
    let name = format!("replay on rank {rank}");
    let transfer = Transfer::new(&name, &manifest, rank, place, |number, bytes| memory.buffer(rank, number, bytes));
    let options = ReshardOptions::default();
    let mut reshard = world.reshard_init(&manifest, &transfer.buffers, options, soon()).expect("a good manifest");
    for round in 0..STARTS {
        // Destinations are overwritten here, and sources right after the wait of the round before.
        transfer.fill(round);
        late(rank, round);
        reshard.start().expect("not active");
        reshard.wait(soon()).unwrap_or_else(|error| panic!("round {round}: {error}"));
        transfer.check(round);
    }
    drop(reshard);
    finalize(world);
}

/// Now and then a destination gives its core away or sleeps before it starts.
fn late(rank: Rank, round: u64) {
    match mix(round ^ u64::from(rank.0) << 32) % 64 {
        0 if rank != Rank(0) => std::thread::sleep(Duration::from_micros(mix(round) % 2000)),
        1..=8 => std::thread::yield_now(),
        _ => {}
    }
}

fn job(domains: u32, mapped: &str) -> Job {
    Job::of(3).env("CROSSMESH_DOMAINS", domains).env("CROSSMESH_MAPPED", mapped)
}

#[test]
fn mapped_shared() {
    job(1, "auto").run(|| changes_at_once(Memory::Shared)).expect_success();
}

#[test]
fn mapped_private() {
    job(1, "auto").run(|| changes_at_once(Memory::Private)).expect_success();
}

#[test]
fn staged() {
    job(1, "staged").run(|| changes_at_once(Memory::Private)).expect_success();
}

#[test]
fn tcp() {
    job(3, "auto").run(|| changes_at_once(Memory::Private)).expect_success();
}

#[test]
fn tcp_and_mapped() {
    job(2, "auto").run(|| changes_at_once(Memory::PerRank)).expect_success();
}
