//! Tests whose body runs on every rank of a job.
//!
//! In: a number of ranks and a body. Out: how the job ended. Guarantee: the body runs in as many fresh processes, started
//! by `crossmesh run` as a user's are; the test itself only starts the job and judges it.
//!
//! A test calls [`spmd`] once. In the test process that starts this same binary again as a job of `ranks` ranks,
//! told to run this one test; in each of those the call runs the body and ends the process.

use super::process::{self, Finished};
use std::env;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Marks a process as a rank of the test it names.
const RANK_OF: &str = "CROSSMESH_TEST_RANK_OF";
/// Where the `crossmesh` command is, when not beside this binary.
const COMMAND: &str = "CROSSMESH_TEST_BIN";
/// Longest job; generous, because a machine may run many tests at once.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs `body`, a closure of the test that calls this, on every rank of a job of `ranks` ranks.
pub(crate) fn spmd<B: FnOnce()>(ranks: u32, body: B) -> Finished {
    Job::of(ranks).run(body)
}

/// A job to be run.
#[derive(Debug)]
pub(crate) struct Job {
    ranks: u32,
    environment: Vec<(String, String)>,
    /// Rank, name, value.
    of_ranks: Vec<(u32, String, String)>,
}

impl Job {
    /// A job of `ranks` ranks with the caller's environment, without its settings of crossmesh.
    pub(crate) fn of(ranks: u32) -> Self {
        Self { ranks, environment: Vec::new(), of_ranks: Vec::new() }
    }

    /// Sets a variable on all ranks.
    pub(crate) fn env(mut self, name: &str, value: impl ToString) -> Self {
        self.environment.push((name.to_string(), value.to_string()));
        self
    }

    /// Sets a variable on one rank only.
    pub(crate) fn env_on(mut self, rank: u32, name: &str, value: impl ToString) -> Self {
        self.of_ranks.push((rank, name.to_string(), value.to_string()));
        self
    }

    /// Runs `body`, a closure of the test that calls this, on every rank.
    pub(crate) fn run<B: FnOnce()>(self, body: B) -> Finished {
        let test = test_of::<B>();
        if env::var(RANK_OF).is_ok_and(|name| name == test) {
            body();
            std::process::exit(0);
        }
        let mut command = Command::new(crossmesh_command());
        for (name, _) in env::vars_os().filter(|(name, _)| is_setting(name)) {
            command.env_remove(name);
        }
        command.args(["run", "--starter", "local", "-n", &self.ranks.to_string(), "--"]);
        if !self.of_ranks.is_empty() {
            command.args(["sh", "-c", &self.script(), "sh"]);
        }
        command
            .arg(env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .envs(self.environment)
            .env(RANK_OF, test);
        process::run(&mut command, LIMIT).unwrap()
    }

    /// A shell script that sets what single ranks are given, then becomes its arguments.
    fn script(&self) -> String {
        let sets = self.of_ranks.iter().map(|(rank, name, value)| {
            format!("if [ \"$CROSSMESH_RANK\" = {rank} ]; then export {name}='{value}'; fi; ")
        });
        sets.chain(["exec \"$@\"".to_string()]).collect()
    }
}

/// Whether a variable would change how the ranks of a job behave.
fn is_setting(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with("CROSSMESH_") && !name.starts_with("CROSSMESH_TEST_")
}

/// The test whose closure `B` is, as the test harness names it.
fn test_of<B>() -> &'static str {
    let closure = std::any::type_name::<B>();
    // A closure may stand in another one of the test.
    let function = closure.trim_end_matches("::{{closure}}");
    let test = function.split_once("::").filter(|(_, test)| function != closure && !test.contains("{{closure}}"));
    test.unwrap_or_else(|| panic!("{closure} is no closure of a test")).1
}

/// The `crossmesh` command of this build.
pub(crate) fn crossmesh_command() -> PathBuf {
    let beside = || {
        // The test binary is target/PROFILE/deps/integration-HASH.
        let this = env::current_exe().unwrap();
        this.ancestors().nth(2).unwrap().join("crossmesh")
    };
    let path = env::var_os(COMMAND).map_or_else(beside, PathBuf::from);
    assert!(path.is_file(), "no crossmesh command at {}: run cargo build first, or set {COMMAND}", path.display());
    path
}

/// The lines that ranks print with `mark` in front, without it and without the launcher's prefix, sorted.
pub(crate) fn said<'a>(job: &'a Finished, mark: &str) -> Vec<&'a str> {
    let mut lines: Vec<_> = job.output.lines().filter_map(|line| Some(line.split_once(mark)?.1)).collect();
    lines.sort_unstable();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank() -> String {
        env::var("CROSSMESH_RANK").unwrap()
    }

    fn test_of_value<B>(_: &B) -> &'static str {
        test_of::<B>()
    }

    #[test]
    fn closures_know_their_test() {
        let body = || ();
        assert_eq!(test_of_value(&body), "rig::spmd::tests::closures_know_their_test");
        let outer = || test_of_value(&|| ());
        assert_eq!(outer(), "rig::spmd::tests::closures_know_their_test");
    }

    #[test]
    fn body_runs_once_on_every_rank() {
        let job = spmd(3, || println!("here: {} of {}", rank(), env::var("CROSSMESH_SIZE").unwrap()));
        let job = job.expect_success();
        assert_eq!(said(&job, "here: "), ["0 of 3", "1 of 3", "2 of 3"], "{job:#?}");
    }

    #[test]
    fn variables_reach_all_ranks_or_one() {
        let job = Job::of(3).env("SEEN_BY_ALL", "a b").env_on(1, "SEEN_BY_ONE", "c d").run(|| {
            let value = |name| env::var(name).unwrap_or_default();
            println!("here: {} {} {}", rank(), value("SEEN_BY_ALL"), value("SEEN_BY_ONE"));
        });
        let job = job.expect_success();
        assert_eq!(said(&job, "here: "), ["0 a b ", "1 a b c d", "2 a b "], "{job:#?}");
    }

    #[test]
    fn failing_rank_fails_the_job() {
        let job = spmd(2, || assert_ne!(rank(), "1", "this rank fails on purpose"));
        // 101 is the exit code of a test process with a failed test.
        assert_eq!(job.code(), Some(101), "{job:#?}");
        assert!(format!("{}{}", job.output, job.errors).contains("fails on purpose"), "{job:#?}");
    }
}
