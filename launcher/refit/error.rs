//! What can go wrong with a refit.

use crate::apart::SameFile;
use crate::case::CaseError;
use crate::checkpoint::{CheckpointError, RegionError, WriteError};
use crate::counted::counted;
use crate::result_file::ResultFileError;
use crate::rules_option::RulesOptionError;
use crossmesh::base::Rank;
use crossmesh::base::bytes::{SizeError, human};
use crossmesh::base::env::EnvError;
use crossmesh::bootstrap::BootstrapError;
use crossmesh::comm::CommError;
use crossmesh::execute::ExecuteError;
use crossmesh::layout::content_digest::DigestError;
use crossmesh::layout::model::ModelError;
use crossmesh::layout::parallel::ParallelError;
use crossmesh::layout::{Dtype, LayoutError};
use crossmesh::plan::PlanError;
use std::path::PathBuf;
use thiserror::Error;

/// A refit that cannot run or did not succeed.
#[derive(Debug, Error)]
pub(crate) enum RefitError {
    /// A spec.
    #[error("--{side} {text:?}")]
    Spec {
        side: &'static str,
        text: String,
        #[source]
        source: ParallelError,
    },
    /// An argument that only a file of cases may stand for.
    #[error("{name} is missing; give it, or --case FILE")]
    Absent { name: &'static str },
    /// Cases.
    #[error(transparent)]
    Case(#[from] CaseError),
    /// Cases for other jobs.
    #[error("none of {cases} cases fits {ranks} ranks; the smallest needs {needed}: start {needed} ranks")]
    NoCase { cases: usize, ranks: usize, needed: usize },
    #[error(
        "case {case:?}: src is partial(sum), and contents are made up of whole elements only; plan it, or name another case"
    )]
    Terms { case: String },
    /// Bytes of a case.
    #[error("case {case:?}: {what} is {found} and the file expects {expected}")]
    Unexpected { case: String, what: &'static str, found: u64, expected: u64 },
    /// A list of ranks.
    #[error("--{side}-ranks {text:?}: {item:?} is no rank or range of ranks; write numbers and ranges such as 0-3,8")]
    RankList { side: &'static str, text: String, item: String },
    /// A rank is listed twice.
    #[error("--{side}-ranks {text:?} names rank {rank} twice; name every rank once")]
    RankRepeated { side: &'static str, text: String, rank: Rank },
    /// A spec and its list of ranks differ in length.
    #[error("--{side} {spec:?} needs {needed} ranks and --{side}-ranks lists {listed}; list {needed}")]
    RankListLength { side: &'static str, spec: String, needed: u32, listed: usize },
    /// Too few ranks.
    #[error(
        "--src {src:?} needs {}, --dst {dst:?} needs {destinations}, and the job has {ranks}; start {needed} ranks \
         (crossmesh run -n {needed}), or list overlapping ranks with --src-ranks and --dst-ranks",
        counted(*sources, "rank"),
        needed = u64::from(*sources) + u64::from(*destinations)
    )]
    TooFewRanks { src: String, sources: u32, dst: String, destinations: u32, ranks: usize },
    /// A listed rank is outside the job.
    #[error("--{side}-ranks names rank {rank}; the job has ranks 0 to {last}")]
    RankOutside { side: &'static str, rank: Rank, last: usize },
    /// A role's size and its side's spec differ.
    #[error(
        "role {role:?} has {given} ranks and --{side} {spec:?} needs {needed}; give the role {needed} ranks or change the spec"
    )]
    RoleSize { role: String, given: u32, side: &'static str, spec: String, needed: u32 },
    /// An option's value.
    #[error("--{option} {value:?}: {allowed}")]
    Option { option: &'static str, value: String, allowed: String },
    /// A byte rate.
    #[error("--nic-rate")]
    Rate(#[source] SizeError),
    /// Model files.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// What another rank told about the model.
    #[error("rank {rank} told what is in the model in a way that cannot be read; all ranks must run the same version")]
    Catalogue { rank: Rank },
    /// The rules.
    #[error(transparent)]
    Rules(#[from] RulesOptionError),
    /// The model's tensors.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A tensor's layout.
    #[error("tensor {tensor:?}, {side}")]
    Layout {
        tensor: String,
        side: &'static str,
        #[source]
        source: LayoutError,
    },
    /// The manifest.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The model does not fit.
    #[error("the shards of this rank need more than 64 bits can count; use more ranks")]
    TooLarge,
    /// A host lacks memory.
    #[error(
        "the {} on host {host} need{} {} of memory ({} for tensors of both sides, {} to stage them) and {limit}; start fewer \
         ranks on a host and more hosts, cut the tensors into more shards, or move a smaller model",
        counted(*ranks, "rank"),
        if *ranks == 1 { "s" } else { "" },
        human(*needed),
        human(*tensors),
        human(*staging)
    )]
    Room { host: String, ranks: usize, needed: u64, tensors: u64, staging: u64, limit: String },
    /// Reading a box of the model.
    #[error("reading the model")]
    Region(#[from] RegionError),
    /// Digests.
    #[error("digest of tensor {tensor:?}")]
    Digest {
        tensor: String,
        #[source]
        source: DigestError,
    },
    /// A tensor arrived wrong.
    #[error("tensor {tensor:?} ({dtype}) arrived wrong on rank {rank}: {what}")]
    Wrong { tensor: String, dtype: Dtype, rank: Rank, what: String },
    /// A wrong count.
    #[error(
        "{saturated} finite values are said to have become infinite on their way; the sources have {counted} that do"
    )]
    Saturated { saturated: u64, counted: u64 },
    /// Digests of another rank.
    #[error("rank {rank} sent digests that cannot be read; all ranks must run the same version")]
    Digests {
        rank: Rank,
        #[source]
        source: serde_json::Error,
    },
    /// Shard files.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A place to write to, found out before anything moved.
    #[error("--{option}")]
    Target {
        option: &'static str,
        #[source]
        source: WriteError,
    },
    /// A result in the place of a file that is read, or of another result.
    #[error(transparent)]
    SameFile(#[from] SameFile),
    /// The folder for shard files.
    #[error("--out {path:?} cannot be used as a folder; name a folder, or a path where one can be made")]
    Folder {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// Results.
    #[error(transparent)]
    Results(#[from] ResultFileError),
    /// An environment variable.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// What the ranks found out together; every rank has such an error.
    #[error("{message}")]
    Agreed { message: String, bad_input: bool },
    /// Ranks, links, transfer.
    #[error(transparent)]
    Comm(#[from] CommError),
}

impl RefitError {
    /// The same, told of a case by name.
    pub(super) fn of_case(self, name: &str) -> Self {
        match self {
            Self::Agreed { message, bad_input } => {
                Self::Agreed { message: format!("case {name:?}: {message}"), bad_input }
            }
            other => other,
        }
    }

    /// Whether the user can cure it by another call.
    pub(crate) fn is_bad_input(&self) -> bool {
        match self {
            Self::Agreed { bad_input, .. } => *bad_input,
            Self::Comm(CommError::Env(_) | CommError::Topology(_) | CommError::Interface(_)) => true,
            Self::Comm(CommError::Bootstrap(BootstrapError::Interface(_))) => true,
            Self::Comm(CommError::Execute(cause)) => matches!(
                cause,
                ExecuteError::Env(_) | ExecuteError::Staging { .. } | ExecuteError::OptionsDiffer { .. }
            ),
            Self::Wrong { .. }
            | Self::Saturated { .. }
            | Self::Unexpected { .. }
            | Self::Comm(_)
            | Self::Write(_)
            | Self::Results(_) => false,
            _ => true,
        }
    }

    /// Whether no rank can be reached any more: the job was aborted, or the control connections failed.
    pub(crate) fn ends_the_job(&self) -> bool {
        matches!(
            self,
            Self::Comm(
                CommError::Aborted(_)
                    | CommError::Bootstrap(_)
                    | CommError::Execute(ExecuteError::Aborted(_) | ExecuteError::Bootstrap(_))
            )
        )
    }
}
