//! `crossmesh plan` as users see it: byte counts that were computed by hand, routes, the choice, a rank, a page.

use crate::job::{Finished, crossmesh, finish};
use serde_json::{Value, json};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Cases by hand, and those that the test bench shares with other tools.
const CASES: [&str; 2] = ["../tests/planner/cases.json", "../../shared/fixtures/cases/cases.json"];
const QWEN: &[&str] = &["--model", "qwen3-32b", "--src", "tp=2,pp=4,dp=2", "--dst", "dp=16"];

/// The command with `arguments`.
pub(crate) fn plan(arguments: &[&str]) -> Finished {
    let mut command = crossmesh();
    command.arg("plan").args(arguments);
    finish(command)
}

/// A path relative to the launcher's package.
pub(crate) fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[track_caller]
fn planned(arguments: &[&str]) -> Value {
    let done = plan(&[arguments, &["--json", "-"]].concat());
    assert_eq!(done.code, Some(0), "{arguments:?}: {}", done.error);
    assert_eq!(done.output.lines().count(), 1, "one line: {}", done.output);
    serde_json::from_str(&done.output).unwrap()
}

fn route<'a>(report: &'a Value, name: &str, injection: &str) -> &'a Value {
    let routes = report["routes"].as_array().unwrap();
    let found = routes.iter().find(|route| route["name"] == name && route["injection"] == injection);
    found.unwrap_or_else(|| panic!("{name} {injection} in {report:#}"))
}

#[test]
fn cases_are_as_expected() {
    for path in CASES.map(here) {
        let Ok(text) = std::fs::read_to_string(&path) else {
            println!("not run: {} is absent", path.display());
            continue;
        };
        let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
        let reports = planned(&["--case", path.to_str().unwrap()]);
        assert_eq!(reports.as_array().unwrap().len(), cases.len());
        for (case, report) in cases.iter().zip(reports.as_array().unwrap()) {
            compare(case, report);
        }
    }
}

#[track_caller]
fn compare(case: &Value, report: &Value) {
    assert_eq!(case["name"], report["name"]);
    let Some(expect) = case.get("expect") else {
        assert_eq!(report["as_expected"], Value::Null);
        return;
    };
    assert_eq!((&report["as_expected"], &report["coverage"]), (&json!(true), &json!("complete")));
    for field in ["unique_bytes", "delivered_bytes"] {
        assert_eq!(expect[field], report[field], "{report:#}");
    }
    let flat = route(report, "flat", "single");
    assert_eq!(expect["flat_inter_domain_bytes"], flat["inter_domain_bytes"], "{report:#}");
    for injection in ["striped", "single"] {
        let route = route(report, "hierarchical", injection);
        assert_eq!(expect["hierarchical_inter_domain_bytes"], route["inter_domain_bytes"], "{report:#}");
        assert_eq!(expect["ingress_per_domain"], route["ingress_per_domain"], "{report:#}");
    }
}

#[test]
fn what_is_not_as_expected_fails() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cases.json");
    let text = std::fs::read_to_string(here(CASES[0])).unwrap();
    for (right, wrong) in
        [("\"unique_bytes\": 64", "unique_bytes is 64"), ("{\"1\": 64}", "ingress_per_domain is {1: 64}")]
    {
        std::fs::write(&path, text.replace(right, &right.replace("64", "65"))).unwrap();
        let json = folder.path().join("out.json");
        let done = plan(&["--case", path.to_str().unwrap(), "--json", json.to_str().unwrap()]);
        assert_eq!(done.code, Some(1), "{}", done.error);
        assert!(done.error.contains(&format!("case \"rows of 4 to 2, twice\": {wrong} and the file expects")));
        assert!(!json.exists());
    }
}

#[test]
fn one_case_by_name_and_the_sides_domains() {
    let cases = here(CASES[0]);
    let report = planned(&["--case", &format!("{}#no domains stated", cases.display())]);
    let [report] = report.as_array().unwrap().as_slice() else { panic!("{report:#}") };
    // Each side has a domain of its own, so all of the 12 bytes cross.
    assert_eq!((&report["domains"], &report["delivered_bytes"]), (&json!(2), &json!(12)));
    assert_eq!(route(report, "hierarchical", "striped")["ingress_per_domain"], json!({"1": 12}));
}

