//! What Hugging Face's config.json says beside a model. In: the path of the model. Out: its dimensions. Guarantee: a model
//! without the file, or a file without the numbers, states none; an unreadable file is an error.

use super::error::CheckpointError;
use crate::plain_file;
use crossmesh::base::json;
use crossmesh::layout::model::Dimensions;
use serde::Deserialize;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Config {
    num_hidden_layers: Option<u32>,
    num_attention_heads: Option<u32>,
    num_key_value_heads: Option<u32>,
    #[serde(alias = "num_experts", alias = "num_local_experts")]
    n_routed_experts: Option<u32>,
}

/// Where config.json is of the model at `path`: in its folder, or in that folder itself.
pub(super) fn place(path: &Path) -> PathBuf {
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
    folder.join("config.json")
}

/// Reads config.json of the model at `path`.
pub(super) fn beside(path: &Path) -> Result<Dimensions, CheckpointError> {
    let path = place(path);
    let text = match plain_file::read(&path) {
        Ok(text) => text,
        Err(source) if source.kind() == ErrorKind::NotFound => return Ok(Dimensions::default()),
        Err(source) => return Err(CheckpointError::Io { action: "read", path, source }),
    };
    let config: Config = json::read_bytes(&text).map_err(|source| CheckpointError::Config { path, source })?;
    Ok(Dimensions {
        layers: config.num_hidden_layers,
        heads: config.num_attention_heads,
        key_value_heads: config.num_key_value_heads,
        experts: config.n_routed_experts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_where_they_stand() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("m.safetensors");
        let none = Dimensions::default();
        assert_eq!((beside(&model).unwrap(), beside(folder.path()).unwrap()), (none, none));
        let write = |text: &str| std::fs::write(folder.path().join("config.json"), text).unwrap();
        write(r#"{"num_attention_heads": 12, "hidden_size": 384}"#);
        assert_eq!(beside(&model).unwrap(), Dimensions { heads: Some(12), ..none });
        write(r#"{"num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 2, "num_experts": 4}"#);
        assert_eq!(
            beside(folder.path()).unwrap(),
            Dimensions { layers: Some(2), heads: Some(32), key_value_heads: Some(8), experts: Some(4) }
        );
        write(r#"{"num_attention_heads": -1}"#);
        assert!(beside(&model).unwrap_err().to_string().contains("config.json"));
    }
}
