//! Experts in stacks and in the slots of a map that is given at run time. In: small models. Out: nothing. Guarantee: every
//! slot of every rank is compared with the expert that the map says.

use crate::assembly::{assemble, shard};
use crate::job::Job;
use crate::model::{self, Elements, Tensor, built};
use safetensors::Dtype;
use std::path::{Path, PathBuf};

const EXPERTS: usize = 6;

/// Experts of one layer each, of 4 x 3 and 3 x 4.
const MODEL: &[Tensor] = &[
    ("model.layers.1.mlp.experts.0.down_proj.weight", Dtype::BF16, &[3, 4]),
    ("model.layers.1.mlp.experts.0.gate_proj.weight", Dtype::BF16, &[4, 3]),
    ("model.layers.1.mlp.experts.0.up_proj.weight", Dtype::BF16, &[4, 3]),
    ("model.layers.1.mlp.experts.1.down_proj.weight", Dtype::BF16, &[3, 4]),
    ("model.layers.1.mlp.experts.1.gate_proj.weight", Dtype::BF16, &[4, 3]),
    ("model.layers.1.mlp.experts.1.up_proj.weight", Dtype::BF16, &[4, 3]),
    ("model.layers.1.mlp.experts.2.down_proj.weight", Dtype::BF16, &[3, 4]),
    ("model.layers.1.mlp.experts.2.gate_proj.weight", Dtype::BF16, &[4, 3]),
    ("model.layers.1.mlp.experts.2.up_proj.weight", Dtype::BF16, &[4, 3]),
    ("model.layers.1.mlp.experts.3.down_proj.weight", Dtype::BF16, &[3, 4]),
    ("model.layers.1.mlp.experts.3.gate_proj.weight", Dtype::BF16, &[4, 3]),
    ("model.layers.1.mlp.experts.3.up_proj.weight", Dtype::BF16, &[4, 3]),
    ("model.layers.1.mlp.experts.4.down_proj.weight", Dtype::BF16, &[3, 4]),
    ("model.layers.1.mlp.experts.4.gate_proj.weight", Dtype::BF16, &[4, 3]),
    ("model.layers.1.mlp.experts.4.up_proj.weight", Dtype::BF16, &[4, 3]),
    ("model.layers.1.mlp.experts.5.down_proj.weight", Dtype::BF16, &[3, 4]),
    ("model.layers.1.mlp.experts.5.gate_proj.weight", Dtype::BF16, &[4, 3]),
    ("model.layers.1.mlp.experts.5.up_proj.weight", Dtype::BF16, &[4, 3]),
    ("model.layers.2.mlp.experts.up_proj.weight", Dtype::F32, &[6, 4, 3]),
];

const STACKS: &str = r#"
    [[fuse]]
    parts = ["*.mlp.experts.{expert}.gate_proj.weight", "*.mlp.experts.{expert}.up_proj.weight"]
    into = "*.mlp.experts.w13_weight"
    experts = "stacked"
    [[fuse]]
    parts = ["*.mlp.experts.{expert}.down_proj.weight"]
    into = "*.mlp.experts.w2_weight"
    experts = "stacked"
"#;

/// Eight slots over two ranks: expert 0 three times, twice of them on one rank.
const REDUNDANT: [usize; 8] = [0, 0, 5, 2, 3, 4, 1, 0];