#[test]
fn a_model_by_every_route() {
    let arguments = [QWEN, &["--topology", "gb200-nvl72:2/16", "--simulate"]].concat();
    let report = planned(&arguments);
    assert_eq!((&report["coverage"], &report["chosen"]), (&json!("complete"), &json!("hierarchical")));
    assert_eq!(report["chosen_injection"], "striped");
    // Of the largest stage, every one of 4 ranks (2 tensor-parallel, 2 replicas) sends a quarter once.
    let stages = report["stages"].as_array().unwrap();
    assert_eq!(stages.iter().map(|stage| stage["ranks"].as_u64().unwrap()).collect::<Vec<_>>(), [4; 4]);
    let largest = stages.iter().map(|stage| stage["bytes"].as_u64().unwrap()).max().unwrap();
    assert_eq!(report["nic_bound_bytes"], largest.div_ceil(4));
    let striped = route(&report, "hierarchical", "striped");
    assert_eq!(striped["max_nic_bytes"], report["nic_bound_bytes"]);
    assert_eq!(striped["inter_domain_bytes"], report["bytes"]);
    assert_eq!(route(&report, "flat", "single")["inter_domain_bytes"], 16 * report["bytes"].as_u64().unwrap());
    let ranks = report["per_rank"].as_array().unwrap();
    let sum = |field: &str| ranks.iter().map(|rank| rank[field].as_u64().unwrap()).sum::<u64>();
    assert_eq!((json!(sum("network_sent")), sum("network_received")), (report["bytes"].clone(), sum("network_sent")));
    for route in report["routes"].as_array().unwrap() {
        let over = route["simulated"]["over_bound"].as_f64().unwrap();
        assert!((1.0..1.2).contains(&over), "{route:#}");
        assert!(route["predicted_seconds"].as_f64() >= route["bound_seconds"].as_f64(), "{route:#}");
    }
    let mut again = planned(&arguments);
    again["plan_seconds"] = report["plan_seconds"].clone();
    assert_eq!(again, report, "equal but for the time it took");
}

#[test]
fn a_route_may_be_asked_for() {
    for (options, variable, chosen, injection) in [
        (&["--route", "flat"][..], None, "flat", "single"),
        (&["--route", "auto", "--injection", "single"], None, "hierarchical", "single"),
        (&["--route", "flat"], Some(("CROSSMESH_ROUTE", "gather-broadcast")), "gather-broadcast", "single"),
    ] {
        let mut command = crossmesh();
        command.arg("plan").args(QWEN).args(options).args(["--json", "-"]).envs(variable);
        let done = finish(command);
        assert_eq!(done.code, Some(0), "{}", done.error);
        let report: Value = serde_json::from_str(&done.output).unwrap();
        assert_eq!((report["chosen"].as_str(), report["chosen_injection"].as_str()), (Some(chosen), Some(injection)));
        assert_eq!(report["routes"].as_array().unwrap().len(), 4, "the others are shown beside it");
    }
}

#[test]
fn casts_and_sums_count_what_travels() {
    let arguments = [QWEN, &["--topology", "gb200-nvl72:2/16"]].concat();
    let (plain, wide) = (planned(&arguments), planned(&[&arguments[..], &["--cast", "f32"]].concat()));
    // Widened behind the wire: the same bytes cross, and twice as many are stored.
    assert_eq!((&plain["bytes"], &plain["nic_bound_bytes"]), (&wide["bytes"], &wide["nic_bound_bytes"]));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cases.json");
    let case = json!([{
        "name": "terms", "shape": [4, 8], "dtype": "F32", "domains": [0, 0, 1, 2],
        "src": {"mesh": [3], "ranks": [0, 1, 2], "placements": ["partial(sum)"]},
        "dst": {"mesh": [1], "ranks": [3], "placements": ["replicate"]},
    }]);
    std::fs::write(&path, case.to_string()).unwrap();
    let report = &planned(&["--case", path.to_str().unwrap(), "--simulate"])[0];
    let striped = route(report, "hierarchical", "striped");
    // One term crosses from domain 1 to 0 or back, and the sum to domain 2.
    assert_eq!(striped["inter_domain_bytes"], 2 * 4 * 8 * 4);
    for route in report["routes"].as_array().unwrap() {
        assert!(route["simulated"]["over_bound"].as_f64().unwrap() >= 1.0, "{route:#}");
    }
}

