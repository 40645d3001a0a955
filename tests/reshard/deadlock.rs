//! Nothing waits in a circle: many chunks through the least staging, over chains that begin in every domain, several
//! transfers at once that every rank starts and waits for in an order of its own.

use super::random::{Memory, choices, manifest, seed, transfer};
use super::transfer::{Transfer, mix};
use super::{finalize, soon, world};
use crate::planner::{all_options, layout};
use crate::rig::spmd::Job;
use crossmesh::base::Deadline;
use crossmesh::comm::{Communicator, Reshard, ReshardOptions};
use crossmesh::layout::{Dtype, Placement};
use crossmesh::plan::Manifest;
use std::sync::Arc;
use std::time::Duration;

const ROUNDS: u64 = 24;
/// Transfers that are alive at once.
const ALIVE: usize = 3;

/// Every rank's part to all ranks: chains from every domain through all others, and every rank receives from many.
fn all_to_all(seed: u64, size: u32) -> Arc<Manifest> {
    let mut ranks: Vec<u32> = (0..size).collect();
    ranks.rotate_left((seed % u64::from(size)) as usize);
    let shape = [40 + seed % 90, 33];
    let mut manifest = Manifest::new();
    for (name, placement) in [("rows", Placement::shard(0)), ("columns", Placement::chunk(1))] {
        let source = layout(&shape, Dtype::F32, &[size], ranks.clone(), &[placement]);
        let destination = layout(&shape, Dtype::F32, &[size], 0..size, &[Placement::Replicate]);
        manifest.push(name, source, destination).expect("one shape");
    }
    Arc::new(manifest)
}

/// Positions 0 to `count` in an order that the seed chooses.
fn order(seed: u64, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|&position| mix(seed ^ (position as u64) << 40));
    order
}

fn pause(seed: u64) {
    if seed.is_multiple_of(4) {
        std::thread::sleep(Duration::from_micros(seed / 4 % 3000));
    }
}

fn round(world: &Communicator, seed: u64) {
    let rank = world.rank();
    let mine = mix(seed ^ u64::from(rank.0) << 32);
    let route = choices(seed).of(&all_options());
    let memory = choices(seed + 1).of(&Memory::ALL);
    let mut alive: Vec<(Reshard, Transfer)> = (0..ALIVE as u64)
        .map(|number| {
            let seed = mix(seed ^ number) >> 1;
            let size = world.size();
            let manifest = if number == 0 { all_to_all(seed, size as u32) } else { manifest(seed, size, 8192) };
            let transfer = transfer(seed, &manifest, rank, memory);
            transfer.fill(0);
            let options = ReshardOptions { route };
            let reshard = world.reshard_init(&manifest, &transfer.buffers, options, soon());
            (reshard.unwrap_or_else(|error| panic!("seed {seed}: {error}")), transfer)
        })
        .collect();
    for position in order(mine, ALIVE) {
        pause(mix(mine + position as u64));
        alive[position].0.start().expect("not active");
        if mine.is_multiple_of(3) {
            alive[position].0.progress();
        }
    }
    let deadline = Deadline::seconds(30);
    for position in order(mine ^ 1, ALIVE) {
        let (reshard, transfer) = &mut alive[position];
        let mut polls = 0;
        // Slow ranks look only now and then, so that others find queues full.
        while mine.is_multiple_of(2) && polls < 20 && !reshard.test().expect("a running transfer") {
            pause(mix(mine ^ polls));
            polls += 1;
        }
        match reshard.wait(deadline) {
            Ok(()) => {}
            Err(crossmesh::execute::ExecuteError::NotStarted) if mine.is_multiple_of(2) => {}
            Err(error) => panic!("seed {seed}, {route:?}, {memory:?}, transfer {position} on rank {rank}: {error}"),
        }
        transfer.check(0);
    }
}

fn rounds(job: u64) {
    let world = world();
    for number in 0..ROUNDS {
        round(&world, seed(1000 + job, number));
    }
    finalize(world);
}

fn job(mapped: &str, staging: &str, chunk: u32) -> Job {
    let job = Job::of(8).env("CROSSMESH_DOMAINS", 4).env("CROSSMESH_MAPPED", mapped);
    job.env("CROSSMESH_STAGING", staging).env("CROSSMESH_CHUNK", chunk)
}

#[test]
fn least_staging() {
    job("auto", "16KiB", 256).run(|| rounds(1)).expect_success();
}

#[test]
fn least_staging_without_mapped_buffers() {
    job("shared", "16KiB", 256).run(|| rounds(2)).expect_success();
}

#[test]
fn least_staging_and_nothing_mapped() {
    job("staged", "16KiB", 256).run(|| rounds(3)).expect_success();
}

#[test]
fn little_staging() {
    job("staged", "32KiB", 1024).run(|| rounds(4)).expect_success();
}
