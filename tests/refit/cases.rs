//! Cases moved by ranks. In: single tensors with explicit layouts. Out: nothing. Guarantee: what fits the job is moved
//! bit for bit in the domains of the case, what does not is listed, a wrong byte count fails.

use crate::job::{Job, entries, in_repository, read_json};
use serde_json::{Value, json};

fn cases() -> String {
    in_repository("tests/planner/cases.json").display().to_string()
}

#[test]
fn what_fits_is_moved_in_its_own_domains() {
    for route in ["hierarchical", "flat", "gather-broadcast"] {
        // The job has one domain; the cases state theirs.
        let job = Job::of_case(8, &cases()).run_with("--domains 1").with("--verify --repeat 2 --route").with(route);
        let results = job.results();
        assert_eq!((&results["moved"], &results["skipped"]), (&json!(4), &json!(1)), "{results:#}");
        let crossed: Vec<&Value> =
            results["cases"].as_array().unwrap().iter().map(|case| &case["inter_domain_bytes"]).collect();
        let expected = match route {
            "hierarchical" => [json!(64), json!(192), json!(4), Value::Null, json!(0)],
            "flat" => [json!(128), json!(192), json!(4), Value::Null, json!(0)],
            // All of the tensor goes to each domain that wants any of it.
            _ => [json!(64), json!(192), json!(8), Value::Null, json!(0)],
        };
        assert_eq!(crossed, expected.iter().collect::<Vec<_>>(), "{route}: {results:#}");
        for (number, case) in results["cases"].as_array().unwrap().iter().enumerate() {
            let moved = number != 3;
            assert_eq!((case["moved"].as_bool(), case["verified"].as_bool()), (Some(moved), moved.then_some(true)));
        }
        assert_eq!(results["cases"][3]["skipped"], "needs 9 ranks, the job has 8");
    }
}

#[test]
fn one_case_and_a_table() {
    let ended = Job::of_case(9, &format!("{}#nine ranks", cases())).with("--verify").run();
    let output = ended.output();
    ended.finished.expect_success();
    assert!(output.contains("every byte and digest verified") && output.ends_with("1 moved, 0 skipped\n"), "{output}");
}

#[test]
fn the_shared_cases() {
    let path = in_repository("../shared/fixtures/cases/cases.json");
    if !path.exists() {
        println!("not run: {} is absent", path.display());
        return;
    }
    let results = Job::of_case(8, &path.display().to_string()).with("--verify").results();
    let cases = results["cases"].as_array().unwrap();
    for case in cases {
        let fits = case["ranks"].as_u64().unwrap() <= 8;
        assert_eq!(
            (case["moved"].as_bool(), case["verified"].as_bool()),
            (Some(fits), fits.then_some(true)),
            "{case:#}"
        );
        assert_eq!(case["skipped"].is_string(), !fits, "{case:#}");
    }
    assert!(results["moved"].as_u64().unwrap() > 0);
}

#[test]
fn what_cannot_be_moved() {
    Job::of_case(2, &cases()).refused(&["5 cases", "3 ranks"]);
    Job::of_case(8, &format!("{}#other", cases())).refused(&["no case \"other\"", "\"nine ranks\""]);
    Job::of_case(8, "absent.json").refused(&["absent.json", "No such file"]);
    let ended = Job::of_case(2, &cases()).with("--src tp=1").run();
    assert_eq!(ended.finished.code(), Some(2), "{ended:#?}");
}

#[test]
fn terms_are_not_made_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cases.json");
    let text = std::fs::read_to_string(cases()).unwrap();
    std::fs::write(&path, text.replace("shard(0,chunk)", "partial(sum)").replace("I16", "F32")).unwrap();
    Job::of_case(8, path.to_str().unwrap()).refused(&["\"no domains stated\"", "partial(sum)"]);
}

#[test]
fn a_wrong_count_fails() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cases.json");
    let text = std::fs::read_to_string(cases()).unwrap();
    std::fs::write(&path, text.replace("\"delivered_bytes\": 128", "\"delivered_bytes\": 129")).unwrap();
    let json = folder.path().join("out.json");
    let ended = Job::of_case(8, path.to_str().unwrap()).path("--json", &json).run();
    assert_eq!(ended.finished.code(), Some(1), "{ended:#?}");
    assert!(ended.errors()[&0].contains("delivered_bytes is 128 and the file expects 129"), "{ended:#?}");
    assert_eq!(entries(folder.path()), ["cases.json"]);
    let done = Job::of_case(8, &format!("{}#nine ranks", path.display())).path("--json", &json);
    done.refused(&["9"]);
    let right = Job::of_case(8, &format!("{}#no domains stated", path.display())).path("--json", &json).run();
    right.finished.expect_success();
    assert_eq!(read_json(&json)["moved"], 1);
}
