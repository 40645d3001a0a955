//! Scales beside weights that are quantised in blocks. In: weights whose shards are no whole blocks. Out: nothing.
//! Guarantee: every rank has the scale of every block of which it has an element, and no other.

use crate::assembly::shard;
use crate::job::Job;
use crate::model::{self, Elements, Tensor, built};
use safetensors::Dtype;

const BLOCK: usize = 128;

const MODEL: &[Tensor] = &[
    ("model.layers.0.mlp.down_proj.weight", Dtype::F8_E4M3, &[130, 300]),
    ("model.layers.0.mlp.down_proj.weight_scale_inv", Dtype::F32, &[2, 3]),
    ("model.layers.0.mlp.gate_proj.weight", Dtype::F8_E4M3, &[300, 130]),
    ("model.layers.0.mlp.gate_proj.weight_scale_inv", Dtype::F32, &[3, 2]),
    ("model.layers.0.mlp.up_proj.weight", Dtype::F8_E4M3, &[300, 130]),
    ("model.layers.0.mlp.up_proj.weight_scale_inv", Dtype::F32, &[3, 2]),
];

/// Blocks of indices `lo..hi`.
fn blocks(lo: usize, hi: usize) -> std::ops::Range<usize> {
    lo / BLOCK..hi.div_ceil(BLOCK)
}

#[test]
fn shards_that_are_no_whole_blocks() {
    let (folder, path) = model::file(MODEL);
    let [down, up] = [1, 5].map(|at| Elements::of(&MODEL[at]));
    for (number, ranks) in [2, 4, 5].into_iter().enumerate() {
        let out = folder.path().join(format!("out{number}"));
        let job = Job::new(3 + ranks, &path).run_with("--domains 2").with(&format!("--src tp=3 --dst tp={ranks}"));
        job.path("--out", &out).verified();
        for rank in 0..ranks {
            let share = blocks(300 * rank / ranks, 300 * (rank + 1) / ranks);
            let found = shard(&out, 3 + rank, MODEL[5].0);
            assert_eq!(found, built(&[share.len(), 2], |at| up.at(&[share.start + at[0], at[1]])), "rank {rank}");
            let found = shard(&out, 3 + rank, MODEL[1].0);
            assert_eq!(found, built(&[2, share.len()], |at| down.at(&[at[0], share.start + at[1]])), "rank {rank}");
        }
    }
    // 75 rows a rank: the second block is on all but the last.
    assert_eq!([0, 1, 2, 3].map(|rank| blocks(75 * rank, 75 * rank + 75)), [0..1, 0..2, 1..2, 1..3]);
}

#[test]
fn scales_of_fused_weights() {
    let rules = r#"
        [[fuse]]
        parts = ["*.mlp.gate_proj.{weight,weight_scale_inv}", "*.mlp.up_proj.{weight,weight_scale_inv}"]
        into = "*.mlp.gate_up_proj.{weight,weight_scale_inv}"
    "#;
    let (folder, path) = model::file(MODEL);
    let out = folder.path().join("out");
    let job = Job::new(6, &path).run_with("--domains 2").with("--src fsdp=2 --dst tp=4");
    job.rules(rules).path("--out", &out).verified();
    let [gate, up] = [3, 5].map(|at| Elements::of(&MODEL[at]));
    for rank in 0..4 {
        let share = blocks(75 * rank, 75 * rank + 75);
        let expected = built(&[2 * share.len(), 2], |at| match at[0] {
            row if row < share.len() => gate.at(&[share.start + row, at[1]]),
            row => up.at(&[share.start + row - share.len(), at[1]]),
        });
        assert_eq!(shard(&out, 2 + rank, "model.layers.0.mlp.gate_up_proj.weight_scale_inv"), expected, "rank {rank}");
    }
    let cut = Job::new(5, &path).with("--src tp=1 --dst tp=2,fsdp=2").rules(rules);
    cut.refused(&["deepseek.toml", "fused scales", "fsdp=2", "cut by tp alone"]);
    let alone = rules.replace(".{weight,weight_scale_inv}", ".weight");
    let apart = Job::new(3, &path).with("--src tp=1 --dst tp=2").rules(&alone);
    apart.refused(&["gate_proj.weight_scale_inv", "stored differently"]);
}

#[test]
fn scales_that_are_not_those_of_the_weight() {
    let (_folder, path) = model::file(&MODEL[..2]);
    let job = |rules: &str| Job::new(2, &path).with("--src tp=1 --dst tp=1").rules(rules);
    let scales = |block: &str| {
        format!("[[scales]]\nnames = [\"*.weight_scale_inv\"]\nweight = [\"*.weight\"]\nblock = {block}\n")
    };
    job(&scales("[64, 128]")).refused(&["my.toml:1", "shape [2, 3]", "[3, 3] blocks of [64, 128]"]);
    job(&scales("[0, 128]")).refused(&["my.toml:1", "block = [0, 128]"]);
    job(&scales("[128]")).refused(&["[130, 3] blocks of [128]"]);
    job(&scales("[1, 1, 1]")).refused(&["has no blocks of [1, 1, 1]"]);
    let renamed = scales("[128, 128]").replace("[\"*.weight\"]", "[\"*.bias\"]");
    job(&renamed).refused(&["have no weight \"model.layers.0.mlp.down_proj.bias\""]);
    // Of another kind than the built-in rule is for: on every rank, and listed.
    let (_folder, other) =
        model::file(&[("a.up_proj.weight", Dtype::F8_E4M3, &[8, 4]), ("a.up_proj.weight_scale_inv", Dtype::F32, &[8])]);
    let results = Job::new(3, &other).with("--src tp=1 --dst tp=2").verified();
    assert_eq!(results["replicated_unknown"], serde_json::json!(["a.up_proj.weight", "a.up_proj.weight_scale_inv"]));
    // A rule of one's own for the scales themselves.
    job("[[rule]]\nnames = [\"*.weight_scale_inv\"]\ntp = \"replicate\"\n").verified();
}
