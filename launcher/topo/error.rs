//! Why a topology cannot be shown. In: errors of files, clusters, the job. Out: one enum. Guarantee: what the caller
//! gave wrong exits with 2, the rest with 1.

use crate::checkpoint::WriteError;
use crate::failure::{BAD_INPUT, Failure};
use crate::result_file::ResultFileError;
use crossmesh::comm::CommError;
use crossmesh::topology::{FileError, SyntheticError};
use std::io;
use std::path::PathBuf;
use thiserror::Error;

#[derive(Debug, Error)]
pub(super) enum TopoError {
    #[error("--from {} cannot be read", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("--from {} is no topology", .path.display())]
    File { path: PathBuf, source: FileError },
    #[error("--from is neither a file nor a cluster")]
    From { source: SyntheticError },
    #[error("--from {text} has {gpus} GPUs; hosts are shown one by one of at most {most}, so name a smaller cluster")]
    TooMany { text: String, gpus: u64, most: u64 },
    #[error("--{option}")]
    Target { option: &'static str, source: WriteError },
    #[error(transparent)]
    Results(#[from] ResultFileError),
    #[error("facts cannot be written as JSON")]
    Json { source: FileError },
    #[error("facts of rank {rank} cannot be read; are all ranks of one crossmesh version?")]
    Facts { rank: usize, source: serde_json::Error },
    #[error(transparent)]
    Comm(#[from] CommError),
}

impl From<TopoError> for Failure {
    fn from(error: TopoError) -> Self {
        let bad_input = matches!(
            error,
            TopoError::Read { .. }
                | TopoError::File { .. }
                | TopoError::From { .. }
                | TopoError::TooMany { .. }
                | TopoError::Target { .. }
                | TopoError::Comm(CommError::Discover(_))
        );
        Failure::new(if bad_input { BAD_INPUT } else { 1 }, error)
    }
}
