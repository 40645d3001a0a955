//! Errors of a communicator: those of the layers it joins.

use crate::base::{Rank, env::EnvError};
use crate::bootstrap::{BootstrapError, Cause};
use crate::collective::device::CollectiveError;
use crate::execute::ExecuteError;
use crate::memory::MemoryError;
use crate::route::PlanFileError;
use crate::topology::discover::DiscoverError;
use crate::topology::{InterfaceError, TopologyError};
use crate::transport::TransportError;
use std::sync::Arc;
use thiserror::Error;

/// A call on a communicator that failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CommError {
    /// The job did not come together, or a control connection failed.
    #[error("control")]
    Bootstrap(#[source] BootstrapError),
    /// Ranks state contradictory places.
    #[error("topology")]
    Topology(#[from] TopologyError),
    /// The topology file that stands for this host.
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    /// A collective on devices.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// A transfer.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
    /// Memory for the job's own use.
    #[error("memory")]
    Memory(#[from] MemoryError),
    /// A link.
    #[error("link")]
    Transport(#[from] TransportError),
    /// An environment variable.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// What another rank stated cannot be read.
    #[error("rank {peer} stated facts that cannot be read; all ranks must run the same version")]
    Unreadable {
        /// The rank.
        peer: Rank,
        /// Why.
        #[source]
        source: postcard::Error,
    },
    /// A saved plan that cannot be used here.
    #[error(transparent)]
    PlanFile(#[from] PlanFileError),
    /// The network interface cannot be used.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The communicator is still in use.
    #[error("{users} communicators or transfers of this job are still alive; drop them before finalize")]
    InUse {
        /// How many others.
        users: usize,
    },
    /// The job was aborted; all ranks report the same cause.
    #[error("{0}")]
    Aborted(Arc<Cause>),
}

impl From<BootstrapError> for CommError {
    fn from(error: BootstrapError) -> Self {
        match error {
            // One spelling of the cause, whichever call meets it.
            BootstrapError::Aborted { cause } => Self::Aborted(cause),
            other => Self::Bootstrap(other),
        }
    }
}
