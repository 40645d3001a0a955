//! Tests and measurements of GPUs.
//!
//! In: the GPUs of this machine, the `crossmesh` command beside this binary (or at `CROSSMESH_TEST_BIN`). Out: a table on
//! standard output, JSON at the path after `--json`; exit code 1 when anything is wrong. Guarantee: where there is no GPU
//! that is said, and is an error with `--require`; every job ends within its own limit.
//!
//! Each job is started by `crossmesh run` and runs this binary again, told which cases to run; its rank 0 prints results
//! as lines that begin with a mark.

mod case;
mod faults;
mod links;
mod moving;
mod results;

use results::{MARK, Outcome};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// Longest job.
const LIMIT: Duration = Duration::from_secs(150);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("rank") => run_rank(&arguments[1..]),
        _ => run_all(&arguments),
    }
}

/// The part of one rank of a job.
fn run_rank(arguments: &[String]) -> ExitCode {
    let (job, names) = (arguments[0].as_str(), &arguments[1..]);
    let done = match job {
        "move" => moving::run(names),
        "links" => links::run(),
        "faults" => faults::run(names),
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
    let count = crossmesh::memory::device::Device::count();
    let count = match count {
        Ok(count) if count >= 2 => count,
        other => {
            println!("GPU tests not run: two GPUs are needed, found {other:?}");
            return if flag("--require") { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    println!("{count} GPUs");
    let mut outcomes = Vec::new();
    for job in jobs() {
        outcomes.extend(run_job(&job));
    }
    print!("{}", results::table(&outcomes));
    if let Some(at) = arguments.iter().position(|argument| argument == "--json")
        && let Some(path) = arguments.get(at + 1)
    {
        std::fs::write(path, serde_json::to_vec_pretty(&outcomes).expect("outcomes have a JSON form")).expect(path);
    }
    let wrong = outcomes.iter().filter(|outcome| !outcome.passed).count();
    println!("{} passed, {wrong} failed", outcomes.len() - wrong);
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A job to be started.
struct Job {
    ranks: u32,
    kind: &'static str,
    cases: Vec<String>,
    environment: Vec<(&'static str, &'static str)>,
    /// A job that is meant to fail, and what it must say.
    expects: Option<&'static str>,
}

fn jobs() -> Vec<Job> {
    let job = |ranks, kind, cases: Vec<&str>| Job {
        ranks,
        kind,
        cases: cases.into_iter().map(str::to_string).collect(),
        environment: Vec::new(),
        expects: None,
    };
    let mut jobs = vec![job(2, "links", vec![])];
    for ranks in [2, 3, 4, 8] {
        jobs.push(job(ranks, "move", case::names(ranks)));
    }
    jobs.push(job(2, "faults", faults::NAMES.to_vec()));
    jobs.push(Job { expects: Some("rank 1"), ..job(2, "faults", vec!["killed"]) });
    jobs.push(job(2, "faults", vec!["after"]));
    let missing = vec![("CROSSMESH_NVRTC", "/nonexistent/libnvrtc.so"), ("CROSSMESH_CACHE", "/nonexistent")];
    jobs.push(Job { environment: missing, ..job(2, "faults", vec!["no-compiler"]) });
    jobs
}

fn run_job(job: &Job) -> Vec<Outcome> {
    let name = format!("{} ranks, {} {}", job.ranks, job.kind, job.cases.join(" "));
    println!("== {name}");
    let began = Instant::now();
    let mut command = Command::new("timeout");
    command.args(["-k", "5", &LIMIT.as_secs().to_string()]).arg(command_path());
    command.args(["run", "--starter", "local", "-n", &job.ranks.to_string(), "--prefix", "never", "--"]);
    command.arg(std::env::current_exe().expect("this binary has a path")).arg("rank").arg(job.kind).args(&job.cases);
    command.envs(job.environment.iter().copied());
    let output = command.output().expect("timeout can be started");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let mut outcomes: Vec<Outcome> = text
        .lines()
        .filter_map(|line| line.split_once(MARK))
        .map(|(_, json)| serde_json::from_str(json).expect("a result is JSON"))
        .collect();
    for outcome in &outcomes {
        println!("{}", outcome.line());
    }
    let as_expected = match job.expects {
        None => output.status.success(),
        Some(words) => !output.status.success() && errors.contains(words),
    };
    let missing: Vec<&String> =
        job.cases.iter().filter(|case| !outcomes.iter().any(|outcome| outcome.case == **case)).collect();
    let seconds = began.elapsed().as_secs_f64();
    if !as_expected || (job.expects.is_none() && !missing.is_empty()) {
        println!("{text}\n{errors}");
        outcomes.push(Outcome::failed(
            &name,
            job.ranks,
            format!("exit {:?}, missing {missing:?}", output.status.code()),
        ));
    } else if job.expects.is_some() {
        outcomes.push(Outcome::passed(&name, job.ranks).with("seconds", seconds));
    }
    outcomes
}

/// The `crossmesh` command: named, or beside this binary or its folder.
fn command_path() -> PathBuf {
    let named = std::env::var_os("CROSSMESH_TEST_BIN").map(PathBuf::from);
    let this = std::env::current_exe().expect("this binary has a path");
    let beside = this.ancestors().skip(1).take(2).map(|folder| folder.join("crossmesh")).find(|path| path.is_file());
    named.or(beside).expect("no crossmesh command: build it, or set CROSSMESH_TEST_BIN")
}
