//! Tensors that the destination stores as one: every shard against the definition of its form, head by head.

use crate::job::Job;
use crate::model::{self, Tensor};
use safetensors::{Dtype, SafeTensors};
use std::path::Path;

/// Attention of a BERT with 12 heads of 2 rows, and a tensor that no rule fuses.
const BERT: &[Tensor] = &[
    ("bert.encoder.layer.0.attention.self.query.weight", Dtype::F32, &[24, 5]),
    ("bert.encoder.layer.0.attention.self.key.weight", Dtype::F32, &[24, 5]),
    ("bert.encoder.layer.0.attention.self.value.weight", Dtype::F32, &[24, 5]),
    ("bert.encoder.layer.0.attention.self.query.bias", Dtype::F32, &[24]),
    ("bert.encoder.layer.0.attention.self.key.bias", Dtype::F32, &[24]),
    ("bert.encoder.layer.0.attention.self.value.bias", Dtype::F32, &[24]),
    ("bert.encoder.layer.0.intermediate.dense.weight", Dtype::F32, &[9, 5]),
];

/// Attention and gate and up of a Llama with 8 query heads and 2 key-value heads of 3 rows.
const LLAMA: &[Tensor] = &[
    ("model.layers.0.self_attn.q_proj.weight", Dtype::BF16, &[24, 5]),
    ("model.layers.0.self_attn.k_proj.weight", Dtype::BF16, &[6, 5]),
    ("model.layers.0.self_attn.v_proj.weight", Dtype::BF16, &[6, 5]),
    ("model.layers.0.mlp.gate_proj.weight", Dtype::BF16, &[8, 5]),
    ("model.layers.0.mlp.up_proj.weight", Dtype::BF16, &[8, 5]),
];

/// Rows `from..to` of a tensor, in bytes.
fn rows(tensor: &Tensor, from: usize, to: usize) -> Vec<u8> {
    let bytes = model::contents(tensor);
    let row = bytes.len() / tensor.2[0];
    bytes[from * row..to * row].to_vec()
}

/// A tensor of a rank's shard file.
fn shard(folder: &Path, rank: usize, name: &str) -> (Vec<usize>, Vec<u8>) {
    let bytes = std::fs::read(folder.join(format!("rank-{rank:05}.safetensors"))).unwrap();
    let shards = SafeTensors::deserialize(&bytes).unwrap();
    let found = shards.tensor(name).unwrap_or_else(|error| panic!("{name} on rank {rank}: {error}"));
    (found.shape().to_vec(), found.data().to_vec())
}

#[test]
fn bert_with_one_tensor_for_queries_keys_and_values() {
    let (folder, path) = model::file(BERT);
    let out = folder.path().join("out");
    let job =
        Job::new(8, &path).run_with("--domains 2").with("--src tp=4 --dst tp=2,dp=2 --rules bert-fused-qkv --verify");
    let results = job.path("--out", &out).results();
    assert_eq!((&results["verified"], &results["tensors"]), (&true.into(), &7.into()));
    for rank in 4..8 {
        let half = rank % 2;
        for (kind, first) in [("weight", 0), ("bias", 3)] {
            let parts = BERT[first..first + 3].iter().flat_map(|tensor| rows(tensor, 12 * half, 12 * half + 12));
            let name = format!("bert.encoder.layer.0.attention.self.query_key_value.{kind}");
            let (shape, bytes) = shard(&out, rank, &name);
            assert_eq!((shape[0], bytes), (36, parts.collect::<Vec<u8>>()), "{name} on rank {rank}");
        }
        let bytes = std::fs::read(out.join(format!("rank-{rank:05}.safetensors"))).unwrap();
        assert_eq!(SafeTensors::deserialize(&bytes).unwrap().len(), 3, "no part stands beside the whole");
    }
}

