//! Tensors as safetensors. In: names, types, shapes, bytes. Out: a file. Guarantee: what
//! [`Header::parse`](super::header::Header::parse) accepts, with every tensor aligned to its element; nothing is
//! copied as a whole.

use super::atomic_file::PendingFile;
use super::error::WriteError;
use super::header::{LENGTH_BYTES, MAX_HEADER_BYTES, METADATA_KEY, tensor_bytes};
use crossmesh::layout::Dtype;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

/// A tensor to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShardTensor<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: Dtype,
    pub(crate) shape: &'a [u64],
    /// Row-major without gaps.
    pub(crate) bytes: &'a [u8],
}

#[derive(Serialize)]
struct EntryText<'a> {
    dtype: Dtype,
    shape: &'a [u64],
    data_offsets: (u64, u64),
}

#[derive(Serialize)]
#[serde(untagged)]
enum HeaderValue<'a> {
    Metadata(&'a BTreeMap<String, String>),
    Tensor(EntryText<'a>),
}

/// Writes `tensors` and `metadata` to a file, to be placed at `path`.
pub(crate) fn prepare_shards<'a>(
    path: &Path,
    tensors: impl IntoIterator<Item = ShardTensor<'a>>,
    metadata: &BTreeMap<String, String>,
) -> Result<PendingFile, WriteError> {
    let mut tensors: Vec<ShardTensor<'a>> = tensors.into_iter().collect();
    // The largest elements first: the data starts at a multiple of 8 bytes, so all lie on multiples of their size.
    tensors.sort_by(|one, two| (two.dtype.bytes(), one.name).cmp(&(one.dtype.bytes(), two.name)));
    let header = header_bytes(path, &tensors, metadata)?;
    let data: u64 = tensors.iter().map(|tensor| tensor.bytes.len() as u64).sum();
    PendingFile::write(path, LENGTH_BYTES + header.len() as u64 + data, |file| {
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        tensors.iter().try_for_each(|tensor| file.write_all(tensor.bytes))
    })
}

/// The header in JSON, filled up with blanks to a multiple of 8 bytes.
fn header_bytes(
    path: &Path,
    tensors: &[ShardTensor<'_>],
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<u8>, WriteError> {
    let mut entries = BTreeMap::new();
    if !metadata.is_empty() {
        entries.insert(METADATA_KEY, HeaderValue::Metadata(metadata));
    }
    let mut begin = 0u64;
    for tensor in tensors {
        let ShardTensor { name, dtype, shape, bytes } = *tensor;
        if name == METADATA_KEY {
            return Err(WriteError::ReservedName { path: path.to_path_buf(), tensor: name.to_string() });
        }
        let given = bytes.len() as u64;
        let needed = tensor_bytes(shape, dtype);
        if needed != Some(given) {
            let (path, tensor, shape) = (path.to_path_buf(), name.to_string(), shape.to_vec());
            let needed = needed.unwrap_or(u64::MAX);
            return Err(WriteError::SizeMismatch { path, tensor, shape, dtype, given, needed });
        }
        let entry = EntryText { dtype, shape, data_offsets: (begin, begin + given) };
        if entries.insert(name, HeaderValue::Tensor(entry)).is_some() {
            return Err(WriteError::DuplicateTensor { path: path.to_path_buf(), tensor: name.to_string() });
        }
        begin += given;
    }
    let mut header =
        serde_json::to_vec(&entries).map_err(|source| WriteError::Json { path: path.to_path_buf(), source })?;
    header.resize(header.len().next_multiple_of(LENGTH_BYTES as usize), b' ');
    if header.len() as u64 > MAX_HEADER_BYTES {
        let (path, bytes) = (path.to_path_buf(), header.len() as u64);
        return Err(WriteError::HeaderTooLong { path, bytes, allowed: MAX_HEADER_BYTES });
    }
    Ok(header)
}

#[cfg(test)]
#[path = "shard_file_tests.rs"]
mod tests;
