//! Models that no host has memory for. In: descriptions of vast tensors. Out: nothing. Guarantee: refused on all ranks
//! together, before any memory is taken.

use crate::job::Job;
use serde_json::json;

/// Bytes beyond any address, so that not even a build without the check takes memory for them.
const MODEL: &str = r#"{"model.layers.0.mlp.up_proj.weight": {"shape": [16777216, 16777216], "dtype": "BF16"}}"#;
const VAST: &str = r#"{"name": "vast", "shape": [16777216, 16777216], "dtype": "BF16",
    "src": {"mesh": [1], "ranks": [0], "placements": ["replicate"]},
    "dst": {"mesh": [2], "ranks": [1, 2], "placements": ["shard(0)"]}}"#;
const SMALL: &str = r#"{"name": "small", "shape": [16, 16], "dtype": "BF16",
    "src": {"mesh": [1], "ranks": [0], "placements": ["replicate"]},
    "dst": {"mesh": [2], "ranks": [1, 2], "placements": ["shard(0)"]}}"#;

#[test]
fn what_is_beyond_the_memory_of_a_host_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [model, cases] = ["vast.model.json", "cases.json"].map(|name| folder.path().join(name));
    std::fs::write(&model, MODEL).unwrap();
    std::fs::write(&cases, format!("[{VAST}]")).unwrap();
    let parts = [
        "the 3 ranks on host ",
        " need 1024.0 TiB of memory (1024.0 TiB for tensors of both sides, 48.0 MiB to stage them)",
        "start fewer ranks on a host and more hosts, cut the tensors into more shards, or move a smaller model",
    ];
    for memory in ["shared", "private"] {
        let arguments = format!("--src tp=1 --dst tp=2 --memory {memory}");
        Job::new(3, &model).run_with("--domains 2").with(&arguments).refused(&parts);
    }
    Job::of_case(3, &cases.display().to_string()).refused(&parts);
}

#[test]
fn cases_that_fit_are_moved_beside_those_that_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let cases = folder.path().join("cases.json");
    std::fs::write(&cases, format!("[{SMALL}, {VAST}, {SMALL}]").replacen("small", "first", 1)).unwrap();
    let results = Job::of_case(3, &cases.display().to_string()).with("--verify").results();
    assert_eq!((&results["moved"], &results["skipped"]), (&json!(2), &json!(1)), "{results:#}");
    let why = results["cases"][1]["skipped"].as_str().unwrap();
    assert!(why.starts_with("the 3 ranks on host ") && why.contains("need 1024.0 TiB"), "{why}");
}
