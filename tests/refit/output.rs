//! What a refit leaves behind. In: small models. Out: nothing. Guarantee: `--out` holds the whole model, standard output
//! is clean JSON when asked for, files are whole.

use crate::assembly::assemble;
use crate::job::{CROSSMESH, Job, clean_command, entries, read_json};
use crate::model::{self, EXAMPLE, LLAMA};
use crate::process;
use serde_json::Value;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

#[test]
fn shards_put_together_are_the_model() {
    let (folder, model) = model::file(LLAMA);
    for (ranks, arguments, destinations) in [
        (8, "--src tp=4 --dst tp=2,dp=2", vec![4, 5, 6, 7]),
        (4, "--src tp=1 --dst tp=3", vec![1, 2, 3]),
        (3, "--src tp=3 --dst dp=2 --src-ranks 0-2 --dst-ranks 2,0", vec![0, 2]),
    ] {
        let out = folder.path().join("a").join(ranks.to_string());
        Job::new(ranks, &model).run_with("--domains 2").with(arguments).path("--out", &out).verified();
        let whole = assemble(&out, &destinations).tensors;
        assert_eq!(whole.len(), LLAMA.len());
        for tensor in LLAMA {
            assert_eq!(whole[tensor.0], model::contents(tensor), "{} by {arguments}", tensor.0);
        }
        let kinds = |rank| [format!("rank-{rank:05}.layout.json"), format!("rank-{rank:05}.safetensors")];
        assert_eq!(entries(&out), destinations.iter().flat_map(kinds).collect::<Vec<_>>());
    }
}

#[test]
fn earlier_shards_are_replaced() {
    let (folder, model) = model::file(LLAMA);
    let out = folder.path().join("out");
    for arguments in ["--src tp=1 --dst dp=2", "--src tp=1 --dst tp=2"] {
        Job::new(3, &model).with(arguments).path("--out", &out).verified();
    }
    let assembly = assemble(&out, &[1, 2]);
    assert_eq!(assembly.held[&(1, "model.layers.0.mlp.up_proj.weight".into())], 23 / 2 * 10);
    assert_eq!(entries(&out).len(), 4);
}

#[test]
fn json_on_standard_output_is_one_line_and_nothing_else() {
    let (_folder, model) = model::file(EXAMPLE);
    let ended = Job::new(3, &model).run_with("--domains 2").with("--src dp=2 --dst tp=1 --verify --json -").run();
    let output = ended.output();
    assert_eq!(output.lines().count(), 1, "{output}");
    let results: Value = serde_json::from_str(&output).unwrap();
    assert_eq!((&results["verified"], &results["ranks"]), (&true.into(), &3.into()));
    assert_eq!(ended.finished.expect_success().errors, "");
    // Without a launcher there is no prefix to take away.
    let arguments = ["refit", model.to_str().unwrap(), "--src", "tp=1", "--dst", "tp=1"];
    let arguments = [&arguments[..], &["--src-ranks", "0", "--dst-ranks", "0", "--verify", "--json", "-"]].concat();
    let arguments: Vec<String> = arguments.into_iter().map(String::from).collect();
    let alone = process::run(&mut clean_command(CROSSMESH, &arguments, &[]), Duration::from_secs(60)).unwrap();
    let results: Value = serde_json::from_str(&alone.expect_success().output).unwrap();
    assert_eq!(results["ranks"], 1);
}

#[test]
fn json_files_are_replaced_as_a_whole_and_devices_are_not() {
    let (folder, model) = model::file(EXAMPLE);
    let job = || Job::new(2, &model).with("--src tp=1 --dst tp=1");
    let (file, link) = (folder.path().join("out.json"), folder.path().join("link.json"));
    std::fs::write(&file, "x".repeat(1 << 20)).unwrap();
    symlink(&file, &link).unwrap();
    job().path("--json", &link).run().finished.expect_success();
    assert_eq!(read_json(&file)["ranks"], 2);
    assert!(link.is_symlink());
    assert_eq!(entries(folder.path()), ["link.json", "model.safetensors", "out.json"]);
    job().with("--json /dev/null").run().finished.expect_success();
    assert!(!std::fs::metadata("/dev/null").unwrap().is_file());
}

#[test]
fn results_do_not_take_the_place_of_what_is_read() {
    let (folder, model) = model::file(EXAMPLE);
    let before = std::fs::read(&model).unwrap();
    let link = folder.path().join("link.json");
    symlink(&model, &link).unwrap();
    let job = |model: &Path| Job::new(3, model).with("--src tp=2 --dst tp=1");
    for path in [&model, &link] {
        job(&model).path("--json", path).refused(&["MODEL and --json both name", "give each its own file"]);
    }
    let rules = folder.path().join("my.toml");
    std::fs::write(&rules, "[[rule]]\nnames = [\"*\"]\ntp = \"replicate\"\n").unwrap();
    job(&model).path("--rules", &rules).path("--json", &rules).refused(&["--rules and --json both name"]);
    let shard = folder.path().join("rank-00002.safetensors");
    std::fs::rename(&model, &shard).unwrap();
    job(&shard).path("--out", folder.path()).refused(&["MODEL and --out both name", "rank-00002.safetensors"]);
    job(&shard)
        .path("--out", folder.path())
        .path("--json", &folder.path().join("rank-00002.layout.json"))
        .refused(&["both name"]);
    assert_eq!(std::fs::read(&shard).unwrap(), before);
    assert_eq!(entries(folder.path()), ["link.json", "my.toml", "rank-00002.safetensors"]);
}

#[test]
fn a_reader_that_goes_away_is_no_fault() {
    let (_folder, model) = model::file(EXAMPLE);
    let script = format!(
        "{{ {CROSSMESH} refit {} --src tp=1 --dst tp=1 --src-ranks 0 --dst-ranks 0; echo $? >&2; }} | true",
        model.display()
    );
    let mut command = clean_command("sh", &["-c".into(), script], &[]);
    let ended = process::run(&mut command, Duration::from_secs(60)).unwrap();
    assert_eq!(ended.errors.trim(), "0");
}
