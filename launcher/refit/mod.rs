//! `crossmesh refit`: the weights of a model cross from one layout to another.
//!
//! In: a model on disk, two parallel specs. Out: destination ranks hold their shards, a table, JSON, shard files.
//! Guarantee: every rank runs the same steps; a fault on one ends all with one cause and one exit code; with
//! `--verify` every byte was compared.

mod arguments;
mod cases;
mod cast;
mod consent;
mod error;
mod everywhere;
mod job;
mod nic_rate;
mod output;
mod progress;
mod report;
mod room;
mod shards;
mod sides;
mod transfer;
mod verify;

pub(crate) use arguments::Arguments;

use crate::case::{self, Case};
use crate::failure::{BAD_INPUT, Failure};
use crossmesh::base::{Rank, env};
use crossmesh::comm::{CommError, Communicator, WorldOptions};
use crossmesh::execute::ExecuteError;
use error::RefitError;
use sides::{Request, Settings};
use std::process::ExitCode;

/// Exit code of a job that failed.
const FAILED: u8 = 1;

/// What is to move.
enum Task {
    Model(Box<Request>),
    Cases(Settings, Vec<Case>),
}

impl Task {
    fn parse(arguments: &Arguments) -> Result<Self, RefitError> {
        match &arguments.case {
            Some(text) => Ok(Self::Cases(Settings::parse(arguments)?, cases::movable(case::read(text)?)?)),
            None => Ok(Self::Model(Box::new(Request::parse(arguments)?))),
        }
    }

    fn side_starts(&self) -> Vec<Rank> {
        match self {
            Self::Model(request) => request.side_starts(),
            Self::Cases(..) => Vec::new(),
        }
    }

    fn run(&self, world: &Communicator, arguments: &Arguments) -> Result<(), RefitError> {
        match self {
            Self::Model(request) => job::run(world, arguments, request),
            Self::Cases(settings, cases) => cases::run(world, arguments, settings, cases),
        }
    }
}

/// Runs the job on this rank.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let task = Task::parse(arguments).map_err(alone)?;
    let mut options = WorldOptions::from_environment().map_err(|error| alone(error.into()))?;
    if options.side_starts.is_empty() {
        options.side_starts = task.side_starts();
    }
    let world = Communicator::world(&options).map_err(|error| alone(error.into()))?;
    match task.run(&world, arguments) {
        Ok(()) => {
            let deadline = Communicator::default_deadline().map_err(|error| alone(error.into()))?;
            world.finalize(deadline).map_err(|error| Failure::new(FAILED, error))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => give_up(world, error),
    }
}

/// A fault before the ranks are together. All ranks are given the same arguments: rank 0 speaks at length.
fn alone(error: RefitError) -> Failure {
    let bad_input = error.is_bad_input();
    let failure = failure(error);
    match env::text(env::RANK) {
        Some(rank) if bad_input && rank != "0" => {
            Failure::new(BAD_INPUT, consent::shortened(&failure.message(), Rank(0)))
        }
        _ => failure,
    }
}

fn failure(error: RefitError) -> Failure {
    Failure::new(if error.is_bad_input() { BAD_INPUT } else { FAILED }, error)
}

/// Ends the job on all ranks with the first cause.
fn give_up(world: Communicator, error: RefitError) -> Result<ExitCode, Failure> {
    match error {
        // All ranks know, so they can part in order: each has spoken before the first ends, at which mpirun would kill
        // the others. That one of them cannot part changes nothing.
        RefitError::Agreed { .. } => {
            let code = failure(error).report();
            if let Ok(deadline) = Communicator::default_deadline()
                && let Err(error) = world.finalize(deadline)
            {
                log::debug!("the job could not be ended in order: {error}");
            }
            Ok(code)
        }
        RefitError::Comm(CommError::Aborted(cause) | CommError::Execute(ExecuteError::Aborted(cause))) => {
            Err(Failure::new(FAILED, cause.to_string()))
        }
        error => {
            let failure = failure(error);
            let first = world.abort("refit", &format!("failed: {}", failure.message()));
            Err(if first.rank == world.rank() { failure } else { Failure::new(FAILED, first.to_string()) })
        }
    }
}
