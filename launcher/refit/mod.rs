//! `crossmesh refit`: the weights of a model cross from one layout to another.
//!
//! In: a model on disk, two parallel specs. Out: destination ranks hold their shards, a table, JSON, shard files.
//! Guarantee: every rank runs the same steps; a fault on one ends all with one cause; with `--verify` every byte was
//! compared.

mod arguments;
mod error;
mod job;
mod nic_rate;
mod output;
mod progress_bar;
mod report;
mod shards;
mod sides;
mod verify;

pub(crate) use arguments::Arguments;

use crate::failure::{BAD_INPUT, Failure};
use crossmesh::comm::{CommError, Communicator, WorldOptions};
use error::RefitError;
use sides::Request;
use std::process::ExitCode;

/// Exit code of a job that failed.
const FAILED: u8 = 1;

/// Runs the job on this rank.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let request = Request::parse(arguments).map_err(|error| Failure::new(BAD_INPUT, error))?;
    let mut options = WorldOptions::from_environment().map_err(|error| Failure::new(BAD_INPUT, error))?;
    if options.side_starts.is_empty() {
        options.side_starts = request.side_starts();
    }
    let world = Communicator::world(&options).map_err(|error| Failure::new(FAILED, error))?;
    match job::run(&world, arguments, &request) {
        Ok(()) => {
            let deadline = Communicator::default_deadline().map_err(|error| Failure::new(BAD_INPUT, error))?;
            world.finalize(deadline).map_err(|error| Failure::new(FAILED, error))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => Err(give_up(&world, error)),
    }
}

/// Ends the job on all ranks with the first cause.
fn give_up(world: &Communicator, error: RefitError) -> Failure {
    if let RefitError::Comm(CommError::Aborted(_)) = &error {
        return Failure::new(FAILED, error);
    }
    let code = if error.is_bad_input() { BAD_INPUT } else { FAILED };
    let failure = Failure::new(code, error);
    let first = world.abort("refit", &failure.message());
    if first.rank == world.rank() { failure } else { Failure::new(FAILED, first.to_string()) }
}
