//! `crossmesh rank-program`: the last step before the user's program.
//!
//! In: the agent's process id, the program and its arguments. Out: this process becomes the program. Guarantee: the
//! program dies when its agent does; a program that cannot be started is said with exit code 127 when it is not
//! there, else 126, as shells do; one that cannot be bound runs unbound, with a warning.

use crate::failure::Failure;
use crossmesh::memory::policy;
use crossmesh::topology::{CpuSet, affinity};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getppid};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use thiserror::Error;

/// Arguments of `crossmesh rank-program`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Process id of the agent
    #[arg(long)]
    pub(crate) agent: i32,
    /// Processors to run on
    #[arg(long)]
    cpus: Option<CpuSet>,
    /// NUMA node to take memory from first
    #[arg(long)]
    memory_node: Option<u32>,
    /// Program and arguments
    #[arg(last = true, required = true)]
    pub(crate) program: Vec<OsString>,
}

#[derive(Debug, Error)]
enum ProgramError {
    #[error("cannot tie the program to its agent")]
    Tie(#[source] nix::Error),
    #[error("cannot unblock the program's signals")]
    Signals(#[source] nix::Error),
    #[error("the agent ended before its program began")]
    AgentGone,
    #[error("no program was named; give one after --")]
    Nothing,
    #[error("cannot start {}; give a program in PATH, or a path that is executable on every host", .program.display())]
    Start { program: OsString, source: io::Error },
}

/// Becomes the program; comes back only with the reason why not.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let error = become_program(arguments);
    let exit_code = match &error {
        ProgramError::Start { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
        _ => 126,
    };
    Err(Failure::new(exit_code, error))
}

fn become_program(arguments: &Arguments) -> ProgramError {
    if let Err(error) = prctl::set_pdeathsig(Signal::SIGKILL) {
        return ProgramError::Tie(error);
    }
    // The agent may have died before the line above; then the signal would never come.
    if getppid() != Pid::from_raw(arguments.agent) {
        return ProgramError::AgentGone;
    }
    // The agent reads its signals, so this process inherited them blocked.
    if let Err(error) = SigSet::empty().thread_set_mask() {
        return ProgramError::Signals(error);
    }
    bind(arguments);
    let Some((program, rest)) = arguments.program.split_first() else { return ProgramError::Nothing };
    let source = Command::new(program).args(rest).exec();
    ProgramError::Start { program: program.clone(), source }
}

/// The program inherits processors and memory policy.
fn bind(arguments: &Arguments) {
    if let Some(cpus) = &arguments.cpus
        && let Err(error) = affinity::bind_thread(cpus)
    {
        log::warn!("cannot run on processors {cpus} only: {error}");
    }
    if let Some(node) = arguments.memory_node
        && let Err(error) = policy::prefer_node(node)
    {
        log::warn!("cannot prefer memory of NUMA node {node}: {error}");
    }
}
