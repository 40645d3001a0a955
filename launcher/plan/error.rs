//! What can go wrong with `crossmesh plan`.

use crate::apart::SameFile;
use crate::case::CaseError;
use crate::checkpoint::{CheckpointError, WriteError};
use crate::result_file::ResultFileError;
use crate::rules_option::RulesOptionError;
use crossmesh::base::env::EnvError;
use crossmesh::execute::ExecuteError;
use crossmesh::layout::model::ModelError;
use crossmesh::layout::parallel::{ParallelError, SystemError};
use crossmesh::plan::PlanError;
use crossmesh::route::{CheckError, PlanFileError};
use crossmesh::topology::SyntheticError;
use std::path::PathBuf;
use thiserror::Error;

/// A plan that cannot be made or shown.
#[derive(Debug, Error)]
pub(super) enum PlanCommandError {
    #[error("--model needs both sides; give --system FILE, or --src SPEC and --dst SPEC")]
    NoSides,
    #[error("cannot read system file {}", path.display())]
    SystemFile {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    System(#[from] SystemError),
    #[error("--{side} {text:?}")]
    Spec {
        side: &'static str,
        text: String,
        #[source]
        source: ParallelError,
    },
    #[error(
        "{sources} source and {destinations} destination ranks; all links are planned of at most {most} ranks in all"
    )]
    TooManyRanks { sources: u32, destinations: u32, most: u32 },
    #[error("case {name:?} has {ranks} ranks; all links are planned of at most {most} ranks")]
    CaseRanks { name: String, ranks: u64, most: u32 },
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("model {} has no tensors; a plan needs at least one", path.display())]
    NoTensors { path: PathBuf },
    #[error(transparent)]
    Rules(#[from] RulesOptionError),
    #[error(transparent)]
    Case(#[from] CaseError),
    #[error("--topology")]
    Topology(#[from] SyntheticError),
    #[error("--{option} {value:?}: {allowed}")]
    Option { option: &'static str, value: String, allowed: String },
    #[error("no route is {kind} with {injection} injection; injection counts for the hierarchical route alone")]
    NoRoute { kind: String, injection: String },
    #[error("--explain {rank}: {title} has ranks 0 to {last}")]
    Explained { rank: u32, title: String, last: usize },
    #[error(transparent)]
    SameFile(#[from] SameFile),
    #[error("--save {}: a plan is saved to a file; give a path", path.display())]
    SaveTarget { path: PathBuf },
    #[error("--load {}: it is no regular file; give one that crossmesh plan --save wrote", path.display())]
    LoadTarget { path: PathBuf },
    #[error("--load")]
    Load(#[from] PlanFileError),
    #[error("--save")]
    Save(#[source] PlanFileError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Env(#[from] EnvError),
    #[error(transparent)]
    Staging(#[from] ExecuteError),
    /// A fault of the planner itself, which the proof found.
    #[error("{title}, {route}: the plan is wrong; report this")]
    Proof {
        title: String,
        route: String,
        #[source]
        source: CheckError,
    },
    #[error("case {case:?}: {what} is {found} and the file expects {expected}")]
    Unexpected { case: String, what: &'static str, found: String, expected: String },
    #[error("--{option}")]
    Target {
        option: &'static str,
        #[source]
        source: WriteError,
    },
    #[error(transparent)]
    Results(#[from] ResultFileError),
}

impl PlanCommandError {
    /// Whether the user can cure it by another call.
    pub(super) fn is_bad_input(&self) -> bool {
        !matches!(self, Self::Proof { .. } | Self::Unexpected { .. } | Self::Results(_) | Self::Save(_))
    }
}
