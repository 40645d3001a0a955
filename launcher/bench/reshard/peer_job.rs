//! A running peer. In: its command, then methods and seeds. Out: times and wrong elements. Guarantee: every answer comes by
//! a deadline or is an error; dropping it ends the program, by its standard input first.

use super::moving::Timing;
use super::peers::PeerEntry;
use super::shape::Shape;
use crate::bench::binding::Binding;
use crate::bench::error::BenchError;
use crossmesh::base::{Backoff, Deadline};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// What a peer says once it can be told to run.
const READY: &str = "ready";
/// For a program to end after its standard input has.
const END_LIMIT: Duration = Duration::from_secs(10);
/// Variables that tie a process to the job it belongs to; a peer's starter begins a job of its own. What allows a
/// starter to run at all stays.
const JOB_VARIABLES: [&str; 6] = ["OMPI_", "PMIX_", "PMI_", "PRTE_", "SLURM_", "CROSSMESH_"];
const PERMISSION: &str = "OMPI_ALLOW_RUN_AS_ROOT";

/// A started program.
pub(super) struct PeerJob {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl PeerJob {
    /// Starts a peer for one shape, on any core; it is not yet ready.
    pub(super) fn start(entry: &PeerEntry, shape: &Shape, binding: Option<&Binding>) -> Result<Self, BenchError> {
        let words = entry.command(shape);
        let failed = |source| BenchError::PeerStart { job: entry.name.clone(), program: words[0].clone(), source };
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if JOB_VARIABLES.iter().any(|start| text.starts_with(start)) && !text.starts_with(PERMISSION) {
                command.env_remove(&name);
            }
        }
        command.envs(&entry.environment);
        let mut child = match binding {
            Some(binding) => binding.anywhere(|| command.spawn())?,
            None => command.spawn(),
        }
        .map_err(failed)?;
        let input = child.stdin.take();
        let (sender, answers) = channel();
        if let Some(output) = child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines() {
                    let Ok(line) = line else { break };
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        Ok(Self { name: entry.name.clone(), child, input, answers })
    }

    /// Returns once it is ready.
    pub(super) fn wait_ready(&mut self, deadline: Deadline) -> Result<(), BenchError> {
        match self.answer(deadline)? {
            line if line.trim() == READY => Ok(()),
            line => Err(self.unexpected(line, READY)),
        }
    }

    /// Runs a method once, with contents that follow from `seed`.
    pub(super) fn run(&mut self, method: &str, seed: u32, deadline: Deadline) -> Result<Timing, BenchError> {
        let written = self.input.as_mut().map(|input| writeln!(input, "{method} {seed}").and_then(|()| input.flush()));
        if !matches!(written, Some(Ok(()))) {
            return Err(self.gone("takes no commands any more"));
        }
        let line = self.answer(deadline)?;
        read_answer(&line, method).ok_or_else(|| self.unexpected(line, &format!("{method} SECONDS SPREAD WRONG")))
    }

    fn answer(&mut self, deadline: Deadline) -> Result<String, BenchError> {
        match self.answers.recv_timeout(deadline.remaining()) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => {
                Err(self.gone(&format!("gave no answer for {} s", deadline.limit().as_secs())))
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.gone("ended before its answer")),
        }
    }

    fn gone(&self, what: &str) -> BenchError {
        BenchError::PeerGone { job: self.name.clone(), what: what.to_string() }
    }

    fn unexpected(&self, answer: String, expected: &str) -> BenchError {
        BenchError::PeerAnswer { job: self.name.clone(), answer, expected: expected.to_string() }
    }

    fn ended(&mut self, limit: Duration) -> bool {
        let deadline = Deadline::after(limit);
        let mut backoff = Backoff::new();
        loop {
            match self.child.try_wait() {
                Ok(None) if !deadline.expired() => backoff.snooze(),
                Ok(None) => return false,
                Ok(Some(_)) | Err(_) => return true,
            }
        }
    }
}

impl Drop for PeerJob {
    fn drop(&mut self) {
        self.input = None;
        if self.ended(END_LIMIT) {
            return;
        }
        log::warn!("peer {:?} does not end by itself and is stopped", self.name);
        // Its starter takes its ranks along.
        if let Ok(pid) = i32::try_from(self.child.id()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        if !self.ended(END_LIMIT) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// `METHOD SECONDS SPREAD WRONG`.
fn read_answer(line: &str, method: &str) -> Option<Timing> {
    let mut words = line.split_ascii_whitespace();
    if words.next()? != method {
        return None;
    }
    let seconds: f64 = words.next()?.parse().ok()?;
    let start_spread: f64 = words.next()?.parse().ok()?;
    let wrong = words.next()?.parse().ok()?;
    let sound = seconds.is_finite() && seconds > 0.0 && start_spread.is_finite() && words.next().is_none();
    sound.then_some(Timing { seconds, start_spread, wrong })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::reshard::peers::PeerList;
    use crate::bench::reshard::shape::choose;

    fn job(script: &str) -> PeerJob {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list.toml");
        let list = format!("[[job]]\nname = 'test'\nmethods = ['pull']\ncommand = ['sh', '-c', '''{script}''']\n");
        std::fs::write(&path, list).unwrap();
        let list = PeerList::read(&path).unwrap();
        let shape = choose("single", 1, 1, Some(1)).unwrap().remove(0);
        PeerJob::start(list.of(&shape).next().unwrap(), &shape, None).unwrap()
    }

    #[test]
    fn answers_are_read() {
        let mut job = job("echo ready; while read method seed; do echo $method 0.$seed 0.001 2; done");
        job.wait_ready(Deadline::seconds(20)).unwrap();
        let timing = job.run("pull", 25, Deadline::seconds(20)).unwrap();
        assert_eq!((timing.seconds, timing.start_spread, timing.wrong), (0.25, 0.001, 2));
    }

    #[test]
    fn peers_that_fail_are_named() {
        let mut mute = job("sleep 60");
        let error = mute.wait_ready(Deadline::after(Duration::from_millis(50))).unwrap_err();
        assert!(matches!(&error, BenchError::PeerGone { job, .. } if job == "test"), "{error}");
        mute.child.kill().unwrap();
        let error = job("exit 3").wait_ready(Deadline::seconds(20)).unwrap_err();
        assert!(error.to_string().contains("ended before its answer"), "{error}");
        let error = job("echo help").wait_ready(Deadline::seconds(20)).unwrap_err();
        assert!(matches!(error, BenchError::PeerAnswer { .. }), "{error}");
    }

    #[test]
    fn bad_answers_are_refused() {
        assert!(read_answer("pull 0.5 0 0", "pull").is_some());
        for line in [
            "",
            "push 0.5 0 0",
            "pull",
            "pull 0 0 0",
            "pull x 0 0",
            "pull 0.5 0",
            "pull 0.5 0 -1",
            "pull inf 0 0",
            "pull 1 0 0 0",
        ] {
            assert!(read_answer(line, "pull").is_none(), "{line:?}");
        }
    }
}
