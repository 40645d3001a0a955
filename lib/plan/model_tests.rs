//! Whole models. In: published dimensions and files. Out: nothing. Guarantee: counts and bytes are those that the
//! definitions imply, worked out by hand beside the test.

use super::*;
use crate::layout::Layout;
use crate::layout::parallel::System;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

fn ranks(first: u32, count: u32) -> Vec<Rank> {
    (first..first + count).map(Rank).collect()
}

/// Source ranks first, then destination ranks.
fn plan(model: &Model, source: &str, destination: &str) -> ModelManifest {
    let (source, destination) = (ParallelSpec::parse(source).unwrap(), ParallelSpec::parse(destination).unwrap());
    let rules = Rules::embedded().unwrap();
    let (from, to) = (ranks(0, source.rank_count()), ranks(source.rank_count(), destination.rank_count()));
    let side = |spec, ranks| ModelSide { spec, ranks, rules: &rules };
    model_manifest(model, side(&source, &from), side(&destination, &to)).unwrap()
}

fn stored(made: &ModelManifest, rank: u32, side: impl Fn(&super::super::TensorSpec) -> &Arc<Layout>) -> u64 {
    made.manifest.tensors().iter().map(|tensor| side(tensor).local_bytes(Rank(rank))).sum()
}

#[test]
fn deepseek_at_256_ranks() {
    let model = Model::published("deepseek-v3").unwrap();
    let made = plan(&model, "tp=1,ep=16,pp=8", "tp=16,dp=8");
    assert_eq!(made.unmatched, [""; 0]);
    assert_eq!(made.manifest.global_bytes().unwrap(), model.bytes());
    assert_eq!(made.manifest.tensors().len(), 46_183);
    // Routers: weight and correction of 58 layers and of the one that predicts.
    assert_eq!(made.keep_dtype.len(), 2 * 59);
    assert!(made.manifest.tensors()[made.keep_dtype[0]].name.contains(".mlp.gate."));
    // Layouts are shared: stages times owners times shapes, not tensors.
    let kinds: HashSet<*const Layout> =
        made.manifest.tensors().iter().map(|tensor| Arc::as_ptr(&tensor.source)).collect();
    assert!(kinds.len() < 600, "{}", kinds.len());
    // Over all ranks of a side every weight is held once, but for what lies alike along ep.
    let experts = model.elements(|role| role == crate::layout::model::Role::Expert) * 2;
    let total: u64 = (0..128).map(|rank| stored(&made, rank, |tensor| &tensor.source)).sum();
    let prediction: u64 = {
        let inside = |name: &str| name.starts_with("model.layers.61.mlp.experts.");
        model.tensors().iter().filter(|tensor| inside(&tensor.name)).map(|tensor| tensor.bytes()).sum()
    };
    let once = experts + prediction;
    assert_eq!(total, once + 16 * (model.bytes() - once));
}

#[test]
fn both_conventions_place_experts_alike() {
    let model = Model::published("qwen3-235b-a22b").unwrap();
    // 8 ranks: ep across dp, or beside it.
    let made = plan(&model, "megatron:tp=1,dp=8,ep=4,edp=2", "tp=2,ep=4");
    let expert = |index: u32| {
        let name = format!("model.layers.0.mlp.experts.{index}.up_proj.weight");
        made.manifest.tensors().iter().find(|tensor| tensor.name == name).unwrap()
    };
    let holders = |layout: &Layout| layout.mesh().ranks().map(|rank| rank.0).collect::<Vec<_>>();
    assert_eq!(holders(&expert(0).source), [0, 4]);
    assert_eq!(holders(&expert(127).source), [3, 7]);
    assert_eq!(holders(&expert(127).destination), [14, 15]);
    let dense = &made.manifest.tensors()[0];
    assert_eq!(holders(&dense.source).len(), 8);
    assert_eq!(dense.destination.local_shape(Rank(9)).unwrap(), [151936 / 2, 4096]);
}

/// A plan must not cost tensors times ranks: 256 and 100,000 ranks in about the same time.
#[test]
fn cost_follows_the_tensors() {
    let model = Model::published("deepseek-v3").unwrap();
    let seconds = |source: &str, destination: &str| {
        let time = |_| {
            let start = Instant::now();
            assert!(plan(&model, source, destination).manifest.tensors().len() > 45_000);
            start.elapsed().as_secs_f64()
        };
        (0..3).map(time).fold(f64::INFINITY, f64::min)
    };
    let small = seconds("tp=1,ep=16,pp=8", "tp=16,dp=8");
    let large = seconds("tp=1,ep=16,dp=390,pp=8", "tp=16,dp=3125");
    eprintln!("46,183 tensors: {small:.3} s at 256 ranks, {large:.3} s at 100,000");
    assert!(large < 3.0 * small + 0.1, "{small} s at 256 ranks, {large} s at 99,920");
}

