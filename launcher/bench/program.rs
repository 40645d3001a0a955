//! A program that is told what to do line by line. In: its command, lines. Out: its answers. Guarantee: every answer comes by a
//! deadline or is an error that names the program; dropping it ends the program, by its standard input first.

use super::error::BenchError;
use crossmesh::base::{Backoff, Deadline};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// For a program to end after its standard input has.
const END_LIMIT: Duration = Duration::from_secs(10);
/// Variables that tie a process to the job it belongs to; a peer begins a job of its own. What allows a starter to run at all
/// stays.
const JOB_VARIABLES: [&str; 6] = ["OMPI_", "PMIX_", "PMI_", "PRTE_", "SLURM_", "CROSSMESH_"];
const PERMISSION: &str = "OMPI_ALLOW_RUN_AS_ROOT";

/// A started program.
pub(super) struct Program {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
}

/// A command that knows nothing of this job; its standard input and output belong to [`Program`].
pub(super) fn command(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if JOB_VARIABLES.iter().any(|start| text.starts_with(start)) && !text.starts_with(PERMISSION) {
            command.env_remove(&name);
        }
    }
    command
}

impl Program {
    /// Takes over what a [`command`] has started.
    pub(super) fn new(name: &str, mut child: Child) -> Self {
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
        Self { name: name.to_string(), child, input, answers }
    }

    /// Tells it something.
    pub(super) fn tell(&mut self, line: &str) -> Result<(), BenchError> {
        let written = self.input.as_mut().map(|input| writeln!(input, "{line}").and_then(|()| input.flush()));
        if matches!(written, Some(Ok(()))) { Ok(()) } else { Err(self.gone("takes no commands any more")) }
    }

    /// The next line that it says.
    pub(super) fn answer(&mut self, deadline: Deadline) -> Result<String, BenchError> {
        match self.answers.recv_timeout(deadline.remaining()) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => {
                Err(self.gone(&format!("gave no answer for {} s", deadline.limit().as_secs())))
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.gone("ended before its answer")),
        }
    }

    /// It said something else than it should have.
    pub(super) fn unexpected(&self, answer: String, expected: &str) -> BenchError {
        BenchError::PeerAnswer { job: self.name.clone(), answer, expected: expected.to_string() }
    }

    fn gone(&self, what: &str) -> BenchError {
        BenchError::PeerGone { job: self.name.clone(), what: what.to_string() }
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

impl Drop for Program {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn program(script: &str) -> Program {
        let words = ["sh", "-c", script].map(String::from);
        Program::new("test", command(&words).spawn().unwrap())
    }

    #[test]
    fn lines_are_answered() {
        let mut program = program("while read word; do echo $word $word; done");
        program.tell("twice").unwrap();
        assert_eq!(program.answer(Deadline::seconds(20)).unwrap(), "twice twice");
    }

    #[test]
    fn programs_that_fail_are_named() {
        let mut mute = program("sleep 60");
        let error = mute.answer(Deadline::after(Duration::from_millis(50))).unwrap_err();
        assert!(matches!(&error, BenchError::PeerGone { job, .. } if job == "test"), "{error}");
        mute.child.kill().unwrap();
        let error = program("exit 3").answer(Deadline::seconds(20)).unwrap_err();
        assert!(error.to_string().contains("ended before its answer"), "{error}");
    }
}
