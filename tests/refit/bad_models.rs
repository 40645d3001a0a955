//! Models that are damaged, incomplete or missing. In: files made wrong on purpose. Out: nothing. Guarantee: each ends
//! with exit code 2 and an error on every rank that names file and fault.

use crate::job::{Job, entries};
use crate::model::{self, LLAMA};
use std::path::Path;

/// Refuses `model` on all ranks of a job between two domains.
#[track_caller]
fn refused(model: &Path, parts: &[&str]) {
    Job::new(3, model).run_with("--domains 2").with("--src tp=2 --dst tp=1 --verify").refused(parts);
}

/// A safetensors file of a header as given and `data` bytes.
fn bytes(header: &str, data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![7; data]].concat()
}

fn entry(name: &str, begin: u64, end: u64) -> String {
    format!(
        "\"{name}\":{{\"dtype\":\"U8\",\"shape\":[{}],\"data_offsets\":[{begin},{end}]}}",
        end.saturating_sub(begin)
    )
}

#[test]
fn lying_headers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let of = |entries: &[String]| format!("{{{}}}", entries.join(","));
    let (past, overlap) = (of(&[entry("a", 0, 99)]), of(&[entry("a", 0, 8), entry("b", 4, 12)]));
    let (hole, twice) = (of(&[entry("a", 0, 4), entry("b", 8, 12)]), of(&[entry("a", 0, 4), entry("a", 4, 8)]));
    let reversed = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[4,3]}}";
    let size = "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,4]}}";
    let huge = "{\"a\":{\"dtype\":\"F32\",\"shape\":[18446744073709551615,2],\"data_offsets\":[0,4]}}";
    let small = "{\"a\":{\"dtype\":\"F4\",\"shape\":[8],\"data_offsets\":[0,4]}}";
    let cases: [(Vec<u8>, &[&str]); 13] = [
        (bytes(&past, 12), &["\"a\"", "99", "12 bytes"]),
        (bytes(&overlap, 12), &["\"b\" begins at offset 4", "inside tensor \"a\""]),
        (bytes(&hole, 12), &["bytes 4 to 8"]),
        (bytes(&twice, 8), &["\"a\" stands twice"]),
        (bytes(&of(&[entry("a", 0, 4)]), 8), &["bytes 4 to 8 at the end"]),
        (bytes(reversed, 4), &["\"a\" begins at 4"]),
        (bytes(size, 4), &["\"a\" has 4 bytes", "takes 16"]),
        (bytes(huge, 4), &["\"a\"", "2^64"]),
        (bytes(small, 4), &["\"a\"", "F4"]),
        ([&u64::MAX.to_le_bytes()[..], b"{}"].concat(), &["claims 18446744073709551615 bytes"]),
        (b"short".to_vec(), &["has 5 bytes"]),
        (Vec::new(), &["0 bytes"]),
        (bytes("[1]", 0), &["starts with"]),
    ];
    for (bytes, parts) in cases {
        std::fs::write(&path, bytes).unwrap();
        refused(&path, &[parts, &["model.safetensors"]].concat());
    }
}

#[test]
fn truncated_files() {
    let (_folder, path) = model::file(LLAMA);
    let whole = std::fs::read(&path).unwrap();
    for length in [whole.len() - 1, whole.len() / 2, 100] {
        std::fs::write(&path, &whole[..length]).unwrap();
        refused(&path, &["model.safetensors", "truncated"]);
    }
}

#[test]
fn missing_models() {
    let folder = tempfile::tempdir().unwrap();
    refused(&folder.path().join("none.safetensors"), &["none.safetensors", "No such file"]);
    refused(folder.path(), &["model.safetensors.index.json", "0 .safetensors files"]);
    let path = folder.path().join("notes.txt");
    std::fs::write(&path, "x").unwrap();
    refused(&path, &["notes.txt is no model"]);
    let path = folder.path().join("x.model.json");
    std::fs::write(&path, "{\"a\": {\"shape\": [1]}}").unwrap();
    refused(&path, &["x.model.json", "dtype"]);
}

#[test]
fn incomplete_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    model::write_sharded(folder.path(), LLAMA);
    let index = folder.path().join("model.safetensors.index.json");
    let text = std::fs::read_to_string(&index).unwrap();
    std::fs::write(&index, text.replace("model.norm.weight", "model.other.weight")).unwrap();
    refused(folder.path(), &["\"model.other.weight\"", "does not hold it"]);
    std::fs::write(&index, text.replace("model-00002", "../model-00002")).unwrap();
    refused(folder.path(), &["../model-00002"]);
    std::fs::write(&index, "{\"weight_map\": 3}").unwrap();
    refused(folder.path(), &["model.safetensors.index.json"]);
    std::fs::write(&index, &text).unwrap();
    std::fs::remove_file(folder.path().join("model-00002-of-00002.safetensors")).unwrap();
    refused(folder.path(), &["model-00002-of-00002.safetensors", "is missing"]);
}

#[test]
fn empty_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let header = "{\"full\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\
                   \"none\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[8,8]}}";
    std::fs::write(&path, bytes(header, 8)).unwrap();
    let out = folder.path().join("out");
    Job::new(2, &path).with("--src tp=1 --dst tp=1 --verify").path("--out", &out).refused(&[
        "tensor \"none\" of",
        "model.safetensors has shape [3, 0]",
        "at least 1",
    ]);
    assert_eq!(entries(folder.path()), ["model.safetensors"], "nothing is written");
}

#[test]
fn a_refused_model_leaves_nothing_at_its_targets() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.safetensors");
    std::fs::write(&model, "short").unwrap();
    let job = Job::new(2, &model).with("--src tp=1 --dst tp=1");
    job.path("--out", &folder.path().join("out")).path("--json", &folder.path().join("out.json")).refused(&["5 bytes"]);
    assert_eq!(entries(folder.path()), ["model.safetensors"]);
}

#[test]
fn what_is_no_file_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["pipe.safetensors", "pipe.model.json", "pipe.safetensors.index.json"] {
        let path = folder.path().join(name);
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        refused(&path, &[name, "no regular file"]);
    }
}
