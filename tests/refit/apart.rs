//! Checkpoints that store tensors as one, taken apart on their way. In: small models. Out: nothing. Guarantee: every part is
//! compared with the rows that the definition of its form gives it.

use crate::assembly::{assemble, shard};
use crate::job::Job;
use crate::model::{self, Elements, Tensor, built};
use safetensors::Dtype;

/// 4 query heads and 2 key-value heads of 3 rows: as they follow each other, (tensor, head).
const GROUPED: [(usize, usize); 8] = [(0, 0), (0, 1), (1, 0), (2, 0), (0, 2), (0, 3), (1, 1), (2, 1)];

const ATTENTION: &[Tensor] = &[
    ("model.layers.0.self_attn.qkv_proj.bias", Dtype::F32, &[24]),
    ("model.layers.0.self_attn.qkv_proj.weight", Dtype::BF16, &[24, 5]),
];

/// Row of the grouped tensor that is `row` of tensor `part`.
fn grouped(part: usize, row: usize) -> usize {
    3 * GROUPED.iter().position(|&at| at == (part, row / 3)).unwrap() + row % 3
}

const SPLIT: &str = r#"
    [[split]]
    from = "*.self_attn.qkv_proj.{weight,bias}"
    parts = ["*.self_attn.q_proj.{weight,bias}", "*.self_attn.k_proj.{weight,bias}", "*.self_attn.v_proj.{weight,bias}"]
    form = "grouped"
    heads = { query = 4, key_value = 2 }
"#;

const FUSE: &str = r#"
    [[fuse]]
    parts = ["*.self_attn.q_proj.{weight,bias}", "*.self_attn.k_proj.{weight,bias}", "*.self_attn.v_proj.{weight,bias}"]
    into = "*.self_attn.all.{weight,bias}"
    heads = { query = 4, key_value = 2 }
"#;

#[test]
fn one_source_tensor_lands_in_three() {
    let (folder, path) = model::file(ATTENTION);
    let (bias, weight) = (Elements::of(&ATTENTION[0]), Elements::of(&ATTENTION[1]));
    // The trainer has it in one tensor as well, or in three.
    for (number, source) in
        [String::new(), FUSE.replace("heads", "side = \"source\"\nform = \"grouped\"\nheads")].iter().enumerate()
    {
        let out = folder.path().join(format!("out{number}"));
        let job = Job::new(4, &path).run_with("--domains 2").with("--src tp=2 --dst tp=2");
        job.rules(&format!("{SPLIT}{source}")).path("--out", &out).verified();
        for rank in 0..2 {
            for (part, (name, rows)) in [("q", 6), ("k", 3), ("v", 3)].into_iter().enumerate() {
                let name = |kind| format!("model.layers.0.self_attn.{name}_proj.{kind}");
                let row = |at: usize| grouped(part, rank * rows + at);
                assert_eq!(
                    shard(&out, 2 + rank, &name("weight")),
                    built(&[rows, 5], |at| weight.at(&[row(at[0]), at[1]]))
                );
                assert_eq!(shard(&out, 2 + rank, &name("bias")), built(&[rows], |at| bias.at(&[row(at[0])])));
            }
        }
    }
}

#[test]
fn from_one_form_to_another() {
    let (folder, path) = model::file(ATTENTION);
    let out = folder.path().join("out");
    let job = Job::new(5, &path).run_with("--domains 2").with("--src fsdp=1 --dst tp=4 --memory private");
    job.rules(&format!("{SPLIT}{FUSE}")).path("--out", &out).verified();
    let weight = Elements::of(&ATTENTION[1]);
    for rank in 0..4 {
        let expected = built(&[9, 5], |at| {
            let row = match at[0] {
                row if row < 3 => grouped(0, 3 * rank + row),
                row => grouped(row / 3, 3 * (rank / 2) + row % 3),
            };
            weight.at(&[row, at[1]])
        });
        assert_eq!(shard(&out, 1 + rank, "model.layers.0.self_attn.all.weight"), expected, "rank {rank}");
    }
}

