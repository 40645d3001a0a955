//! Models on disk.
//!
//! In: a safetensors file, a folder of them with its index, or a description (`*.model.json`, a layer file) whose contents
//! are synthesised. Out: [`Model`], named tensors of which any box can be copied or compared; and shards written back
//! as safetensors beside a layout file. Guarantee: whatever the bytes of a file, it is either accepted as a whole
//! or refused by an error that names file, tensor and value; files appear under their final name only when they
//! are complete and on disk.

mod atomic_file;
mod config;
mod contents;
mod description;
mod error;
mod files;
mod header;
mod index;
mod layer_file;
mod layout_file;
mod mapped;
mod model;
mod part;
mod region;
mod shard_file;
mod synthetic;

pub(crate) use atomic_file::PendingFile;
pub(crate) use error::{CheckpointError, RegionError, WriteError};
pub(crate) use files::files_read;
pub(crate) use layout_file::{LayoutEntry, LayoutFile};
pub(crate) use model::{Catalogue, Model};
pub(crate) use region::Region;
pub(crate) use shard_file::{ShardTensor, prepare_shards};
