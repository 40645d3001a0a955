//! Whole transfers through the public interface: every job is a set of real processes that move bytes, and every byte
//! of every buffer is compared with a slow model that goes by global index.

// Jobs find their test by the closure that stands in it.
#![allow(clippy::redundant_closure)]

mod access;
mod alive;
mod allocations;
mod bad_input;
mod communicator;
mod deadlock;
mod elements;
mod handshake;
mod killed;
mod large;
mod many;
mod matrix;
mod partial;
mod random;
mod replay;
mod saved;
mod segments;
mod sprung;
mod transfer;
mod traps;

use crossmesh::base::Deadline;
use crossmesh::comm::{Communicator, WorldOptions};

/// Longest call of any of these tests that is not about deadlines.
fn soon() -> Deadline {
    Deadline::seconds(60)
}

/// All ranks of this job.
fn world() -> Communicator {
    let options = WorldOptions::from_environment().expect("options of the job");
    Communicator::world(&options).expect("the job comes together")
}

/// Ends the job in order.
fn finalize(world: Communicator) {
    world.finalize(soon()).expect("nothing is in use");
}
