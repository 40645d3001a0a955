//! Plans that cannot be: wrong files, specs, clusters, options, places to write to. Every one ends with exit code 2 and
//! an error that says what was wrong, and nothing is written.

use crate::plan::{here, plan};
use std::fs;
use std::path::Path;

const MODEL: &str = r#"{"model.layers.0.mlp.up_proj.weight": {"shape": [64, 16], "dtype": "BF16"}}"#;
const SYSTEM: &str =
    r#"{"train": {"num_gpus": 4, "tp_size": 2, "dp_size": 2}, "generation": {"num_gpus": 2, "tp_size": 2}}"#;

/// Refused in a folder with `name` for a file; the error has all of `parts`.
#[track_caller]
fn refused(files: &[(&str, &str)], arguments: &str, parts: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (json, html) = (path("out.json"), path("out.html"));
    let words: Vec<String> =
        arguments.split_whitespace().map(|word| word.strip_prefix('@').map_or(word.to_string(), path)).collect();
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    for (option, target) in [("--json", &json), ("--html", &html)] {
        if !words.contains(&option) {
            words.extend([option, target]);
        }
    }
    let ended = plan(&words);
    assert_eq!(ended.code, Some(2), "{arguments}: {}", ended.error);
    assert!(parts.iter().all(|part| ended.error.contains(part)), "{arguments}: {parts:?} in {}", ended.error);
    assert!(!ended.error.contains("panicked") && ended.output.is_empty(), "{arguments}: {}", ended.output);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), files.len(), "{arguments} left something");
}

#[test]
fn wrong_models() {
    let shape = |shape: &str| MODEL.replace("[64, 16]", shape);
    for (text, parts) in [
        (shape("[64, 0]"), &["up_proj", "[64, 0]", "at least 1"][..]),
        (shape("[4294967296, 4294967296]"), &["up_proj", "2^64"]),
        (
            shape("[-1]"),
            &["up_proj.weight\".shape[0]", "integer `-1`, expected a whole number from 0 to 18446744073709551615"],
        ),
        (shape("[64, 1.5]"), &["shape[1]", "floating point `1.5`, expected a whole number from 0 to"]),
        (MODEL.replace("BF16", "BF17"), &["BF17"]),
        (MODEL.replace("\"dtype\"", "\"type\""), &["`type`", "`dtype`"]),
        (MODEL.replace("}}", "}"), &["m.model.json", "line 1"]),
        ("{}".into(), &["m.model.json has no tensors"]),
    ] {
        refused(&[("m.model.json", &text)], "--model @m.model.json --src tp=2 --dst tp=1", parts);
    }
    refused(&[], "--model @absent.model.json --src tp=2 --dst tp=1", &["absent.model.json", "No such file"]);
    for name in ["gpt-5", "qwen3", "llama-3-70b-stacked"] {
        let parts = [&format!("called \"{name}\""), "qwen3-32b, llama-3-70b", "deepseek-v3"];
        refused(&[], &format!("--model {name} --src tp=2 --dst tp=1"), &parts);
    }
}

#[test]
fn wrong_systems() {
    let system = |from: &str, to: &str| {
        assert!(SYSTEM.contains(from), "{from}");
        SYSTEM.replace(from, to)
    };
    for (text, parts) in [
        // Neither view has as many ranks as there are GPUs: both products and the number.
        (
            system("\"num_gpus\": 4", "\"num_gpus\": 5, \"ep_size\": 2"),
            &["is 5", "multiply to 8", "to 4 without ep"][..],
        ),
        (
            system("\"tp_size\": 2,", "\"tp_size\": 2, \"etp_size\": 1, \"ep_size\": 3,"),
            &["dp=2 x tp=2 is 4 ranks", "ep=3 x etp=1 is 3", "of 4 ranks"],
        ),
        (system("\"dp_size\"", "\"dq_size\""), &["unknown field `dq_size`"]),
        (system("\"tp_size\": 2,", "\"tp_size\": 0,"), &["train", "size \"0\"", "axis tp"]),
        (
            system("\"num_gpus\": 4", "\"num_gpus\": 4294967296"),
            &["train.num_gpus: ", "4294967296", "expected a whole number from 0 to 4294967295"],
        ),
        ("[]".into(), &["s.json is no system file"]),
    ] {
        let files = [("m.model.json", MODEL), ("s.json", text.as_str())];
        refused(&files, "--model @m.model.json --system @s.json", parts);
    }
    let files = [("m.model.json", MODEL)];
    refused(&files, "--model @m.model.json --system @absent.json", &["absent.json", "No such file"]);
}

