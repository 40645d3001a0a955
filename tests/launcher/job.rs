//! A job under test.
//!
//! In: arguments, a shell script for every rank. Out: what it printed, how it ended. Guarantee: no wait beyond
//! [`LIMIT`]; a job that is dropped early is killed.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Longest wait for anything.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Starters to test with, and the package that brings each.
const STARTERS: [(&str, Option<(&str, &str)>); 3] =
    [("local", None), ("openmpi", Some(("mpirun.openmpi", "openmpi-bin"))), ("mpich", Some(("mpirun.mpich", "mpich")))];

/// The starters of this machine; the others are named.
pub(crate) fn starters() -> Vec<&'static str> {
    let here = |(name, needs): &(&'static str, Option<(&str, &str)>)| {
        let Some((program, package)) = needs else { return Some(*name) };
        let path = std::env::var_os("PATH").unwrap_or_default();
        if std::env::split_paths(&path).any(|directory| directory.join(program).is_file()) {
            return Some(*name);
        }
        eprintln!("not run: launcher over {name}: {program} is not installed (apt-get install {package})");
        None
    };
    STARTERS.iter().filter_map(here).collect()
}

/// The command under test, with nothing of an outer job in its environment.
pub(crate) fn crossmesh() -> Command {
    // A shell that starts tests in the background ignores SIGINT, and what it starts would too.
    let mut command = Command::new("env");
    command.arg("--default-signal=INT").arg(env!("CARGO_BIN_EXE_crossmesh"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CROSSMESH_") || name.to_string_lossy().starts_with("SLURM_") {
            command.env_remove(name);
        }
    }
    command
}

/// `crossmesh run` with `options` under `starter`, every rank a shell with `script`.
pub(crate) fn shell_ranks(starter: &str, options: &[&str], script: &str) -> Command {
    let mut command = crossmesh();
    command.args(["run", "--starter", starter]).args(options).args(["--", "sh", "-c", script]);
    command
}

/// What a job left.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) output: String,
    pub(crate) error: String,
}

impl Finished {
    /// Lines of standard output of `rank`, without their prefix, in order.
    pub(crate) fn lines_of(&self, rank: u32) -> Vec<&str> {
        self.output
            .lines()
            .filter_map(|line| split(line).filter(|(who, _)| *who == rank).map(|(_, text)| text))
            .collect()
    }

    /// Lines that the launcher itself wrote.
    pub(crate) fn report(&self) -> Vec<&str> {
        self.error.lines().filter(|line| line.starts_with("crossmesh")).collect()
    }
}

/// Rank and text of `[role:rank host] text`; panics when the line is not whole.
pub(crate) fn split(line: &str) -> Option<(u32, &str)> {
    let inside = line.strip_prefix('[').unwrap_or_else(|| panic!("no prefix: {line:?}"));
    let (label, text) = inside.split_once("] ").unwrap_or_else(|| panic!("no prefix: {line:?}"));
    let (who, _host) = label.split_once(' ').unwrap_or_else(|| panic!("no host: {line:?}"));
    Some((who.rsplit(':').next()?.parse().unwrap_or_else(|_| panic!("no rank: {line:?}")), text))
}

/// A running job.
#[derive(Debug)]
pub(crate) struct Job {
    child: Child,
    lines: Option<Receiver<String>>,
    seen: Vec<String>,
    error: Option<JoinHandle<String>>,
}

impl Job {
    /// Starts `command` and collects what it prints.
    pub(crate) fn start(command: Command) -> Self {
        let (mut job, output) = Self::start_unread(command);
        let (sender, lines) = channel();
        thread::spawn(move || {
            let mut reader = BufReader::new(output);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
                let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(&line)).into_owned();
                line.clear();
                if sender.send(text).is_err() {
                    return;
                }
            }
        });
        job.lines = Some(lines);
        job
    }

    /// Starts `command` and leaves its standard output to the caller.
    pub(crate) fn start_unread(mut command: Command) -> (Self, ChildStdout) {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the built command starts");
        let output = child.stdout.take().expect("its output is a pipe");
        let mut error = child.stderr.take().expect("its errors are a pipe");
        let error = thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = error.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        (Self { child, lines: None, seen: Vec::new(), error: Some(error) }, output)
    }

    /// Waits until `count` lines that end with `ending` were printed; those lines.
    pub(crate) fn wait_for(&mut self, count: usize, ending: &str) -> Vec<String> {
        let until = Instant::now() + LIMIT;
        loop {
            let found: Vec<_> = self.seen.iter().filter(|line| line.ends_with(ending)).cloned().collect();
            if found.len() >= count {
                return found;
            }
            let left = until.saturating_duration_since(Instant::now());
            let line = self.lines.as_ref().and_then(|lines| lines.recv_timeout(left).ok());
            self.seen.push(line.unwrap_or_else(|| panic!("{count} lines {ending:?} awaited, got {:?}", self.seen)));
        }
    }

    /// Sends a signal to the launcher.
    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("the launcher runs");
    }

    /// Waits until the launcher has ended.
    pub(crate) fn finish(mut self) -> Finished {
        let status = self.wait();
        let mut output = std::mem::take(&mut self.seen);
        output.extend(self.lines.take().into_iter().flatten());
        let error = self.error.take().map(|error| error.join().expect("the reader ends"));
        let code = status.code().or(status.signal().map(|signal| -signal));
        Finished { code, output: output.join("\n"), error: error.unwrap_or_default() }
    }

    fn wait(&mut self) -> ExitStatus {
        let until = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().expect("the launcher is ours") {
                return status;
            }
            assert!(Instant::now() < until, "the launcher did not end; so far: {:?}", self.seen);
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `command` to its end.
pub(crate) fn finish(command: Command) -> Finished {
    Job::start(command).finish()
}

/// Whether process `pid` runs; one that nobody reaped does not.
pub(crate) fn is_running(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next()).is_some_and(|state| !"ZX".contains(state))
}

/// Waits up to `limit` until none of `pids` runs; those that still do.
pub(crate) fn left_running(pids: &[String], limit: Duration) -> Vec<String> {
    assert!(!pids.is_empty());
    let until = Instant::now() + limit;
    loop {
        let left: Vec<_> = pids.iter().filter(|pid| is_running(pid)).cloned().collect();
        if left.is_empty() || Instant::now() >= until {
            return left;
        }
        thread::sleep(Duration::from_millis(20));
    }
}
