//! Numbers. In: layouts whose traffic is known by hand. Out: nothing. Guarantee: the JSON and the table have the same,
//! right numbers for every route and injection.

use crate::job::{Job, read_json};
use crate::model::{self, EXAMPLE, EXAMPLE_BYTES};
use serde_json::{Value, json};

/// Values of a field over the ranks.
fn per_rank(results: &Value, field: &str) -> Vec<u64> {
    results["per_rank"].as_array().unwrap().iter().map(|row| row[field].as_u64().unwrap()).collect()
}

/// The paper's Example A: TP 4 to TP 2, DP 2; both sides are a domain each.
#[test]
fn example_a_by_every_route() {
    let (_folder, model) = model::file(EXAMPLE);
    let whole = EXAMPLE_BYTES;
    let (half, quarter) = (whole / 2, whole / 4);
    let rate = 1e9;
    let cases = [
        // Route, between domains, sent by each source, received by each destination, busiest card.
        ("hierarchical", whole, vec![quarter; 4], vec![quarter; 4], quarter),
        ("flat", 2 * whole, vec![half; 4], vec![half; 4], half),
        ("gather-broadcast", whole, vec![whole, 0, 0, 0], vec![whole, 0, 0, 0], whole),
    ];
    for (route, crossed, sent, received, busiest) in cases {
        let job = Job::new(8, &model).run_with("--domains 2");
        let results = job.with(&format!("--src tp=4 --dst tp=2,dp=2 --nic-rate 1GB/s --route {route}")).verified();
        let expected = json!({
            "route": route, "injection": "striped", "tensors": 1, "bytes": whole, "delivered_bytes": 2 * whole,
            "inter_domain_bytes": crossed, "ingress_per_domain": [0, crossed], "domains": 2, "ranks": 8,
            "verified": true, "repeat": 1, "nic_rate": rate, "nic_rate_from": "given", "replicated_unknown": [],
            "src": "tp=4", "dst": "tp=2,dp=2",
        });
        for (field, value) in expected.as_object().unwrap() {
            assert_eq!(&results[field], value, "{route}: {field} of {results:#}");
        }
        assert_eq!(per_rank(&results, "network_sent"), [sent, vec![0; 4]].concat(), "{route}");
        assert_eq!(per_rank(&results, "network_received"), [vec![0; 4], received].concat(), "{route}");
        let seconds = results["seconds"].as_f64().unwrap();
        assert!(seconds > 0.0 && seconds < 60.0, "{results:#}");
        let rate_shown = results["gb_per_s"].as_f64().unwrap();
        assert!((rate_shown - whole as f64 / seconds / 1e9).abs() < 1e-9, "{results:#}");
        let bound = results["bound_seconds"].as_f64().unwrap();
        assert!((bound - busiest as f64 / rate).abs() < 1e-12, "{route}: bound {bound}");
        let most = per_rank(&results, "staging_bytes").into_iter().max();
        assert_eq!(results["staging_bytes"].as_u64(), most, "{results:#}");
    }
}

#[test]
fn replicas_inject_together_or_one_alone() {
    let (_folder, model) = model::file(EXAMPLE);
    let half = EXAMPLE_BYTES / 2;
    for (injection, sent) in [("striped", [half, half, 0]), ("single", [2 * half, 0, 0])] {
        let job = Job::new(3, &model).run_with("--domains 2");
        let results = job.with(&format!("--src dp=2 --dst tp=1 --injection {injection}")).verified();
        assert_eq!(results["injection"], injection);
        assert_eq!(results["inter_domain_bytes"], 2 * half);
        assert_eq!(per_rank(&results, "network_sent"), sent, "{injection}");
    }
}

#[test]
fn the_table_has_the_numbers_of_the_json() {
    let (folder, model) = model::file(EXAMPLE);
    let path = folder.path().join("out.json");
    let job = Job::new(3, &model).run_with("--domains 2").with("--src dp=2 --dst tp=1 --verify --repeat 3");
    let ended = job.path("--json", &path).run();
    let (table, results) = (ended.output(), read_json(&path));
    ended.finished.expect_success();
    let row = |name: &str| {
        let line = table.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {table}"));
        line[name.len()..].trim().to_string()
    };
    assert_eq!(row("model"), model.display().to_string());
    assert_eq!(row("layouts"), "dp=2 to tp=1 on 3 ranks, 2 domains");
    assert_eq!(row("route"), "hierarchical, injection striped");
    assert_eq!(row("tensors"), "1");
    for name in ["bytes", "delivered", "crossed domains"] {
        assert_eq!(row(name), "8192 (8.0 KiB)");
    }
    assert_eq!(row("verified"), "every byte and digest");
    let seconds = |field: &str| format!("{:.6}", results[field].as_f64().unwrap());
    let (median, least, most) = (seconds("seconds"), seconds("seconds_min"), seconds("seconds_max"));
    assert_eq!(row("time"), format!("{median} s (median of 3, {least} to {most})"));
    assert!(least <= median && median <= most, "{results:#}");
    assert_eq!(results["repeat"], 3);
    // The rate is measured between the domains unless given.
    assert!(row("data-movement bound").ends_with("(measured between two ranks)"), "{table}");
    assert!(results["nic_rate"].as_f64().unwrap() > 1e6, "{results:#}");
    assert_eq!(results["nic_rate_from"], "measured between two ranks");
    let rows: Vec<Vec<&str>> =
        table.lines().rev().take(3).map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
    assert_eq!(rows[0][..1], ["2"]);
    assert_eq!(rows[0][2..6], ["1", "0", "8192", "0"]);
    assert_eq!(rows[2][2..6], ["0", "4096", "0", "0"]);
}

#[test]
fn inside_one_domain_nothing_crosses() {
    let (_folder, model) = model::file(EXAMPLE);
    let results = Job::new(3, &model).with("--src tp=2 --dst tp=1").verified();
    for (field, value) in [("inter_domain_bytes", json!(0)), ("nic_rate", Value::Null), ("bound_seconds", json!(0.0))] {
        assert_eq!(results[field], value, "{field} of {results:#}");
    }
    assert_eq!(per_rank(&results, "local_read"), [0, 0, EXAMPLE_BYTES]);
}

#[test]
fn what_was_not_verified_does_not_say_so() {
    let (_folder, model) = model::file(EXAMPLE);
    assert_eq!(Job::new(2, &model).with("--src tp=1 --dst tp=1").results()["verified"], Value::Null);
}
