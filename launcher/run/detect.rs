//! Which starter this machine has.
//!
//! In: the caller's choice, the search path, the Slurm environment. Out: a starter and its path. Guarantee: a wanted
//! starter that is not there is an error that says how to get it; asking an mpirun for its name is bounded in time.

use super::host;
use super::starter::Starter;
use clap::ValueEnum;
use crossmesh::base::Deadline;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use thiserror::Error;

/// Longest wait for the answer of `mpirun --version`.
const VERSION_SECONDS: u64 = 20;
/// Names under which an mpirun is looked for.
const MPIRUNS: [&str; 4] = ["mpirun", "mpirun.openmpi", "mpirun.mpich", "mpiexec"];

/// What the caller asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Choice {
    /// srun in a Slurm allocation, else mpirun, else local
    #[default]
    Auto,
    /// Open MPI's mpirun
    Openmpi,
    /// MPICH's mpirun
    Mpich,
    /// Slurm's srun
    Srun,
    /// Processes on this host, without any starter
    Local,
}

/// A starter that is not here.
#[derive(Debug, Error)]
pub(crate) enum DetectError {
    /// No such mpirun.
    #[error("{what} was not found: looked for {looked_for} in PATH; install {package}, or use --starter local")]
    NoMpi { what: &'static str, looked_for: String, package: &'static str },
    /// No srun.
    #[error("srun was not found in PATH; load Slurm's environment, or use another --starter")]
    NoSrun,
}

/// The starter for `choice`; `in_allocation` says that Slurm gave this process nodes.
pub(crate) fn detect(choice: Choice, in_allocation: bool) -> Result<(Starter, PathBuf), DetectError> {
    let srun = || host::find_program("srun").map(|path| (Starter::Srun, path));
    let local = || (Starter::Local, PathBuf::new());
    match choice {
        Choice::Local => Ok(local()),
        Choice::Srun => srun().ok_or(DetectError::NoSrun),
        Choice::Openmpi => find_mpi(Some(Starter::OpenMpi)).ok_or_else(|| no_mpi("Open MPI", "openmpi-bin")),
        Choice::Mpich => find_mpi(Some(Starter::Mpich)).ok_or_else(|| no_mpi("MPICH", "mpich")),
        Choice::Auto => {
            let in_slurm = if in_allocation { srun() } else { None };
            Ok(in_slurm.or_else(|| find_mpi(None)).unwrap_or_else(local))
        }
    }
}

fn no_mpi(what: &'static str, package: &'static str) -> DetectError {
    DetectError::NoMpi { what, looked_for: MPIRUNS.join(", "), package }
}

/// The first mpirun that is `wanted`, or of any known kind.
fn find_mpi(wanted: Option<Starter>) -> Option<(Starter, PathBuf)> {
    MPIRUNS.iter().filter_map(|name| host::find_program(name)).find_map(|path| {
        let text = version_text(&path).unwrap_or_else(|error| {
            log::warn!("{} --version did not answer: {error}", path.display());
            String::new()
        });
        let starter = classify(&text)?;
        wanted.is_none_or(|wanted| wanted == starter).then_some((starter, path))
    })
}

/// Which MPI an mpirun belongs to, by the text of its version.
fn classify(text: &str) -> Option<Starter> {
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if has(&["Open MPI", "OpenRTE", "PRRTE", "prterun"]) {
        Some(Starter::OpenMpi)
    } else if has(&["HYDRA", "MPICH", "Intel(R) MPI", "MVAPICH"]) {
        Some(Starter::Mpich)
    } else {
        None
    }
}

fn version_text(path: &Path) -> io::Result<String> {
    let deadline = Deadline::seconds(VERSION_SECONDS);
    let mut child = Command::new(path)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let mut text = Vec::new();
    let mut chunk = [0; 4096];
    let read = loop {
        let mut ready = [PollFd::new(output.as_fd(), PollFlags::POLLIN)];
        let limit = i32::try_from(deadline.remaining().as_millis()).unwrap_or(i32::MAX);
        match poll(&mut ready, PollTimeout::try_from(limit).unwrap_or(PollTimeout::ZERO)) {
            Ok(0) => break Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => match output.read(&mut chunk) {
                Ok(0) => break Ok(()),
                Ok(count) => text.extend_from_slice(&chunk[..count]),
                Err(error) => break Err(error),
            },
            Err(nix::Error::EINTR) => {}
            Err(error) => break Err(error.into()),
        }
    };
    // It has closed its output or was too slow: in either case it is not needed any more.
    child.kill()?;
    child.wait()?;
    read.map(|()| String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_texts() {
        for (text, starter) in [
            ("mpirun.openmpi (OpenRTE) 4.1.4\n\nReport bugs to http://www.open-mpi.org/", Some(Starter::OpenMpi)),
            ("mpirun (Open MPI) 5.0.3", Some(Starter::OpenMpi)),
            ("HYDRA build details:\n    Version:    4.0.2", Some(Starter::Mpich)),
            ("Intel(R) MPI Library for Linux* OS, Version 2021.9", Some(Starter::Mpich)),
            ("something else", None),
            ("", None),
        ] {
            assert_eq!(classify(text), starter, "{text}");
        }
    }

    #[test]
    fn answers_are_read_and_silence_is_an_error() {
        assert!(version_text(Path::new("/bin/cat")).unwrap().contains("cat"));
        assert!(version_text(Path::new("/no/such/program")).is_err());
    }
}