fn map(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// Elements of projection `kind` (0 down, 1 gate, 2 up) of every expert.
fn experts(kind: usize) -> Vec<Elements> {
    (0..EXPERTS).map(|expert| Elements::of(&MODEL[3 * expert + kind])).collect()
}

/// Compares the stacks of a rank with the experts of its slots.
fn check_stacks(out: &Path, rank: usize, slots: &[usize], tensor: std::ops::Range<usize>) {
    let [down, gate, up] = [0, 1, 2].map(experts);
    let rows = tensor.len();
    let expected = built(&[slots.len(), 2 * rows, 3], |at| match at[1] {
        row if row < rows => gate[slots[at[0]]].at(&[tensor.start + row, at[2]]),
        row => up[slots[at[0]]].at(&[tensor.start + row - rows, at[2]]),
    });
    assert_eq!(shard(out, rank, "model.layers.1.mlp.experts.w13_weight"), expected, "rank {rank}");
    let expected = built(&[slots.len(), 3, rows], |at| down[slots[at[0]]].at(&[at[1], tensor.start + at[2]]));
    assert_eq!(shard(out, rank, "model.layers.1.mlp.experts.w2_weight"), expected, "rank {rank}");
}

#[test]
fn single_experts_into_stacks_with_redundant_slots() {
    let (folder, path) = model::file(MODEL);
    let text = format!("{{\"physical_to_logical_map\": [{REDUNDANT:?}, {REDUNDANT:?}]}}");
    let file = map(folder.path(), "map.json", &text);
    let stacked = Elements::of(&MODEL[18]);
    for (number, memory) in ["shared", "private"].into_iter().enumerate() {
        let out = folder.path().join(format!("out{number}"));
        let job = Job::new(7, &path).run_with("--domains 2").with("--src ep=3 --dst tp=2,ep=2 --memory").with(memory);
        job.rules(STACKS).path("--expert-map-dst", &file).path("--out", &out).verified();
        for rank in 0..4 {
            let (tensor, expert) = (rank % 2, rank / 2);
            let slots = &REDUNDANT[4 * expert..4 * expert + 4];
            check_stacks(&out, 3 + rank, slots, 2 * tensor..2 * tensor + 2);
            let expected = built(&[4, 2, 3], |at| stacked.at(&[slots[at[0]], 2 * tensor + at[1], at[2]]));
            assert_eq!(shard(&out, 3 + rank, MODEL[18].0), expected, "rank {rank}");
        }
    }
}

/// Without a map experts stand in order; ranks need not have equally many.
#[test]
fn stacks_in_order() {
    let (folder, path) = model::file(&MODEL[..18]);
    for (number, (spec, shares)) in [
        ("ep=4", &[(0, 1), (1, 3), (3, 4), (4, 6)][..]),
        ("dp=2", &[(0, 6), (0, 6)]),
        ("etp=1,ep=2,dp=2", &[(0, 3), (3, 6)]),
    ]
    .into_iter()
    .enumerate()
    {
        let out = folder.path().join(format!("out{number}"));
        let job = Job::new(2 + shares.len(), &path).with("--src tp=2 --dst").with(spec);
        job.rules(STACKS).path("--out", &out).verified();
        for (rank, &(lo, hi)) in shares.iter().enumerate() {
            check_stacks(&out, 2 + rank, &(lo..hi).collect::<Vec<_>>(), 0..4);
        }
    }
    // The second row of each stack of three, and so on: fsdp cuts slots.
    let out = folder.path().join("sharded");
    Job::new(5, &path).with("--src ep=2 --dst ep=1,fsdp=3").rules(STACKS).path("--out", &out).verified();
    for rank in 0..3 {
        check_stacks(&out, 2 + rank, &[2 * rank, 2 * rank + 1], 0..4);
    }
}

/// Trainers that stack experts, with slots of their own; the other side has one tensor per expert.
#[test]
fn stacks_into_single_experts() {
    let (folder, path) = model::file(MODEL);
    let out = folder.path().join("out");
    let rules = STACKS.replace("experts = \"stacked\"", "experts = \"stacked\"\nside = \"source\"");
    let sources = map(folder.path(), "src.json", "[5, 4, 3, 2, 1, 0]");
    let destinations = map(folder.path(), "dst.json", &format!("{{\"physical_to_logical_map\": {REDUNDANT:?}}}"));
    let job = Job::new(5, &path).run_with("--domains 2").with("--src ep=3 --dst ep=2").rules(&rules);
    let job = job.path("--expert-map-src", &sources).path("--expert-map-dst", &destinations).path("--out", &out);
    job.verified();
    let whole =
        |rank: usize, tensor: &Tensor| (shard(&out, rank, tensor.0), (tensor.2.to_vec(), model::contents(tensor)));
    for rank in 0..2 {
        let slots = &REDUNDANT[4 * rank..4 * rank + 4];
        let layout = std::fs::read_to_string(out.join(format!("rank-{:05}.layout.json", 3 + rank))).unwrap();
        for (index, tensor) in MODEL[..18].iter().enumerate() {
            assert_eq!(layout.contains(tensor.0), slots.contains(&(index / 3)), "{} on rank {rank}", tensor.0);
            if slots.contains(&(index / 3)) {
                let (found, expected) = whole(3 + rank, tensor);
                assert_eq!(found, expected, "{} on rank {rank}", tensor.0);
            }
        }
    }
}

#[test]
fn bad_maps_and_stacks() {
    let (folder, path) = model::file(MODEL);
    let out = folder.path().join("out");
    let refused = |text: &str, rules: &str, said: &[&str]| {
        let file = map(folder.path(), "map.json", text);
        let job = Job::new(3, &path).with("--src tp=1 --dst ep=2").rules(rules);
        job.path("--expert-map-dst", &file).path("--out", &out).refused(said);
        assert!(!out.exists(), "nothing is written");
    };
    refused("[0, 1, 2, 3, 4, 4]", STACKS, &["expert 5 of 6", "is a permutation"]);
    refused("[0, 1, 2, 3, 4, 6]", STACKS, &["slot 5", "expert 6", "the model has 6"]);
    refused("[0, 1, 2, 3, 4, 5, 0]", STACKS, &["7 expert slots over 2 ranks"]);
    refused("[[0], [1], [2], [3], [4]]", STACKS, &["map.json has 5 rows", "2 layers with experts"]);
    refused("{\"slots\": [0]}", STACKS, &["map.json is no expert map", "physical_to_logical_map"]);
    refused("[]", STACKS, &["map.json is no expert map"]);
    let missing = Job::new(2, &path).with("--src tp=1 --dst tp=1 --expert-map-src none.json");
    missing.refused(&["cannot read expert map \"none.json\""]);
    let into = STACKS.replace("experts.w2_weight", "experts.{expert}.w2");
    refused("[0, 1, 2, 3, 4, 5]", &into, &["my.toml", "{expert}.w2", "the tensor of all experts has not"]);
    let parts = STACKS.replace("experts.{expert}.down_proj", "experts.down_proj");
    refused("[0, 1, 2, 3, 4, 5]", &parts, &["every part has {expert}"]);
    let (_folder, dense) = model::file(&[("model.norm.weight", Dtype::F32, &[3])]);
    let file = map(folder.path(), "map.json", "[0, 1]");
    Job::new(2, &dense)
        .with("--src tp=1 --dst tp=1")
        .path("--expert-map-dst", &file)
        .refused(&["no rule finds an expert"]);
    // Expert 3 is not in the file.
    let few: Vec<Tensor> = MODEL[..18].iter().filter(|tensor| !tensor.0.contains(".3.")).copied().collect();
    let (_folder, few) = model::file(&few);
    let job = Job::new(2, &few).with("--src tp=1 --dst tp=1").rules(STACKS);
    job.refused(&["made of 5 experts, and the model has 6"]);
}

/// All experts of a layer, whatever holds them.
#[test]
fn experts_without_stacks_follow_the_map() {
    let (folder, path) = model::file(&MODEL[..18]);
    let out = folder.path().join("out");
    let file = map(folder.path(), "map.json", "[5, 3, 1, 4, 2, 0]");
    let job = Job::new(4, &path).with("--src tp=1 --dst ep=3").path("--expert-map-dst", &file);
    job.path("--out", &out).verified();
    let assembly = assemble(&out, &[1, 2, 3]);
    for (index, tensor) in MODEL[..18].iter().enumerate() {
        // The place of the expert in the map, by two.
        let holder = [2, 1, 2, 0, 1, 0][index / 3];
        let held = [0, 1, 2].map(|rank| assembly.held.contains_key(&(1 + rank, tensor.0.to_string())));
        assert_eq!(held, [0, 1, 2].map(|rank| rank == holder), "{}", tensor.0);
        assert_eq!(assembly.tensors[tensor.0], model::contents(tensor));
    }
}
