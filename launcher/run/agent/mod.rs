//! `crossmesh rank-agent`: stands between the starter and one rank's program.
//!
//! In: rank and launcher from the environment that the starter made, orders of the launcher. Out: the program's lines
//! and ending. Guarantee: exits with 0 when the launcher says goodbye, so that the starter sees no failure; when the
//! launcher is gone, the program's process group is ended, then killed after the grace time: no orphans.

mod join;

use super::bindings;
use super::connection::{Connection, ConnectionError};
use super::host;
use super::protocol::{Ending, FromAgent, FromLauncher, Stream, Welcome};
use super::rank_process::RankProcess;
use super::signals::Signals;
use super::starter::{Bind, Starter};
use crate::failure::Failure;
use crossmesh::base::{Deadline, env};
use crossmesh::topology::Binding;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Unsent bytes beyond which the program's output is left in its pipes.
const BACKLOG: usize = 256 * 1024;
/// How long processes that outlive the program may hold its output open before they are killed.
const LEFTOVER_LIMIT: Duration = Duration::from_secs(2);
/// How long after that before its output is taken for ended.
const OUTPUT_LIMIT: Duration = Duration::from_secs(1);

/// Arguments of `crossmesh rank-agent`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Name of the environment variable with this rank
    #[arg(long)]
    rank_variable: String,
    /// Where this rank may run
    #[arg(long, value_enum, default_value_t)]
    bind: Bind,
    /// Program and arguments
    #[arg(last = true, required = true)]
    program: Vec<OsString>,
}

/// Runs one rank until the launcher says goodbye.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let rank = join::rank(&arguments.rank_variable)?;
    let (connection, welcome) = join::join(rank, host_name(&arguments.rank_variable))?;
    // From here on there may be a program, which must not be left alone.
    let signals = Signals::block().map_err(|cause| Failure::new(1, cause))?;
    let grace = Duration::from_millis(welcome.grace_milliseconds);
    let agent = Agent {
        connection,
        grace,
        process: None,
        launcher_gone: false,
        kill: None,
        leftovers: None,
        said_drained: false,
    };
    agent.serve(&signals, arguments, &welcome).map_err(|cause| Failure::new(1, cause))
}

/// Slurm's name of this node when srun started this process: several nodes may be one host.
fn host_name(rank_variable: &str) -> String {
    let slurm = (rank_variable == Starter::Srun.rank_variable()).then(|| std::env::var("SLURMD_NODENAME").ok());
    slurm.flatten().filter(|name| !name.is_empty()).unwrap_or_else(host::name)
}

#[derive(Debug)]
struct Agent {
    connection: Connection,
    grace: Duration,
    process: Option<RankProcess>,
    /// The connection has ended: end the program, tell nobody.
    launcher_gone: bool,
    /// When the program group is killed.
    kill: Option<Deadline>,
    /// Since the program ended while its output is still open: limit, and whether leftovers were killed.
    leftovers: Option<(Deadline, bool)>,
    said_drained: bool,
}

/// What poll(2) found.
#[derive(Debug, Default)]
struct Ready {
    signals: bool,
    launcher: bool,
    streams: Vec<Stream>,
}

impl Agent {
    fn serve(mut self, signals: &Signals, arguments: &Arguments, welcome: &Welcome) -> io::Result<ExitCode> {
        // Orders may have come together with the welcome, so look before the first wait.
        let mut ready = Ready { launcher: true, ..Ready::default() };
        loop {
            if ready.launcher {
                while let Some(order) = self.next_order() {
                    match order {
                        FromLauncher::Start { local, ranks } => {
                            let binding = bindings::find(arguments.bind, local, ranks);
                            self.start(arguments, welcome, binding.as_ref());
                        }
                        FromLauncher::Goodbye => return Ok(ExitCode::SUCCESS),
                        other => self.obey(&other),
                    }
                }
            }
            if ready.signals && signals.arrived()?.contains(&(Signal::SIGTERM as i32)) {
                // From the starter, whose requests beyond this one reach programs through the launcher.
                self.end_program();
                if self.process.as_ref().is_none_or(RankProcess::has_ended) {
                    return Ok(ExitCode::FAILURE);
                }
            }
            ready.streams.iter().for_each(|&stream| self.read(stream));
            self.notice_the_end();
            self.act_on_deadlines();
            if self.launcher_gone && self.process.as_ref().is_none_or(RankProcess::has_ended) {
                return Ok(ExitCode::FAILURE);
            }
            self.flush();
            ready = self.wait(signals)?;
        }
    }

    /// Waits until there is something to do.
    fn wait(&self, signals: &Signals) -> io::Result<Ready> {
        let backlog = self.connection.backlog();
        let mut entries = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        let mut sources = vec![None];
        if !self.launcher_gone {
            let writable = if backlog > 0 { PollFlags::POLLOUT } else { PollFlags::empty() };
            entries.push(PollFd::new(self.connection.as_fd(), PollFlags::POLLIN | writable));
            sources.push(None);
        }
        for stream in [Stream::Output, Stream::Error] {
            let readable = self.process.as_ref().and_then(|process| process.readable(stream));
            if let Some(pipe) = readable.filter(|_| backlog < BACKLOG) {
                entries.push(PollFd::new(pipe, PollFlags::POLLIN));
                sources.push(Some(stream));
            }
        }
        match poll(&mut entries, self.poll_timeout()) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut ready = Ready::default();
        for (position, (entry, source)) in entries.iter().zip(sources).enumerate() {
            if entry.any() == Some(true) {
                match source {
                    Some(stream) => ready.streams.push(stream),
                    None if position == 0 => ready.signals = true,
                    None => ready.launcher = true,
                }
            }
        }
        Ok(ready)
    }

