//! Layer files of NCCL M2N's model bench. In: JSON with the tensors of a layer, each with the dimensions that tensor and
//! expert parallelism cut. Out: a model and its rules. Guarantee: an unknown key is an error that names it.
//!
//! Tensor `moe` of layer 3 is called `layers.3.moe`. The files state no type; the bench moves BF16 by default.

use super::effect::Effect;
use super::pattern::NamePattern;
use super::rules::{Rule, Tier};
use super::{ParallelAxis, Rules};
use crate::base::json::{self, JsonError};
use crate::layout::Dtype;
use crate::layout::model::{Dimensions, Model, ModelError, ModelTensor};
use serde::Deserialize;
use thiserror::Error;

/// What a layer file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerFile {
    /// Every layer's tensors.
    pub model: Model,
    /// What the axes do to them.
    pub rules: Rules,
}

/// A layer file that cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LayerFileError {
    /// Not a layer file.
    #[error(
        "{origin} is no layer file, which holds {{\"num_layers\": 1, \"default_tensors\": [{{\"name\": \"moe\", \"dims\": [...], \
         \"tp_shard_dim\": 1, \"ep_shard_dim\": 0}}]}}"
    )]
    Unreadable {
        /// The file.
        origin: String,
        /// What the JSON reader says.
        #[source]
        source: JsonError,
    },
    /// More tensors than anybody means.
    #[error(
        "{origin} has {layers} layers of {tensors} tensors; at most {} tensors are allowed",
        LayerFile::MOST_TENSORS
    )]
    TooMany {
        /// The file.
        origin: String,
        /// Its layers.
        layers: u32,
        /// Tensors of a layer.
        tensors: usize,
    },
    /// A tensor without elements.
    #[error("tensor {tensor:?} of {origin} has dims {dims:?}, which hold nothing; every extent must be at least 1")]
    EmptyTensor {
        /// The file.
        origin: String,
        /// The tensor.
        tensor: String,
        /// Its shape.
        dims: Vec<u64>,
    },
    /// A dimension that the tensor lacks.
    #[error(
        "tensor {tensor:?} of {origin} has {key} = {dim}; its dims {dims:?} are counted from 0, and -1 means not sharded"
    )]
    Dimension {
        /// The file.
        origin: String,
        /// The tensor.
        tensor: String,
        /// The key.
        key: &'static str,
        /// Its value.
        dim: i64,
        /// Shape of the tensor.
        dims: Vec<u64>,
    },
    /// The model is none.
    #[error("the layers of {origin} are no model")]
    Model {
        /// The file.
        origin: String,
        /// Why.
        #[source]
        source: ModelError,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with num_layers and default_tensors")]
struct FileText {
    #[serde(rename = "_comment")]
    _comment: Option<serde::de::IgnoredAny>,
    num_layers: u32,
    default_tensors: Vec<TensorText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with name, dims, tp_shard_dim and ep_shard_dim")]
struct TensorText {
    #[serde(rename = "_comment")]
    _comment: Option<serde::de::IgnoredAny>,
    name: String,
    dims: Vec<u64>,
    tp_shard_dim: Option<i64>,
    ep_shard_dim: Option<i64>,
}

impl LayerFile {
    /// Most tensors of a file, so that a slip in `num_layers` does not fill the memory.
    pub const MOST_TENSORS: u64 = 1 << 20;

    /// Reads a layer file whose tensors are of `dtype`; `origin` names it in messages, and the model.
    pub fn parse(text: &str, origin: &str, dtype: Dtype) -> Result<Self, LayerFileError> {
        let FileText { num_layers, default_tensors, .. } =
            json::read(text).map_err(|source| LayerFileError::Unreadable { origin: origin.to_string(), source })?;
        if u64::from(num_layers).saturating_mul(default_tensors.len() as u64) > Self::MOST_TENSORS {
            let (origin, tensors) = (origin.to_string(), default_tensors.len());
            return Err(LayerFileError::TooMany { origin, layers: num_layers, tensors });
        }
        let mut rules = Vec::new();
        for tensor in &default_tensors {
            rules.push(read_rule(tensor, origin)?);
        }
        let of_layer = |layer| {
            let named = move |tensor: &TensorText| {
                ModelTensor::new(format!("layers.{layer}.{}", tensor.name), tensor.dims.clone(), dtype)
            };
            default_tensors.iter().map(named)
        };
        let tensors = (0..num_layers).flat_map(of_layer).collect();
        let model = Model::new(origin, tensors)
            .map_err(|source| LayerFileError::Model { origin: origin.to_string(), source })?
            .with_dimensions(Dimensions { layers: Some(num_layers), ..Dimensions::default() });
        let tiers = vec![Tier { rules, is_for_this_model: false }];
        let layer_words = ["layers".to_string()].into();
        Ok(Self { model, rules: Rules { tiers, layer_words, ..Rules::default() } })
    }
}

fn read_rule(tensor: &TensorText, origin: &str) -> Result<Rule, LayerFileError> {
    let owned = || (origin.to_string(), tensor.name.clone());
    if tensor.dims.contains(&0) {
        let (origin, tensor_name) = owned();
        return Err(LayerFileError::EmptyTensor { origin, tensor: tensor_name, dims: tensor.dims.clone() });
    }
    let mut dims = Vec::new();
    for (axis, key, value) in [
        (ParallelAxis::Tensor, "tp_shard_dim", tensor.tp_shard_dim),
        (ParallelAxis::Expert, "ep_shard_dim", tensor.ep_shard_dim),
    ] {
        match value {
            None | Some(-1) => {}
            Some(dim) => match usize::try_from(dim).ok().filter(|&dim| dim < tensor.dims.len()) {
                Some(dim) => dims.push((axis, dim)),
                None => {
                    let ((origin, tensor_name), dims) = (owned(), tensor.dims.clone());
                    return Err(LayerFileError::Dimension { origin, tensor: tensor_name, key, dim, dims });
                }
            },
        }
    }
    let names = vec![NamePattern::below("layers", &tensor.name)];
    Ok(Rule { origin: format!("{origin}, {}", tensor.name), names, effect: Effect { dims, ..Effect::default() } })
}

#[cfg(test)]
#[path = "layer_file_tests.rs"]
mod tests;
