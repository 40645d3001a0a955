//! Every combination of ranks, domains, mappings, routes and kinds of memory, with random manifests.

use super::random::{Memory, manifest, transfer};
use super::transfer::mix;
use super::{finalize, soon, world};
use crate::planner::all_options;
use crate::rig::spmd::Job;
use crossmesh::comm::{Communicator, ReshardOptions};
use crossmesh::route::RouteOptions;

/// Random manifests of every combination of route and memory in a job.
const MANIFESTS: u64 = 3;
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
        if (seed + round) % 5 == 0 {
            while !reshard.test().expect("a test of a running transfer") {
                std::thread::yield_now();
            }
        } else {
            let waited = reshard.wait(soon());
            waited.unwrap_or_else(|error| panic!("seed {seed}, {route:?}, {memory:?}: {error}"));
        }
        transfer.check(round);
    }
}

/// Everything that one job can vary.
fn combinations(job: u64) {
    let world = world();
    for (number, (route, memory)) in
        all_options().into_iter().flat_map(|route| Memory::ALL.map(|memory| (route, memory))).enumerate()
    {
        for case in 0..MANIFESTS {
            replay(&world, mix(job << 32 | (number as u64) << 8 | case) >> 8, route, memory);
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
