//! The user's program of one rank, as its agent sees it.
//!
//! In: program, variables. Out: lines, the ending. Guarantee: the program has a process group of its own, no input,
//! and does not outlive the agent; the group's number is not reused while it may still be signaled, because the
//! leader is reaped last.

use super::lines::LineSplitter;
use super::protocol::{Ending, Stream};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};

/// Bytes read from a stream in one round.
const ROUND: usize = 64 * 1024;

#[derive(Debug)]
struct ProgramStream {
    pipe: File,
    splitter: LineSplitter,
}

impl ProgramStream {
    fn new(pipe: Option<impl Into<OwnedFd>>) -> io::Result<Self> {
        let pipe: OwnedFd = pipe.ok_or(io::ErrorKind::BrokenPipe)?.into();
        let flags = OFlag::from_bits_truncate(fcntl(&pipe, FcntlArg::F_GETFL)?);
        fcntl(&pipe, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        Ok(Self { pipe: pipe.into(), splitter: LineSplitter::default() })
    }
}

/// A started program.
#[derive(Debug)]
pub(crate) struct RankProcess {
    child: Child,
    group: Pid,
    streams: [Option<ProgramStream>; 2],
    ending: Option<Ending>,
}

fn slot(stream: Stream) -> usize {
    match stream {
        Stream::Output => 0,
        Stream::Error => 1,
    }
}

impl RankProcess {
    /// Starts `command`. Call it on a thread that lives as long as the agent: the tie to it is per thread.
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn()?;
        let group = Pid::from_raw(child.id() as i32);
        let streams = [Some(ProgramStream::new(child.stdout.take())?), Some(ProgramStream::new(child.stderr.take())?)];
        Ok(Self { child, group, streams, ending: None })
    }

    /// What to wait on for more of `stream`; `None` once it has ended.
    pub(crate) fn readable(&self, stream: Stream) -> Option<BorrowedFd<'_>> {
        self.streams[slot(stream)].as_ref().map(|stream| stream.pipe.as_fd())
    }

    /// Whether both streams have ended.
    pub(crate) fn is_drained(&self) -> bool {
        self.streams.iter().all(Option::is_none)
    }

    /// Reads what is there of `stream` and hands out its whole lines.
    pub(crate) fn read(&mut self, stream: Stream, mut emit: impl FnMut(&[u8])) {
        let Some(state) = &mut self.streams[slot(stream)] else { return };
        let mut chunk = [0; 16 * 1024];
        let mut total = 0;
        while total < ROUND {
            match state.pipe.read(&mut chunk) {
                Ok(count) if count > 0 => {
                    state.splitter.push(&chunk[..count], &mut emit);
                    total += count;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The end, or a pipe that cannot be read any more.
                _ => return self.close(stream, emit),
            }
        }
    }

    /// Reads no more of `stream`; an unfinished line comes out as it is.
    pub(crate) fn close(&mut self, stream: Stream, emit: impl FnMut(&[u8])) {
        if let Some(mut state) = self.streams[slot(stream)].take() {
            state.splitter.finish(emit);
        }
    }

    /// How the program ended, the first time that this is asked after it did; it is not reaped yet.
    pub(crate) fn newly_ended(&mut self) -> Option<Ending> {
        if self.ending.is_some() {
            return None;
        }
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        self.ending = match waitid(Id::Pid(self.group), flags) {
            Ok(WaitStatus::Exited(_, code)) => Some(Ending::Exited(code)),
            Ok(WaitStatus::Signaled(_, signal, _)) => Some(Ending::Signaled(signal as i32)),
            Ok(_) | Err(Errno::EINTR) => None,
            Err(_) => self.reap_now(),
        };
        self.ending
    }

    /// For what waitid(2) cannot put into words here, such as the end by a real-time signal.
    fn reap_now(&mut self) -> Option<Ending> {
        match self.child.try_wait() {
            Ok(status) => status.map(|status| match (status.code(), status.signal()) {
                (Some(code), _) => Ending::Exited(code),
                (None, Some(signal)) => Ending::Signaled(signal),
                (None, None) => Ending::Lost,
            }),
            Err(_) => Some(Ending::Lost),
        }
    }

    /// Whether the program has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ending.is_some()
    }

    /// Sends `signal` to the program and what it started in its group.
    pub(crate) fn signal(&self, signal: Signal) {
        match killpg(self.group, signal) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => log::warn!("cannot send {signal} to process group {}: {error}", self.group),
        }
    }
}

impl Drop for RankProcess {
    /// Nothing of the group is left behind.
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        if let Err(error) = self.child.wait() {
            log::debug!("process {} was not reaped: {error}", self.group);
        }
    }
}
