//! Headers, good and damaged. In: bytes built by hand or by the safetensors crate. Out: nothing. Guarantee: every
//! kind of refusal is provoked, and random damage never panics.

use super::*;
use proptest::prelude::*;
use safetensors::tensor::{SafeTensors, TensorView};

fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data, 7);
    bytes
}

fn entry(dtype: &str, shape: &str, begin: u64, end: u64) -> String {
    format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
}

fn fail(entries: &[(&str, String)], data: usize) -> HeaderError {
    let entries: Vec<String> = entries.iter().map(|(name, entry)| format!("{name:?}:{entry}")).collect();
    Header::parse(&file(&format!("{{{}}}", entries.join(",")), data)).unwrap_err()
}

#[test]
fn good_headers() {
    let empty = Header::parse(&file("{}", 0)).unwrap();
    assert_eq!(empty, Header { tensors: vec![] });
    let text = format!(
        r#"{{"__metadata__":{{"format":"pt"}},"b":{},"a":{},"none":{}}}   "#,
        entry("BF16", "[2,3]", 4, 16),
        entry("F32", "[]", 0, 4),
        entry("F64", "[3,0,18446744073709551615]", 4, 4),
    );
    let header = Header::parse(&file(&text, 12 + 4)).unwrap();
    let start = 8 + text.len() as u64;
    let found: Vec<(&str, Range<u64>)> =
        header.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.range.clone())).collect();
    assert_eq!(found, [("a", start..start + 4), ("none", start + 4..start + 4), ("b", start + 4..start + 16)]);
}

#[test]
fn bad_lengths_and_texts() {
    let parse = |bytes: &[u8]| Header::parse(bytes).unwrap_err();
    assert!(matches!(parse(b""), HeaderError::TooShort { bytes: 0 }));
    assert!(matches!(parse(b"1234567"), HeaderError::TooShort { bytes: 7 }));
    assert!(matches!(parse(&u64::MAX.to_le_bytes()), HeaderError::BeyondFile { length: u64::MAX, left: 0 }));
    assert!(matches!(parse(&file("{}", 0)[..9]), HeaderError::BeyondFile { length: 2, left: 1 }));
    assert!(matches!(parse(&file("", 0)), HeaderError::NotAnObject { found: None }));
    assert!(matches!(parse(&file(" {}", 0)), HeaderError::NotAnObject { found: Some(' ') }));
    let mut bytes = file("{}", 0);
    bytes[9] = 0xff;
    assert!(matches!(parse(&bytes), HeaderError::NotUtf8(_)));
    for text in ["{", "{}x", "{\"a\":1}", "{\"a\":{}}", "{\"__metadata__\":{\"a\":1}}", &"{\"a\":".repeat(5000)] {
        assert!(matches!(parse(&file(text, 0)), HeaderError::NotJson(_)), "{text:.20}");
    }
    let mut long = (MAX_HEADER_BYTES + 1).to_le_bytes().to_vec();
    long.resize(MAX_HEADER_BYTES as usize + 9, b' ');
    assert!(matches!(parse(&long), HeaderError::TooLong { .. }));
}

#[test]
fn repeated_keys_are_refused() {
    let repeated = |error: HeaderError, key: &str| {
        let HeaderError::NotJson(cause) = error else { panic!("{error}") };
        assert!(cause.to_string().contains(key) && cause.to_string().contains("twice"), "{cause}");
    };
    repeated(fail(&[("a", entry("U8", "[1]", 0, 1)), ("a", entry("U8", "[1]", 1, 2))], 2), "\"a\"");
    let metadata = r#"{"k":"1","k":"2"}"#.to_string();
    repeated(fail(&[("__metadata__", metadata)], 0), "\"k\"");
    repeated(fail(&[("__metadata__", "{}".into()), ("__metadata__", "{}".into())], 0), "__metadata__");
    let field = r#"{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}"#.to_string();
    assert!(matches!(fail(&[("a", field)], 1), HeaderError::NotJson(_)));
}

