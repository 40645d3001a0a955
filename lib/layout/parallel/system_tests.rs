//! System files. In: texts of our own, and NCCL M2N's where they lie beside the repository. Out: nothing. Guarantee: rank
//! counts and orders are those that the files' definitions imply.

use super::*;
use crate::layout::parallel::WeightView;
use proptest::prelude::*;
use std::path::Path;

const TEXT: &str = r#"{"_comment": "ours", "train": {"num_gpus": 16, "tp_size": 2, "cp_size": 1, "ep_size": 2, "pp_size": 2,
  "fsdp_size": 1, "dp_size": 2}, "generation": {"num_gpus": 4, "tp_size": 4}}"#;

fn fail(text: &str) -> String {
    let error = System::parse(text, "my.json").unwrap_err();
    let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}

#[test]
fn sizes_multiply() {
    let system = System::parse(TEXT, "my.json").unwrap();
    assert_eq!(system.source.to_string(), "tp=2,cp=1,ep=2,fsdp=1,dp=2,pp=2");
    assert_eq!((system.source.rank_count(), system.destination.rank_count()), (16, 4));
    let megatron = TEXT.replace("\"num_gpus\": 16", "\"num_gpus\": 8, \"etp_size\": 1, \"edp_size\": 2");
    let system = System::parse(&megatron, "my.json").unwrap();
    assert_eq!(system.source.convention(), ExpertConvention::TwoViews);
    let axes: Vec<u32> = system.source.axes(WeightView::Expert).iter().map(|&(_, size)| size).collect();
    assert_eq!(axes, [2, 2, 2, 1]);
}

#[test]
fn bad_files_say_what_is_wrong() {
    for (text, parts) in [
        (TEXT.replace("\"ep_size\"", "\"eps\""), vec!["my.json", "`eps`"]),
        (TEXT.replace("\"generation\"", "\"generator\""), vec!["my.json", "`generator`"]),
        (TEXT.replace("\"num_gpus\": 16, ", ""), vec!["my.json", "num_gpus"]),
        (TEXT.replace("\"tp_size\": 2", "\"tp_size\": 0"), vec!["my.json, train", "\"0\""]),
        (TEXT.replace(": 16", ": 12"), vec!["my.json, train", "num_gpus is 12", "multiply to 16", "8 without ep"]),
        (
            TEXT.replace(": 16", ": 8, \"etp_size\": 2, \"edp_size\": 1"),
            vec!["my.json, train", "pp=2 x dp=2 x fsdp=1 x cp=1 x tp=2 is 8", "pp=2 x edp=1 x ep=2 x etp=2 is 8"],
        ),
        (String::new(), vec!["my.json", "EOF"]),
    ] {
        if text.contains("edp_size\": 1") {
            assert!(System::parse(&text, "my.json").is_ok());
            let contradiction = fail(&text.replace("\"edp_size\": 1", "\"edp_size\": 4"));
            assert!(contradiction.contains("is 32, of 8 ranks"), "{contradiction}");
            continue;
        }
        let error = fail(&text);
        assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
    }
}

/// NCCL M2N's own files, where they lie beside the repository.
#[test]
fn published_systems_are_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/fixtures/m2n/systems");
    if !folder.is_dir() {
        eprintln!("not tested: there is no folder {}", folder.display());
        return;
    }
    for (name, source, destination) in [
        ("dsv3-128gpus-gb200.json", "tp=1,cp=1,ep=16,fsdp=1,dp=1,pp=4", "tp=8,cp=1,ep=1,fsdp=1,dp=8,pp=1"),
        ("dsv3-256gpus-gb200.json", "tp=1,cp=1,ep=16,fsdp=1,dp=1,pp=8", "tp=8,cp=1,ep=1,fsdp=1,dp=16,pp=1"),
        ("qwen3-32b-dp1-tp2-to-dp1-tp2.json", "tp=2,cp=1,ep=1,fsdp=1,dp=1,pp=1", "tp=2,cp=1,ep=1,fsdp=1,dp=1,pp=1"),
        ("qwen3-32b-dp1-tp4-to-dp1-tp4.json", "tp=4,cp=1,ep=1,fsdp=1,dp=1,pp=1", "tp=4,cp=1,ep=1,fsdp=1,dp=1,pp=1"),
        (
            "qwen3-32b-tp2pp4dp2-to-tp1dp16-32gpus-gb200.json",
            "tp=2,cp=1,ep=1,fsdp=1,dp=2,pp=4",
            "tp=1,cp=1,ep=1,fsdp=1,dp=16,pp=1",
        ),
    ] {
        let system = System::parse(&std::fs::read_to_string(folder.join(name)).unwrap(), name).unwrap();
        assert_eq!(
            (system.source.to_string(), system.destination.to_string()),
            (source.into(), destination.into()),
            "{name}"
        );
    }
}

#[test]
fn errors_name_no_types() {
    for (text, part) in [
        ("[]".to_string(), "an object with train and generation"),
        ("{\"train\": 3}".to_string(), "an object with num_gpus and sizes"),
    ] {
        let error = fail(&text);
        assert!(error.contains(part) && !error.contains("struct"), "{text}: {error}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = System::parse(&String::from_utf8_lossy(&bytes), "any");
    }

    #[test]
    fn damaged_files_are_read_or_refused(damage in prop::collection::vec((any::<u16>(), "[{}\":,0-9-]{0,3}"), 1..4)) {
        let mut text = TEXT.to_string();
        for (at, inserted) in damage {
            let at = at as usize % text.len();
            text.replace_range(at..=at, &inserted);
        }
        if let Ok(system) = System::parse(&text, "damaged") {
            prop_assert!(system.source.rank_count() > 0 && system.destination.rank_count() > 0);
        }
    }
}
