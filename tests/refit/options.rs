//! Options, environment, kinds of models. In: small models. Out: nothing. Guarantee: each does what its help says.

use crate::assembly::assemble;
use crate::job::{CROSSMESH, Job, clean_command, in_repository};
use crate::model::{self, EXAMPLE, EXAMPLE_BYTES, LLAMA, Tensor};
use crate::process;
use safetensors::Dtype;
use serde_json::json;
use std::time::Duration;

/// A layer of experts, and names that no rule knows.
const EXPERTS: &[Tensor] = &[
    ("model.layers.1.mlp.gate.weight", Dtype::BF16, &[4, 6]),
    ("model.layers.1.mlp.experts.0.down_proj.weight", Dtype::BF16, &[6, 5]),
    ("model.layers.1.mlp.experts.1.down_proj.weight", Dtype::BF16, &[6, 5]),
    ("model.layers.1.mlp.experts.2.down_proj.weight", Dtype::BF16, &[6, 5]),
    ("model.layers.1.mlp.experts.3.down_proj.weight", Dtype::BF16, &[6, 5]),
    ("model.layers.1.mlp.shared_experts.up_proj.weight", Dtype::F32, &[7, 6]),
    ("model.layers.1.self_attn.q_a_proj.weight", Dtype::F32, &[3, 6]),
    ("model.layers.1.self_attn.kv_b_proj.weight", Dtype::F32, &[8, 3]),
];

#[test]
fn the_environment_overrides() {
    let (_folder, model) = model::file(EXAMPLE);
    let job = |arguments: &str| {
        let job = Job::new(3, &model).run_with("--domains 2").with("--src tp=1 --dst dp=2").with(arguments);
        job.env("CROSSMESH_ROUTE", "flat").env("CROSSMESH_INJECTION", "single")
    };
    for arguments in ["", "--route hierarchical --injection striped"] {
        let results = job(arguments).verified();
        assert_eq!((&results["route"], &results["injection"]), (&json!("flat"), &json!("single")));
        assert_eq!(results["inter_domain_bytes"], 2 * EXAMPLE_BYTES);
    }
    // That an option is overridden is said once.
    let ended = job("--route hierarchical").run();
    assert_eq!(ended.finished.errors.matches("overrides --route").count(), 1, "{ended:#?}");
    let results =
        Job::new(2, &model).run_with("--domains 2").with("--src tp=1 --dst tp=1").env("CROSSMESH_CHUNK", "4KiB");
    assert_eq!(results.verified()["chunk_bytes"], 4096);
}

#[test]
fn both_kinds_of_memory_however_they_are_read() {
    let (_folder, model) = model::file(LLAMA);
    for memory in ["shared", "private"] {
        for mapped in ["auto", "shared", "staged"] {
            let job = Job::new(5, &model).run_with("--domains 2").with("--src tp=2 --dst tp=3 --memory").with(memory);
            job.env("CROSSMESH_MAPPED", mapped).verified();
        }
    }
}

#[test]
fn little_staging() {
    let (_folder, model) = model::file(LLAMA);
    let job = Job::new(5, &model).run_with("--domains 2").with("--src tp=2 --dst dp=3");
    let results = job.env("CROSSMESH_STAGING", "16KiB").env("CROSSMESH_CHUNK", "1KiB").verified();
    assert!(results["staging_bytes"].as_u64().unwrap() <= 16 << 10, "{results:#}");
}

#[test]
fn a_sharded_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    model::write_sharded(folder.path(), LLAMA);
    let out = folder.path().join("out");
    let results = Job::new(3, folder.path()).with("--src tp=1 --dst tp=2").path("--out", &out).verified();
    assert_eq!(results["tensors"], LLAMA.len());
    let whole = assemble(&out, &[1, 2]).tensors;
    assert!(LLAMA.iter().all(|tensor| whole[tensor.0] == model::contents(tensor)));
    let index = folder.path().join("model.safetensors.index.json");
    assert_eq!(Job::new(2, &index).with("--src tp=1 --dst tp=1").verified()["tensors"], LLAMA.len());
}

