//! What can be wrong with a file of cases.

use crossmesh::base::json::JsonError;
use crossmesh::layout::{DtypeError, LayoutError, PlacementError};
use crossmesh::plan::PlanError;
use std::path::PathBuf;
use thiserror::Error;

/// A case that cannot be used.
#[derive(Debug, Error)]
pub(crate) enum CaseError {
    #[error("--case {text:?} names no file; write FILE or FILE#NAME")]
    NoFile { text: String },
    #[error("cannot read case file {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "{} is no file of cases, which is a list of {{\"name\", \"shape\", \"dtype\", \"src\", \"dst\", \"domains\"}}",
        path.display()
    )]
    Form {
        path: PathBuf,
        #[source]
        source: JsonError,
    },
    #[error("{} holds no case; list at least one", path.display())]
    None { path: PathBuf },
    #[error("{} holds no case {name:?}; it has: {present}", path.display())]
    Unknown { path: PathBuf, name: String, present: String },
    #[error("{} holds two cases {name:?}; give every case its own name", path.display())]
    Repeated { path: PathBuf, name: String },
    #[error("case {case:?}: shape {shape:?} has no elements; every dimension must have at least one")]
    Empty { case: String, shape: Vec<u64> },
    #[error(
        "case {case:?}: domains lists {domains} ranks, and the meshes name rank {last}; list the domain of every rank, from 0 on"
    )]
    Domains { case: String, domains: usize, last: u32 },
    #[error("case {case:?}")]
    Dtype {
        case: String,
        #[source]
        source: DtypeError,
    },
    #[error("case {case:?}, {side}")]
    Placement {
        case: String,
        side: &'static str,
        #[source]
        source: PlacementError,
    },
    #[error("case {case:?}, {side}")]
    Layout {
        case: String,
        side: &'static str,
        #[source]
        source: LayoutError,
    },
    #[error("case {case:?}")]
    Plan {
        case: String,
        #[source]
        source: PlanError,
    },
}