/// Of four experts with a tensor each, one rank has the first three times, the other one the others.
#[test]
fn experts_lie_as_their_map_says() {
    let folder = tempfile::tempdir().unwrap();
    let (model, map) = (folder.path().join("m.model.json"), folder.path().join("map.json"));
    let expert = |index: u32| format!("model.layers.0.mlp.experts.{index}.up_proj.weight");
    let tensors: serde_json::Map<String, Value> =
        (0..4).map(|index| (expert(index), json!({"shape": [8, 4], "dtype": "BF16"}))).collect();
    std::fs::write(&model, Value::from(tensors).to_string()).unwrap();
    std::fs::write(&map, json!({"physical_to_logical_map": [[0, 0, 0, 1, 2, 3]]}).to_string()).unwrap();
    let bytes = |arguments: &[&str], field: &str| {
        let report = planned(&[&["--model", model.to_str().unwrap()], arguments].concat());
        let of = |rank: &Value| ["network", "nvlink"].map(|link| rank[format!("{link}_{field}")].as_u64().unwrap());
        let ranks = report["per_rank"].as_array().unwrap();
        ranks.iter().map(|rank| of(rank).iter().sum::<u64>() / 64).collect::<Vec<_>>()
    };
    let map = map.to_str().unwrap();
    assert_eq!(bytes(&["--src", "tp=1", "--dst", "ep=2"], "received"), [0, 2, 2]);
    assert_eq!(bytes(&["--src", "tp=1", "--dst", "ep=2", "--expert-map-dst", map], "received"), [0, 1, 3]);
    assert_eq!(bytes(&["--src", "ep=2", "--dst", "tp=1", "--expert-map-src", map], "sent"), [1, 3, 0]);
}

#[test]
fn a_rank_is_explained() {
    let case = format!("{}#rows of 4 to 2, twice", here(CASES[0]).display());
    let shown = plan(&["--case", &case, "--route", "hierarchical", "--explain", "4"]);
    assert_eq!(shown.code, Some(0), "{}", shown.error);
    // Half of the tensor is wanted by ranks 4 and 6; each leads half of that and reads the rest.
    for part in ["rank 4: domain 1", "holds 0 B, wants 32 B", "leads into its domain", "reads over NVLink from"] {
        assert!(shown.output.contains(part), "{part} in {}", shown.output);
    }
    let line = shown.output.lines().find(|line| line.contains("reads over NVLink from")).unwrap();
    assert!(line.contains("16 B with 1 rank"), "{}", shown.output);
    let report = &planned(&["--case", &case, "--route", "hierarchical", "--explain", "4"])[0];
    let part = &report["explained"];
    assert_eq!((&part["rank"], &part["holds_bytes"], &part["wants_bytes"]), (&json!(4), &json!(0), &json!(32)));
    assert_eq!(part["leads"]["bytes"], 16);
    assert_eq!(part["reads_from"]["6"]["bytes"], 16);
    assert_eq!(planned(&["--case", &case])[0].get("explained"), None);
    let page = plan(&["--case", &case, "--explain", "4", "--html", "-"]);
    assert!(page.output.contains("<pre>rank 4: domain 1"), "{}", page.error);
}

/// Of 64 layers keys and values have 8 heads of 128 rows each, which 16 ranks hold twice.
#[test]
fn key_value_heads_are_repeated() {
    let delivered = |destination: &str| {
        let report = planned(&["--model", "qwen3-32b", "--src", "tp=4", "--dst", destination]);
        report["delivered_bytes"].as_u64().unwrap()
    };
    let norms = (64 * (2 * 5120 + 2 * 128) + 5120) * 2;
    let keys_and_values = 64 * 2 * 8 * 128 * 5120 * 2;
    let once = delivered("tp=1");
    assert_eq!(delivered("tp=8"), once + 7 * norms);
    assert_eq!(delivered("tp=16"), once + 15 * norms + keys_and_values);
    assert_eq!(delivered("tp=32"), once + 31 * norms + 3 * keys_and_values);
}

