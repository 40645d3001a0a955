//! Why a bench did not run or did not pass.
//!
//! In: errors of the steps. Out: a message and whether the caller can cure it. Guarantee: wrong data is an error like any
//! other.

use crate::checkpoint::WriteError;
use crossmesh::base::bytes::{self, SizeError};
use crossmesh::collective::device::CollectiveError;
use crossmesh::collective::{OperationError, TableError};
use crossmesh::comm::CommError;
use crossmesh::layout::LayoutError;
use crossmesh::layout::model::ModelError;
use crossmesh::layout::parallel::{ParallelError, RulesError};
use crossmesh::memory::DeviceError;
use crossmesh::plan::PlanError;
use crossmesh::route::CheckError;
use nix::errno::Errno;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// The byte count that `--option` gives.
pub(super) fn byte_count(option: &'static str, text: &str) -> Result<u64, BenchError> {
    bytes::parse(text).map_err(|source| BenchError::Bytes { option, source })
}

/// A bench that cannot run, or that found wrong data.
#[derive(Debug, Error)]
pub(crate) enum BenchError {
    /// An option's value.
    #[error("--{option} {value:?} cannot be used; allowed: {allowed}")]
    Option { option: &'static str, value: String, allowed: String },
    /// A byte count.
    #[error("--{option}")]
    Bytes {
        option: &'static str,
        #[source]
        source: SizeError,
    },
    /// A bench of what kernels of several GPUs do together.
    #[error("hosts order the ranks of this job, so {what}; allowed: GPUs that reach each other, one process on each")]
    Ordered { what: &'static str },
    /// Too few ranks.
    #[error("the bench needs {needed} ranks and the job has {ranks}; start it with crossmesh run -n {needed}")]
    TooFewRanks { needed: u64, ranks: usize },
    /// Ranks on several hosts.
    #[error("ranks 0 and {rank} are on hosts {first} and {other}, whose clocks cannot be compared; use one host")]
    SeveralHosts { rank: usize, first: String, other: String },
    /// The environment forces another route than the one to be measured.
    #[error(
        "route {wanted} was to be measured and the environment forces {forced}; unset CROSSMESH_ROUTE and CROSSMESH_INJECTION"
    )]
    RouteForced { wanted: String, forced: String },
    /// Data does not take the link that was to be measured.
    #[error("link {wanted} was to be measured and the ranks of this job are joined by {found}; {cure}")]
    OtherLink { wanted: String, found: String, cure: String },
    /// The list of peers.
    #[error("cannot read list of peers {path:?}")]
    PeersFile {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Its contents.
    #[error("list of peers {path:?} is not as docs/bench.md describes it")]
    PeersText {
        path: PathBuf,
        #[source]
        source: toml::de::Error,
    },
    /// A peer that has no name, command or method.
    #[error("list of peers {path:?}: job {job:?} has no {what}; see docs/bench.md")]
    PeersIncomplete { path: PathBuf, job: String, what: &'static str },
    /// A peer that cannot be started.
    #[error("peer {job:?} cannot be started by {program:?}; install it or measure without: --peers none")]
    PeerStart {
        job: String,
        program: String,
        #[source]
        source: io::Error,
    },
    /// A peer that said nothing, or ended.
    #[error("peer {job:?} {what}; its own messages are above")]
    PeerGone { job: String, what: String },
    /// A peer that said something else.
    #[error("peer {job:?} answered {answer:?}; expected {expected}")]
    PeerAnswer { job: String, answer: String, expected: String },
    /// The kernel's clock.
    #[error("the monotonic clock cannot be read")]
    Clock(#[source] Errno),
    /// Binding to a core.
    #[error("this process cannot be bound to a core; bind it by its starter, or use --bind none")]
    Binding(#[source] Errno),
    /// Layouts.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The manifest.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The model.
    #[error("--model")]
    Model(#[source] ModelError),
    /// A parallel spec.
    #[error("--{side}")]
    Spec {
        side: &'static str,
        #[source]
        source: ParallelError,
    },
    /// Built-in rules that do not hold together.
    #[error("built-in rules")]
    Rules(#[from] RulesError),
    /// A plan that does not deliver.
    #[error("the plan is wrong")]
    Check(#[from] CheckError),
    /// The kernel's count of CPU time.
    #[error("the CPU time of this process cannot be read")]
    Usage(#[source] Errno),
    /// The results file.
    #[error("cannot write {path:?}")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A place for results, found out before anything is measured.
    #[error("--{option}")]
    Target {
        option: &'static str,
        #[source]
        source: WriteError,
    },
    /// A collective.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// A GPU.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A reduction that does not exist for the type.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// A tuning table.
    #[error(transparent)]
    Table(#[from] TableError),
    /// Elements that arrived wrong.
    #[error("wrong results: {0}")]
    Wrong(String),
    /// Ranks, links, transfers.
    #[error(transparent)]
    Comm(#[from] CommError),
}

impl BenchError {
    /// `--option value` is not among those that are `allowed`.
    pub(crate) fn refused(option: &'static str, value: impl ToString, allowed: impl Into<String>) -> Self {
        Self::Option { option, value: value.to_string(), allowed: allowed.into() }
    }

    /// Whether the user can cure it by another call.
    pub(crate) fn is_bad_input(&self) -> bool {
        matches!(
            self,
            Self::Option { .. }
                | Self::Target { .. }
                | Self::Bytes { .. }
                | Self::Ordered { .. }
                | Self::TooFewRanks { .. }
                | Self::SeveralHosts { .. }
                | Self::RouteForced { .. }
                | Self::OtherLink { .. }
                | Self::PeersFile { .. }
                | Self::PeersText { .. }
                | Self::PeersIncomplete { .. }
                | Self::Write { .. }
        )
    }
}
