//! Decoders from their dimensions. In: what a model's configuration states. Out: its tensors under the names that Hugging
//! Face saves them with, in the order of the layers. Guarantee: shapes follow from the dimensions alone.

use super::{ModelTensor, Role};
use crate::layout::Dtype;

/// A decoder-only model.
#[derive(Debug, Clone, Copy)]
pub(super) struct Decoder {
    pub(super) hidden: u64,
    pub(super) layers: u32,
    pub(super) vocabulary: u64,
    pub(super) attention: Attention,
    /// Inner features of dense layers.
    pub(super) intermediate: u64,
    pub(super) experts: Option<Experts>,
    /// Layers that predict further tokens, behind the stack.
    pub(super) prediction_layers: u32,
    /// Whether linear weights are 8-bit floats with a scale per block.
    pub(super) block_scaled: bool,
}

/// How a layer attends.
#[derive(Debug, Clone, Copy)]
pub(super) enum Attention {
    /// Groups of heads share keys and values.
    Grouped { heads: u64, key_value_heads: u64, head: u64, norms: bool },
    /// Keys and values come from one latent vector.
    Latent { heads: u64, query_rank: u64, key_value_rank: u64, plain: u64, rotary: u64, value: u64 },
}

/// Layers with experts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Experts {
    pub(super) count: u64,
    pub(super) intermediate: u64,
    /// Layers before the first one with experts.
    pub(super) dense_layers: u32,
    /// Experts that every token takes.
    pub(super) shared: u64,
    /// Whether the router has a correction per expert, in 32-bit floats.
    pub(super) correction: bool,
    /// Whether the experts of a layer are stacked in one tensor per projection.
    pub(super) stacked: bool,
}

/// Rows and columns of a block with one scale.
const BLOCK: u64 = 128;

/// Tensors as they are made.
struct Builder {
    decoder: Decoder,
    tensors: Vec<ModelTensor>,
}

impl Decoder {
    pub(super) fn tensors(self) -> Vec<ModelTensor> {
        let mut builder = Builder { decoder: self, tensors: Vec::new() };
        let Decoder { hidden, vocabulary, .. } = self;
        builder.plain("model.embed_tokens.weight", vec![vocabulary, hidden], Role::Embedding);
        for layer in 0..self.layers {
            builder.layer(layer);
        }
        builder.plain("model.norm.weight", vec![hidden], Role::Norm);
        builder.plain("lm_head.weight", vec![vocabulary, hidden], Role::Head);
        let stack = builder.tensors.len();
        for layer in self.layers..self.layers + self.prediction_layers {
            let prefix = format!("model.layers.{layer}");
            builder.plain(format!("{prefix}.embed_tokens.weight"), vec![vocabulary, hidden], Role::Prediction);
            for norm in ["enorm", "hnorm", "shared_head.norm"] {
                builder.plain(format!("{prefix}.{norm}.weight"), vec![hidden], Role::Prediction);
            }
            builder.plain(format!("{prefix}.eh_proj.weight"), vec![hidden, 2 * hidden], Role::Prediction);
            builder.plain(format!("{prefix}.shared_head.head.weight"), vec![vocabulary, hidden], Role::Prediction);
            builder.layer(layer);
        }
        for tensor in &mut builder.tensors[stack..] {
            tensor.role = Role::Prediction;
        }
        builder.tensors
    }
}

impl Builder {
    fn push(&mut self, name: impl Into<String>, shape: Vec<u64>, dtype: Dtype, role: Role) {
        self.tensors.push(ModelTensor { name: name.into(), shape, dtype, role });
    }

    /// A tensor that is never quantised.
    fn plain(&mut self, name: impl Into<String>, shape: Vec<u64>, role: Role) {
        self.push(name, shape, Dtype::BF16, role);
    }

    /// The weight of a linear layer, whose last two dimensions are cut into blocks with a scale each.
    fn linear(&mut self, name: &str, shape: Vec<u64>, role: Role) {
        if !self.decoder.block_scaled {
            return self.plain(format!("{name}.weight"), shape, role);
        }
        let mut scales = shape.clone();
        for extent in scales.iter_mut().rev().take(2) {
            *extent = extent.div_ceil(BLOCK);
        }
        self.push(format!("{name}.weight"), shape, Dtype::F8E4M3, role);
        self.push(format!("{name}.weight_scale_inv"), scales, Dtype::F32, Role::Scale);
    }

