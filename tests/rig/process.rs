//! Commands that end in time.
//!
//! In: a command and a limit. Out: its exit status and everything it wrote. Guarantee: the command and all processes of
//! its group are gone when `run` returns; output goes through files, so that a forgotten descendant cannot hold it up.

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks at a running command.
const LOOK: Duration = Duration::from_millis(5);

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Finished {
    /// `None` when it was ended at its limit.
    pub(crate) status: Option<ExitStatus>,
    /// Standard output.
    pub(crate) output: String,
    /// Standard error.
    pub(crate) errors: String,
}

impl Finished {
    /// Its exit code; `None` when a signal or its limit ended it.
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.and_then(|status| status.code())
    }

    /// Panics with all that the command said unless it ended with exit code 0.
    #[track_caller]
    pub(crate) fn expect_success(self) -> Self {
        assert_eq!(self.code(), Some(0), "the command failed: {self:#?}");
        self
    }
}

/// Runs `command` without standard input until it ends, `limit` at most.
pub(crate) fn run(command: &mut Command, limit: Duration) -> io::Result<Finished> {
    let (mut output, mut errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(errors.try_clone()?)
        .process_group(0)
        .spawn()?;
    let status = wait(&mut child, limit)?;
    end_group(&mut child);
    Ok(Finished { status, output: contents(&mut output)?, errors: contents(&mut errors)? })
}

fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let began = Instant::now();
    while began.elapsed() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(LOOK);
    }
    Ok(None)
}

/// Ends what is left of the child's process group, the child included.
fn end_group(child: &mut Child) {
    // The group's id is the child's pid, and no other group can have it while a member lives; with no member left
    // the call fails with ESRCH, which is what is wanted.
    if let Ok(pid) = i32::try_from(child.id()) {
        let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
    }
    let _ = child.wait();
}

fn contents(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Finished {
        run(Command::new("sh").args(["-c", script]), limit).unwrap()
    }

    #[test]
    fn outcome_and_output() {
        let finished = shell("echo said; echo warned >&2; cat; exit 3", Duration::from_secs(10));
        assert_eq!(
            (finished.code(), finished.output.as_str(), finished.errors.as_str()),
            (Some(3), "said\n", "warned\n")
        );
        let killed = shell("kill -9 $$", Duration::from_secs(10));
        assert!(killed.status.is_some() && killed.code().is_none());
    }

    #[test]
    #[should_panic(expected = "cause")]
    fn failure_shows_what_was_said() {
        shell("echo cause >&2; exit 1", Duration::from_secs(10)).expect_success();
    }

    #[test]
    fn limit_ends_descendants_too() {
        let began = Instant::now();
        let hung = shell("sleep 60 & echo $!; wait", Duration::from_millis(300));
        assert!(hung.status.is_none() && began.elapsed() < Duration::from_secs(10));
        let forgotten = shell("sleep 60 & echo $!", Duration::from_secs(10)).expect_success();
        for finished in [hung, forgotten] {
            assert_ended(finished.output.trim());
        }
    }

    /// A descendant has ended once it is gone, or is a zombie that its adopted parent has not fetched.
    fn assert_ended(pid: &str) {
        let state = |status: String| status.lines().find(|line| line.starts_with("State:")).map(str::to_string);
        for _ in 0..400 {
            match std::fs::read_to_string(format!("/proc/{pid}/status")).ok().and_then(state) {
                Some(line) if !line.contains('Z') => thread::sleep(LOOK),
                _ => return,
            }
        }
        panic!("process {pid} still runs");
    }
}