#[test]
fn rules_of_users_with_heads_of_the_model() {
    let rules = r#"
        [[fuse]]
        parts = ["*.self_attn.q_proj.weight", "*.self_attn.k_proj.weight", "*.self_attn.v_proj.weight"]
        into = "*.self_attn.qkv.weight"
        form = "grouped"
        heads = "model"
        side = "both"
        [[fuse]]
        parts = ["*.mlp.gate_proj.weight", "*.mlp.up_proj.weight"]
        into = "*.mlp.gate_up.weight"
        form = "interleaved"
    "#;
    let (folder, path) = model::file(LLAMA);
    let (out, file) = (folder.path().join("out"), folder.path().join("my.toml"));
    std::fs::write(&file, rules).unwrap();
    std::fs::write(folder.path().join("config.json"), r#"{"num_attention_heads": 8, "num_key_value_heads": 2}"#)
        .unwrap();
    let job = Job::new(6, &path).run_with("--domains 2").with("--src tp=2 --dst tp=4 --verify --memory private");
    job.path("--rules", &file).path("--out", &out).results();
    for rank in 2..6 {
        // Two query heads a rank; each key head is on two ranks.
        let (of, head) = (rank - 2, (rank - 2) / 2);
        let attention = [
            rows(&LLAMA[0], 6 * of, 6 * of + 6),
            rows(&LLAMA[1], 3 * head, 3 * head + 3),
            rows(&LLAMA[2], 3 * head, 3 * head + 3),
        ];
        assert_eq!(shard(&out, rank, "model.layers.0.self_attn.qkv.weight"), (vec![12, 5], attention.concat()));
        let in_turn =
            (2 * of..2 * of + 2).flat_map(|row| [rows(&LLAMA[3], row, row + 1), rows(&LLAMA[4], row, row + 1)]);
        let in_turn: Vec<u8> = in_turn.flatten().collect();
        assert_eq!(shard(&out, rank, "model.layers.0.mlp.gate_up.weight"), (vec![4, 5], in_turn));
    }
}

#[test]
fn bad_rules_and_heads() {
    let (folder, path) = model::file(BERT);
    let refused = |ranks: usize, arguments: &str, said: &[&str]| {
        Job::new(ranks, &path).with(arguments).refused(said);
    };
    let fused = "--rules bert-fused-qkv";
    refused(
        9,
        &format!("--src tp=1 --dst tp=8 {fused}"),
        &["12 query heads and 12 key-value heads cannot be dealt out evenly to 8 ranks", "as-needed"],
    );
    let file = folder.path().join("my.toml");
    let rules = |text: &str, said: &[&str]| {
        std::fs::write(&file, text).unwrap();
        refused(2, &format!("--src tp=1 --dst tp=1 --rules {}", file.display()), said);
    };
    rules("[[fuse]]\nparts = [\"a\", \"b\"]", &["my.toml is no rules file", "line 1"]);
    let fuse = |parts: &str, into: &str, more: &str| format!("[[fuse]]\nparts = {parts}\ninto = \"{into}\"\n{more}");
    rules(&fuse("[\"a\", \"b\"]", "c", ""), &["my.toml:1", "no tensor of model", "\"a\", \"b\""]);
    rules(&fuse("[\"*.query.bias\"]", "*.q", ""), &["parts lists 1 patterns"]);
    rules(&fuse("[\"*.query.bias\", \"*.other.bias\"]", "*.q", ""), &["has no companion", "self.other.bias"]);
    rules(&fuse("[\"*.query.bias\", \"*.key.bias\"]", "q", ""), &["leaves 0 components open"]);
    rules(&fuse("[\"*.query.bias\", \"*.key.weight\"]", "*.q", ""), &["cannot be fused along dimension 0"]);
    rules(
        &fuse("[\"*.query.bias\", \"*.key.bias\"]", "*.value.bias", ""),
        &["made or used by rule (the model itself)"],
    );
    rules(&fuse("[\"*.query.bias\", \"*.key.bias\"]", "*.q", "form = \"wide\""), &["form = \"wide\"", "interleaved"]);
    rules(&fuse("[\"*.query.bias\", \"*.key.bias\"]", "*.q", "split = \"rows\""), &["heads, split and default_heads"]);
    let attention = "[\"*.query.bias\", \"*.key.bias\", \"*.value.bias\"]";
    rules(&fuse(attention, "*.q", "heads = \"model\""), &["does not say how many attention heads"]);
    rules(&fuse(attention, "*.q", "heads = { query = 12, key_value = 6 }"), &["twice 6 key-value heads"]);
    rules(&fuse(attention, "*.q", "heads = { query = 7, key_value = 7 }"), &["are not 7 query heads"]);
    let twice = format!("{}\n{}", fuse(attention, "*.q", ""), fuse(attention, "*.r", ""));
    rules(&twice, &["made or used by rule", "my.toml:1"]);
}
