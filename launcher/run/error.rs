//! Why a job could not be run at all.
//!
//! In: errors of the steps before the first rank. Out: a message and an exit code: 2 for what the caller can correct
//! on the command line, 1 for the rest.

use super::detect::DetectError;
use super::plan::PlanError;
use crate::failure::{BAD_INPUT, Failure};
use crossmesh::base::env::EnvError;
use crossmesh::topology::InterfaceError;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// A job that was not run.
#[derive(Debug, Error)]
pub(crate) enum RunError {
    /// Counts, roles, domains.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// No such starter here.
    #[error(transparent)]
    Detect(#[from] DetectError),
    /// A variable that cannot be used.
    #[error(transparent)]
    Environment(#[from] EnvError),
    /// No such interface here.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// Quotes that are not closed.
    #[error("--starter-args {text:?} has an open quote; close it")]
    StarterArguments {
        /// As given.
        text: String,
    },
    /// The local starter knows one host.
    #[error("{option} needs a starter that reaches other hosts; use --starter openmpi, mpich or srun")]
    LocalOnly {
        /// The option that was given.
        option: &'static str,
    },
    /// Files for lines cannot be made.
    #[error("cannot write output of ranks to {}", .directory.as_deref().map_or_else(|| "standard output".into(), |path| path.display().to_string()))]
    Output {
        /// `--log-dir`.
        directory: Option<PathBuf>,
        /// Why.
        source: io::Error,
    },
    /// The starter is there but does not run.
    #[error("cannot start {}", .program.display())]
    Start {
        /// Its path.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something of the operating system that a launcher cannot be without.
    #[error("cannot {what}")]
    System {
        /// In words.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        let exit_code = match error {
            RunError::Output { .. } | RunError::Start { .. } | RunError::System { .. } => 1,
            _ => BAD_INPUT,
        };
        Self::new(exit_code, error)
    }
}
