//! The running starter.
//!
//! In: a starter's command. Out: what it prints itself, how it ended. Guarantee: it runs in a process group of its
//! own, so that a terminal's signals reach the launcher alone, and it never holds the launcher up.

use super::lines::LineSplitter;
use super::starter::{Starter, StarterCommand};
use super::verdict::{signal_code, signal_text};
use crossmesh::base::env;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, PipeReader, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};

/// Lines of the starter that are kept for the report of a failure.
const LAST_LINES: usize = 40;

/// How a starter ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StarterEnd {
    /// In words: `exit code 1`, `signal 9 (SIGKILL)`.
    pub(crate) how: String,
    /// The exit code it stands for.
    pub(crate) code: u8,
}

/// One starter, or with [`Starter::Local`] the agents themselves.
#[derive(Debug)]
pub(crate) struct StarterProcess {
    children: Vec<Child>,
    ends: Vec<Option<ExitStatus>>,
    output: Option<PipeReader>,
    splitter: LineSplitter,
    last_lines: VecDeque<String>,
}

impl StarterProcess {
    /// Starts `command` with the caller's environment, less `removed`, plus `variables`.
    pub(crate) fn start(
        starter: Starter,
        command: &StarterCommand,
        size: u32,
        removed: &[OsString],
        variables: &[(&'static str, String)],
    ) -> io::Result<Self> {
        let (output, input) = io::pipe()?;
        let flags = OFlag::from_bits_truncate(fcntl(&output, FcntlArg::F_GETFL)?);
        fcntl(&output, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        let copies = if starter == Starter::Local { size } else { 1 };
        let mut process = Self {
            children: Vec::new(),
            ends: vec![None; copies as usize],
            output: Some(output),
            splitter: LineSplitter::default(),
            last_lines: VecDeque::new(),
        };
        for rank in 0..copies {
            let mut child = Command::new(&command.program);
            child.args(&command.arguments).process_group(0);
            removed.iter().for_each(|name| {
                child.env_remove(name);
            });
            child.envs(command.environment.iter().copied());
            child.envs(variables.iter().map(|(name, value)| (name, value)));
            if starter == Starter::Local {
                child.env(env::RANK.name, rank.to_string());
            }
            child.stdin(Stdio::null()).stdout(input.try_clone()?).stderr(input.try_clone()?);
            // What was started before a failure ends by itself when the launcher does.
            process.children.push(child.spawn()?);
        }
        Ok(process)
    }

    /// What to wait on for its lines; `None` once it has closed them.
    pub(crate) fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.output.as_ref().map(AsFd::as_fd)
    }

    /// Reads what it printed, keeps the last lines, and hands them out.
    pub(crate) fn read(&mut self, mut emit: impl FnMut(&str)) {
        let Some(output) = &mut self.output else { return };
        let last_lines = &mut self.last_lines;
        let mut take = |line: &[u8]| {
            let line = String::from_utf8_lossy(line).trim_end().to_string();
            emit(&line);
            last_lines.truncate(LAST_LINES - 1);
            last_lines.push_front(line);
        };
        let mut chunk = [0; 4096];
        loop {
            match output.read(&mut chunk) {
                Ok(count) if count > 0 => self.splitter.push(&chunk[..count], &mut take),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => break,
            }
        }
        self.splitter.finish(take);
        self.output = None;
    }

    /// The last lines it printed, oldest first, without the empty ones.
    pub(crate) fn last_lines(&self) -> Vec<String> {
        self.last_lines.iter().rev().filter(|line| !line.is_empty()).cloned().collect()
    }

    /// How it ended; `None` while it runs. Before the job has begun, one failed local agent is enough.
    pub(crate) fn ended(&mut self, begun: bool) -> Option<StarterEnd> {
        for (child, end) in self.children.iter_mut().zip(&mut self.ends) {
            if end.is_none() {
                // An error would say that someone else reaped it, which nobody does.
                *end = child.try_wait().unwrap_or(None);
            }
        }
        let failed = self.ends.iter().flatten().find(|status| !status.success());
        let all = self.ends.iter().all(Option::is_some);
        let told = failed.or(self.ends.iter().flatten().next()).filter(|status| all || (!begun && !status.success()));
        told.copied().map(describe)
    }

    /// Sends `signal` to what is still there of it.
    pub(crate) fn signal(&self, signal: Signal) {
        for (child, end) in self.children.iter().zip(&self.ends) {
            if end.is_none() {
                match killpg(Pid::from_raw(child.id() as i32), signal) {
                    Ok(()) | Err(Errno::ESRCH) => {}
                    Err(error) => log::warn!("cannot send {signal} to the starter, process {}: {error}", child.id()),
                }
            }
        }
    }
}

fn describe(status: ExitStatus) -> StarterEnd {
    match (status.code(), status.signal()) {
        (Some(code), _) => StarterEnd { how: format!("exit code {code}"), code: u8::try_from(code).unwrap_or(1) },
        (None, signal) => {
            let signal = signal.unwrap_or_default();
            StarterEnd { how: signal_text(signal), code: signal_code(signal) }
        }
    }
}