#[test]
fn bad_tensors() {
    let one = |dtype: &str, shape: &str, begin, end| fail(&[("a", entry(dtype, shape, begin, end))], 8);
    assert!(matches!(one("F4", "[16]", 0, 8), HeaderError::Dtype { .. }));
    assert!(matches!(one("f32", "[2]", 0, 8), HeaderError::Dtype { .. }));
    assert!(matches!(one("F32", "[2]", 0, 7), HeaderError::SizeMismatch { found: 7, needed: 8, .. }));
    assert!(matches!(one("F32", "[3]", 0, 8), HeaderError::SizeMismatch { found: 8, needed: 12, .. }));
    assert!(matches!(one("F32", "[]", 0, 8), HeaderError::SizeMismatch { needed: 4, .. }));
    assert!(matches!(one("F32", "[2]", 8, 0), HeaderError::Reversed { begin: 8, end: 0, .. }));
    assert!(matches!(one("F32", "[4]", 0, 16), HeaderError::OutsideFile { end: 16, data: 8, .. }));
    assert!(matches!(one("F32", "[2]", u64::MAX - 7, u64::MAX), HeaderError::OutsideFile { .. }));
    assert!(matches!(one("U8", "[4294967296,4294967296]", 0, 8), HeaderError::Size { .. }));
    assert!(matches!(one("F64", "[2305843009213693952]", 0, 8), HeaderError::Size { .. }));
    assert!(matches!(one("U8", "[-1]", 0, 8), HeaderError::NotJson(_)));
    assert!(matches!(one("U8", "[1.5]", 0, 8), HeaderError::NotJson(_)));
    assert!(matches!(one("F32", "[1]", 4, 8), HeaderError::Hole { from: 0, to: 4, .. }));
    assert!(matches!(one("F32", "[1]", 0, 4), HeaderError::Trailing { from: 4, to: 8 }));
    assert!(matches!(fail(&[], 1), HeaderError::Trailing { from: 0, to: 1 }));
    let two = |first: (u64, u64), second: (u64, u64)| {
        let entry = |(begin, end): (u64, u64)| entry("U8", &format!("[{}]", end - begin), begin, end);
        fail(&[("a", entry(first)), ("b", entry(second))], 8)
    };
    assert!(matches!(two((0, 5), (4, 8)), HeaderError::Overlap { end: 5, begin: 4, .. }));
    assert!(matches!(two((0, 8), (0, 8)), HeaderError::Overlap { .. }));
    assert!(matches!(two((0, 8), (3, 3)), HeaderError::Overlap { .. }));
    assert!(matches!(two((0, 3), (5, 8)), HeaderError::Hole { from: 3, to: 5, .. }));
    let text = one("F32", "[3]", 0, 8).to_string();
    assert!(text.contains("\"a\"") && text.contains("[3]") && text.contains("12"), "{text}");
}

type Recipe = Vec<(String, usize, Vec<usize>)>;

/// A file by the safetensors crate: names, types, shapes, and bytes that count up.
fn by_the_crate(recipe: &Recipe) -> Vec<u8> {
    use safetensors::Dtype::*;
    let types = [F64, F32, F16, BF16, F8_E4M3, F8_E5M2, F8_E8M0, I64, I32, I16, I8, U64, U32, U16, U8, BOOL, C64];
    let buffers: Vec<Vec<u8>> = recipe
        .iter()
        .map(|(_, dtype, shape)| {
            let bytes = shape.iter().product::<usize>() * types[dtype % types.len()].bitsize() / 8;
            (0..bytes).map(|at| at as u8).collect()
        })
        .collect();
    let views = recipe.iter().zip(&buffers).map(|((name, dtype, shape), bytes)| {
        (name.clone(), TensorView::new(types[dtype % types.len()], shape.clone(), bytes).unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}

fn recipes() -> impl Strategy<Value = Recipe> {
    let names = prop::collection::btree_set("[a-z.\"\\\\é]{1,8}", 0..6);
    let tensor = (0usize..17, prop::collection::vec(0usize..4, 0..4));
    (names, prop::collection::vec(tensor, 6)).prop_map(|(names, tensors)| {
        names.into_iter().zip(tensors).map(|(name, (dtype, shape))| (name, dtype, shape)).collect()
    })
}

proptest! {
    #[test]
    fn files_of_the_crate_are_read_alike(recipe in recipes()) {
        let bytes = by_the_crate(&recipe);
        let header = Header::parse(&bytes).unwrap();
        let theirs = SafeTensors::deserialize(&bytes).unwrap();
        prop_assert_eq!(header.tensors.len(), theirs.len());
        for tensor in &header.tensors {
            let view = theirs.tensor(&tensor.name).unwrap();
            prop_assert_eq!(view.dtype().to_string(), tensor.dtype.name());
            prop_assert_eq!(view.shape().iter().map(|&extent| extent as u64).collect::<Vec<_>>(), tensor.shape.clone());
            prop_assert_eq!(view.data(), &bytes[tensor.range.start as usize..tensor.range.end as usize]);
        }
    }

    /// What is accepted after damage is also accepted by the crate: this reader is the stricter one.
    #[test]
    fn damaged_files_never_panic(recipe in recipes(), damage in prop::collection::vec((any::<u16>(), any::<u8>()), 1..4), cut in any::<u16>()) {
        let mut bytes = by_the_crate(&recipe);
        for (at, byte) in damage {
            let at = at as usize % bytes.len();
            bytes[at] = byte;
        }
        bytes.truncate(bytes.len() - (cut as usize % 16).min(bytes.len()));
        if Header::parse(&bytes).is_ok() {
            prop_assert!(SafeTensors::deserialize(&bytes).is_ok());
        }
    }

    #[test]
    fn random_bytes_never_panic(header in "[{}\\[\\]\",:a-c0-9_.-]{0,40}", raw in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = Header::parse(&file(&header, 4));
        let _ = Header::parse(&raw);
    }
}