    fn layer(&mut self, layer: u32) {
        let prefix = format!("model.layers.{layer}");
        let hidden = self.decoder.hidden;
        self.plain(format!("{prefix}.input_layernorm.weight"), vec![hidden], Role::Norm);
        self.attention(&format!("{prefix}.self_attn"));
        self.plain(format!("{prefix}.post_attention_layernorm.weight"), vec![hidden], Role::Norm);
        let mlp = format!("{prefix}.mlp");
        match self.decoder.experts {
            Some(experts) if layer >= experts.dense_layers => self.experts(&mlp, experts),
            _ => self.feed_forward(&mlp, self.decoder.intermediate, Role::Dense),
        }
    }

    fn attention(&mut self, prefix: &str) {
        let hidden = self.decoder.hidden;
        let role = Role::Attention;
        match self.decoder.attention {
            Attention::Grouped { heads, key_value_heads, head, norms } => {
                self.linear(&format!("{prefix}.q_proj"), vec![heads * head, hidden], role);
                for name in ["k_proj", "v_proj"] {
                    self.linear(&format!("{prefix}.{name}"), vec![key_value_heads * head, hidden], role);
                }
                self.linear(&format!("{prefix}.o_proj"), vec![hidden, heads * head], role);
                for name in ["q_norm", "k_norm"].into_iter().filter(|_| norms) {
                    self.plain(format!("{prefix}.{name}.weight"), vec![head], Role::Norm);
                }
            }
            Attention::Latent { heads, query_rank, key_value_rank, plain, rotary, value } => {
                self.linear(&format!("{prefix}.q_a_proj"), vec![query_rank, hidden], role);
                self.plain(format!("{prefix}.q_a_layernorm.weight"), vec![query_rank], Role::Norm);
                self.linear(&format!("{prefix}.q_b_proj"), vec![heads * (plain + rotary), query_rank], role);
                self.linear(&format!("{prefix}.kv_a_proj_with_mqa"), vec![key_value_rank + rotary, hidden], role);
                self.plain(format!("{prefix}.kv_a_layernorm.weight"), vec![key_value_rank], Role::Norm);
                self.linear(&format!("{prefix}.kv_b_proj"), vec![heads * (plain + value), key_value_rank], role);
                self.linear(&format!("{prefix}.o_proj"), vec![hidden, heads * value], role);
            }
        }
    }

    fn feed_forward(&mut self, prefix: &str, intermediate: u64, role: Role) {
        let hidden = self.decoder.hidden;
        self.linear(&format!("{prefix}.gate_proj"), vec![intermediate, hidden], role);
        self.linear(&format!("{prefix}.up_proj"), vec![intermediate, hidden], role);
        self.linear(&format!("{prefix}.down_proj"), vec![hidden, intermediate], role);
    }

    fn experts(&mut self, prefix: &str, experts: Experts) {
        let hidden = self.decoder.hidden;
        let Experts { count, intermediate, shared, correction, stacked, .. } = experts;
        self.plain(format!("{prefix}.gate.weight"), vec![count, hidden], Role::Router);
        if correction {
            self.push(format!("{prefix}.gate.e_score_correction_bias"), vec![count], Dtype::F32, Role::Router);
        }
        if stacked {
            for name in ["gate_proj", "up_proj"] {
                self.linear(&format!("{prefix}.experts.{name}"), vec![count, intermediate, hidden], Role::Expert);
            }
            self.linear(&format!("{prefix}.experts.down_proj"), vec![count, hidden, intermediate], Role::Expert);
        } else {
            for expert in 0..count {
                self.feed_forward(&format!("{prefix}.experts.{expert}"), intermediate, Role::Expert);
            }
        }
        if shared > 0 {
            self.feed_forward(&format!("{prefix}.shared_experts"), shared * intermediate, Role::SharedExpert);
        }
    }
}
