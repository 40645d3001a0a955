//! Model files. In: texts of both forms, whole and damaged. Out: nothing. Guarantee: nothing unknown is passed over.

use super::*;
use proptest::prelude::*;

const OWN: &str = r#"{"crossmesh_model": 1, "name": "toy", "dimensions": {"layers": 1, "experts": 4},
  "tied": [["a", "b"]],
  "tensors": [{"name": "a", "shape": [3, 2], "dtype": "BF16", "role": "head"}, {"name": "c", "shape": [], "dtype": "F32"}]}"#;
const M2N: &str = r#"{"a": {"shape": [3, 2], "dtype": "BF16", "shard": "x"}, "c": {"shape": [], "dtype": "F32"}}"#;

fn fail(text: &str) -> String {
    let error = Model::parse(text, "my.json").unwrap_err();
    let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}

#[test]
fn both_forms_are_read() {
    let own = Model::parse(OWN, "my.json").unwrap();
    assert_eq!((own.name(), own.dimensions().layers, own.dimensions().heads), ("toy", Some(1), None));
    assert_eq!(own.tied(), [["a", "b"]]);
    assert_eq!(own.tensors()[0], ModelTensor { role: Role::Head, ..ModelTensor::new("a", [3, 2], Dtype::BF16) });
    let theirs = Model::parse(M2N, "my.json").unwrap();
    assert_eq!((theirs.name(), theirs.bytes(), theirs.tied().len()), ("my.json", 16, 0));
    assert_eq!(theirs.tensors()[1], own.tensors()[1]);
    assert_eq!(Model::parse("{}", "empty.json").unwrap().tensors(), []);
    // A tensor may have any name.
    let odd = r#"{"crossmesh_model": {"shape": [1], "dtype": "U8"}}"#;
    assert_eq!(Model::parse(odd, "x").unwrap().tensors()[0].name, "crossmesh_model");
}

#[test]
fn what_is_unknown_is_named() {
    for (text, parts) in [
        (OWN.replace("\"tied\"", "\"tide\""), ["my.json", "`tide`"]),
        (OWN.replace("\"layers\"", "\"layer\""), ["my.json", "`layer`"]),
        (OWN.replace("\"role\"", "\"roll\""), ["my.json", "`roll`"]),
        (OWN.replace("\"head\"", "\"tail\""), ["\"tail\"", "head, norm"]),
        (OWN.replace(": 1, \"name\"", ": 2, \"name\""), ["version 2", "version 1"]),
        (OWN.replace("BF16", "BF17"), ["my.json", "BF17"]),
        (OWN.replace("\"c\"", "\"a\""), ["\"a\"", "twice"]),
        (M2N.replace("shard", "shards"), ["a: unknown field", "`shards`"]),
        (M2N.replace("\"c\"", "\"a\""), ["\"a\"", "twice"]),
        (M2N.replace("[3, 2]", "[3, 0]"), ["[3, 0]", "at least 1"]),
        (M2N.replace("[3, 2]", "[9223372036854775807, 2]"), ["\"a\"", "2^64"]),
        (M2N.replace("[3, 2]", "[4611686018427387904]").replace("[]", "[4611686018427387904]"), ["\"c\"", "2^64"]),
        (
            M2N.replace("[3, 2]", "[-1]"),
            [
                "my.json",
                "a.shape[0]: invalid value: integer `-1`, expected a whole number from 0 to 18446744073709551615",
            ],
        ),
        ("[]".to_string(), ["my.json", "invalid"]),
        (String::new(), ["my.json", "EOF"]),
    ] {
        let error = fail(&text);
        assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
    }
    let halves = r#"{"a": {"shape": [4611686018427387904], "dtype": "F16"}, "b": {"shape": [4611686018427387904], "dtype": "F16"}}"#;
    assert!(matches!(Model::parse(halves, "x"), Err(ModelError::TotalSize { .. })));
}

/// What reads the file has types of its own, which mean nothing to its writer.
#[test]
fn errors_name_no_types() {
    for (text, part) in [
        ("[]", "expected an object of tensors"),
        ("7", "expected an object of tensors"),
        ("{\"a\": 1}", "a: invalid type: integer `1`, expected an object with shape and dtype"),
        ("{\"crossmesh_model\": 1, \"name\": \"m\", \"tensors\": [1]}", "expected an object with name, shape"),
        (
            "{\"crossmesh_model\": 1, \"name\": \"m\", \"dimensions\": 2, \"tensors\": []}",
            "expected an object with layers",
        ),
    ] {
        let error = fail(text);
        assert!(error.contains(part) && !error.contains("struct"), "{text}: {error}");
    }
}

#[test]
fn what_is_written_reads_back() {
    let own = Model::parse(OWN, "x").unwrap();
    assert_eq!(Model::parse(&own.to_json(), "y").unwrap(), own);
    let published = Model::published("qwen3-32b").unwrap();
    assert_eq!(Model::parse(&published.to_json(), "y").unwrap(), published);
    let odd = Model::new("a\"b\n", vec![ModelTensor::new("\u{1}\\\"", [], Dtype::U8)]).unwrap();
    assert_eq!(Model::parse(&odd.to_json(), "y").unwrap(), odd);
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = Model::parse(&String::from_utf8_lossy(&bytes), "any");
    }

    #[test]
    fn damaged_files_are_read_or_refused(
        own in any::<bool>(),
        damage in prop::collection::vec((any::<u16>(), "[\\[\\]{}\":,a0-9-]{0,3}"), 1..4),
    ) {
        let mut text = if own { OWN } else { M2N }.to_string();
        for (at, inserted) in damage {
            let at = at as usize % text.len();
            text.replace_range(at..=at, &inserted);
        }
        if let Ok(model) = Model::parse(&text, "damaged") {
            prop_assert_eq!(Model::parse(&model.to_json(), "again").unwrap(), model);
        }
    }
}
