//! Layer files of NCCL M2N's model bench, by what they hold: their names do not tell. In: a path. Out: the text of a layer
//! file, if it is one. Guarantee: a file with the keys of layer files is one, also if it is damaged, so that the error
//! says what is wrong with it.

use super::error::CheckpointError;
use crate::plain_file;
use crossmesh::layout::Dtype;
use crossmesh::layout::parallel::{LayerFile, LayerFileError};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Keys of which every layer file has one at least.
const KEYS: [&str; 2] = ["\"num_layers\"", "\"default_tensors\""];

/// A layer file as it lies on disk, from which ranks that lack it make the same model and rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LayerText {
    origin: String,
    text: String,
}

impl LayerText {
    /// The model, of the type that the bench moves by default, and its rules.
    pub(super) fn parse(&self) -> Result<LayerFile, LayerFileError> {
        LayerFile::parse(&self.text, &self.origin, Dtype::BF16)
    }
}

/// Reads the file at `path`; `None` where it is no layer file.
pub(super) fn read(path: &Path) -> Result<Option<LayerText>, CheckpointError> {
    if path.extension().is_none_or(|extension| extension != "json") {
        return Ok(None);
    }
    let text = plain_file::read_text(path).map_err(|source| CheckpointError::Io {
        action: "read",
        path: path.to_path_buf(),
        source,
    })?;
    let is_layer_file = KEYS.iter().any(|key| text.contains(key));
    Ok(is_layer_file.then(|| LayerText { origin: path.display().to_string(), text }))
}