    fn poll_timeout(&self) -> PollTimeout {
        let deadlines = [self.kill, self.leftovers.map(|(deadline, _)| deadline)];
        let remaining = deadlines.into_iter().flatten().map(|deadline| deadline.remaining()).min();
        let remaining = remaining.unwrap_or(Duration::from_secs(1)).min(Duration::from_secs(1));
        // Rounded up, so that the deadline has passed when poll returns.
        PollTimeout::try_from(remaining.as_millis() as i32 + 1).unwrap_or(PollTimeout::ZERO)
    }

    fn next_order(&mut self) -> Option<FromLauncher> {
        let received = match self.connection.receive() {
            Ok(None) => self.connection.fill().and_then(|open| match self.connection.receive()? {
                None if !open => Err(ConnectionError::Io(io::ErrorKind::ConnectionAborted.into())),
                order => Ok(order),
            }),
            other => other,
        };
        received.unwrap_or_else(|error| {
            log::debug!("the launcher is gone: {error}");
            self.lose_launcher();
            None
        })
    }

    fn lose_launcher(&mut self) {
        if !std::mem::replace(&mut self.launcher_gone, true) {
            self.end_program();
        }
    }

    fn end_program(&mut self) {
        if let Some(process) = &self.process {
            process.signal(Signal::SIGTERM);
            self.kill.get_or_insert_with(|| Deadline::after(self.grace));
        }
    }

    fn obey(&mut self, order: &FromLauncher) {
        let Some(process) = &self.process else { return };
        let signal = match *order {
            FromLauncher::Forward(signal) => Signal::try_from(signal).ok(),
            FromLauncher::Terminate => Some(Signal::SIGTERM),
            FromLauncher::Kill => Some(Signal::SIGKILL),
            _ => None,
        };
        match signal {
            // After its end, only what it left behind is there, which the kill is for.
            Some(signal) if signal == Signal::SIGKILL || !process.has_ended() => process.signal(signal),
            _ => {}
        }
    }

    /// A program that cannot be started has ended with code 126.
    fn start(&mut self, arguments: &Arguments, welcome: &Welcome, binding: Option<&Binding>) {
        if let Ok(json) = serde_json::to_vec(&binding) {
            self.connection.queue(&FromAgent::Bound(json));
        }
        let started = std::env::current_exe().and_then(|crossmesh| {
            let mut command = Command::new(crossmesh);
            command.args(["rank-program", "--agent", &std::process::id().to_string()]);
            if let Some(binding) = binding {
                command.arg("--cpus").arg(binding.cpus.to_string());
                command.args(binding.memory_node.map(|node| format!("--memory-node={node}")));
            }
            command.arg("--").args(&arguments.program);
            command.env_remove(env::LAUNCHER.name).env_remove(env::LAUNCHER_KEY.name);
            command.envs(welcome.environment.iter().map(|(name, value)| (name, value)));
            RankProcess::start(&mut command)
        });
        match started {
            Ok(process) => self.process = Some(process),
            Err(error) => {
                let line = format!("crossmesh: cannot start a process for the program: {error}");
                self.connection.queue(&FromAgent::Line(Stream::Error, line.into_bytes()));
                self.connection.queue(&FromAgent::Ended { ending: Ending::Exited(126), clock: join::clock() });
                self.connection.queue(&FromAgent::Drained);
            }
        }
    }

    fn read(&mut self, stream: Stream) {
        if let Some(process) = &mut self.process {
            let (connection, gone) = (&mut self.connection, self.launcher_gone);
            process.read(stream, |line| {
                if !gone {
                    connection.queue(&FromAgent::Line(stream, line.to_vec()));
                }
            });
        }
    }

    fn notice_the_end(&mut self) {
        let Some(process) = &mut self.process else { return };
        if let Some(ending) = process.newly_ended() {
            self.connection.queue(&FromAgent::Ended { ending, clock: join::clock() });
            self.leftovers = Some((Deadline::after(LEFTOVER_LIMIT), false));
        }
        if process.has_ended() && process.is_drained() && !self.said_drained {
            self.said_drained = true;
            self.leftovers = None;
            self.connection.queue(&FromAgent::Drained);
        }
    }

    fn act_on_deadlines(&mut self) {
        let Some(process) = &mut self.process else { return };
        if self.kill.is_some_and(|deadline| deadline.expired()) {
            process.signal(Signal::SIGKILL);
            self.kill = None;
        }
        let held_up = self.connection.backlog() >= BACKLOG;
        match self.leftovers {
            // Output that waits for the launcher is not held open by anyone: count again from now.
            Some((_, killed)) if held_up => self.leftovers = Some((Deadline::after(LEFTOVER_LIMIT), killed)),
            Some((deadline, false)) if deadline.expired() => {
                process.signal(Signal::SIGKILL);
                self.leftovers = Some((Deadline::after(OUTPUT_LIMIT), true));
            }
            Some((deadline, true)) if deadline.expired() => {
                for stream in [Stream::Output, Stream::Error] {
                    process.close(stream, |line| self.connection.queue(&FromAgent::Line(stream, line.to_vec())));
                }
                self.notice_the_end();
            }
            _ => {}
        }
    }

    fn flush(&mut self) {
        if !self.launcher_gone && self.connection.flush().is_err() {
            self.lose_launcher();
        }
    }
}
