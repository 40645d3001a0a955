//! The `crossmesh` command.
//!
//! In: the command line and the environment. Out: one subcommand, its exit code. Guarantee: every error ends as one
//! line `crossmesh: message: cause` on standard error; wrong arguments exit with 2, and of the ranks of a job, which
//! all have the same, rank 0 shows the usage.

mod apart;
mod bench;
mod case;
mod cast_option;
mod checkpoint;
mod counted;
mod doctor;
mod env_command;
mod failure;
mod markup;
mod plain_file;
mod plan;
mod printable;
mod refit;
mod result_file;
mod rules_option;
mod run;
mod standard_output;
mod topo;
mod whole_number;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use crossmesh::base::env;
use failure::Failure;
use std::io::Write;
use std::process::ExitCode;
use std::sync::LazyLock;

static VERSION: LazyLock<String> = LazyLock::new(|| format!("{} ({})", env!("CARGO_PKG_VERSION"), crossmesh::BUILD));

/// Moves distributed tensors from one layout of ranks to another.
#[derive(Debug, Parser)]
#[command(name = "crossmesh", version = VERSION.as_str())]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start the ranks of a program, show their output, and end the job as a whole
    Run(run::Arguments),
    /// Move a model's weights from one layout to another
    Refit(Box<refit::Arguments>),
    /// Say what a transfer costs before a byte moves: bytes of every link, times, the best route; needs no ranks
    Plan(Box<plan::Arguments>),
    /// Measure how fast tensors move, beside what an MPI user would write by hand
    Bench(Box<bench::Arguments>),
    /// Measure which collectives are fastest how on these GPUs, and write a tuning table
    Tune(bench::tune::Arguments),
    /// Show what crossmesh takes this machine, a job, a file or a synthetic cluster for
    Topo(topo::Arguments),
    /// Find out what is wrong with this machine or job, and what to type
    Doctor(doctor::Arguments),
    /// Show every environment variable with its value, default and meaning
    Env(env_command::Arguments),
    /// What a starter runs in place of the program, once per rank
    #[command(hide = true)]
    RankAgent(run::agent::Arguments),
    /// What an agent runs, to become the program
    #[command(hide = true)]
    RankProgram(run::program::Arguments),
}

fn main() -> ExitCode {
    let command = match CommandLine::try_parse() {
        Ok(line) => line.command,
        Err(error) => return refuse(&error),
    };
    match start_log().and_then(|()| dispatch(command)) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

/// Help, the version, or what is wrong with the arguments: at length, but not once for every rank.
fn refuse(error: &clap::Error) -> ExitCode {
    let elsewhere = env::text(env::RANK).is_some_and(|rank| rank != "0");
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion if elsewhere => {}
        _ if elsewhere => {
            let text = error.to_string();
            let first: Vec<_> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
            let line = first.join(" ");
            let line = line.strip_prefix("error: ").unwrap_or(&line);
            // Nobody may be left to read it; the exit code says the same.
            let _ = writeln!(std::io::stderr(), "crossmesh: {line} (rank 0 says more)");
        }
        _ => {
            let _ = error.print();
        }
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(failure::BAD_INPUT))
}

fn dispatch(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Refit(arguments) => refit::run(&arguments),
        Command::Plan(arguments) => plan::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Tune(arguments) => bench::tune::run(&arguments),
        Command::Topo(arguments) => topo::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Env(arguments) => env_command::run(&arguments),
        Command::RankAgent(arguments) => run::agent::run(&arguments),
        Command::RankProgram(arguments) => run::program::run(&arguments),
    }
}

/// Messages go to standard error, each with the rank where there is one.
fn start_log() -> Result<(), Failure> {
    let level = env::value::<log::LevelFilter>(env::LOG)?.unwrap_or(log::LevelFilter::Warn);
    let rank = env::text(env::RANK).map(|rank| format!(" rank {rank}")).unwrap_or_default();
    env_logger::Builder::new()
        .filter_level(level)
        .format(move |line, record| {
            let level = record.level().as_str().to_ascii_lowercase();
            writeln!(line, "crossmesh{rank}: {level}: {}", record.args())
        })
        .init();
    Ok(())
}
