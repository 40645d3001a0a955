//! `crossmesh doctor` as users start it: alone, in a job, over what it recorded.

use super::job::{LIMIT, crossmesh};
use super::process::{Finished, run};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

fn finished(command: &mut Command) -> Finished {
    run(command, LIMIT).unwrap()
}

fn report(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn severities(report: &Value) -> Vec<&str> {
    report["findings"].as_array().unwrap().iter().map(|finding| finding["severity"].as_str().unwrap()).collect()
}

/// The exit code that a report deserves.
fn code(report: &Value) -> i32 {
    let severities = severities(report);
    match severities {
        _ if severities.contains(&"failure") => 2,
        _ if severities.contains(&"warning") => 1,
        _ => 0,
    }
}

#[test]
fn a_machine_is_looked_at_and_its_record_gives_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let (json, again) = (folder.path().join("first.json"), folder.path().join("second.json"));
    let record = folder.path().join("record");
    let output = finished(crossmesh().arg("doctor").arg("--json").arg(&json).arg("--record").arg(&record));
    let first = report(&json);
    assert_eq!(output.code(), Some(code(&first)), "{output:?}");
    let text = output.output;
    assert!(text.contains("passed: ") && text.contains("needs a job: crossmesh run"), "{text}");
    for finding in first["findings"].as_array().unwrap() {
        assert!(["what", "value", "limit", "remedy", "doc"].iter().all(|field| finding[field] != ""), "{finding}");
    }
    let output = finished(crossmesh().arg("doctor").arg("--json").arg(&again).arg("--fixture").arg(&record));
    assert_eq!(report(&again), first, "{output:?}");
}

#[test]
fn a_job_moves_bytes_between_all_pairs() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("findings.json");
    let mut command = crossmesh();
    command.args(["run", "--starter", "local", "-n", "3", "--domains", "3", "--", env!("CARGO_BIN_EXE_crossmesh")]);
    let output = finished(command.args(["doctor", "--json"]).arg(&json));
    let report = report(&json);
    assert_eq!(report["ranks"], 3, "{output:?}");
    let pairs = report["pairs"].as_array().unwrap();
    let ranks: Vec<&Value> = pairs.iter().map(|pair| &pair["ranks"]).collect();
    assert_eq!(ranks, [&serde_json::json!([0, 1]), &serde_json::json!([0, 2]), &serde_json::json!([1, 2])]);
    for pair in pairs {
        assert_eq!((&pair["link"], &pair["error"]), (&"tcp".into(), &Value::Null));
        assert!(pair["gb_per_s"].as_array().unwrap().iter().all(|rate| rate.as_f64().unwrap() > 0.0), "{pair}");
    }
    let passed = report["passed"].as_array().unwrap();
    assert!(passed.contains(&"pair-failure".into()) && passed.contains(&"versions".into()), "{report}");
    assert_eq!(output.code(), Some(code(&report)), "{output:?}");
}

#[test]
fn ranks_that_differ_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("findings.json");
    let script = format!(
        "[ \"$CROSSMESH_RANK\" != 2 ] || export CROSSMESH_CHUNK=2MiB; exec {} doctor --json {}",
        env!("CARGO_BIN_EXE_crossmesh"),
        json.display()
    );
    let output = finished(crossmesh().args(["run", "--starter", "local", "-n", "3", "--", "sh", "-c", &script]));
    let report = report(&json);
    let finding = &report["findings"].as_array().unwrap()[0];
    assert_eq!((&finding["id"], &finding["severity"]), (&"same-environment".into(), &"failure".into()), "{output:?}");
    assert!(finding["where"][0].as_str().unwrap().starts_with("rank 2 on "), "{finding}");
    assert_eq!(output.code(), Some(2), "{output:?}");
}

#[test]
fn wrong_folders_are_bad_input() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path(), &folder.path().join("absent")] {
        let output = finished(crossmesh().arg("doctor").arg("--fixture").arg(path));
        let code = output.code();
        let said = output.errors;
        assert_eq!((code, said.lines().count()), (Some(2), 1), "{said}");
        assert!(said.contains("--record FOLDER"), "{said}");
    }
}
