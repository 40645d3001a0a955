//! Shards on disk. In: a folder, this rank's destinations. Out: `rank-N.safetensors` and `rank-N.layout.json`.
//! Guarantee: files appear whole or not at all.

use super::error::RefitError;
use super::shards::SideMemory;
use crate::checkpoint::{CheckpointError, LayoutFile, ShardTensor, write_shards};
use crossmesh::base::Rank;
use crossmesh::comm::CommError;
use crossmesh::plan::Manifest;
use std::collections::BTreeMap;
use std::path::Path;

/// Writes this rank's shards.
pub(super) fn write(folder: &Path, manifest: &Manifest, rank: Rank, memory: &SideMemory) -> Result<(), RefitError> {
    let made = std::fs::create_dir_all(folder);
    made.map_err(|source| CheckpointError::Io { action: "create", path: folder.to_path_buf(), source })?;
    let bytes = memory.buffer.read().map_err(CommError::from)?;
    let held =
        || manifest.tensors().iter().zip(&memory.tensors).filter_map(|(tensor, place)| Some((tensor, place.as_ref()?)));
    let tensors = held().map(|(tensor, (offset, shape))| ShardTensor {
        name: &tensor.name,
        dtype: tensor.destination.dtype(),
        shape,
        bytes: &bytes[*offset as usize..][..tensor.destination.local_bytes(rank) as usize],
    });
    let metadata = BTreeMap::from([("rank".to_string(), rank.to_string()), ("format".to_string(), "crossmesh".into())]);
    write_shards(&folder.join(format!("rank-{:05}.safetensors", rank.0)), tensors, &metadata)?;
    let layouts = held().map(|(tensor, _)| (tensor.name.as_str(), &*tensor.destination));
    if let Some(file) = LayoutFile::new(rank, layouts) {
        file.write(&folder.join(format!("rank-{:05}.layout.json", rank.0)))?;
    }
    Ok(())
}
