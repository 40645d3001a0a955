//! A peer that runs. In: its entry, a shape, then methods and seeds. Out: times and wrong elements. Guarantee: an answer that is
//! no time is an error that says what was expected.

use super::moving::Timing;
use super::peers::PeerEntry;
use super::shape::Shape;
use crate::bench::binding::Binding;
use crate::bench::error::BenchError;
use crate::bench::program::{Program, command};
use crossmesh::base::Deadline;

/// What a peer says once it can be told to run.
const READY: &str = "ready";

/// A started peer.
pub(super) struct PeerJob(Program);

impl PeerJob {
    /// Starts a peer for one shape, on any core; it is not yet ready.
    pub(super) fn start(entry: &PeerEntry, shape: &Shape, binding: Option<&Binding>) -> Result<Self, BenchError> {
        let words = entry.command(shape);
        let failed = |source| BenchError::PeerStart { job: entry.name.clone(), program: words[0].clone(), source };
        let mut command = command(&words);
        command.envs(&entry.environment);
        let child = match binding {
            Some(binding) => binding.anywhere(|| command.spawn())?,
            None => command.spawn(),
        };
        Ok(Self(Program::new(&entry.name, child.map_err(failed)?)))
    }

    /// Returns once it is ready.
    pub(super) fn wait_ready(&mut self, deadline: Deadline) -> Result<(), BenchError> {
        match self.0.answer(deadline)? {
            line if line.trim() == READY => Ok(()),
            line => Err(self.0.unexpected(line, READY)),
        }
    }

    /// Runs a method once, with contents that follow from `seed`.
    pub(super) fn run(&mut self, method: &str, seed: u32, deadline: Deadline) -> Result<Timing, BenchError> {
        self.0.tell(&format!("{method} {seed}"))?;
        let line = self.0.answer(deadline)?;
        read_answer(&line, method).ok_or_else(|| self.0.unexpected(line, &format!("{method} SECONDS SPREAD WRONG")))
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
    fn a_peer_that_is_not_ready_is_named() {
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
