//! A thousand transfers alive on one communicator: most of them share slots and take turns, whatever order the ranks start
//! them in, and from several threads.

use super::random::Memory;
use super::transfer::{Spot, Transfer, mix};
use super::{finalize, soon, world};
use crate::planner::{all_options, layout};
use crate::rig::spmd::Job;
use crossmesh::base::{Deadline, Rank};
use crossmesh::comm::{Communicator, Reshard, ReshardOptions};
use crossmesh::layout::{Dtype, Placement, View};
use crossmesh::plan::Manifest;
use std::sync::Arc;

const ALIVE: usize = 1000;
const THREADS: usize = 4;

/// From ranks 0 and 1 to ranks 2 and 3 and back, in rows too short to go straight.
fn small(number: usize) -> Arc<Manifest> {
    let mut manifest = Manifest::new();
    let (from, to) = if number.is_multiple_of(2) { ([0, 1], [2, 3]) } else { ([3, 0], [1, 2]) };
    let shape = [5 + number as u64 % 7, 6];
    let source = layout(&shape, Dtype::F32, &[2], from, &[Placement::shard(0)]);
    let destination = layout(&shape, Dtype::F32, &[2], to, &[Placement::chunk(1)]);
    manifest.push("rows", source, destination).expect("one shape");
    let whole = layout(&shape, Dtype::F32, &[2], to, &[Placement::Replicate]);
    manifest.push("all", layout(&shape, Dtype::F32, &[2], from, &[Placement::shard(0)]), whole).expect("one shape");
    Arc::new(manifest)
}

struct Alive {
    number: u64,
    reshard: Reshard,
    transfer: Transfer,
}

fn prepare(world: &Communicator, number: usize, memory: Memory) -> Alive {
    let (rank, manifest) = (world.rank(), small(number));
    let mut next = 0;
    let place = |_, _, _: &_| {
        next += 1;
        Spot { buffer: next - 1, view: View::at(1) }
    };
    let name = format!("transfer {number} on rank {rank}");
    let transfer = Transfer::new(&name, &manifest, rank, place, |number, bytes| memory.buffer(rank, number, bytes));
    let route = all_options()[[0, 2, 4][number % 3]];
    let reshard = world.reshard_init(&manifest, &transfer.buffers, ReshardOptions { route }, soon());
    Alive { number: number as u64, reshard: reshard.unwrap_or_else(|error| panic!("{name}: {error}")), transfer }
}

/// Starts all of them in an order of this rank's and thread's own, then waits in another.
fn replay(part: &mut [Alive], rank: Rank, round: u64) {
    let seed = u64::from(rank.0) << 32 ^ round;
    part.iter().for_each(|alive| alive.transfer.fill(round));
    part.sort_by_key(|alive| mix(seed ^ alive.number << 8));
    for alive in part.iter_mut() {
        alive.reshard.start().expect("not active");
    }
    part.rotate_left(part.len() / 3);
    for alive in part.iter_mut() {
        alive.reshard.wait(Deadline::seconds(60)).unwrap_or_else(|error| panic!("rank {rank}, round {round}: {error}"));
        alive.transfer.check(round);
    }
}

fn thousand(memory: Memory) {
    let world = world();
    let rank = world.rank();
    let mut all: Vec<Alive> = (0..ALIVE).map(|number| prepare(&world, number, memory)).collect();
    let staging: u64 = all.iter().map(|alive| alive.reshard.report().staging_bytes).sum();
    replay(&mut all, rank, 0);
    std::thread::scope(|scope| {
        for part in all.chunks_mut(ALIVE / THREADS) {
            scope.spawn(move || (1..3).for_each(|round| replay(part, rank, round)));
        }
    });
    println!("{staging} bytes of slots in all");
    // Half of them end, the same on all ranks, and those that come after have room.
    all.sort_by_key(|alive| alive.number);
    all.truncate(ALIVE / 2);
    let mut more: Vec<Alive> = (0..8).map(|number| prepare(&world, number, memory)).collect();
    replay(&mut more, rank, 3);
    replay(&mut all, rank, 4);
    drop((all, more));
    finalize(world);
}

fn job() -> Job {
    Job::of(4).env("CROSSMESH_DOMAINS", 2)
}

#[test]
fn with_the_default_staging() {
    job().run(|| thousand(Memory::PerRank)).expect_success();
}

#[test]
fn with_little_staging_and_nothing_mapped() {
    job()
        .env("CROSSMESH_STAGING", "64KiB")
        .env("CROSSMESH_MAPPED", "staged")
        .run(|| thousand(Memory::Private))
        .expect_success();
}
