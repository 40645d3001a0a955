//! Every combination of ranks, domains, mappings, routes and kinds of memory, with random manifests.

use super::elements::Element;
use super::random::{Memory, manifest, seed, transfer};
use super::transfer::{Spot, Transfer};
use super::{finalize, soon, world};
use crate::planner::{all_options, layout, oracle};
use crate::rig::spmd::Job;
use crossmesh::comm::{Communicator, ReshardOptions};
use crossmesh::layout::{Dtype, Placement, View};
use crossmesh::plan::Manifest;
use crossmesh::route::RouteOptions;
use std::sync::Arc;

/// Random manifests of every combination of route and memory in a job.
const MANIFESTS: u64 = 6;
const ELEMENTS: u64 = 4096;

/// One transfer, replayed with other values.
pub(super) fn replay(world: &Communicator, seed: u64, route: RouteOptions, memory: Memory) {
    let manifest = manifest(seed, world.size(), ELEMENTS);
    let transfer = transfer(seed, &manifest, world.rank(), memory);
    let options = ReshardOptions { route };
    let reshard = world.reshard_init(&manifest, &transfer.buffers, options, soon());
    let mut reshard = reshard.unwrap_or_else(|error| panic!("seed {seed}, {route:?}, {memory:?}: {error}"));
    for round in 0..2 {
        transfer.fill(round);
        reshard.start().expect("a transfer that is not active");
        if (seed + round).is_multiple_of(5) {
            while !reshard.test().expect("a test of a running transfer") {
                std::thread::yield_now();
            }
        } else {
            let waited = reshard.wait(soon());
            waited.unwrap_or_else(|error| panic!("seed {seed}, {route:?}, {memory:?}: {error}"));
        }
        transfer.check(round);
        let saturated = all_saturated(world, reshard.saturated());
        assert_eq!(saturated, expected_saturated(&manifest, round), "seed {seed}, {route:?}, {memory:?}");
    }
}

/// Finite values that became infinite, over all ranks.
fn all_saturated(world: &Communicator, mine: u64) -> u64 {
    let all = world.allgather(&mine.to_le_bytes(), soon()).expect("all ranks count");
    all.iter().map(|bytes| u64::from_le_bytes(bytes[..].try_into().expect("a count"))).sum()
}

/// The same by the definition of a cast, element by element; every layout wants all elements.
fn expected_saturated(manifest: &Manifest, round: u64) -> u64 {
    let tensors = manifest.tensors().iter().enumerate();
    tensors
        .map(|(tensor, spec)| {
            let elements = oracle::elements(spec.source.shape());
            (0..elements).filter(|&index| Element { tensor, index, round }.saturates(spec)).count() as u64
        })
        .sum()
}

/// Everything that one job can vary.
fn combinations(job: u64) {
    let world = world();
    for (number, (route, memory)) in
        all_options().into_iter().flat_map(|route| Memory::ALL.map(|memory| (route, memory))).enumerate()
    {
        for case in 0..MANIFESTS {
            replay(&world, seed(job, (number as u64) << 8 | case), route, memory);
        }
    }
    finalize(world);
}

macro_rules! jobs {
    ($($name:ident: $ranks:literal ranks, $domains:literal domains, $mapped:literal;)*) => {$(
        #[test]
        fn $name() {
            let job = Job::of($ranks).env("CROSSMESH_DOMAINS", $domains).env("CROSSMESH_MAPPED", $mapped);
            let seed = $ranks << 16 | $domains << 8 | $mapped.len() as u64;
            job.run(|| combinations(seed)).expect_success();
        }
    )*};
}

jobs! {
    one_rank: 1 ranks, 1 domains, "auto";
    two_ranks: 2 ranks, 1 domains, "auto";
    two_ranks_staged: 2 ranks, 1 domains, "staged";
    two_ranks_apart: 2 ranks, 2 domains, "auto";
    three_ranks: 3 ranks, 1 domains, "shared";
    three_ranks_in_two: 3 ranks, 2 domains, "staged";
    three_ranks_apart: 3 ranks, 3 domains, "auto";
    four_ranks: 4 ranks, 1 domains, "auto";
    four_ranks_in_two: 4 ranks, 2 domains, "shared";
    four_ranks_in_three: 4 ranks, 3 domains, "auto";
    four_ranks_apart: 4 ranks, 4 domains, "staged";
    seven_ranks: 7 ranks, 1 domains, "staged";
    seven_ranks_in_two: 7 ranks, 2 domains, "auto";
    seven_ranks_in_three: 7 ranks, 3 domains, "shared";
    seven_ranks_in_four: 7 ranks, 4 domains, "auto";
    eight_ranks: 8 ranks, 1 domains, "auto";
    eight_ranks_in_two: 8 ranks, 2 domains, "auto";
    eight_ranks_in_three: 8 ranks, 3 domains, "staged";
    eight_ranks_in_four: 8 ranks, 4 domains, "shared";
}

/// Tensors of several chunks on every route, straight and through slots.
fn long_flows() {
    let world = world();
    let (size, rank) = (world.size() as u32, world.rank());
    let shape = [1100, 1030];
    let halves = [size / 2, size - size / 2];
    let mut manifest = Manifest::new();
    for (name, from, to) in [
        ("rows", Placement::shard(0), Placement::Replicate),
        ("columns", Placement::shard(0), Placement::shard(1)),
        ("all", Placement::Replicate, Placement::Replicate),
    ] {
        let source = layout(&shape, Dtype::F64, &halves[..1], 0..halves[0], &[from]);
        let destination = layout(&shape, Dtype::F64, &halves[1..], halves[0]..size, &[to]);
        manifest.push(name, source, destination).expect("one shape");
    }
    let manifest = Arc::new(manifest);
    for memory in [Memory::Shared, Memory::Private] {
        let place = |tensor, _, _: &_| Spot { buffer: tensor, view: View::contiguous() };
        let name = format!("long flows, {memory:?}, rank {rank}");
        let part = Transfer::new(&name, &manifest, rank, place, |number, bytes| memory.buffer(rank, number, bytes));
        for route in all_options() {
            let options = ReshardOptions { route };
            let mut reshard = world.reshard_init(&manifest, &part.buffers, options, soon()).expect("a good manifest");
            part.fill(1);
            reshard.start().expect("not active");
            reshard.wait(soon()).unwrap_or_else(|error| panic!("{name}, {route:?}: {error}"));
            part.check(1);
        }
    }
    finalize(world);
}

#[test]
fn long_flows_in_one_domain() {
    Job::of(4).run(|| long_flows()).expect_success();
}

#[test]
fn long_flows_in_two_domains() {
    Job::of(5).env("CROSSMESH_DOMAINS", 2).run(|| long_flows()).expect_success();
}

#[test]
fn long_flows_staged() {
    Job::of(4).env("CROSSMESH_MAPPED", "staged").run(|| long_flows()).expect_success();
}
