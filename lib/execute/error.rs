//! What can go wrong with a transfer. Each message says what, where, and what to do.

use super::Side;
use crate::base::{Rank, env::EnvError};
use crate::bootstrap::{BootstrapError, Cause};
use crate::layout::LayoutError;
use crate::memory::{DeviceError, MemoryError};
use crate::plan::PlanError;
use crate::route::CheckError;
use crate::transport::TransportError;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// A transfer that cannot be made, or did not finish.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExecuteError {
    /// A rank in a mesh passed no buffer.
    #[error(
        "tensor {tensor:?}: no {side} buffer on this rank, which holds a local tensor of shape {shape:?}; pass one"
    )]
    NoBuffer {
        /// Tensor.
        tensor: String,
        /// Side.
        side: Side,
        /// Its local shape.
        shape: Vec<u64>,
    },
    /// A rank outside a mesh passed a buffer.
    #[error("tensor {tensor:?}: a {side} buffer on this rank, which is not in the {side} mesh; pass none")]
    UnexpectedBuffer {
        /// Tensor.
        tensor: String,
        /// Side.
        side: Side,
    },
    /// A view that does not fit.
    #[error("tensor {tensor:?}, {side}")]
    View {
        /// Tensor.
        tensor: String,
        /// Side.
        side: Side,
        /// What is wrong.
        #[source]
        source: LayoutError,
    },
    /// Two tensors share memory and one of them is written.
    #[error(
        "{first_side} of tensor {first:?} and {second_side} of tensor {second:?} share memory on this rank; give every destination its own"
    )]
    Overlap {
        /// One tensor.
        first: String,
        /// Its side.
        first_side: Side,
        /// The other.
        second: String,
        /// Its side.
        second_side: Side,
    },
    /// A GPU.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A sum or a cast on a GPU.
    #[error(
        "tensor {tensor:?}: {change} on the way, which happens in the memory of hosts only; do it before or after the transfer, or move the tensor through host memory"
    )]
    ChangeOnDevices {
        /// Tensor.
        tensor: String,
        /// What would happen to its elements.
        change: &'static str,
    },
    /// A stream for a transfer of hosts.
    #[error("this rank has no tensors of the transfer on a GPU, so it cannot be put on a stream; use start")]
    StreamOfHost,
    /// A capture of a transfer that the host has to take part in.
    #[error(
        "this transfer cannot be captured in a graph, since the host takes part in it: {why}; start it on the stream without a capture"
    )]
    Capture {
        /// What the host does.
        why: String,
    },
    /// The manifest is wrong.
    #[error("manifest")]
    Plan(#[from] PlanError),
    /// The route is wrong: a bug of crossmesh.
    #[error("the routed plan failed its own proof; please report this")]
    Check(#[from] CheckError),
    /// Another rank could not take part.
    #[error("rank {rank} on host {host} cannot take part: {message}")]
    OtherRank {
        /// The rank.
        rank: Rank,
        /// Its host.
        host: String,
        /// What it reported.
        message: String,
    },
    /// Two ranks passed different manifests.
    #[error(
        "rank {other} and rank {first} disagree: tensor {tensor} ({name:?}), {field}: {other_value} on rank {other}, {first_value} on rank {first}; every rank must pass the same manifest"
    )]
    Disagreement {
        /// Reference rank.
        first: Rank,
        /// The rank that differs.
        other: Rank,
        /// Index of the tensor.
        tensor: usize,
        /// Its name on the reference rank.
        name: String,
        /// Field that differs.
        field: &'static str,
        /// Value on the reference rank.
        first_value: String,
        /// Value on the other.
        other_value: String,
    },
    /// Two ranks run with different options.
    #[error(
        "rank {other} and rank {first} run with different {what}: {other_value} on rank {other}, {first_value} on rank {first}; give all ranks the same"
    )]
    OptionsDiffer {
        /// Reference rank.
        first: Rank,
        /// The rank that differs.
        other: Rank,
        /// Which options.
        what: &'static str,
        /// Value on the reference rank.
        first_value: String,
        /// Value on the other.
        other_value: String,
    },
    /// Too little staging memory is left.
    #[error(
        "{available} bytes of staging are left on rank {rank} and this transfer needs at least {needed}; raise CROSSMESH_STAGING or free other transfers"
    )]
    Staging {
        /// The rank with the least.
        rank: Rank,
        /// What it has.
        available: u64,
        /// What is needed.
        needed: u64,
    },
    /// More arrivals than a link can number.
    #[error(
        "{arrivals} chunks from one rank; a message link numbers at most {most}: raise CROSSMESH_CHUNK or split the manifest"
    )]
    TooManyChunks {
        /// Chunks.
        arrivals: u64,
        /// Limit.
        most: u64,
    },
    /// Started twice.
    #[error("the transfer is active; wait for it before starting it again")]
    Active,
    /// Waited for without a start.
    #[error("the transfer is not active; start it first")]
    NotStarted,
    /// The deadline passed.
    #[error("not finished after {limit:?}: {waiting}")]
    Deadline {
        /// The deadline's duration.
        limit: Duration,
        /// What is outstanding, and from whom.
        waiting: String,
    },
    /// The job was aborted; all ranks report the same cause.
    #[error("{0}")]
    Aborted(Arc<Cause>),
    /// A peer broke the protocol.
    #[error("rank {peer} sent {what}; the job cannot go on")]
    Protocol {
        /// The peer.
        peer: Rank,
        /// What it sent.
        what: String,
    },
    /// The connection to a peer is gone.
    #[error("lost the connection to rank {peer}")]
    Lost {
        /// The peer, by world rank.
        peer: Rank,
        /// Why.
        #[source]
        source: TransportError,
    },
    /// No progress thread.
    #[error("cannot start the progress thread; check ulimit -u")]
    Thread {
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Memory.
    #[error("memory")]
    Memory(#[from] MemoryError),
    /// A link.
    #[error("link")]
    Transport(#[from] TransportError),
    /// Control connections.
    #[error("control connection")]
    Bootstrap(#[source] BootstrapError),
    /// An environment variable.
    #[error("environment")]
    Env(#[from] EnvError),
    /// What a peer sent during init cannot be read: a version mix that the handshake let through.
    #[error("rank {peer} sent an init message that cannot be read; all ranks must run the same version")]
    Unreadable {
        /// The peer.
        peer: Rank,
        /// Why.
        #[source]
        source: postcard::Error,
    },
}

impl From<BootstrapError> for ExecuteError {
    fn from(error: BootstrapError) -> Self {
        match error {
            // One spelling of the cause, whichever call meets it.
            BootstrapError::Aborted { cause } => Self::Aborted(cause),
            other => Self::Bootstrap(other),
        }
    }
}