/// Of each layer `moe` is cut by both axes, `attention` by `tp` alone, and so four times there under `ep=4`.
#[test]
fn layer_files_state_their_rules() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("layers.json");
    let text = r#"{"num_layers": 2, "default_tensors": [
        {"name": "attention", "dims": [7, 3], "tp_shard_dim": 0},
        {"name": "moe", "dims": [8, 6, 5], "tp_shard_dim": 1, "ep_shard_dim": 0}]}"#;
    std::fs::write(&path, text).unwrap();
    let own = path.to_str().unwrap();
    let report = planned(&["--model", own, "--src", "tp=3,ep=2", "--dst", "tp=2,ep=4"]);
    let (attention, moe) = (7 * 3 * 2, 8 * 6 * 5 * 2);
    assert_eq!((&report["bytes"], &report["replicated_unknown"]), (&json!(2 * (attention + moe)), &json!([])));
    assert_eq!(report["delivered_bytes"], 2 * (4 * attention + moe));
    let published = here("../../shared/fixtures/m2n/moe.json");
    if !published.exists() {
        println!("not run: {} is absent", published.display());
        return;
    }
    let report = planned(&["--model", published.to_str().unwrap(), "--src", "tp=2,ep=2", "--dst", "ep=4"]);
    assert_eq!(report["delivered_bytes"], 256u64 * 4096 * 7168 * 2);
}

#[test]
fn axes_that_do_nothing_are_told() {
    let told = plan(&["--model", "llama-3-70b", "--src", "pp=200", "--dst", "tp=2,ep=2", "--json", "-"]);
    assert_eq!(told.code, Some(0), "{}", told.error);
    let report: Value = serde_json::from_str(&told.output).unwrap();
    let warnings = report["warnings"].as_array().unwrap();
    for (part, warning) in
        ["source pp=200: 120 of 200 pipeline stages have no layer", "destination tp=2,ep=2: ep=2 deals out nothing"]
            .into_iter()
            .zip(warnings)
    {
        assert!(warning.as_str().unwrap().contains(part) && told.error.contains(part), "{warning}: {}", told.error);
    }
    assert_eq!(warnings.len(), 2);
}

#[test]
fn plans_are_saved_and_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan");
    let file = path.to_str().unwrap();
    let saved = planned(&[QWEN, &["--topology", "gb200-nvl72:2/16", "--injection", "single", "--save", file]].concat());
    let mut loaded = planned(&["--load", file, "--topology", "gb200-nvl72:2/16"]);
    assert_eq!(loaded["name"], format!("{file}, as saved"));
    for field in ["name", "plan_seconds", "reason"] {
        loaded[field] = saved[field].clone();
    }
    assert_eq!((&loaded["chosen_injection"], &loaded), (&json!("single"), &saved));
    let refused = |arguments: &[&str], parts: &[&str]| {
        let ended = plan(&[&["--load", file], arguments].concat());
        assert_eq!((ended.code, ended.output.as_str()), (Some(2), ""), "{}", ended.error);
        assert!(parts.iter().all(|part| ended.error.contains(part)), "{parts:?} in {}", ended.error);
    };
    // Stages without a layer hold nothing.
    let empty = ["--model", "llama-3-70b", "--src", "pp=90", "--dst", "tp=2", "--save", file];
    let saved = planned(&empty);
    assert_eq!(planned(&["--load", file])["per_rank"], saved["per_rank"]);
    planned(&[QWEN, &["--topology", "gb200-nvl72:2/16", "--injection", "single", "--save", file]].concat());
    refused(&["--topology", "hgx-h100"], &["made for cluster gb200-nvl72:2/16 (", "and here it is hgx-h100 ("]);
    refused(&["--route", "flat"], &["cannot be used with"]);
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    refused(&[], &["is damaged"]);
    bytes[8] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    refused(&[], &["has version"]);
}

/// Equal nodes and domains, other links.
#[test]
fn saved_plans_are_for_the_links_that_they_were_made_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan");
    let file = path.to_str().unwrap();
    planned(&["--model", "qwen3-32b", "--src", "tp=2", "--dst", "tp=4", "--topology", "dgx-a100:2", "--save", file]);
    planned(&["--load", file, "--topology", "dgx-a100:2"]);
    for other in ["hgx-h100:2", "2x[8gpu,8nic@20GB,nvlink300GB]", "2x[8gpu,8nic@25GB,nvlink450GB]"] {
        let ended = plan(&["--load", file, "--topology", other]);
        assert_eq!((ended.code, ended.output.as_str()), (Some(2), ""), "{}", ended.error);
        for part in ["made for cluster dgx-a100:2 (", &format!("and here it is {other} (")] {
            assert!(ended.error.contains(part), "{part} in {}", ended.error);
        }
    }
}

