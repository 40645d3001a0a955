//! A program that uses MPI itself, before, while and after it uses crossmesh.
//!
//! In: an mpirun of the MPI that it was built with. Out: `rank R of N: ok`. Guarantee: MPI works to the end, because
//! crossmesh does not finalise what it did not initialise.

mod common;

use mpi::traits::{Communicator, CommunicatorCollectives};
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(universe) = mpi::initialize() else { return ExitCode::FAILURE };
    let world = universe.world();
    let code = common::run();
    let mut sum = 0i32;
    world.all_reduce_into(&(world.rank() + 1), &mut sum, mpi::collective::SystemOperation::sum());
    assert_eq!(sum, world.size() * (world.size() + 1) / 2);
    code
}
