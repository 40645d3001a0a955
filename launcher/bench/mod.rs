//! `crossmesh bench`: how fast crossmesh moves tensors, beside what an MPI user would write by hand.
//!
//! In: shapes, memory, routes, peers; links and sizes; collectives. Out: a table, JSON, bars, curves. Guarantee: the data of every run is
//! new and every element is compared afterwards; any wrong element makes the command fail.

mod binding;
mod clock;
mod collective;
mod drawing;
mod error;
mod idle;
mod output;
mod p2p;
mod pattern;
mod plan;
mod program;
mod reshard;
mod statistics;

use crate::failure::{BAD_INPUT, Failure};
use clap::Subcommand;
pub(crate) use collective::tune;
use crossmesh::base::{Deadline, Rank};
use crossmesh::collective::Kind;
use crossmesh::comm::{CommError, Communicator, WorldOptions};
use error::BenchError;
use std::path::Path;
use std::process::ExitCode;

/// Exit code of a bench that failed or whose data was wrong.
const FAILED: u8 = 1;

/// Arguments of `crossmesh bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Tensors of several shapes between two layouts, beside MPI_Alltoallw and others
    Reshard(reshard::Arguments),
    /// Rate and latency of each link between two ranks
    P2p(p2p::Arguments),
    /// All-reduce on GPUs, in the columns of nccl-tests
    #[command(alias = "all_reduce")]
    Allreduce(Box<collective::Arguments>),
    /// All-gather on GPUs
    #[command(name = "all_gather", alias = "allgather")]
    AllGather(Box<collective::Arguments>),
    /// Reduce-scatter on GPUs
    #[command(name = "reduce_scatter", alias = "reducescatter")]
    ReduceScatter(Box<collective::Arguments>),
    /// Broadcast on GPUs
    Broadcast(Box<collective::Arguments>),
    /// All-reduce, residual addition and RMSNorm on GPUs in one launch
    Norm(Box<collective::Arguments>),
    /// Where one way to all-reduce overtakes another
    Crossover(collective::crossover::Arguments),
    /// What the links between GPUs carry
    Limits(collective::limits::Arguments),
    /// CPU time of ranks that wait
    Idle(idle::Arguments),
    /// CPU time and memory that a rank needs to plan its share of a model, or one process to plan and prove all
    Plan(plan::Arguments),
}

/// Runs the bench on this rank.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.what {
        What::Reshard(arguments) => {
            let request = reshard::Request::parse(arguments).map_err(refused)?;
            on_world(vec![Rank(0), Rank(request.sources())], |world| reshard::run(world, &request))
        }
        What::Allreduce(arguments) => collective(Kind::AllReduce, arguments),
        What::AllGather(arguments) => collective(Kind::AllGather, arguments),
        What::ReduceScatter(arguments) => collective(Kind::ReduceScatter, arguments),
        What::Broadcast(arguments) => collective(Kind::Broadcast, arguments),
        What::Norm(arguments) => collective(Kind::AllReduceNorm, arguments),
        What::Crossover(arguments) => collective::crossover::run(arguments),
        What::Limits(arguments) => collective::limits::run(arguments),
        What::Idle(arguments) => idle::run(arguments),
        What::Plan(arguments) => plan::run(arguments).map_err(refused),
        What::P2p(arguments) => {
            let request = p2p::Request::parse(arguments).map_err(refused)?;
            on_world(vec![Rank(0), Rank(1)], |world| p2p::run(world, &request))
        }
    }
}

fn collective(kind: Kind, arguments: &collective::Arguments) -> Result<ExitCode, Failure> {
    let request = collective::Request::parse(kind, arguments).map_err(refused)?;
    on_world(Vec::new(), |world| collective::run(world, &request))
}

fn refused(error: BenchError) -> Failure {
    Failure::new(BAD_INPUT, error)
}

/// A bench that ran to its end, and what it found wrong, on the rank that reports it.
type Complaint = Option<BenchError>;

/// [`on_world`] for a bench that writes to `places`, each found to be writable before the ranks meet.
fn writing(
    places: &[(&'static str, Option<&Path>)],
    bench: impl FnOnce(&Communicator) -> Result<Complaint, BenchError>,
) -> Result<ExitCode, Failure> {
    for &(option, path) in places {
        output::place(option, path).map_err(refused)?;
    }
    on_world(Vec::new(), bench)
}

/// Brings the job together, runs `bench`, and ends the job in order, or on all ranks with the first cause.
fn on_world(
    side_starts: Vec<Rank>,
    bench: impl FnOnce(&Communicator) -> Result<Complaint, BenchError>,
) -> Result<ExitCode, Failure> {
    let mut options = WorldOptions::from_environment().map_err(|error| Failure::new(BAD_INPUT, error))?;
    if options.side_starts.is_empty() {
        options.side_starts = side_starts;
    }
    let world = Communicator::world(&options).map_err(|error| Failure::new(FAILED, error))?;
    match bench(&world) {
        Ok(complaint) => {
            world.finalize(deadline().map_err(refused)?).map_err(|error| Failure::new(FAILED, error))?;
            complaint.map_or(Ok(ExitCode::SUCCESS), |wrong| Err(Failure::new(FAILED, wrong)))
        }
        Err(error) => Err(give_up(&world, error)),
    }
}

fn give_up(world: &Communicator, error: BenchError) -> Failure {
    if let BenchError::Comm(CommError::Aborted(_)) = &error {
        return Failure::new(FAILED, error);
    }
    let code = if error.is_bad_input() { BAD_INPUT } else { FAILED };
    let failure = Failure::new(code, error);
    let first = world.abort("bench", &format!("failed: {}", failure.message()));
    // Bad input is found on every rank: each ends with its code, whoever was first.
    if first.rank == world.rank() { failure } else { Failure::new(code, first.to_string()) }
}

/// What every collective call here is given.
fn deadline() -> Result<Deadline, BenchError> {
    Ok(Communicator::default_deadline()?)
}
