//! Why the doctor could not look. In: errors of the steps. Out: a message and whether the caller can cure it. Guarantee:
//! what is wrong with the machine is a finding, never one of these.

use crossmesh::comm::CommError;
use crossmesh::layout::LayoutError;
use crossmesh::plan::PlanError;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// A doctor that cannot do its work.
#[derive(Debug, Error)]
pub(crate) enum DoctorError {
    /// The folder of recorded states.
    #[error("cannot read the folder of recorded states {path:?}; --record FOLDER makes one")]
    Folder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A folder without any.
    #[error("folder {path:?} has no recorded state: no file *.json; --record FOLDER makes them")]
    Empty { path: PathBuf },
    /// A recorded state that cannot be read.
    #[error("recorded state {path:?} cannot be read; --record FOLDER makes such files")]
    State {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A file that cannot be written.
    #[error("cannot write {path:?}")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A state or result that has no form for other ranks.
    #[error("a state of a rank cannot be exchanged")]
    Encode(#[source] serde_json::Error),
    /// Data that arrived wrong.
    #[error("{wrong} of {bytes} bytes arrived wrong")]
    WrongBytes { wrong: u64, bytes: u64 },
    /// Layouts.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The manifest.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Ranks, links, transfers.
    #[error(transparent)]
    Comm(#[from] CommError),
}

impl DoctorError {
    /// Whether the user can cure it by another call, such as one that names another file to write.
    pub(crate) fn is_bad_input(&self) -> bool {
        matches!(self, Self::Folder { .. } | Self::Empty { .. } | Self::State { .. } | Self::Write { .. })
    }

    /// The message with its causes.
    pub(crate) fn message(self) -> String {
        crate::failure::Failure::new(1, self).message()
    }
}
