//! Models that no host has memory for. In: descriptions of vast tensors. Out: nothing. Guarantee: refused on all ranks
//! together, before any memory is taken.

use crate::job::Job;

/// Bytes beyond any address, so that not even a build without the check takes memory for them.
const MODEL: &str = r#"{"model.layers.0.mlp.up_proj.weight": {"shape": [16777216, 16777216], "dtype": "BF16"}}"#;
const CASE: &str = r#"[{"name": "vast", "shape": [16777216, 16777216], "dtype": "BF16",
    "src": {"mesh": [1], "ranks": [0], "placements": ["replicate"]},
    "dst": {"mesh": [2], "ranks": [1, 2], "placements": ["shard(0)"]}}]"#;

#[test]
fn what_is_beyond_the_memory_of_a_host_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [model, cases] = ["vast.model.json", "cases.json"].map(|name| folder.path().join(name));
    std::fs::write(&model, MODEL).unwrap();
    std::fs::write(&cases, CASE).unwrap();
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
