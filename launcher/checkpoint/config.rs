//! What Hugging Face's config.json says beside a model. In: the path of the model. Out: numbers of attention heads.
//! Guarantee: a model without the file, or a file without the numbers, states none; an unreadable file is an error.

use super::error::CheckpointError;
use crate::plain_file;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::Path;

/// Attention heads of a model, as far as they are stated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct AttentionHeads {
    pub(crate) query: Option<u32>,
    pub(crate) key_value: Option<u32>,
}

#[derive(Deserialize)]
struct Config {
    num_attention_heads: Option<u32>,
    num_key_value_heads: Option<u32>,
}

/// Reads config.json in the folder of the model at `path`, or in that folder itself.
pub(super) fn beside(path: &Path) -> Result<AttentionHeads, CheckpointError> {
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
    let path = folder.join("config.json");
    let text = match plain_file::read(&path) {
        Ok(text) => text,
        Err(source) if source.kind() == ErrorKind::NotFound => return Ok(AttentionHeads::default()),
        Err(source) => return Err(CheckpointError::Io { action: "read", path, source }),
    };
    let config: Config = serde_json::from_slice(&text).map_err(|source| CheckpointError::Config { path, source })?;
    Ok(AttentionHeads { query: config.num_attention_heads, key_value: config.num_key_value_heads })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_where_they_stand() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("m.safetensors");
        let none = AttentionHeads::default();
        assert_eq!((beside(&model).unwrap(), beside(folder.path()).unwrap()), (none, none));
        let write = |text: &str| std::fs::write(folder.path().join("config.json"), text).unwrap();
        write(r#"{"num_attention_heads": 12, "hidden_size": 384}"#);
        assert_eq!(beside(&model).unwrap(), AttentionHeads { query: Some(12), key_value: None });
        write(r#"{"num_attention_heads": 32, "num_key_value_heads": 8}"#);
        assert_eq!(beside(folder.path()).unwrap(), AttentionHeads { query: Some(32), key_value: Some(8) });
        write(r#"{"num_attention_heads": -1}"#);
        assert!(beside(&model).unwrap_err().to_string().contains("config.json"));
    }
}