/// Destination ranks may be on hosts without the model; source ranks may not.
#[test]
fn a_model_that_only_some_ranks_have() {
    let (folder, model) = model::file(LLAMA);
    let job = |missing: &str| {
        let moved = format!(
            "case $CROSSMESH_RANK in {missing}) model={0}/missing.safetensors;; *) model={0}/model.safetensors;; esac",
            folder.path().display()
        );
        let script = format!(
            "{moved}; exec \"$0\" refit $model --src tp=2 --dst tp=3 --verify --out {}/out",
            folder.path().display()
        );
        let run = ["run", "--starter", "local", "-n", "5", "--domains", "2", "--", "sh", "-c", &script, CROSSMESH];
        let ended = process::run(&mut clean_command(CROSSMESH, &run.map(String::from), &[]), Duration::from_secs(60));
        ended.unwrap()
    };
    let table = job("[34]").expect_success().output;
    assert!(table.contains("every digest, every byte on the 3 ranks that have the model"), "{table}");
    let whole = assemble(&folder.path().join("out"), &[2, 3, 4]).tensors;
    assert!(LLAMA.iter().all(|tensor| whole[tensor.0] == model::contents(tensor)));
    let ended = job("[14]");
    assert_eq!(ended.code(), Some(2), "{ended:#?}");
    let told = ended.errors.lines().filter(|line| line.starts_with('[') && line.contains("rank 1 on host"));
    assert_eq!(told.count(), 4, "{ended:#?}");
    assert!(ended.errors.contains("missing.safetensors: No such file") && model.exists(), "{ended:#?}");
}

#[test]
fn a_described_model() {
    let results = Job::new(5, &in_repository("slurm/small.model.json")).with("--src tp=2 --dst tp=3").verified();
    assert_eq!(results["tensors"], 39);
    assert_eq!(results["replicated_unknown"], json!([]));
}

#[test]
fn models_with_little_in_them() {
    const LITTLE: &[Tensor] = &[
        ("model.norm.weight", Dtype::F32, &[]),
        ("model.layers.0.mlp.up_proj.weight", Dtype::F32, &[1, 8]),
        ("lm_head.weight", Dtype::U8, &[1, 1]),
    ];
    for (tensors, bytes) in [(LITTLE, 37), (&LITTLE[1..2], 32), (&[], 0)] {
        let (_folder, model) = model::file(tensors);
        let results = Job::new(5, &model).run_with("--domains 2").with("--src tp=2 --dst tp=3 --route flat").verified();
        assert_eq!((&results["tensors"], &results["bytes"]), (&tensors.len().into(), &bytes.into()));
    }
}

#[test]
fn experts_are_dealt_out() {
    let (folder, model) = model::file(EXPERTS);
    let out = folder.path().join("out");
    let job = Job::new(8, &model).run_with("--domains 2").with("--src tp=2,ep=2 --dst ep=4").path("--out", &out);
    assert_eq!(job.verified()["replicated_unknown"], json!([]));
    let assembly = assemble(&out, &[4, 5, 6, 7]);
    assert!(EXPERTS.iter().all(|tensor| assembly.tensors[tensor.0] == model::contents(tensor)));
    for expert in 0..4 {
        let name = format!("model.layers.1.mlp.experts.{expert}.down_proj.weight");
        let held: Vec<usize> =
            (4..8).map(|rank| assembly.held.get(&(rank, name.clone())).copied().unwrap_or(0)).collect();
        let expected: Vec<usize> = (0..4).map(|rank| if rank == expert { 60 } else { 0 }).collect();
        assert_eq!(held, expected, "{name}");
    }
}

#[test]
fn unknown_names_are_replicated_and_listed_unless_a_rule_knows_them() {
    const STRANGE: &[Tensor] = &[
        ("strange.0.matrix", Dtype::BF16, &[8, 4]),
        ("strange.1.matrix", Dtype::BF16, &[8, 4]),
        ("model.norm.weight", Dtype::BF16, &[4]),
    ];
    let (folder, model) = model::file(STRANGE);
    let job = |name: &str| Job::new(3, &model).with("--src tp=1 --dst tp=2").path("--out", &folder.path().join(name));
    let held = |name: &str| assemble(&folder.path().join(name), &[1, 2]).held;
    let results = job("without").verified();
    assert_eq!(results["replicated_unknown"], json!(["strange.0.matrix", "strange.1.matrix"]));
    assert_eq!(held("without")[&(1, "strange.0.matrix".into())], 64);
    let table = job("table").run().output();
    assert!(table.contains("no rule, replicated   2 tensors: strange.0.matrix, strange.1.matrix\n"), "{table}");

    let rules = folder.path().join("rules.toml");
    std::fs::write(&rules, "[[rule]]\nnames = [\"strange.*.matrix\"]\ntp = 1\n").unwrap();
    let results = job("with").path("--rules", &rules).verified();
    assert_eq!(results["replicated_unknown"], json!([]));
    assert_eq!(held("with")[&(1, "strange.0.matrix".into())], 32);
    // A rule of one's own comes before the built-in ones.
    std::fs::write(&rules, "[[rule]]\nnames = [\"model.norm.weight\"]\ntp = 0\n").unwrap();
    job("override").path("--rules", &rules).verified();
    assert_eq!(held("override")[&(2, "model.norm.weight".into())], 4);
}
