//! Every kind of parallelism, moved by real ranks. In: a small model with experts. Out: nothing. Guarantee: what the
//! destination wrote is put together and compared with the file, byte by byte; who holds what is worked out by hand.

use crate::assembly::{Assembly, assemble};
use crate::job::Job;
use crate::model::{self, Tensor};
use safetensors::{Dtype, SafeTensors};
use serde_json::json;

/// Two layers, the second with four experts, with extents that 2 ranks cut unevenly.
const MODEL: &[Tensor] = &[
    ("model.embed_tokens.weight", Dtype::BF16, &[13, 6]),
    ("model.layers.0.input_layernorm.weight", Dtype::F32, &[6]),
    ("model.layers.0.self_attn.q_proj.weight", Dtype::BF16, &[9, 6]),
    ("model.layers.0.self_attn.o_proj.weight", Dtype::BF16, &[6, 9]),
    ("model.layers.0.mlp.up_proj.weight", Dtype::BF16, &[7, 6]),
    ("model.layers.0.mlp.down_proj.weight", Dtype::BF16, &[6, 7]),
    ("model.layers.1.input_layernorm.weight", Dtype::F32, &[6]),
    ("model.layers.1.self_attn.q_proj.weight", Dtype::BF16, &[9, 6]),
    ("model.layers.1.mlp.gate.weight", Dtype::F32, &[4, 6]),
    ("model.layers.1.mlp.experts.0.up_proj.weight", Dtype::BF16, &[5, 6]),
    ("model.layers.1.mlp.experts.1.up_proj.weight", Dtype::BF16, &[5, 6]),
    ("model.layers.1.mlp.experts.2.up_proj.weight", Dtype::BF16, &[5, 6]),
    ("model.layers.1.mlp.experts.3.up_proj.weight", Dtype::BF16, &[5, 6]),
    ("model.norm.weight", Dtype::F32, &[6]),
    ("lm_head.weight", Dtype::BF16, &[13, 6]),
];

/// Moves the model between 4 and 4 ranks and puts together what arrived.
fn moved(source: &str, destination: &str) -> Assembly {
    let (folder, path) = model::file(MODEL);
    let out = folder.path().join("out");
    let job = Job::new(8, &path).run_with("--domains 2").with("--src").with(source).with("--dst").with(destination);
    let results = job.path("--out", &out).verified();
    assert_eq!(results["replicated_unknown"], json!([]), "{source} to {destination}");
    let assembly = assemble(&out, &[4, 5, 6, 7]);
    for tensor in MODEL {
        assert!(assembly.tensors[tensor.0] == model::contents(tensor), "{source} to {destination}: {}", tensor.0);
    }
    assembly
}

/// Bytes of a tensor that each destination rank holds.
fn held(assembly: &Assembly, tensor: &str) -> Vec<usize> {
    (4..8).map(|rank| assembly.held.get(&(rank, tensor.to_string())).copied().unwrap_or(0)).collect()
}

#[test]
fn pipelines() {
    let assembly = moved("tp=2,pp=2", "pp=2,dp=2");
    assert_eq!(held(&assembly, "model.embed_tokens.weight"), [156, 0, 156, 0]);
    assert_eq!(held(&assembly, "lm_head.weight"), [0, 156, 0, 156]);
    let assembly = moved("ep=2,pp=1+1", "tp=1,pp=0+1+1+0");
    assert_eq!(held(&assembly, "model.embed_tokens.weight"), [156, 0, 0, 0]);
    assert_eq!(held(&assembly, "model.layers.0.mlp.up_proj.weight"), [0, 84, 0, 0]);
    assert_eq!(held(&assembly, "model.layers.1.mlp.gate.weight"), [0, 0, 96, 0]);
    assert_eq!(held(&assembly, "model.norm.weight"), [0, 0, 0, 24]);
}

#[test]
fn fully_sharded() {
    let assembly = moved("fsdp=4", "tp=2,fsdp=2");
    // 9 rows: 4 and 5 by floor for tp, then 2 and 2, 3 and 2 in chunks for fsdp; 12 bytes a row.
    assert_eq!(held(&assembly, "model.layers.0.self_attn.q_proj.weight"), [24, 36, 24, 24]);
    assert_eq!(held(&assembly, "model.norm.weight"), [12, 12, 12, 12]);
    let assembly = moved("fsdp=2,ep=2", "cp=2,fsdp=2");
    assert_eq!(held(&assembly, "model.layers.1.mlp.gate.weight"), [48, 48, 48, 48]);
}

