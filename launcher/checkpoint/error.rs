//! What can be wrong with a model on disk. Each message says file or tensor, the value, what is allowed, what to do.

use crossmesh::base::bytes::human;
use crossmesh::base::json::JsonError;
use crossmesh::layout::model::ModelError;
use crossmesh::layout::parallel::LayerFileError;
use crossmesh::layout::{Dtype, DtypeError};
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// A model that cannot be read.
#[derive(Debug, Error)]
pub(crate) enum CheckpointError {
    #[error("cannot open {}", path.display())]
    Missing {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("no file or folder is called {name:?}")]
    NoSuchName {
        name: String,
        #[source]
        source: ModelError,
    },
    #[error("cannot {action} {}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "{} is no model; give a .safetensors file, a folder that holds one or model.safetensors.index.json, \
         a description that ends in .model.json, or a layer file that ends in .json and holds num_layers and \
         default_tensors",
        path.display()
    )]
    NotAModel { path: PathBuf },
    #[error(
        "folder {} holds no model.safetensors.index.json and {count} .safetensors files; \
         give a folder with the index or with exactly one file, or name the file",
        path.display()
    )]
    Folder { path: PathBuf, count: usize },
    #[error("{} is no safetensors file", path.display())]
    Header {
        path: PathBuf,
        #[source]
        source: HeaderError,
    },
    #[error("{} is no index of safetensors files, which holds {{\"weight_map\": {{tensor: file}}}}", path.display())]
    Index {
        path: PathBuf,
        #[source]
        source: JsonError,
    },
    #[error(
        "{} states no model as config.json does, with numbers of attention heads from 0 to 4294967295; correct or remove it",
        path.display()
    )]
    Config {
        path: PathBuf,
        #[source]
        source: JsonError,
    },
    #[error("{} puts tensor {tensor:?} into {file:?}; a plain file name in the same folder is allowed", path.display())]
    IndexFileName { path: PathBuf, tensor: String, file: String },
    #[error("{} puts tensor {tensor:?} into {file:?}, which is missing; copy the whole checkpoint", path.display())]
    ShardMissing { path: PathBuf, tensor: String, file: String },
    #[error("{} puts tensor {tensor:?} into {file:?}, which does not hold it; index and files differ", path.display())]
    AbsentTensor { path: PathBuf, tensor: String, file: String },
    #[error("{file:?} holds tensor {tensor:?}, which {} does not list; index and files differ", path.display())]
    UnlistedTensor { path: PathBuf, tensor: String, file: String },
    #[error("tensor {tensor:?} stands in both {first:?} and {second:?}; a tensor may stand in one file")]
    DuplicateTensor { tensor: String, first: String, second: String },
    #[error(transparent)]
    Description(#[from] ModelError),
    #[error(transparent)]
    Layers(#[from] LayerFileError),
}

impl CheckpointError {
    /// Whether nothing of the name is on this host; it may be on another one.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Missing { .. } | Self::NoSuchName { .. })
    }
}