/// Stacked, transposed, and in turn: gate and up of every expert from one tensor of a layer.
#[test]
fn a_stack_of_experts_is_taken_apart() {
    const STACK: &[Tensor] = &[
        ("model.layers.0.mlp.experts.down_proj", Dtype::F32, &[4, 6, 5]),
        ("model.layers.0.mlp.experts.gate_up_proj", Dtype::BF16, &[4, 5, 12]),
        ("model.layers.0.mlp.other", Dtype::F32, &[2]),
    ];
    let rules = r#"
        [[split]]
        from = "*.mlp.experts.gate_up_proj"
        parts = ["*.mlp.experts.{expert}.gate_proj.weight", "*.mlp.experts.{expert}.up_proj.weight"]
        experts = "stacked"
        transposed = true
        form = "interleaved"
        [[split]]
        from = "*.mlp.experts.down_proj"
        parts = ["*.mlp.experts.{expert}.down_proj.weight"]
        experts = "stacked"
        transposed = true
    "#;
    let (folder, path) = model::file(STACK);
    let (down, gate_up) = (Elements::of(&STACK[0]), Elements::of(&STACK[1]));
    let out = folder.path().join("out");
    let job = Job::new(6, &path).run_with("--domains 2").with("--src ep=2 --dst tp=2,ep=2");
    let results = job.rules(rules).path("--out", &out).verified();
    assert_eq!(results["tensors"], 13);
    for rank in 0..4 {
        let (tensor, owner) = (rank % 2, rank / 2);
        for expert in 2 * owner..2 * owner + 2 {
            let name = |part| format!("model.layers.0.mlp.experts.{expert}.{part}_proj.weight");
            for (place, part) in ["gate", "up"].into_iter().enumerate() {
                let expected = built(&[3, 5], |at| gate_up.at(&[expert, at[1], 2 * (3 * tensor + at[0]) + place]));
                assert_eq!(shard(&out, 2 + rank, &name(part)), expected, "{part} of {expert} on rank {rank}");
            }
            let expected = built(&[5, 3], |at| down.at(&[expert, 3 * tensor + at[1], at[0]]));
            assert_eq!(shard(&out, 2 + rank, &name("down")), expected, "down of {expert} on rank {rank}");
        }
    }
    // And back into stacks, in other slots and as vLLM has them.
    let stacks = r#"
        [[fuse]]
        parts = ["*.mlp.experts.{expert}.gate_proj.weight", "*.mlp.experts.{expert}.up_proj.weight"]
        into = "*.mlp.experts.w13_weight"
        experts = "stacked"
    "#;
    let (out, map) = (folder.path().join("stacks"), folder.path().join("map.json"));
    std::fs::write(&map, "[3, 0, 2, 1]").unwrap();
    let job = Job::new(4, &path).with("--src ep=2 --dst ep=2").rules(&format!("{rules}{stacks}"));
    job.path("--expert-map-dst", &map).path("--out", &out).verified();
    for rank in 0..2 {
        let slots = &[3, 0, 2, 1][2 * rank..2 * rank + 2];
        let expected = built(&[2, 12, 5], |at| gate_up.at(&[slots[at[0]], at[2], 2 * (at[1] % 6) + at[1] / 6]));
        assert_eq!(shard(&out, 2 + rank, "model.layers.0.mlp.experts.w13_weight"), expected, "rank {rank}");
    }
}

/// A checkpoint that has a tied tensor under both names: the second is left out, those behind it stay what they are.
#[test]
fn both_names_of_a_tied_tensor() {
    const BOTH: &[Tensor] = &[
        ("lm_head.weight", Dtype::F32, &[6, 4]),
        ("model.embed_tokens.weight", Dtype::F32, &[6, 4]),
        ("model.layers.0.mlp.up_proj.weight", Dtype::F32, &[6, 4]),
        ("model.norm.weight", Dtype::F32, &[4]),
    ];
    let (folder, path) = model::file(BOTH);
    let out = folder.path().join("out");
    let rules = "[[tied]]\nnames = [\"lm_head.weight\", \"model.embed_tokens.weight\"]\n";
    Job::new(4, &path).with("--src tp=2 --dst tp=2").rules(rules).path("--out", &out).verified();
    let assembly = assemble(&out, &[2, 3]);
    assert_eq!(assembly.tensors.len(), 3);
    for tensor in [&BOTH[0], &BOTH[2], &BOTH[3]] {
        assert_eq!(assembly.tensors[tensor.0], model::contents(tensor), "{}", tensor.0);
    }
}

#[test]
fn bad_splits() {
    let (_folder, path) = model::file(ATTENTION);
    let refused =
        |rules: &str, said: &[&str]| Job::new(2, &path).with("--src tp=1 --dst tp=1").rules(rules).refused(said);
    refused(&SPLIT.replace("query = 4", "query = 7"), &["my.toml:2", "qkv_proj.bias", "cannot be taken apart"]);
    refused(&SPLIT.replace("qkv_proj", "qkv"), &["no tensor of model", "*.self_attn.qkv.{weight,bias}"]);
    refused(&SPLIT.replace("form = \"grouped\"", "form = \"wide\""), &["form = \"wide\"", "interleaved"]);
    refused(&SPLIT.replace("attn.v_proj", "attn.q_proj"), &["self_attn.q_proj.bias"]);
    refused(&format!("{SPLIT}{SPLIT}"), &["made or used by rule", "my.toml"]);
    let sizes = "[[split]]\nfrom = \"*.qkv_proj.bias\"\nparts = [\"*.a\", \"*.b\"]\nsizes = [20, 5]\n";
    refused(sizes, &["shape [24]", "sizes = [...]"]);
    refused(&sizes.replace("sizes", "size"), &["my.toml is no rules file", "unknown field `size`", "`sizes`"]);
}
