//! Models without contents. In: a `*.model.json`. Out: tensors with synthesised contents. Guarantee: what the file may say
//! is what [`Model::parse`] reads; a tensor has the same contents in every file that names it with that shape.

use super::error::CheckpointError;
use super::model::{Contents, TensorSource};
use crate::plain_file;
use crossmesh::layout::content_digest::name_seed;
use crossmesh::layout::model::Model;
use std::path::Path;

/// Reads the description at `path`.
pub(super) fn read(path: &Path) -> Result<Model, CheckpointError> {
    let text = plain_file::read_text(path).map_err(|source| CheckpointError::Io {
        action: "read",
        path: path.to_path_buf(),
        source,
    })?;
    Ok(Model::parse(&text, &path.display().to_string())?)
}

/// The tensors of a model with contents made up from their names.
pub(super) fn synthetic(model: &Model) -> Vec<TensorSource> {
    let tensors = model.tensors().iter();
    tensors
        .map(|tensor| TensorSource {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            dtype: tensor.dtype,
            contents: Contents::Synthetic { seed: name_seed(&tensor.name) },
        })
        .collect()
}