#[test]
fn wrong_specs_and_clusters() {
    for (arguments, parts) in [
        ("--src tp=2", &["--dst <SPEC>"][..]),
        ("", &["--system FILE, or --src SPEC and --dst SPEC"]),
        ("--src xp=2 --dst tp=1", &["--src", "xp"]),
        ("--src tp=0 --dst tp=1", &["size \"0\""]),
        ("--src tp=2,dp=2,etp=1,ep=2 --dst tp=1", &["dp=2 x tp=2 is 4 ranks", "ep=2 x etp=1 is 2"]),
        ("--src tp=65535 --dst tp=2", &["65535 source and 2 destination ranks", "65536"]),
        ("--src tp=4294967295,dp=2 --dst tp=1", &["tp=4294967295,dp=2"]),
        ("--src pp=1+1 --dst tp=1", &["2 layers together", "the model has 1"]),
        ("--src tp=2 --dst tp=1 --topology gb300:2", &["gb300", "gb200-nvl72, hgx-h100, dgx-a100"]),
        ("--src tp=2 --dst tp=1 --topology hgx-h100:1", &["hgx-h100:1", "write hgx-h100:2"]),
        ("--src tp=2 --dst tp=1 --route direct", &["--route \"direct\"", "gather-broadcast, auto"]),
        ("--src tp=2 --dst tp=1 --injection all", &["--injection \"all\"", "striped, single"]),
        ("--src tp=2 --dst tp=1 --cast f8", &["--cast \"f8\"", "f32, f16, bf16"]),
        ("--src tp=2 --dst tp=1 --explain 3", &["--explain 3", "ranks 0 to 2"]),
        (
            "--src tp=2 --dst tp=1 --explain three",
            &["'three' for '--explain", "give a whole number from 0 to 4294967295"],
        ),
        ("--src tp=2 --dst tp=1 --explain -1", &["'-1' for '--explain", "give a whole number from 0 to 4294967295"]),
        ("--src tp=2 --dst tp=1 --rules llamas", &["\"llamas\""]),
        ("--src tp=2 --dst tp=1 --json @same --html @same", &["--json and --html both name"]),
        ("--src tp=2 --dst tp=1 --json @same --html @./same", &["--json and --html both name"]),
        ("--src tp=2 --dst tp=1 --save @same --json @same", &["--save and --json both name"]),
        ("--src tp=2 --dst tp=1 --save @./same --html @same", &["--save and --html both name"]),
        ("--src tp=2 --dst tp=1 --json @m.model.json", &["--model and --json both name"]),
        ("--src tp=2 --dst tp=1 --json @absent/out.json", &["--json", "absent", "No such file"]),
        ("--src tp=2 --dst tp=1 --case x.json", &["cannot be used with"]),
        ("--src tp=2 --dst tp=1 --save -", &["--save -", "give a path"]),
        ("--src tp=2 --dst tp=1 --save @absent/plan", &["--save", "absent", "No such file"]),
    ] {
        refused(&[("m.model.json", MODEL)], &format!("--model @m.model.json {arguments}"), parts);
    }
    refused(&[], "--src tp=2 --dst tp=1", &["--model <MODEL>|--case <FILE[#NAME]>|--load <FILE>"]);
    for (tensor, heads) in [(3, "64 query heads and 8 key-value heads"), (128, "64 query heads")] {
        let parts = ["model.layers.0.self_attn.k_proj.weight", heads, &format!("under tp={tensor}")];
        refused(&[], &format!("--model qwen3-32b --src tp={tensor} --dst tp=1"), &parts);
        refused(&[], &format!("--model qwen3-32b --src tp=1 --dst tp={tensor}"), &parts);
    }
}

#[test]
fn wrong_plan_files() {
    let files = [("plan", "no plan")];
    refused(&files, "--load @plan --json @plan", &["--load and --json both name"]);
    refused(&files, "--load @plan --html @./plan", &["--load and --html both name"]);
    refused(&files, "--load @plan", &["is no plan file", "give one that crossmesh plan --save wrote"]);
    refused(&files, "--load @.", &["it is no regular file; give one that crossmesh plan --save wrote"]);
    refused(&[], "--load @absent", &["absent", "No such file"]);
    let cases = fs::read_to_string(here("../tests/planner/cases.json")).unwrap();
    refused(&[("c.json", &cases)], "--case @c.json --save @plan", &["--save <FILE>", "cannot be used with"]);
    let links = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| links.path().join(name));
    fs::write(&one, "before").unwrap();
    std::os::unix::fs::symlink("one", &other).unwrap();
    let results = format!("--save {} --json {}", one.display(), other.display());
    let arguments = format!("--model @m.model.json --src tp=2 --dst tp=1 {results}");
    refused(&[("m.model.json", MODEL)], &arguments, &["--save and --json both name"]);
    assert_eq!(fs::read_to_string(&one).unwrap(), "before");
    // Also where nothing is yet.
    fs::remove_file(&one).unwrap();
    refused(&[("m.model.json", MODEL)], &arguments, &["--save and --json both name"]);
    for (link, leads_to, parts) in [
        ("lost", "absent/one", ["absent/one, where the link", "make its folder", "No such file"]),
        ("loop", "loop", ["--json", "loop", "Too many levels of symbolic links"]),
    ] {
        let link = links.path().join(link);
        std::os::unix::fs::symlink(leads_to, &link).unwrap();
        let arguments = format!("--model @m.model.json --src tp=2 --dst tp=1 --json {}", link.display());
        refused(&[("m.model.json", MODEL)], &arguments, &parts);
        assert!(link.is_symlink());
    }
}

