//! `crossmesh doctor`: what is wrong with this machine or job, and what to type.
//!
//! In: this machine, the ranks of a job, or recorded states. Out: findings with evidence and remedy, as text and JSON; exit
//! code 0, 1 with warnings, 2 with failures. Guarantee: nothing of the machine is changed; recorded states give the findings
//! that the machine gave.

mod checks;
mod collect;
mod error;
mod finding;
mod gpu_links;
mod outliers;
mod pairs;
mod recorded;
mod report;
mod system;
#[cfg(test)]
mod tests;

use crate::failure::{BAD_INPUT, Failure};
use crate::standard_output;
use crossmesh::base::{Rank, env};
use crossmesh::bootstrap;
use crossmesh::comm::{CommError, Communicator, WorldOptions};
use crossmesh::topology::discover;
use error::DoctorError;
use report::{Report, Tried};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use system::State;

/// Exit code of a doctor that could not look.
const FAILED: u8 = 2;

/// Arguments of `crossmesh doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Write the findings as JSON to this file, - for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Look at the states recorded in this folder instead of the machine
    #[arg(long, value_name = "FOLDER", conflicts_with = "record")]
    fixture: Option<PathBuf>,
    /// Record the states of all ranks in this folder, for --fixture and for reports of faults
    #[arg(long, value_name = "FOLDER")]
    record: Option<PathBuf>,
    /// Test the links between GPUs, also where results are kept since the host started
    #[arg(long)]
    fresh: bool,
}

/// Runs the doctor on this machine or this rank.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if let Some(folder) = &arguments.fixture {
        let (states, tried) = recorded::read(folder).map_err(failed)?;
        return publish(&Report::of(&states, tried), arguments);
    }
    if bootstrap::has_starter() {
        return in_job(arguments);
    }
    let facts = discover::this_host().map_err(|error| Failure::new(BAD_INPUT, error))?;
    let state = collect::state(facts)?;
    if let Some(folder) = &arguments.record {
        recorded::write(folder, std::slice::from_ref(&state), &Tried::default()).map_err(failed)?;
    }
    publish(&Report::of(&[state], Tried::default()), arguments)
}

fn failed(error: DoctorError) -> Failure {
    let code = if error.is_bad_input() { BAD_INPUT } else { FAILED };
    Failure::new(code, error)
}

/// Brings the job together; rank 0 reports and ends with the exit code of what was found.
fn in_job(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let options = WorldOptions::from_environment().map_err(|error| Failure::new(BAD_INPUT, error))?;
    let world = Communicator::world(&options).map_err(|error| Failure::new(FAILED, error))?;
    match examine(&world, arguments) {
        Ok(code) => {
            let deadline = Communicator::default_deadline().map_err(|error| failed(error.into()))?;
            world.finalize(deadline).map_err(|error| Failure::new(FAILED, error))?;
            Ok(ExitCode::from(code))
        }
        Err(error) => {
            let failure = failed(error);
            let first = world.abort("doctor", &failure.message());
            Err(if first.rank == world.rank() { failure } else { Failure::new(FAILED, first.to_string()) })
        }
    }
}

fn examine(world: &Communicator, arguments: &Arguments) -> Result<u8, DoctorError> {
    let states = states(world)?;
    let pairs = pairs::probe(world, |round, rounds| {
        if world.rank() == Rank(0) && rounds > 1 {
            log::info!("pairs: round {round} of {rounds}");
        }
    })?;
    let tried = Tried { pairs, gpu_links: gpu_links::probe(world, &states, arguments.fresh)? };
    // One rank tells: a job whose other ranks end well is not said to have failed on each of them.
    if world.rank() != Rank(0) {
        return Ok(0);
    }
    if let Some(folder) = &arguments.record {
        recorded::write(folder, &states, &tried)?;
    }
    let report = Report::of(&states, tried);
    write(&report, arguments)?;
    Ok(report.exit_code())
}

/// States of all ranks; their clocks were read at the same time.
fn states(world: &Communicator) -> Result<Vec<State>, DoctorError> {
    let (topology, rank) = (world.topology(), world.rank());
    let here = (0..world.size() as u32).filter(|&other| topology.node(Rank(other)) == topology.node(rank));
    let mut state = collect::state(world.host().clone())?;
    state.rank = Some(rank.0);
    state.ranks = world.size() as u32;
    state.ranks_here = here.count() as u32;
    state.gpu = topology.gpu(rank).map(|gpu| gpu.to_string());
    world.barrier(Communicator::default_deadline()?)?;
    state.system.clock = collect::clock();
    let encoded = serde_json::to_vec(&state).map_err(DoctorError::Encode)?;
    let all = world.allgather(&encoded, Communicator::default_deadline()?)?;
    all.iter().map(|bytes| serde_json::from_slice(bytes).map_err(DoctorError::Encode)).collect()
}

fn publish(report: &Report, arguments: &Arguments) -> Result<ExitCode, Failure> {
    write(report, arguments).map_err(failed)?;
    Ok(ExitCode::from(report.exit_code()))
}

fn write(report: &Report, arguments: &Arguments) -> Result<(), DoctorError> {
    let refused = |path: &Path, source| DoctorError::Write { path: path.to_path_buf(), source };
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string_pretty(report).map_err(DoctorError::Encode)? + "\n";
        standard_output::write(path, &text).map_err(|source| refused(path, source))?;
        if path.as_os_str() == standard_output::NAME {
            return Ok(());
        }
    }
    standard_output::print(&report.text()).map_err(|source| refused(Path::new("standard output"), source))
}

impl From<env::EnvError> for DoctorError {
    fn from(error: env::EnvError) -> Self {
        Self::Comm(CommError::from(error))
    }
}
