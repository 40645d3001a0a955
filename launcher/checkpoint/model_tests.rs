//! Models of every kind. In: files written into a temporary folder. Out: nothing. Guarantee: boxes are compared
//! with a naive copy by global index; every kind of refusal is provoked.

use super::super::error::RegionError;
use super::super::region::Region;
use super::super::shard_file::{ShardTensor, prepare_shards};
use super::super::synthetic::synthesise;
use super::*;
use crossmesh::layout::content_digest::name_seed;
use crossmesh::layout::model::ModelError;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;

fn write(path: &Path, tensors: &[(&str, &[u64])]) {
    let buffers: Vec<Vec<u8>> = tensors.iter().map(|(name, shape)| contents(name, shape, 2)).collect();
    let tensors = tensors.iter().zip(&buffers).map(|(&(name, shape), bytes)| ShardTensor {
        name,
        dtype: Dtype::BF16,
        shape,
        bytes,
    });
    prepare_shards(path, tensors, &BTreeMap::new()).unwrap().place().unwrap();
}

fn contents(name: &str, shape: &[u64], element: u64) -> Vec<u8> {
    let mut bytes = vec![0; (shape.iter().product::<u64>() * element) as usize];
    synthesise(name_seed(name), 0, &mut bytes);
    bytes
}

fn describe(folder: &Path, text: &str) -> Result<Model, CheckpointError> {
    let path = folder.join("toy.model.json");
    fs::write(&path, text).unwrap();
    Model::open(&path)
}

/// The box by global index, byte by byte.
fn naive(whole: &[u8], shape: &[u64], region: Region<'_>, element: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let total: u64 = shape.iter().product();
    for linear in 0..total {
        let mut rest = linear;
        let inside = (0..shape.len()).rev().all(|dim| {
            let index = rest % shape[dim];
            rest /= shape[dim];
            index >= region.lo[dim] && index < region.lo[dim] + region.extent[dim]
        });
        if inside {
            out.extend_from_slice(&whole[(linear * element) as usize..((linear + 1) * element) as usize]);
        }
    }
    out
}

#[test]
fn one_file_a_folder_and_an_index_hold_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    write(&path, &[("b", &[2, 3]), ("a", &[]), ("c", &[0, 5])]);
    let single = Model::open(&path).unwrap();
    let names: Vec<&str> = single.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(single.bytes(), Some(14));
    assert_eq!(Model::open(folder.path()).unwrap().tensors(), single.tensors());

    let sharded = tempfile::tempdir().unwrap();
    write(&sharded.path().join("2.safetensors"), &[("b", &[2, 3])]);
    write(&sharded.path().join("1.safetensors"), &[("a", &[]), ("c", &[0, 5])]);
    let map =
        r#"{"metadata":{"total_size":14},"weight_map":{"b":"2.safetensors","a":"1.safetensors","c":"1.safetensors"}}"#;
    fs::write(sharded.path().join(index::FILE_NAME), map).unwrap();
    let model = Model::open(sharded.path()).unwrap();
    assert_eq!(model.files().len(), 2);
    for (number, tensor) in model.tensors().iter().enumerate() {
        let region = Region { lo: &vec![0; tensor.shape.len()], extent: &tensor.shape };
        let mut bytes = vec![0; tensor.bytes() as usize];
        model.gather(number, region, &mut bytes).unwrap();
        assert_eq!(bytes, contents(&tensor.name, &tensor.shape, 2));
        single.matches(number, region, &bytes).unwrap();
    }
}

