//! Models whose dimensions are published. In: a name. Out: [`Model`]. Guarantee: the dimensions are those of the
//! `config.json` that comes with each model; tensors have the names of its checkpoint.

use super::decoder::{Attention, Decoder, Experts};
use super::{Dimensions, Model, ModelError};

/// Ends a name whose experts are stacked in one tensor per layer and projection.
const STACKED: &str = "-stacked";

type Published = (&'static str, fn() -> Decoder);

const PUBLISHED: [Published; 5] = [
    ("deepseek-v3", || deepseek_v3(false)),
    ("deepseek-v3-fp8", || deepseek_v3(true)),
    ("qwen3-235b-a22b", qwen3_235b),
    ("qwen3-32b", qwen3_32b),
    ("llama-3-70b", llama_3_70b),
];

/// Names of the built-in models; those with experts exist with `-stacked` behind the name, too.
pub fn published_names() -> impl Iterator<Item = &'static str> {
    PUBLISHED.iter().map(|&(name, _)| name)
}

impl Model {
    /// A built-in model by its name.
    pub fn published(name: &str) -> Result<Self, ModelError> {
        let (base, stacked) = name.strip_suffix(STACKED).map_or((name, false), |base| (base, true));
        let known = PUBLISHED.iter().find(|&&(known, _)| known == base).map(|(_, decoder)| decoder());
        let Some(mut decoder) = known.filter(|decoder| !stacked || decoder.experts.is_some()) else {
            let known = published_names().collect::<Vec<_>>().join(", ");
            return Err(ModelError::NotPublished { name: name.to_string(), known });
        };
        if let Some(experts) = &mut decoder.experts {
            experts.stacked = stacked;
        }
        Ok(Model::new(name, decoder.tensors())?.with_dimensions(dimensions(&decoder)))
    }
}

fn dimensions(decoder: &Decoder) -> Dimensions {
    let (heads, key_value_heads) = match decoder.attention {
        Attention::Grouped { heads, key_value_heads, .. } => (heads, key_value_heads),
        Attention::Latent { heads, .. } => (heads, heads),
    };
    Dimensions {
        layers: Some(decoder.layers),
        heads: u32::try_from(heads).ok(),
        key_value_heads: u32::try_from(key_value_heads).ok(),
        experts: decoder.experts.and_then(|experts| u32::try_from(experts.count).ok()),
    }
}

/// DeepSeek-V3 (arXiv 2412.19437), with its one prediction layer; the checkpoint is block-scaled, trainers have BF16.
fn deepseek_v3(block_scaled: bool) -> Decoder {
    Decoder {
        hidden: 7168,
        layers: 61,
        vocabulary: 129280,
        attention: Attention::Latent {
            heads: 128,
            query_rank: 1536,
            key_value_rank: 512,
            plain: 128,
            rotary: 64,
            value: 128,
        },
        intermediate: 18432,
        experts: Some(Experts {
            count: 256,
            intermediate: 2048,
            dense_layers: 3,
            shared: 1,
            correction: true,
            stacked: false,
        }),
        prediction_layers: 1,
        block_scaled,
    }
}

/// Qwen3-235B-A22B (arXiv 2505.09388).
fn qwen3_235b() -> Decoder {
    Decoder {
        hidden: 4096,
        layers: 94,
        vocabulary: 151936,
        attention: Attention::Grouped { heads: 64, key_value_heads: 4, head: 128, norms: true },
        intermediate: 12288,
        experts: Some(Experts {
            count: 128,
            intermediate: 1536,
            dense_layers: 0,
            shared: 0,
            correction: false,
            stacked: false,
        }),
        prediction_layers: 0,
        block_scaled: false,
    }
}

/// Qwen3-32B (arXiv 2505.09388).
fn qwen3_32b() -> Decoder {
    Decoder {
        hidden: 5120,
        layers: 64,
        vocabulary: 151936,
        attention: Attention::Grouped { heads: 64, key_value_heads: 8, head: 128, norms: true },
        intermediate: 25600,
        experts: None,
        prediction_layers: 0,
        block_scaled: false,
    }
}

/// Llama 3 70B (arXiv 2407.21783).
fn llama_3_70b() -> Decoder {
    Decoder {
        hidden: 8192,
        layers: 80,
        vocabulary: 128256,
        attention: Attention::Grouped { heads: 64, key_value_heads: 8, head: 128, norms: false },
        intermediate: 28672,
        experts: None,
        prediction_layers: 0,
        block_scaled: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Dtype;
    use crate::layout::model::Role;

    fn billions(name: &str) -> f64 {
        Model::published(name).unwrap().elements(|role| !matches!(role, Role::Prediction | Role::Scale)) as f64 / 1e9
    }

    #[test]
    fn parameters_are_as_published() {
        for (name, expected) in [
            ("deepseek-v3", 671.03),
            ("deepseek-v3-stacked", 671.03),
            ("qwen3-235b-a22b", 235.09),
            ("qwen3-32b", 32.76),
            ("llama-3-70b", 70.55),
        ] {
            assert!((billions(name) - expected).abs() < 0.005, "{name}: {}", billions(name));
        }
        let whole = Model::published("deepseek-v3").unwrap();
        let predicting = whole.elements(|role| role == Role::Prediction) as f64 / 1e9;
        // The checkpoint's 685 billion count embedding and head of the prediction layer, which are those of the stack.
        assert!((predicting - 13.5).abs() < 0.1, "{predicting}");
        // 2.7 GB of embedding and head apart from that, as the report says: 11.5 billion of its own.
        assert!((predicting - 2.0 * 129280.0 * 7168.0 / 1e9 - 11.6).abs() < 0.1, "{predicting}");
    }

    #[test]
    fn stacking_changes_no_byte() {
        for name in ["deepseek-v3", "deepseek-v3-fp8", "qwen3-235b-a22b"] {
            let (single, stacked) =
                (Model::published(name).unwrap(), Model::published(&format!("{name}-stacked")).unwrap());
            assert_eq!(single.bytes(), stacked.bytes());
            assert!(single.tensors().len() > 20 * stacked.tensors().len());
        }
        assert!(matches!(Model::published("qwen3-32b-stacked"), Err(ModelError::NotPublished { .. })));
        assert!(Model::published("qwen3").unwrap_err().to_string().contains("qwen3-32b"));
    }

    #[test]
    fn block_scales_are_per_128_by_128() {
        let model = Model::published("deepseek-v3-fp8").unwrap();
        let tensor = |name: &str| model.tensors().iter().find(|tensor| tensor.name == name).unwrap();
        let scale = tensor("model.layers.0.self_attn.kv_a_proj_with_mqa.weight_scale_inv");
        assert_eq!((scale.shape.as_slice(), scale.dtype), (&[5, 56][..], Dtype::F32));
        assert_eq!(tensor("model.layers.3.mlp.gate.e_score_correction_bias").dtype, Dtype::F32);
        assert_eq!(tensor("model.layers.60.mlp.experts.255.down_proj.weight").shape, [7168, 2048]);
        assert_eq!(tensor("model.layers.2.mlp.up_proj.weight").shape, [18432, 7168]);
        assert_eq!(tensor("model.layers.61.eh_proj.weight").dtype, Dtype::BF16);
    }
}