/// Bytes that are no safetensors file. Offsets count from the end of the header, as in the format.
#[derive(Debug, Error)]
pub(crate) enum HeaderError {
    #[error("it has {bytes} bytes; the first 8 must hold the length of the header")]
    TooShort { bytes: u64 },
    #[error("its header claims {length} bytes; at most {allowed} are allowed")]
    TooLong { length: u64, allowed: u64 },
    #[error("its header claims {length} bytes and {left} follow; the file is truncated or of another format")]
    BeyondFile { length: u64, left: u64 },
    #[error("its header is not UTF-8")]
    NotUtf8(#[source] std::str::Utf8Error),
    #[error(
        "its header starts with {}; a safetensors header starts with '{{'",
        found.map_or("nothing".to_string(), |found| format!("{found:?}"))
    )]
    NotAnObject { found: Option<char> },
    #[error("its header is not the JSON that the format asks for")]
    NotJson(#[source] JsonError),
    #[error("tensor {tensor:?} has an unusable dtype")]
    Dtype {
        tensor: String,
        #[source]
        source: DtypeError,
    },
    #[error("tensor {tensor:?}: shape {shape:?} of {dtype} takes more than 2^64 bytes")]
    Size { tensor: String, shape: Vec<u64>, dtype: Dtype },
    #[error("tensor {tensor:?} begins at {begin} and ends before that, at {end}")]
    Reversed { tensor: String, begin: u64, end: u64 },
    #[error(
        "tensor {tensor:?} ends at offset {end}, and {data} bytes follow the header; the file is truncated or damaged"
    )]
    OutsideFile { tensor: String, end: u64, data: u64 },
    #[error("tensor {tensor:?} has {found} bytes; shape {shape:?} of {dtype} takes {needed}")]
    SizeMismatch { tensor: String, shape: Vec<u64>, dtype: Dtype, found: u64, needed: u64 },
    #[error("tensor {second:?} begins at offset {begin}, inside tensor {first:?}, which ends at {end}")]
    Overlap { first: String, end: u64, second: String, begin: u64 },
    #[error("bytes {from} to {to} before tensor {tensor:?} belong to no tensor; the format allows no holes")]
    Hole { from: u64, to: u64, tensor: String },
    #[error("bytes {from} to {to} at the end belong to no tensor; the format allows none")]
    Trailing { from: u64, to: u64 },
}

/// A box of a tensor that cannot be copied, or that differs.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum RegionError {
    #[error(
        "box at {lo:?} of extent {extent:?} does not lie in tensor {tensor:?} of shape {shape:?}; \
         give lower bound and extent per dimension"
    )]
    Outside { tensor: String, shape: Vec<u64>, lo: Vec<u64>, extent: Vec<u64> },
    #[error("the contents of tensor {tensor:?} are not on this host")]
    Elsewhere { tensor: String },
    #[error("a box of extent {extent:?} of tensor {tensor:?} takes {needed} bytes; the buffer has {given}")]
    Buffer { tensor: String, extent: Vec<u64>, needed: u64, given: u64 },
    #[error(
        "tensor {tensor:?} differs first at global index {index:?}: bytes {found:02x?}, and {expected:02x?} are right"
    )]
    Differs { tensor: String, index: Vec<u64>, expected: Vec<u8>, found: Vec<u8> },
}

/// A file that cannot be written.
#[derive(Debug, Error)]
pub(crate) enum WriteError {
    #[error(
        "cannot write {}, which needs {} where {} free",
        path.display(),
        human(*needed),
        free.map_or("unknown space is".to_string(), |free| format!("{} are", human(free)))
    )]
    Full {
        path: PathBuf,
        needed: u64,
        /// Free bytes of its file system, where that can be found out.
        free: Option<u64>,
        #[source]
        source: io::Error,
    },
    #[error("cannot write {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "cannot write {}, where the link {} leads; make its folder, or name another place",
        end.display(),
        path.display()
    )]
    Link {
        path: PathBuf,
        /// Behind all links.
        end: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("tensor {tensor:?} is to be written twice into {}; a name may stand in a file once", path.display())]
    DuplicateTensor { path: PathBuf, tensor: String },
    #[error("a tensor for {} is called {tensor:?}, which safetensors keeps for itself; rename it", path.display())]
    ReservedName { path: PathBuf, tensor: String },
    #[error("tensor {tensor:?} for {} has {given} bytes; shape {shape:?} of {dtype} takes {needed}", path.display())]
    SizeMismatch { path: PathBuf, tensor: String, shape: Vec<u64>, dtype: Dtype, given: u64, needed: u64 },
    #[error("the names for {} make a header of {bytes} bytes; at most {allowed} are allowed: write fewer tensors a file", path.display())]
    HeaderTooLong { path: PathBuf, bytes: u64, allowed: u64 },
    #[error("the header of {} cannot be put into JSON", path.display())]
    Json {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
}