#[test]
fn bad_indexes() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("1.safetensors"), &[("a", &[1])]);
    write(&folder.path().join("2.safetensors"), &[("b", &[1]), ("c", &[1])]);
    let open = |map: &str| {
        fs::write(folder.path().join(index::FILE_NAME), format!("{{\"weight_map\":{{{map}}}}}")).unwrap();
        Model::open(folder.path())
    };
    let all = r#""a":"1.safetensors","b":"2.safetensors","c":"2.safetensors""#;
    assert!(open(all).is_ok());
    let fail = |map: &str| open(map).unwrap_err();
    assert!(matches!(fail(&all.replace("2.s", "3.s")), CheckpointError::ShardMissing { .. }));
    assert!(matches!(fail(&format!(r#"{all},"d":"1.safetensors""#)), CheckpointError::AbsentTensor { .. }));
    assert!(matches!(fail(&all.replace(r#""b":"2."#, r#""b":"1."#)), CheckpointError::AbsentTensor { .. }));
    assert!(matches!(fail(r#""a":"1.safetensors","b":"2.safetensors""#), CheckpointError::UnlistedTensor { .. }));
    assert!(matches!(fail(&format!("{all},{all}")), CheckpointError::Index { .. }));
    assert!(matches!(fail(&all.replace("2.s", "../2.s")), CheckpointError::IndexFileName { .. }));
    assert!(matches!(fail(&all.replace("2.safetensors", "/")), CheckpointError::IndexFileName { .. }));
    assert!(matches!(fail("\"a\":1"), CheckpointError::Index { .. }));
    write(&folder.path().join("2.safetensors"), &[("a", &[1]), ("b", &[1]), ("c", &[1])]);
    let error = fail(all);
    assert!(matches!(error, CheckpointError::DuplicateTensor { .. }), "{error}");
    fs::write(folder.path().join("2.safetensors"), "short").unwrap();
    assert!(matches!(fail(all), CheckpointError::Header { .. }));
}

#[test]
fn bad_paths() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str| Model::open(&folder.path().join(name)).unwrap_err();
    assert!(matches!(open("missing.safetensors"), CheckpointError::Missing { .. }));
    assert!(matches!(open(""), CheckpointError::Folder { count: 0, .. }));
    write(&folder.path().join("1.safetensors"), &[]);
    assert!(Model::open(folder.path()).unwrap().tensors().is_empty());
    write(&folder.path().join("2.safetensors"), &[]);
    assert!(matches!(open(""), CheckpointError::Folder { count: 2, .. }));
    fs::write(folder.path().join("model.bin"), "").unwrap();
    assert!(matches!(open("model.bin"), CheckpointError::NotAModel { .. }));
    fs::write(folder.path().join("empty.safetensors"), "").unwrap();
    assert!(matches!(open("empty.safetensors"), CheckpointError::Header { .. }));
    fs::create_dir(folder.path().join("3.safetensors")).unwrap();
    assert!(matches!(open("3.safetensors"), CheckpointError::Folder { count: 0, .. }));
}

#[test]
fn descriptions() {
    let folder = tempfile::tempdir().unwrap();
    let open = |text: &str| describe(folder.path(), text);
    let model = open(r#"{"w":{"shape":[3,4],"dtype":"F32","shard":"x"},"s":{"shape":[],"dtype":"F64"}}"#).unwrap();
    let mut bytes = vec![0; 48];
    model.gather(1, Region { lo: &[0, 0], extent: &[3, 4] }, &mut bytes).unwrap();
    assert_eq!(bytes, contents("w", &[3, 4], 4));
    model.matches(0, Region { lo: &[], extent: &[] }, &contents("s", &[], 8)).unwrap();
    let fail = |text: &str| open(text).unwrap_err();
    for text in ["", "[]", r#"{"w":{"shape":[1]}}"#, r#"{"w":{"shape":[-1],"dtype":"F32"}}"#] {
        assert!(matches!(fail(text), CheckpointError::Description(_)), "{text}");
    }
    let entry = |dtype: &str, shape: &str| format!(r#""w":{{"shape":{shape},"dtype":"{dtype}"}}"#);
    let error = fail(&format!("{{{0},{0}}}", entry("F32", "[1]")));
    assert!(matches!(error, CheckpointError::Description(_)), "{error}");
    assert!(matches!(
        fail(&format!("{{{}}}", entry("I4", "[1]"))),
        CheckpointError::Description(ModelError::Dtype { .. })
    ));
    let huge = format!("{{{}}}", entry("F32", "[4611686018427387904]"));
    assert!(matches!(fail(&huge), CheckpointError::Description(ModelError::Size { .. })));
}

#[test]
fn layer_files_are_known_by_what_they_hold() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("moe.json");
    let open = |text: &str| {
        fs::write(&path, text).unwrap();
        Model::open(&path)
    };
    let tensor = r#"{"name": "moe", "dims": [4, 3, 5], "ep_shard_dim": 0}"#;
    let model = open(&format!(r#"{{"num_layers": 2, "default_tensors": [{tensor}]}}"#)).unwrap();
    let shapes: Vec<_> = model.tensors().iter().map(|tensor| (tensor.name.as_str(), &tensor.shape[..])).collect();
    assert_eq!(shapes, [("layers.0.moe", &[4, 3, 5][..]), ("layers.1.moe", &[4, 3, 5])]);
    assert!(model.rules().unwrap().is_some());
    let told = serde_json::to_vec(&model.catalogue()).unwrap();
    let elsewhere = Model::elsewhere(serde_json::from_slice(&told).unwrap());
    assert_eq!(elsewhere.rules().unwrap(), model.rules().unwrap());
    for (damaged, part) in [
        ("{\"num_layers\": 2, ", "is no layer file"),
        (r#"{"num_layers": 1, "default_tensors": [], "layers": 2}"#, "is no layer file"),
        (r#"{"num_layers": 1, "default_tensors": [{"name": "a", "dims": [2], "tp_shard_dim": 1}]}"#, "tp_shard_dim"),
    ] {
        let error = open(damaged).unwrap_err();
        assert!(matches!(&error, CheckpointError::Layers(_)) && error.to_string().contains(part), "{error}");
    }
    assert!(matches!(open("{}").unwrap_err(), CheckpointError::NotAModel { .. }));
}

#[test]
fn built_in_models_are_opened_by_name() {
    let model = Model::open(Path::new("qwen3-235b-a22b-stacked")).unwrap();
    assert_eq!(model.dimensions.experts, Some(128));
    let names: Vec<&str> = model.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
    assert!(names.is_sorted() && names.contains(&"model.layers.93.mlp.experts.up_proj.weight"));
    // Neither is on this host; another one may have a folder or file of the name.
    let unknown = Model::open(Path::new("qwen3-1b")).unwrap_err();
    assert!(matches!(unknown, CheckpointError::NoSuchName { .. }) && unknown.is_missing(), "{unknown}");
    assert!(Model::open(Path::new("qwen3-1b.safetensors")).unwrap_err().is_missing());
}

#[test]
fn differences_are_found_where_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let shape = [7, 5, 300];
    write(&folder.path().join("m.safetensors"), &[("w", &shape)]);
    let file = Model::open(folder.path()).unwrap();
    let synthetic = describe(folder.path(), r#"{"w":{"shape":[7,5,300],"dtype":"BF16"}}"#).unwrap();
    let region = Region { lo: &[2, 1, 0], extent: &[3, 4, 300] };
    let mut held = vec![0; 3 * 4 * 300 * 2];
    file.gather(0, region, &mut held).unwrap();
    for model in [&file, &synthetic] {
        model.matches(0, region, &held).unwrap();
        // Box element (1, 2, 299), second byte.
        let at = ((4 + 2) * 300 + 299) * 2 + 1;
        held[at] ^= 1;
        let Err(RegionError::Differs { index, expected, found, .. }) = model.matches(0, region, &held) else {
            panic!("a changed byte passed")
        };
        assert_eq!(index, [3, 3, 299]);
        assert_eq!((found[0], found[1] ^ 1), (expected[0], expected[1]));
        held[at] ^= 1;
        let outside = Region { lo: &[2, 1, 0], extent: &[3, 5, 300] };
        assert!(matches!(model.matches(0, outside, &held), Err(RegionError::Outside { .. })));
        let wrapped = Region { lo: &[u64::MAX, 1, 0], extent: &[3, 5, 300] };
        assert!(matches!(model.matches(0, wrapped, &held), Err(RegionError::Outside { .. })));
        let short = Region { lo: &[2, 1], extent: &[3, 4] };
        assert!(matches!(model.gather(0, short, &mut held), Err(RegionError::Outside { .. })));
        assert!(matches!(model.matches(0, region, &held[1..]), Err(RegionError::Buffer { .. })));
        model.matches(0, Region { lo: &[7, 0, 0], extent: &[0, 5, 1] }, &[]).unwrap();
    }
}

proptest! {
    #[test]
    fn boxes_equal_a_copy_by_index(
        dims in prop::collection::vec((1u64..6, 0.0f64..1.0, 0.0f64..1.01), 0..5),
        element in prop::sample::select(vec![Dtype::U8, Dtype::BF16, Dtype::F32, Dtype::C64]),
    ) {
        let shape: Vec<u64> = dims.iter().map(|dim| dim.0).collect();
        let lo: Vec<u64> = dims.iter().map(|dim| (dim.0 as f64 * dim.1) as u64).collect();
        let extent: Vec<u64> = dims.iter().zip(&lo).map(|(dim, lo)| (((dim.0 - lo) as f64 * dim.2).round() as u64).min(dim.0 - lo)).collect();
        let whole = contents("w", &shape, element.bytes());
        let folder = tempfile::tempdir().unwrap();
        let tensor = ShardTensor { name: "w", dtype: element, shape: &shape, bytes: &whole };
        prepare_shards(&folder.path().join("m.safetensors"), [tensor], &BTreeMap::new()).unwrap().place().unwrap();
        let file = Model::open(folder.path()).unwrap();
        let synthetic = describe(folder.path(), &format!(r#"{{"w":{{"shape":{shape:?},"dtype":"{element}"}}}}"#)).unwrap();
        let region = Region { lo: &lo, extent: &extent };
        let expected = naive(&whole, &shape, region, element.bytes());
        for model in [file, synthetic] {
            let mut out = vec![0; expected.len()];
            model.gather(0, region, &mut out).unwrap();
            prop_assert_eq!(&out, &expected);
            prop_assert_eq!(model.matches(0, region, &out), Ok(()));
        }
    }
}
