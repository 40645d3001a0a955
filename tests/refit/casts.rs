//! Floats that arrive as another type. In: models of several types. Out: nothing. Guarantee: every route, kind of memory
//! and type is verified; the count of values that became infinite is that of the crate `half`.

use crate::job::{Job, read_json};
use crate::model::{self, LLAMA, Tensor};
use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};

/// Values of a tensor that a cast takes; none of other types.
fn values(tensor: &Tensor) -> Vec<f32> {
    let bytes = model::contents(tensor);
    match tensor.1 {
        Dtype::F32 => bytes.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect(),
        Dtype::F16 => bytes.chunks(2).map(|bytes| f16::from_le_bytes(bytes.try_into().unwrap()).to_f32()).collect(),
        Dtype::BF16 => bytes.chunks(2).map(|bytes| bf16::from_le_bytes(bytes.try_into().unwrap()).to_f32()).collect(),
        _ => Vec::new(),
    }
}

fn saturated(cast: &str) -> usize {
    let infinite = |value: &f32| match cast {
        "f16" => f16::from_f32(*value).is_infinite(),
        "bf16" => bf16::from_f32(*value).is_infinite(),
        _ => false,
    };
    LLAMA.iter().flat_map(values).filter(|value| value.is_finite() && infinite(value)).count()
}

#[test]
fn every_type_is_verified_and_counted() {
    let (_folder, model) = model::file(LLAMA);
    assert!(saturated("f16") > 100);
    for (number, cast) in ["f16", "bf16", "f32"].into_iter().enumerate() {
        for (route, memory) in [("hierarchical", "private"), ("flat", "shared"), ("gather-broadcast", "private")] {
            let job = Job::new(5, &model).run_with(&format!("--domains {}", 1 + number % 2));
            let text = format!("--src tp=2 --dst tp=3 --cast {cast} --route {route} --memory {memory}");
            let results = job.with(&text).verified();
            assert_eq!(results["cast"], cast.to_uppercase());
            assert_eq!(results["saturated"], saturated(cast), "{cast}, {route}, {memory}");
        }
    }
}

#[test]
fn shard_files_have_the_type_asked_for() {
    let (folder, model) = model::file(LLAMA);
    let out = folder.path().join("out");
    let job = Job::new(2, &model).path("--out", &out).with("--src tp=1 --dst tp=1 --cast bf16");
    job.verified();
    let file = std::fs::read(out.join("rank-00001.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    for tensor in LLAMA {
        let found = tensors.tensor(tensor.0).unwrap();
        let values = values(tensor);
        // What has the type already keeps its bits, as what no cast takes does.
        if values.is_empty() || tensor.1 == Dtype::BF16 {
            assert_eq!((found.dtype(), found.data()), (tensor.1, &model::contents(tensor)[..]), "{}", tensor.0);
            continue;
        }
        let right: Vec<u8> = values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect();
        assert!(found.dtype() == Dtype::BF16 && found.data() == right, "{}", tensor.0);
    }
}

/// Weights that a cast takes, beside a router and scales that it leaves.
const EXPERTS: &[Tensor] = &[
    ("model.layers.0.self_attn.q_proj.weight", Dtype::F8_E4M3, &[14, 10]),
    ("model.layers.0.self_attn.q_proj.weight_scale_inv", Dtype::F32, &[2, 1]),
    ("model.layers.0.mlp.gate.weight", Dtype::F32, &[6, 10]),
    ("model.layers.0.mlp.gate.e_score_correction_bias", Dtype::F32, &[6]),
    ("model.norm.weight", Dtype::F32, &[10]),
];

#[test]
fn routers_and_scales_keep_their_type() {
    let (folder, model) = model::file(EXPERTS);
    let out = folder.path().join("out");
    Job::new(2, &model).path("--out", &out).with("--src tp=1 --dst tp=1 --cast bf16").verified();
    let file = std::fs::read(out.join("rank-00001.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let (cast, kept) = EXPERTS.split_last().unwrap();
    assert_eq!(tensors.tensor(cast.0).unwrap().dtype(), Dtype::BF16);
    for tensor in kept {
        let found = tensors.tensor(tensor.0).unwrap();
        assert_eq!((found.dtype(), found.data()), (tensor.1, &model::contents(tensor)[..]), "{}", tensor.0);
    }
}

#[test]
fn nothing_is_cast_unless_asked() {
    let (folder, model) = model::file(LLAMA);
    let json = folder.path().join("results.json");
    Job::new(2, &model).path("--json", &json).with("--src tp=1 --dst tp=1 --verify").run();
    let results = read_json(&json);
    assert!(results["cast"].is_null() && results["saturated"] == 0, "{results:#}");
}
