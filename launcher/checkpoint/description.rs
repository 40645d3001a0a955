//! Models without contents. In: a `*.model.json`, tensor names with shape and dtype. Out: tensors with synthesised
//! contents. Guarantee: no name stands twice, every size fits 64 bits; other keys of an entry do not count.

use super::error::CheckpointError;
use super::header::tensor_bytes;
use super::model::{Contents, TensorSource};
use crossmesh::base::unique_keys::UniqueKeys;
use crate::plain_file;
use crossmesh::layout::Dtype;
use crossmesh::layout::content_digest::name_seed;
use serde::Deserialize;
use std::path::Path;

#[derive(Deserialize)]
struct Entry {
    shape: Vec<u64>,
    dtype: String,
}

/// Reads the description at `path`.
pub(super) fn read(path: &Path) -> Result<Vec<TensorSource>, CheckpointError> {
    let owned = || path.to_path_buf();
    let text =
        plain_file::read(path).map_err(|source| CheckpointError::Io { action: "read", path: owned(), source })?;
    let UniqueKeys::<Entry>(entries) =
        serde_json::from_slice(&text).map_err(|source| CheckpointError::Description { path: owned(), source })?;
    entries
        .into_iter()
        .map(|(name, Entry { shape, dtype })| {
            let dtype = match Dtype::parse(&dtype) {
                Ok(dtype) => dtype,
                Err(source) => return Err(CheckpointError::DescriptionDtype { path: owned(), tensor: name, source }),
            };
            if tensor_bytes(&shape, dtype).is_none() {
                return Err(CheckpointError::DescriptionSize { path: owned(), tensor: name, shape, dtype });
            }
            let contents = Contents::Synthetic { seed: name_seed(&name) };
            Ok(TensorSource { name, shape, dtype, contents })
        })
        .collect()
}
