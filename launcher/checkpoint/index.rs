//! Checkpoints in several files. In: `model.safetensors.index.json`, which says for every tensor which file holds
//! it. Out: the tensors and the mapped files. Guarantee: index and files agree tensor by tensor.

use super::error::CheckpointError;
use super::mapped::MappedFile;
use super::model::{TensorSource, file_tensors, open_file};
use crate::plain_file;
use crossmesh::base::json;
use crossmesh::base::unique_keys::UniqueKeys;
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::path::{Component, Path};

/// Name of the index in its folder.
pub(super) const FILE_NAME: &str = "model.safetensors.index.json";

#[derive(Deserialize)]
#[serde(expecting = "an object with weight_map")]
struct IndexText {
    weight_map: UniqueKeys<String>,
}

/// Reads the index at `path` and opens the files that it names, in the order of their names.
pub(super) fn read(path: &Path) -> Result<(Vec<TensorSource>, Vec<MappedFile>), CheckpointError> {
    let owned = || path.to_path_buf();
    let UniqueKeys(listed) = weight_map(path)?;
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    for (tensor, file) in &listed {
        if !is_plain(file) {
            return Err(CheckpointError::IndexFileName { path: owned(), tensor: tensor.clone(), file: file.clone() });
        }
        names.entry(file).or_insert(tensor);
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut files = Vec::with_capacity(names.len());
    let mut tensors: Vec<TensorSource> = Vec::with_capacity(listed.len());
    let mut found: HashMap<String, &str> = HashMap::with_capacity(listed.len());
    for (&name, &tensor) in &names {
        let location = folder.join(name);
        if !location.exists() {
            let (tensor, file) = (tensor.to_string(), name.to_string());
            return Err(CheckpointError::ShardMissing { path: owned(), tensor, file });
        }
        let (file, header) = open_file(&location)?;
        for tensor in file_tensors(header.tensors, files.len()) {
            if let Some(first) = found.insert(tensor.name.clone(), name) {
                let (first, second) = (first.to_string(), name.to_string());
                return Err(CheckpointError::DuplicateTensor { tensor: tensor.name, first, second });
            }
            tensors.push(tensor);
        }
        files.push(file);
    }
    for (tensor, file) in &listed {
        if found.remove(tensor) != Some(file.as_str()) {
            return Err(CheckpointError::AbsentTensor { path: owned(), tensor: tensor.clone(), file: file.clone() });
        }
    }
    if let Some((tensor, file)) = found.into_iter().min() {
        return Err(CheckpointError::UnlistedTensor { path: owned(), tensor, file: file.to_string() });
    }
    Ok((tensors, files))
}

/// The file of each tensor, as the index at `path` says.
pub(super) fn weight_map(path: &Path) -> Result<UniqueKeys<String>, CheckpointError> {
    let owned = || path.to_path_buf();
    let text =
        plain_file::read(path).map_err(|source| CheckpointError::Io { action: "read", path: owned(), source })?;
    let index: IndexText =
        json::read_bytes(&text).map_err(|source| CheckpointError::Index { path: owned(), source })?;
    Ok(index.weight_map)
}

/// Whether `file` is one name without a folder.
fn is_plain(file: &str) -> bool {
    let mut components = Path::new(file).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(name)), None) if name == file)
}
