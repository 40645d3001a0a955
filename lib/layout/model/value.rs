//! What a model consists of. In: tensors and dimensions. Out: [`Model`]. Guarantee: no name stands twice, and the bytes of
//! all tensors together fit 64 bits.

use super::ModelError;
use crate::base::bytes;
use crate::layout::Dtype;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// A model: its tensors, and what is known about how they belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    name: String,
    dimensions: Dimensions,
    tensors: Vec<ModelTensor>,
    tied: Vec<Vec<String>>,
}

/// A tensor of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelTensor {
    /// Dotted name, unique in the model.
    pub name: String,
    /// Global shape.
    pub shape: Vec<u64>,
    /// Element type.
    pub dtype: Dtype,
    /// What it is for.
    pub role: Role,
}

/// Numbers that names and shapes do not tell; `None` where they are not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with layers, heads, key_value_heads and experts")]
pub struct Dimensions {
    /// Layers of the main stack, without those that predict further tokens. They are dealt out to pipeline stages.
    pub layers: Option<u32>,
    /// Attention heads.
    pub heads: Option<u32>,
    /// Heads that have keys and values of their own.
    pub key_value_heads: Option<u32>,
    /// Routed experts of a layer.
    pub experts: Option<u32>,
}

/// What a tensor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Role {
    /// Token and position embeddings.
    Embedding,
    /// Projection to the vocabulary.
    Head,
    /// Norms of layers, heads and the whole model.
    Norm,
    /// Attention projections.
    Attention,
    /// Dense feed-forward layers.
    Dense,
    /// Choice of experts.
    Router,
    /// Routed experts.
    Expert,
    /// Experts that every token takes.
    SharedExpert,
    /// Scales of quantised weights.
    Scale,
    /// Layers that predict further tokens, whatever they are inside.
    Prediction,
    /// Not stated.
    #[default]
    Other,
}

impl Role {
    /// All of them.
    pub const ALL: [Role; 11] = [
        Role::Embedding,
        Role::Head,
        Role::Norm,
        Role::Attention,
        Role::Dense,
        Role::Router,
        Role::Expert,
        Role::SharedExpert,
        Role::Scale,
        Role::Prediction,
        Role::Other,
    ];

    /// The name in files.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Embedding => "embedding",
            Role::Head => "head",
            Role::Norm => "norm",
            Role::Attention => "attention",
            Role::Dense => "dense",
            Role::Router => "router",
            Role::Expert => "expert",
            Role::SharedExpert => "shared-expert",
            Role::Scale => "scale",
            Role::Prediction => "prediction",
            Role::Other => "other",
        }
    }

    /// The role of that name.
    pub fn from_name(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.name() == name)
    }
}

impl Dimensions {
    /// These, and those of `other` where these are not known.
    pub fn or(self, other: Dimensions) -> Self {
        Self {
            layers: self.layers.or(other.layers),
            heads: self.heads.or(other.heads),
            key_value_heads: self.key_value_heads.or(other.key_value_heads),
            experts: self.experts.or(other.experts),
        }
    }
}

impl ModelTensor {
    /// A tensor of no stated role.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<u64>>, dtype: Dtype) -> Self {
        Self { name: name.into(), shape: shape.into(), dtype, role: Role::Other }
    }

    /// Number of elements; the size was checked when the model was made.
    pub fn elements(&self) -> u64 {
        // A zero extent counts first, since the others may multiply beyond 64 bits.
        if self.shape.contains(&0) { 0 } else { self.shape.iter().product() }
    }

    /// Bytes of the whole tensor.
    pub fn bytes(&self) -> u64 {
        self.elements() * self.dtype.bytes()
    }
}

impl Model {
    /// A model of these tensors, in an order that every rank must use.
    pub fn new(name: impl Into<String>, tensors: Vec<ModelTensor>) -> Result<Self, ModelError> {
        let name = name.into();
        let mut names = HashSet::with_capacity(tensors.len());
        let mut total = 0u64;
        for tensor in &tensors {
            if !names.insert(tensor.name.as_str()) {
                return Err(ModelError::Repeated { model: name, tensor: tensor.name.clone() });
            }
            let mut extents = tensor.shape.clone();
            extents.push(tensor.dtype.bytes());
            if bytes::product(&extents).is_err() {
                let (tensor, shape, dtype) = (tensor.name.clone(), tensor.shape.clone(), tensor.dtype);
                return Err(ModelError::Size { model: name, tensor, shape, dtype });
            }
            let Some(sum) = total.checked_add(tensor.bytes()) else {
                return Err(ModelError::TotalSize { model: name });
            };
            total = sum;
        }
        Ok(Self { name, dimensions: Dimensions::default(), tensors, tied: Vec::new() })
    }

    /// The same with these dimensions.
    pub fn with_dimensions(self, dimensions: Dimensions) -> Self {
        Self { dimensions, ..self }
    }

    /// The same with groups of names that stand for one tensor. One of each group at least is among the tensors.
    pub fn with_tied(self, tied: Vec<Vec<String>>) -> Self {
        Self { tied, ..self }
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is known beside the tensors.
    pub fn dimensions(&self) -> Dimensions {
        self.dimensions
    }

    /// The tensors in order.
    pub fn tensors(&self) -> &[ModelTensor] {
        &self.tensors
    }

    /// Groups of names that stand for one tensor.
    pub fn tied(&self) -> &[Vec<String>] {
        &self.tied
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(ModelTensor::bytes).sum()
    }

    /// Elements of all tensors whose role is one of `roles`.
    pub fn elements(&self, roles: impl Fn(Role) -> bool) -> u64 {
        self.tensors.iter().filter(|tensor| roles(tensor.role)).map(ModelTensor::elements).sum()
    }
}
