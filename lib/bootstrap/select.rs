//! Starts a rank the way its environment asks for.
//!
//! In: `CROSSMESH_BOOTSTRAP`, the starter's variables, the adapters that are there. Out: a [`Bootstrap`]. Guarantee:
//! the decision itself is pure (`starter`); the unique id is erased from the environment once read.

use super::Bootstrap;
use super::error::BootstrapError;
use super::mpi::{MpiBootstrap, find, places};
use super::solo::Solo;
use super::starter::{Choice, Means, Mode, Seen, Starter, choose};
use super::tcp::TcpBootstrap;
use super::unique_id::UniqueId;
use crate::base::{Deadline, env};

/// Finds the other ranks of this process's job by `deadline`.
///
/// Call it once, at the start, before other threads run C code that reads the environment: it takes
/// `CROSSMESH_UNIQUE_ID` out of it. With MPI, call it and [`Bootstrap::finish`] on the main thread.
pub fn from_environment(deadline: Deadline) -> Result<Box<dyn Bootstrap>, BootstrapError> {
    let mode = env::value::<Mode>(env::BOOTSTRAP)?.unwrap_or_default();
    check_number(env::RANK)?;
    check_number(env::SIZE)?;
    let seen = Seen::look(variable);
    let id = take_unique_id();
    let adapter = seen.starter.mpi().map(places);
    let means = Means {
        unique_id: id.is_some(),
        adapter_named: env::text(env::MPI_ADAPTER).is_some(),
        adapter_found: adapter.is_some_and(|places| find(&places).is_some()),
    };
    let choice = choose(mode, seen, means)?;
    log::debug!("bootstrap: {choice:?}; started by {seen}");
    match choice {
        Choice::Mpi(mpi) => Ok(Box::new(MpiBootstrap::start(mpi, seen)?)),
        Choice::Tcp { rank, size } => {
            let id: UniqueId = id.unwrap_or_default().parse()?;
            Ok(Box::new(TcpBootstrap::join(&id, rank, size, deadline)?))
        }
        Choice::Solo => Ok(Box::new(Solo)),
    }
}

/// Whether a starter made this process a rank of a job.
pub fn has_starter() -> bool {
    Seen::look(variable).starter != Starter::Nobody
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn check_number(variable: env::Variable) -> Result<(), BootstrapError> {
    env::value::<u32>(variable)?;
    Ok(())
}

/// Reads the unique id and erases it, so that child processes do not inherit the job key.
fn take_unique_id() -> Option<String> {
    let text = env::text(env::UNIQUE_ID)?;
    // SAFETY: other Rust threads are kept out by the standard library's lock; `from_environment` asks that no C code
    // reads the environment meanwhile.
    unsafe { std::env::remove_var(env::UNIQUE_ID.name) };
    Some(text)
}