#[test]
fn plans_are_saved_where_other_results_are() {
    let folder = tempfile::tempdir().unwrap();
    let [file, link, pipe] = ["file", "link", "pipe"].map(|name| folder.path().join(name));
    let save = |path: &Path| {
        planned(&["--model", "qwen3-32b", "--src", "tp=2", "--dst", "tp=1", "--save", path.to_str().unwrap()]);
    };
    std::fs::write(&file, "before").unwrap();
    std::os::unix::fs::symlink("file", &link).unwrap();
    save(&link);
    assert!(link.is_symlink(), "the link is still one");
    let saved = std::fs::read(&file).unwrap();
    planned(&["--load", file.to_str().unwrap()]);
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // Opened without its writer; what is saved fits into it.
    let mut reader = std::fs::OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(&pipe).unwrap();
    save(&pipe);
    assert!(pipe.metadata().unwrap().file_type().is_fifo(), "the pipe is still one");
    let mut read = Vec::new();
    reader.read_to_end(&mut read).unwrap();
    assert_eq!(read, saved);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3, "nothing else is left");
}

#[test]
fn links_that_lead_nowhere_get_the_file_that_they_name() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second, chain] = ["first.json", "kept/second.html", "chain"].map(|name| folder.path().join(name));
    let [to_first, to_second] = ["to-first", "to-second"].map(|name| folder.path().join(name));
    std::fs::create_dir(folder.path().join("kept")).unwrap();
    std::os::unix::fs::symlink("first.json", &to_first).unwrap();
    std::os::unix::fs::symlink(&second, &chain).unwrap();
    std::os::unix::fs::symlink("chain", &to_second).unwrap();
    let words = ["--model", "qwen3-32b", "--src", "tp=2", "--dst", "tp=1"];
    let [json, html] = [&to_first, &to_second].map(|path| path.to_str().unwrap());
    let done = plan(&[&words[..], &["--json", json, "--html", html]].concat());
    assert_eq!(done.code, Some(0), "{}", done.error);
    assert!(to_first.is_symlink() && to_second.is_symlink() && chain.is_symlink(), "links are still links");
    let report: Value = serde_json::from_slice(&std::fs::read(&first).unwrap()).unwrap();
    assert_eq!(report["coverage"], "complete");
    assert!(std::fs::read_to_string(&second).unwrap().contains("<html"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 5, "nothing else is left");
}

#[test]
fn one_stage_has_no_sum() {
    let report = planned(&["--model", "qwen3-32b", "--src", "tp=2", "--dst", "tp=1"]);
    let sum = report["stages_one_by_one_seconds"].as_f64().unwrap();
    assert!(report["stages"] == json!([]) && sum == 0.0 && sum.is_sign_positive(), "{sum:?}");
}

#[test]
fn examples_stand_in_one_column() {
    let help = plan(&["--help"]).output;
    assert!(
        help.split_whitespace().collect::<Vec<_>>().join(" ").contains("a layer file (JSON) of NCCL M2N"),
        "{help}"
    );
    assert_eq!(help.matches("\n  crossmesh plan --").count(), 2, "{help}");
}

#[test]
fn one_thing_is_not_called_several() {
    let shown = plan(&["--model", "qwen3-32b", "--src", "tp=1", "--dst", "tp=1", "--topology", "hgx-h100"]).output;
    assert!(shown.contains("2 ranks in 2 domains, 1 source, 1 destination\n"), "{shown}");
    assert!(shown.contains(" in 1 class of equal"), "{shown}");
}

#[test]
fn a_page_stands_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.html");
    let done = plan(&["--case", here(CASES[0]).to_str().unwrap(), "--html", path.to_str().unwrap()]);
    assert_eq!(done.code, Some(0), "{}", done.error);
    assert!(done.output.contains("rows of 4 to 2, twice"), "the tables are shown as well");
    let page = std::fs::read_to_string(&path).unwrap();
    assert_eq!((page.matches("<svg").count(), page.matches("</svg>").count()), (15, 15));
    assert!(page.contains("domains 7, 3 &amp; 9") && !page.contains("3 & 9"));
    for part in ["http:", "https:", "<script", "src=", "@import", "url("] {
        assert!(!page.contains(part), "{part}");
    }
    // Every rank of every case is a square that says what it carries.
    assert_eq!(page.matches("<title>rank ").count(), (8 + 6 + 3 + 9 + 3) * 5);
}
