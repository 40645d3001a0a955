//! Model files. In: JSON of our own or of NCCL M2N's model bench. Out: [`Model`], and back as our own JSON. Guarantee: an
//! unknown or repeated key is an error that names it; what is written reads back equal.
//!
//! NCCL M2N's form is `{"NAME": {"shape": [4096, 4096], "dtype": "BF16", "shard": "FILE"}, …}`, where `shard` does not
//! count. Our own says more:
//!
//! ```json
//! {
//!   "crossmesh_model": 1,
//!   "name": "toy",
//!   "dimensions": {"layers": 1, "heads": 4, "key_value_heads": 2, "experts": null},
//!   "tied": [["model.embed_tokens.weight", "lm_head.weight"]],
//!   "tensors": [
//!     {"name": "model.embed_tokens.weight", "shape": [64, 16], "dtype": "BF16", "role": "embedding"}
//!   ]
//! }
//! ```

use super::{Dimensions, Model, ModelError, ModelTensor, Role};
use crate::base::json;
use crate::base::unique_keys::UniqueKeys;
use crate::layout::Dtype;
use serde::Deserialize;
use std::fmt::Write;

/// Version of our own form.
const VERSION: u64 = 1;

/// Tells the forms apart.
#[derive(Deserialize)]
#[serde(expecting = "an object of tensors")]
struct Probe {
    crossmesh_model: Option<serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with name, dimensions, tied and tensors")]
struct OwnText {
    #[serde(rename = "crossmesh_model")]
    _version: u64,
    name: String,
    #[serde(default)]
    dimensions: Dimensions,
    #[serde(default)]
    tied: Vec<Vec<String>>,
    tensors: Vec<TensorText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with name, shape, dtype and role")]
struct TensorText {
    name: String,
    shape: Vec<u64>,
    dtype: String,
    role: Option<String>,
}

/// An entry of NCCL M2N's form.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with shape and dtype")]
struct EntryText {
    shape: Vec<u64>,
    dtype: String,
    #[serde(rename = "shard")]
    _shard: Option<String>,
}

impl Model {
    /// Reads a model file of either form; `origin` names it in messages, and the model when the file does not.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ModelError> {
        let unreadable = |source| ModelError::Unreadable { origin: origin.to_string(), source };
        let probe: Probe = json::read(text).map_err(unreadable)?;
        match probe.crossmesh_model {
            Some(serde_json::Value::Number(version)) => {
                if version.as_u64() != Some(VERSION) {
                    let (origin, version) = (origin.to_string(), version.to_string());
                    return Err(ModelError::Version { origin, version, known: VERSION });
                }
                read_own(json::read(text).map_err(unreadable)?, origin)
            }
            _ => {
                let UniqueKeys::<EntryText>(entries) = json::read(text).map_err(unreadable)?;
                let tensors = entries.into_iter().map(|(name, entry)| {
                    let EntryText { shape, dtype, .. } = entry;
                    read_tensor(TensorText { name, shape, dtype, role: None }, origin)
                });
                Model::new(origin, tensors.collect::<Result<_, _>>()?)
            }
        }
    }

    /// The model as a file of our own form, one tensor a line.
    pub fn to_json(&self) -> String {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let Dimensions { layers, heads, key_value_heads, experts } = self.dimensions();
        let number = |number: Option<u32>| number.map_or("null".to_string(), |number| number.to_string());
        let mut text = format!("{{\n  \"crossmesh_model\": {VERSION},\n  \"name\": {},\n", quoted(self.name()));
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "  \"dimensions\": {{\"layers\": {}, \"heads\": {}, \"key_value_heads\": {}, \"experts\": {}}},",
            number(layers),
            number(heads),
            number(key_value_heads),
            number(experts)
        );
        let _ = writeln!(text, "  \"tied\": {},\n  \"tensors\": [", serde_json::Value::from_iter(self.tied().to_vec()));
        for (index, tensor) in self.tensors().iter().enumerate() {
            let (name, dtype, role) = (quoted(&tensor.name), tensor.dtype.name(), tensor.role.name());
            let comma = if index + 1 < self.tensors().len() { "," } else { "" };
            let shape = &tensor.shape;
            let _ = writeln!(
                text,
                "    {{\"name\": {name}, \"shape\": {shape:?}, \"dtype\": \"{dtype}\", \"role\": \"{role}\"}}{comma}"
            );
        }
        text.push_str("  ]\n}\n");
        text
    }
}

fn read_own(text: OwnText, origin: &str) -> Result<Model, ModelError> {
    let tensors = text.tensors.into_iter().map(|tensor| read_tensor(tensor, origin)).collect::<Result<_, _>>()?;
    Ok(Model::new(text.name, tensors)?.with_dimensions(text.dimensions).with_tied(text.tied))
}

fn read_tensor(text: TensorText, origin: &str) -> Result<ModelTensor, ModelError> {
    let TensorText { name: tensor, shape, dtype, role } = text;
    let origin = || origin.to_string();
    let dtype = match Dtype::parse(&dtype) {
        Ok(dtype) => dtype,
        Err(source) => return Err(ModelError::Dtype { origin: origin(), tensor, source }),
    };
    if shape.contains(&0) {
        return Err(ModelError::EmptyTensor { origin: origin(), tensor, shape });
    }
    let role = match role {
        None => Role::Other,
        Some(word) => match Role::from_name(&word) {
            Some(role) => role,
            None => return Err(ModelError::Role { origin: origin(), tensor, role: word }),
        },
    };
    Ok(ModelTensor { name: tensor, shape, dtype, role })
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
