//! Layer files. In: texts of our own, and NCCL M2N's where they lie beside the repository. Out: nothing. Guarantee: shapes,
//! cuts and bytes are those that the files' definitions imply.

use super::*;
use crate::base::Rank;
use crate::layout::parallel::{ParallelSpec, SideLayouts};
use proptest::prelude::*;
use std::path::Path;

const TEXT: &str = r#"{"num_layers": 2, "default_tensors": [
  {"name": "attention", "dims": [8, 6], "tp_shard_dim": 1, "_comment": "ours"},
  {"name": "moe", "dims": [4, 6, 5], "tp_shard_dim": 1, "ep_shard_dim": 0},
  {"name": "a*{b}", "dims": [3], "tp_shard_dim": -1}]}"#;

fn fail(text: &str) -> String {
    let error = LayerFile::parse(text, "my.json", Dtype::BF16).unwrap_err();
    let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}

/// Local shapes of a tensor on every rank of a side.
fn local_shapes(file: &LayerFile, tensor: &str, spec: &str) -> Vec<Vec<u64>> {
    let spec = ParallelSpec::parse(spec).unwrap();
    let ranks: Vec<Rank> = (0..spec.rank_count()).map(Rank).collect();
    let ruled = file.rules.apply(&file.model).unwrap();
    let index = file.model.tensors().iter().position(|known| known.name == tensor).unwrap();
    let layout = SideLayouts::new(&ruled, &spec, &ranks).unwrap().layout(index).unwrap();
    ranks.iter().map(|&rank| layout.local_shape(rank).unwrap_or_default()).collect()
}

#[test]
fn every_layer_has_every_tensor() {
    let file = LayerFile::parse(TEXT, "my.json", Dtype::BF16).unwrap();
    let names: Vec<&str> = file.model.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
    let expected = [
        "layers.0.attention",
        "layers.0.moe",
        "layers.0.a*{b}",
        "layers.1.attention",
        "layers.1.moe",
        "layers.1.a*{b}",
    ];
    assert_eq!(names, expected);
    assert!(file.rules.apply(&file.model).unwrap().unmatched().is_empty());
    assert_eq!(local_shapes(&file, "layers.0.attention", "tp=2,ep=2"), [[8, 3]; 4]);
    assert_eq!(local_shapes(&file, "layers.1.moe", "tp=3,ep=2"), [[2, 2, 5]; 6]);
    assert_eq!(local_shapes(&file, "layers.1.a*{b}", "tp=3"), [[3]; 3]);
    assert_eq!(local_shapes(&file, "layers.1.moe", "pp=2"), [vec![], vec![4, 6, 5]]);
}

#[test]
fn bad_files_say_what_is_wrong() {
    for (from, to, parts) in [
        ("\"tp_shard_dim\": 1, \"_", "\"tp_shard\": 1, \"_", ["my.json", "`tp_shard`"]),
        ("num_layers", "layers", ["my.json", "`layers`"]),
        ("\"ep_shard_dim\": 0", "\"ep_shard_dim\": 3", ["\"moe\"", "ep_shard_dim = 3"]),
        ("\"ep_shard_dim\": 0", "\"ep_shard_dim\": -2", ["\"moe\"", "ep_shard_dim = -2"]),
        ("[4, 6, 5]", "[4, 0, 5]", ["\"moe\"", "[4, 0, 5]"]),
        ("[4, 6, 5]", "[4294967296, 4294967296]", ["no model", "2^64"]),
        ("\"num_layers\": 2", "\"num_layers\": 4294967295", ["my.json", "4294967295 layers of 3"]),
        ("\"moe\"", "\"attention\"", ["no model", "twice"]),
    ] {
        let error = fail(&TEXT.replace(from, to));
        assert!(parts.iter().all(|part| error.contains(part)), "{to}: {error}");
    }
}

/// NCCL M2N's own files, where they lie beside the repository.
#[test]
fn published_layers_are_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/fixtures/m2n");
    if !folder.is_dir() {
        eprintln!("not tested: there is no folder {}", folder.display());
        return;
    }
    let read =
        |name: &str| LayerFile::parse(&std::fs::read_to_string(folder.join(name)).unwrap(), name, Dtype::BF16).unwrap();
    let moe = read("moe.json");
    assert_eq!(moe.model.bytes(), 256 * 4096 * 7168 * 2);
    assert_eq!(local_shapes(&moe, "layers.0.moe", "ep=16")[0], [16, 4096, 7168]);
    assert_eq!(local_shapes(&moe, "layers.0.moe", "tp=8,dp=2")[9], [256, 512, 7168]);
    let multi = read("sample_layer_config_multi.json");
    assert_eq!(multi.model.bytes(), 4 * (256 * 4096 * 4096 + 256 * 4096 * 7168) * 2);
    assert_eq!(local_shapes(&multi, "layers.3.attention", "tp=2,ep=8")[0], [256, 2048, 4096]);
}

#[test]
fn errors_name_no_types() {
    for (text, part) in [
        ("[]", "an object with num_layers and default_tensors"),
        ("{\"num_layers\": 1, \"default_tensors\": [3]}", "an object with name, dims"),
    ] {
        let error = fail(text);
        assert!(error.contains(part) && !error.contains("struct"), "{text}: {error}");
    }
}

proptest! {
    #[test]
    fn damaged_files_are_read_or_refused(damage in prop::collection::vec((any::<u16>(), "[\\[\\]{}\":,0-9-]{0,3}"), 1..4)) {
        let mut text = TEXT.to_string();
        for (at, inserted) in damage {
            let at = at as usize % text.len();
            text.replace_range(at..=at, &inserted);
        }
        if let Ok(file) = LayerFile::parse(&text, "damaged", Dtype::U8) {
            let _ = file.rules.apply(&file.model);
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = LayerFile::parse(&String::from_utf8_lossy(&bytes), "any", Dtype::U8);
    }
}
