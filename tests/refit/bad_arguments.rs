//! Calls that cannot work. In: wrong specs, lists, options, places to write to. Out: nothing. Guarantee: each ends with
//! exit code 2 and an error on every rank that says what was wrong, and leaves no file.

use crate::job::{Job, entries};
use crate::model::{self, EXAMPLE};

#[test]
fn wrong_casts() {
    let (_folder, model) = model::file(EXAMPLE);
    for dtype in ["BF16", "f64", "fp8", ""] {
        let job = Job::new(2, &model).with("--src tp=1 --dst tp=1").path("--cast", std::path::Path::new(dtype));
        job.refused(&[&format!("--cast {dtype:?}"), "f32, f16, bf16"]);
    }
}

#[test]
fn wrong_specs_and_lists() {
    let (_folder, model) = model::file(EXAMPLE);
    let cases: [(&str, &[&str]); 16] = [
        ("--src xp=2 --dst tp=1", &["--src \"xp=2\"", "unknown", "tp, cp, ep, fsdp, dp and pp"]),
        ("--src pp=2+x --dst tp=1", &["pp=2+x", "8+8+7"]),
        ("--src pp=1+1 --dst tp=1", &["2 layers together", "the model has 1"]),
        ("--src tp=2,dp=2,etp=1,ep=2 --dst tp=1", &["dp=2 x tp=2 is 4 ranks", "ep=2 x etp=1 is 2"]),
        ("--src torch:tp=2 --dst tp=1", &["\"torch\"", "m2n:", "megatron:"]),
        ("--src tp=1 --dst tp", &["--dst \"tp\"", "axis=size"]),
        ("--src tp=0 --dst tp=1", &["size \"0\""]),
        ("--src tp=2,tp=2 --dst tp=1", &["twice"]),
        ("--src tp=2 --dst tp=2", &["needs 2 ranks", "the job has 3", "crossmesh run -n 4"]),
        ("--src tp=4000000000 --dst tp=4000000000", &["the job has 3"]),
        ("--src tp=2 --dst tp=1 --src-ranks 0,x", &["--src-ranks \"0,x\"", "\"x\"", "0-3,8"]),
        ("--src tp=2 --dst tp=1 --src-ranks 1-0", &["\"1-0\""]),
        ("--src tp=2 --dst tp=1 --src-ranks 0-2", &["needs 2 ranks and --src-ranks lists 3"]),
        ("--src tp=2 --dst tp=1 --src-ranks 1,1", &["names rank 1 twice"]),
        ("--src tp=2 --dst tp=1 --dst-ranks 3", &["--dst-ranks names rank 3", "ranks 0 to 2"]),
        ("--src tp=2 --dst tp=1 --src-ranks 0,4294967295", &["names rank 4294967295"]),
    ];
    for (arguments, parts) in cases {
        Job::new(3, &model).with(arguments).refused(parts);
    }
}

#[test]
fn wrong_options() {
    let (_folder, model) = model::file(EXAMPLE);
    let cases: [(&str, &[&str]); 9] = [
        ("--route direct", &["--route \"direct\"", "hierarchical, flat, gather-broadcast"]),
        ("--injection all", &["--injection \"all\"", "striped, single"]),
        ("--memory gpu", &["--memory \"gpu\"", "shared, private"]),
        ("--nic-rate fast", &["--nic-rate", "\"fast\""]),
        ("--nic-rate 0", &["--nic-rate \"0\""]),
        ("--repeat 0", &["--repeat \"0\""]),
        ("--rules /missing/rules.toml", &["/missing/rules.toml", "No such file"]),
        ("--rules llamas", &["\"llamas\"", "bert", "llama"]),
        ("--rules /", &["rules file \"/\""]),
    ];
    for (arguments, parts) in cases {
        Job::new(2, &model).with("--src tp=1 --dst tp=1").with(arguments).refused(parts);
    }
    // What the command line itself refuses: in the words of the argument parser, at length on rank 0 only.
    for (arguments, part) in [
        ("--src tp=1", "not provided: --dst <SPEC>"),
        ("--src tp=1 --dst tp=1 --repeat x", "'x' for '--repeat <N>'"),
        ("--src tp=1 --dst tp=1 --no-such-option", "'--no-such-option'"),
    ] {
        let ended = Job::new(3, &model).with(arguments).run();
        assert_eq!(ended.finished.code(), Some(2), "{ended:#?}");
        let of_ranks = ended.finished.errors.lines().filter(|line| line.starts_with('['));
        let at_length: Vec<_> = of_ranks.filter(|line| line.contains("For more information")).collect();
        assert!(matches!(at_length[..], [line] if line.starts_with("[0 ")), "{ended:#?}");
        for rank in 1..3 {
            let own = format!("[{rank} ");
            let lines: Vec<_> = ended.finished.errors.lines().filter(|line| line.starts_with(&own)).collect();
            assert!(
                matches!(lines[..], [line] if line.contains(part) && line.contains("rank 0 says more")),
                "{ended:#?}"
            );
        }
    }
    let ended = Job::new(3, &model).with("--help").run().finished.expect_success();
    assert_eq!(ended.output.matches("Usage: crossmesh refit").count(), 1, "{ended:#?}");
}