#[test]
fn wrong_rules() {
    for (rules, parts) in [
        ("[[rule]]\nnames = [\"nothing.*\"]\ntp = 0\n", &["nothing.*"][..]),
        ("[[rule]]\nnames = [\"*.up_proj.weight\"]\ntp = 7\n", &["up_proj", "7"]),
        (
            "[[rule]]\nnames = [\"*.up_proj.weight\"]\ntp = 0\n[[rule]]\nnames = [\"*.mlp.*\"]\ntp = 1\n",
            &["up_proj", "r.toml:1 and", "r.toml:4"],
        ),
        ("[[rule]]\nname = [\"*\"]\n", &["`name`"]),
    ] {
        let files = [("m.model.json", MODEL), ("r.toml", rules)];
        refused(&files, "--model @m.model.json --src tp=2 --dst tp=1 --rules @r.toml", parts);
    }
}

#[test]
fn empty_tensors_of_checkpoints() {
    let header = r#"{"none":{"dtype":"F32","shape":[3,0],"data_offsets":[0,0]}}"#;
    let length = (header.len() as u64).to_le_bytes();
    let file = format!("{}{header}", std::str::from_utf8(&length).unwrap());
    let files = [("m.safetensors", file.as_str())];
    refused(&files, "--model @m.safetensors --src tp=2 --dst tp=1", &["\"none\" of", "[3, 0]", "at least 1"]);
}

const EXPERTS: &str = r#"{"model.layers.0.mlp.experts.0.up_proj.weight": {"shape": [8, 4], "dtype": "BF16"},
    "model.layers.0.mlp.experts.1.up_proj.weight": {"shape": [8, 4], "dtype": "BF16"}}"#;

#[test]
fn wrong_expert_maps() {
    for (map, parts) in [
        ("[0, 0]", &["expert 1 of 2", "is a permutation"][..]),
        ("[0, 2]", &["slot 1", "expert 2", "the model has 2"]),
        ("[0, 1, 0]", &["3 expert slots over 2 ranks"]),
        ("{\"slots\": [0, 1]}", &["e.json is no expert map"]),
    ] {
        let files = [("m.model.json", EXPERTS), ("e.json", map)];
        for side in ["src", "dst"] {
            let arguments = format!("--model @m.model.json --src ep=2 --dst ep=2 --expert-map-{side} @e.json");
            refused(&files, &arguments, parts);
        }
    }
    let files = [("m.model.json", EXPERTS)];
    refused(&files, "--model @m.model.json --src tp=1 --dst tp=1 --expert-map-dst @e.json", &["cannot read", "e.json"]);
    refused(
        &[("m.model.json", MODEL), ("e.json", "[0]")],
        "--model @m.model.json --src tp=1 --dst tp=1 --expert-map-dst @e.json",
        &["no rule finds an expert"],
    );
    refused(&[("e.json", "[0]")], "--case c.json --expert-map-dst @e.json", &["cannot be used with"]);
}

#[test]
fn wrong_cases() {
    refused(&[], "--case #name", &["--case \"#name\" names no file; write FILE or FILE#NAME"]);
    let good = fs::read_to_string(here("../tests/planner/cases.json")).unwrap();
    let changed = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        good.replacen(from, to, 1)
    };
    for (text, parts) in [
        (changed("\"shape\": [4, 8]", "\"shape\": [4, 0]"), &["rows of 4 to 2, twice", "[4, 0]"][..]),
        (changed("\"shape\": [4, 8]", "\"shape\": [4294967296, 4294967296]"), &["64 bits"]),
        (changed("shard(0)", "shard(9)"), &["rows of 4 to 2, twice", "src"]),
        (changed("shard(0)", "split"), &["\"split\" is no placement"]),
        (changed("\"mesh\": [4]", "\"mesh\": [5]"), &["5 slots and 4 ranks"]),
        (changed("\"dtype\"", "\"type\""), &["unknown field `type`"]),
        (changed("sizes=5/3", "sizes=5/4"), &["given sizes"]),
        (changed("[0, 0, 1]", "[0, 0]"), &["given sizes", "domains lists 2 ranks", "rank 2"]),
        ("[]".into(), &["holds no case"]),
    ] {
        refused(&[("c.json", &text)], "--case @c.json", parts);
    }
    let short =
        fs::read_to_string(here("../tests/planner/cases.json")).unwrap().replacen("[0, 0, 0, 0, 1", "[0, 0, 0, 1", 1);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.json");
    fs::write(&path, &short).unwrap();
    let ended = plan(&["--case", path.to_str().unwrap()]);
    assert_eq!((ended.code, ended.error.matches("rank 7").count()), (Some(2), 1), "said once: {}", ended.error);
    refused(&[("c.json", &good)], "--case @c.json#other", &["no case \"other\"", "\"nine ranks\""]);
    refused(&[], "--case @absent.json#x", &["absent.json", "No such file"]);
    assert!(!Path::new("out.json").exists());
}