#[test]
fn experts_have_a_view_of_their_own() {
    let assembly = moved("tp=2,cp=1,dp=2,etp=1,ep=2,edp=2", "megatron:tp=2,dp=2,ep=4");
    for expert in 0..4 {
        let expected: Vec<usize> = (0..4).map(|rank| if rank == expert { 60 } else { 0 }).collect();
        assert_eq!(held(&assembly, &format!("model.layers.1.mlp.experts.{expert}.up_proj.weight")), expected);
    }
    assert_eq!(held(&assembly, "lm_head.weight"), [72, 84, 72, 84]);
    let assembly = moved("dp=2,ep=1,etp=2,pp=2", "tp=1,dp=4,etp=2,ep=2");
    assert_eq!(held(&assembly, "model.layers.1.mlp.experts.3.up_proj.weight"), [0, 0, 24, 36]);
    assert_eq!(held(&assembly, "lm_head.weight"), [156; 4]);
}

#[test]
fn tied_tensors_move_once() {
    let (folder, path) = model::file(&MODEL[..MODEL.len() - 1]);
    let rules = folder.path().join("rules.toml");
    std::fs::write(&rules, "[[tied]]\nnames = [\"model.embed_tokens.weight\", \"lm_head.weight\"]\n").unwrap();
    let out = folder.path().join("out");
    let job = Job::new(8, &path).run_with("--domains 2").with("--src tp=4 --dst tp=2,pp=2");
    job.path("--rules", &rules).path("--out", &out).verified();
    let assembly = assemble(&out, &[4, 5, 6, 7]);
    assert!(assembly.tensors["model.embed_tokens.weight"] == model::contents(&MODEL[0]));
    assert_eq!(held(&assembly, "model.embed_tokens.weight"), [72, 84, 72, 84]);
}

/// Stages on the source side, one tensor of queries, keys and values on the other.
#[test]
fn fused_out_of_stages() {
    const LAYERS: &[Tensor] = &[
        ("model.layers.0.self_attn.q_proj.weight", Dtype::BF16, &[8, 6]),
        ("model.layers.0.self_attn.k_proj.weight", Dtype::BF16, &[4, 6]),
        ("model.layers.0.self_attn.v_proj.weight", Dtype::BF16, &[4, 6]),
        ("model.layers.1.self_attn.q_proj.weight", Dtype::BF16, &[8, 6]),
        ("model.layers.1.self_attn.k_proj.weight", Dtype::BF16, &[4, 6]),
        ("model.layers.1.self_attn.v_proj.weight", Dtype::BF16, &[4, 6]),
    ];
    let (folder, path) = model::file(LAYERS);
    let rules = folder.path().join("rules.toml");
    let parts = ["q", "k", "v"].map(|part| format!("\"*.self_attn.{part}_proj.weight\"")).join(", ");
    let fuse = format!("[[fuse]]\nparts = [{parts}]\ninto = \"*.self_attn.qkv_proj.weight\"\n");
    std::fs::write(&rules, format!("{fuse}heads = {{ query = 4, key_value = 2 }}\n")).unwrap();
    let out = folder.path().join("out");
    let job = Job::new(8, &path).run_with("--domains 2").with("--src fsdp=2,pp=2 --dst tp=4");
    job.path("--rules", &rules).path("--out", &out).verified();
    // Rank r has query head r of 4, and of 2 key and value heads the one that it uses; 2 rows of 12 bytes each.
    for rank in 0..4 {
        let file = std::fs::read(out.join(format!("rank-{:05}.safetensors", rank + 4))).unwrap();
        let shards = SafeTensors::deserialize(&file).unwrap();
        for layer in 0..2 {
            let head =
                |part: usize, head: usize| model::contents(&LAYERS[3 * layer + part])[24 * head..][..24].to_vec();
            let expected = [head(0, rank), head(1, rank / 2), head(2, rank / 2)].concat();
            let shard = shards.tensor(&format!("model.layers.{layer}.self_attn.qkv_proj.weight")).unwrap();
            assert_eq!((shard.shape(), shard.data()), (&[6, 6][..], expected.as_slice()), "rank {rank}, layer {layer}");
        }
    }
}
