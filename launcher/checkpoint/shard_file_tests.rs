//! Written files. In: tensors in memory. Out: nothing. Guarantee: the safetensors crate reads back what was
//! written, and a failed write leaves the folder as it was.

use super::super::header::Header;
use super::super::mapped::MappedFile;
use super::*;
use crate::failure::Failure;
use safetensors::SafeTensors;
use std::fs;

fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_crate_reads_it_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rank0.safetensors");
    let large: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
    let tensors = [
        ShardTensor { name: "byte \"é\"", dtype: Dtype::U8, shape: &[3], bytes: &[1, 2, 3] },
        ShardTensor { name: "large", dtype: Dtype::BF16, shape: &[1_500_000], bytes: &large },
        ShardTensor { name: "scalar", dtype: Dtype::F64, shape: &[], bytes: &[9; 8] },
        ShardTensor { name: "empty", dtype: Dtype::F32, shape: &[0, 4], bytes: &[] },
        ShardTensor { name: "fp8", dtype: Dtype::F8E4M3, shape: &[1, 5], bytes: &[4; 5] },
    ];
    let metadata = BTreeMap::from([("format".to_string(), "pt".to_string())]);
    let pending = prepare_shards(&path, tensors, &metadata).unwrap();
    assert!(!path.exists());
    pending.place().unwrap();
    let bytes = fs::read(&path).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(header.metadata().as_ref().unwrap()["format"], "pt");
    let read = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(read.len(), tensors.len());
    for tensor in tensors {
        let view = read.tensor(tensor.name).unwrap();
        assert_eq!(view.data(), tensor.bytes, "{}", tensor.name);
        assert_eq!(view.dtype().to_string(), tensor.dtype.name());
        let shape: Vec<u64> = view.shape().iter().map(|&extent| extent as u64).collect();
        assert_eq!(shape, tensor.shape);
    }
    for tensor in Header::parse(&bytes).unwrap().tensors {
        assert_eq!(tensor.range.start % tensor.dtype.bytes(), 0, "{}", tensor.name);
    }
    prepare_shards(&path, [], &BTreeMap::new()).unwrap().place().unwrap();
    assert_eq!(SafeTensors::deserialize(&fs::read(&path).unwrap()).unwrap().len(), 0);
    assert_eq!(entries(folder.path()), ["rank0.safetensors"]);
}

#[test]
fn bad_tensors_write_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let tensor = |bytes| ShardTensor { name: "a", dtype: Dtype::U8, shape: &[2], bytes };
    let fail =
        |tensors: &[ShardTensor<'_>]| prepare_shards(&path, tensors.iter().copied(), &BTreeMap::new()).unwrap_err();
    assert!(matches!(fail(&[tensor(&[1])]), WriteError::SizeMismatch { given: 1, needed: 2, .. }));
    assert!(matches!(fail(&[tensor(&[1, 2]), tensor(&[1, 2])]), WriteError::DuplicateTensor { .. }));
    let reserved = ShardTensor { name: "__metadata__", ..tensor(&[1, 2]) };
    assert!(matches!(fail(&[reserved]), WriteError::ReservedName { .. }));
    let missing = folder.path().join("missing/x.safetensors");
    let error = prepare_shards(&missing, [tensor(&[1, 2])], &BTreeMap::new()).unwrap_err();
    assert!(matches!(error, WriteError::Io { .. }), "{error:?}");
    assert!(
        Failure::new(1, error).message().ends_with("missing/x.safetensors: No such file or directory (os error 2)")
    );
    assert_eq!(entries(folder.path()), Vec::<String>::new());
}

#[test]
fn a_file_that_is_not_placed_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    fs::write(&path, "earlier").unwrap();
    let tensor = ShardTensor { name: "a", dtype: Dtype::U8, shape: &[2], bytes: &[1, 2] };
    drop(prepare_shards(&path, [tensor], &BTreeMap::new()).unwrap());
    assert_eq!(entries(folder.path()), ["x.safetensors"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "earlier");
    // A folder of that name is not replaced.
    let taken = folder.path().join("taken");
    fs::create_dir(&taken).unwrap();
    let error = prepare_shards(&taken, [tensor], &BTreeMap::new()).unwrap().place().unwrap_err();
    assert!(matches!(error, WriteError::Io { .. }), "{error:?}");
    assert_eq!(entries(folder.path()), ["taken", "x.safetensors"]);
}

/// A tensor larger than the file system, as a file with one long hole.
#[test]
fn a_full_disk_is_an_error_that_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    fs::write(&path, "earlier").unwrap();
    let statistics = nix::sys::statvfs::statvfs(folder.path()).unwrap();
    let size = statistics.blocks_available() * statistics.fragment_size() + (1 << 30);
    let hole = folder.path().join("hole");
    if let Err(cause) = fs::File::create(&hole).unwrap().set_len(size) {
        // Such as a file system whose free space exceeds its longest file.
        eprintln!("not tested: no file of {size} bytes can be made here: {cause}");
        return;
    }
    let hole = MappedFile::open(&hole).unwrap();
    let tensor = ShardTensor { name: "w", dtype: Dtype::U8, shape: &[size], bytes: hole.bytes() };
    let error = prepare_shards(&path, [tensor], &BTreeMap::new()).unwrap_err();
    let WriteError::Full { needed, free: Some(free), source, .. } = &error else { panic!("{error:?}") };
    assert!(*needed > size && *free < size, "{error}");
    assert_eq!(source.kind(), std::io::ErrorKind::StorageFull, "{source}");
    assert!(error.to_string().contains("x.safetensors"), "{error}");
    assert_eq!(entries(folder.path()), ["hole", "x.safetensors"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "earlier");
}