#[test]
fn wrong_environment() {
    let (_folder, model) = model::file(EXAMPLE);
    let cases = [
        ("CROSSMESH_ROUTE", "direct"),
        ("CROSSMESH_INJECTION", "all"),
        ("CROSSMESH_STAGING", "much"),
        ("CROSSMESH_CHUNK", "-1"),
        ("CROSSMESH_MAPPED", "no"),
        ("CROSSMESH_TIMEOUT", "soon"),
        ("CROSSMESH_TIMEOUT", "0"),
    ];
    for (name, value) in cases {
        let job = Job::new(2, &model).with("--src tp=1 --dst tp=1").env(name, value);
        job.refused(&[&format!("{name}={value:?}"), "allowed"]);
    }
    // What the launcher needs itself, it says itself.
    for (name, value, part) in
        [("CROSSMESH_INTERFACE", "absent0", "interfaces here"), ("CROSSMESH_INIT_TIMEOUT", "0", "allowed")]
    {
        let ended = Job::new(2, &model).with("--src tp=1 --dst tp=1").env(name, value).run();
        assert_eq!(ended.finished.code(), Some(2), "{ended:#?}");
        assert!(ended.finished.errors.contains(&format!("{name}={value:?}")), "{ended:#?}");
        assert!(ended.finished.errors.contains(part) && ended.errors().is_empty(), "{ended:#?}");
    }
    let ended = Job::new(2, &model).with("--src tp=1 --dst tp=1").env("CROSSMESH_ROUT", "flat").run();
    assert!(ended.finished.expect_success().errors.contains("CROSSMESH_ROUT is set and is no variable"));
    let job = Job::new(3, &model).run_with("--domains 2").with("--src tp=1 --dst dp=2");
    job.env("CROSSMESH_STAGING", "5").refused(&["CROSSMESH_STAGING"]);
}

#[test]
fn wrong_rules() {
    let (folder, model) = model::file(EXAMPLE);
    let rules = folder.path().join("rules.toml");
    let cases: [(&[u8], &str); 6] = [
        (b"[[rule]]\nnames = [\"*.q_porj.weight\"]\ntp = 0\n", "matches no tensor"),
        (b"[[rule]]\nnames = [\"*.weight\"]\ntp = 0\n[[rule]]\nnames = [\"*\"]\ntp = 1\n", "with different results"),
        (b"not toml at all", "is no rules file"),
        (b"[[rule]]\nnames = []\ntp = 0\n", "lists no names"),
        (b"[[rule]]\nnames = [\"*\"]\ntp = 7\n", "up_proj"),
        (b"\xff\xfe", "rules.toml"),
    ];
    for (text, part) in cases {
        std::fs::write(&rules, text).unwrap();
        Job::new(2, &model).with("--src tp=1 --dst tp=1").path("--rules", &rules).refused(&[part]);
    }
    // It never ends.
    Job::new(2, &model).with("--src tp=1 --dst tp=1 --rules /dev/zero").refused(&["/dev/zero", "no regular file"]);
}

#[test]
fn places_that_cannot_be_written_to() {
    let (folder, model) = model::file(EXAMPLE);
    let job = |out: &str| Job::new(3, &model).with("--src tp=1 --dst tp=2").path("--out", &folder.path().join(out));
    for path in ["model.safetensors", "model.safetensors/below"] {
        job(path).refused(&["--out", path, "rank 1 on host"]);
    }
    let job = |json: &str| Job::new(2, &model).with("--src tp=1 --dst tp=1").path("--json", &folder.path().join(json));
    job("missing/out.json").refused(&["--json", "missing/out.json", "No such file"]);
    job("").refused(&["--json", "is a directory"]);
    job("model.safetensors/out.json").refused(&["--json", "Not a directory"]);
    assert_eq!(entries(folder.path()), ["model.safetensors"]);
}

#[test]
fn common_errors_are_told_in_full_once() {
    let (_folder, model) = model::file(EXAMPLE);
    let ended = Job::new(4, &model).with("--src tp=3 --dst tp=3").run();
    let errors = ended.errors();
    assert!(errors[&0].ends_with("(on all 4 ranks)"), "{errors:#?}");
    for rank in 1..4 {
        assert!(errors[&rank].len() < errors[&0].len(), "{errors:#?}");
        assert!(errors[&rank].contains("--src \"tp=3\" needs 3 ranks"), "{errors:#?}");
        assert!(errors[&rank].ends_with("(rank 0 says it in full)"), "{errors:#?}");
    }
}