/// NCCL M2N's model and system files, where they lie beside the repository.
#[test]
fn published_files_give_the_bytes_they_imply() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/fixtures/m2n");
    if !folder.is_dir() {
        eprintln!("not tested: there is no folder {}", folder.display());
        return;
    }
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let model = |name: &str| Model::parse(&read(&format!("models/{name}.model.json")), name).unwrap();
    let qwen = model("qwen3-32b");
    assert_eq!((qwen.tensors().len(), qwen.bytes()), (707, Model::published("qwen3-32b").unwrap().bytes()));
    let system = System::parse(&read("systems/qwen3-32b-tp2pp4dp2-to-tp1dp16-32gpus-gb200.json"), "system").unwrap();
    let made = plan(&qwen, &system.source.to_string(), &system.destination.to_string());
    assert_eq!((made.manifest.tensors().len(), made.unmatched.len()), (707, 0));
    let destination: u64 = (16..32).map(|rank| stored(&made, rank, |tensor| &tensor.destination)).sum();
    assert_eq!(destination, 16 * qwen.bytes());
    // Norms lie alike along tp, all else is halved; every stage is there dp = 2 times.
    let norms: u64 = qwen.tensors().iter().filter(|tensor| tensor.shape.len() == 1).map(|tensor| tensor.bytes()).sum();
    let source: u64 = (0..16).map(|rank| stored(&made, rank, |tensor| &tensor.source)).sum();
    assert_eq!(source, 2 * (qwen.bytes() + norms));
    let toy = model("dsv3-toy");
    assert_eq!(toy.tensors().len(), 1546);
    for system in ["systems/dsv3-128gpus-gb200.json", "systems/dsv3-256gpus-gb200.json"] {
        let system = System::parse(&read(system), system).unwrap();
        let made = plan(&toy, &system.source.to_string(), &system.destination.to_string());
        assert!(made.unmatched.is_empty());
        assert_eq!(made.manifest.global_bytes().unwrap(), toy.bytes());
    }
}

/// Destinations as vLLM stores them: per rank the rows of every fused tensor, worked out by hand.
#[test]
fn fused_destinations() {
    let local = |model: &str, family: &str, destination: &str, tensor: &str, count: usize| {
        let model = Model::published(model).unwrap();
        let rules = Rules::embedded().unwrap().with_overrides(Rules::family(family).unwrap());
        let (source, spec) = (ParallelSpec::parse("tp=1").unwrap(), ParallelSpec::parse(destination).unwrap());
        let to = ranks(1, spec.rank_count());
        let side = |spec, ranks| ModelSide { spec, ranks, rules: &rules };
        let made = model_manifest(&model, side(&source, &[Rank(0)]), side(&spec, &to)).unwrap();
        assert_eq!((made.source_fused.len(), made.destination_fused.len()), (0, count), "{family}");
        assert_eq!(made.unmatched, [""; 0]);
        let fused = made.destination_fused.iter().find(|fused| fused.name == tensor).unwrap();
        let shape = |&part: &usize| made.manifest.tensors()[part].destination.local_shape(Rank(1)).unwrap();
        let shapes: HashSet<Vec<u64>> = fused.tensors.iter().map(shape).collect();
        assert_eq!(shapes.len(), 1, "parts of one tensor share its local shape");
        shapes.into_iter().next().unwrap()
    };
    // 64 / 16 = 4 query heads, and one key and one value head of 8, which two ranks repeat, of 128 rows each.
    let qkv = "model.layers.79.self_attn.qkv_proj.weight";
    assert_eq!(local("llama-3-70b", "llama-fused", "tp=16", qkv, 160), [6 * 128, 8192]);
    let gate_up = "model.layers.0.mlp.gate_up_proj.weight";
    assert_eq!(local("qwen3-32b", "llama-fused", "tp=4,dp=2", gate_up, 128), [2 * 25600 / 4, 5120]);
    let expert = "model.layers.0.mlp.experts.0.w13.weight";
    assert_eq!(local("qwen3-235b-a22b", "moe-fused", "tp=2,ep=4", expert, 94 * 129), [1536, 4096]);
    let stacked = "model.layers.0.mlp.experts.w13_weight";
    let shape = local("qwen3-235b-a22b-stacked", "moe-stacked-fused", "tp=2,ep=4", stacked, 188);
    assert_eq!(shape, [32, 1536, 4096]);
    let shared = "model.layers.3.mlp.shared_experts.gate_up_proj.weight";
    assert_eq!(local("deepseek-v3", "deepseek-fused", "tp=16", shared, 3 + 59 * 257), [2 * 2048 / 16, 7168]);
}

#[test]
fn sides_may_have_rules_of_their_own() {
    let model =
        Model::new("m", vec![crate::layout::model::ModelTensor::new("w", [4, 4], crate::layout::Dtype::F32)]).unwrap();
    let spec = ParallelSpec::parse("tp=2").unwrap();
    let rules = Rules::parse("[[rule]]\nnames = [\"w\"]\ntp = 1\n", "one.toml").unwrap();
    let none = Rules::embedded().unwrap();
    let (from, to) = (ranks(0, 2), ranks(2, 2));
    let source = ModelSide { spec: &spec, ranks: &from, rules: &rules };
    let made = model_manifest(&model, source, ModelSide { spec: &spec, ranks: &to, rules: &none }).unwrap();
    assert_eq!(made.unmatched, ["w"]);
    assert_eq!(made.manifest.tensors()[0].source.local_shape(Rank(1)), Some(vec![4, 2]));
    assert_eq!(made.manifest.tensors()[0].destination.local_shape(Rank(3)), Some(vec![4, 4]));
    let error = model_manifest(&model, source, ModelSide { spec: &spec, ranks: &from[..1], rules: &none }).unwrap_err();
    assert!(matches!(error, PlanError::Spec { side: "destination", .. }), "{error}");
}
