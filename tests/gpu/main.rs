//! Tests and measurements of GPUs.
//!
//! In: the GPUs of this machine, the `crossmesh` command beside this binary (or at `CROSSMESH_TEST_BIN`). Out: a table on
//! standard output, JSON at the path after `--json`; exit code 1 when anything is wrong. Guarantee: where there is no GPU
//! that is said, and is an error with `--require`; every job ends within its own limit. `--only KIND` runs the jobs of one
//! kind; `--stand-in` those that need no kernels, with a driver that stands in for GPUs (`stand_in.c`).
//!
//! Each job is started by `crossmesh run` and runs this binary again, told which cases to run; its rank 0 prints results
//! as lines that begin with a mark.

mod access;
mod case;
mod cases;
mod channels;
mod collective;
mod counted;
#[path = "../reshard/elements.rs"]
#[allow(dead_code)]
mod elements;
mod fabric;
mod faults;
mod hosts;
mod inside;
mod job;
mod links;
mod memories;
mod mixed;
mod moving;
mod planner;
mod results;
#[path = "../reshard/segments.rs"]
mod segments;
#[path = "../reshard/transfer.rs"]
#[allow(dead_code)]
mod transfer;
mod trapped;
#[path = "../reshard/traps.rs"]
#[allow(dead_code)]
mod traps;
mod ways;

use job::{Job, Machine};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("rank") => run_rank(&arguments[1..]),
        // A runner of tests asks what there is: these need a machine, and have a step of their own.
        _ if arguments.iter().any(|argument| argument == "--list") => ExitCode::SUCCESS,
        _ => run_all(&arguments),
    }
}

/// The part of one rank of a job.
fn run_rank(arguments: &[String]) -> ExitCode {
    let (job, names) = (arguments[0].as_str(), &arguments[1..]);
    let done = match job {
        "move" => cases::run(names, moving::run_case),
        "ways" => cases::run(names, ways::run_case),
        "mixed" => cases::run(names, mixed::run_case),
        "channels" => cases::run(names, channels::run_case),
        "fabric" => cases::run(names, fabric::run_case),
        "inside" => cases::run(names, inside::run_case),
        "traps" => cases::run(names, trapped::spring_all),
        "count" => cases::run(names, counted::count),
        "collective" => collective::apart::run(names),
        "here" => collective::here::run(names),
        "soak" => cases::run(names, collective::soak::run_case),
        "links" => links::run(),
        "faults" => cases::run(names, faults::run_case),
        other => panic!("no job {other}"),
    };
    if let Err(error) = done {
        eprintln!("{error:?}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn run_all(arguments: &[String]) -> ExitCode {
    let flag = |name: &str| arguments.iter().any(|argument| argument == name);
    let after = |name: &str| arguments.iter().position(|argument| argument == name).map(|at| &arguments[at + 1]);
    let count = crossmesh::memory::device::Device::count();
    let machine = if flag("--stand-in") { Machine::StandIn } else { Machine::Gpus };
    match count {
        Ok(count) if count >= 2 => println!("{count} GPUs"),
        other => {
            println!("GPU tests not run: two GPUs are needed, found {other:?}");
            return if flag("--require") { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    }
    let mut outcomes = Vec::new();
    for job in Job::all(machine).iter().filter(|job| after("--only").is_none_or(|kind| job.is_of(kind))) {
        outcomes.extend(job.run());
    }
    print!("{}", results::table(&outcomes));
    if let Some(path) = after("--json") {
        std::fs::write(path, serde_json::to_vec_pretty(&outcomes).expect("outcomes have a JSON form")).expect(path);
    }
    let wrong = outcomes.iter().filter(|outcome| !outcome.passed).count();
    println!("{} passed, {wrong} failed", outcomes.len() - wrong);
    if wrong == 0 && !outcomes.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
