//! Headers of safetensors files. In: the bytes of a file. Out: [`Header`]. Guarantee: the tensors lie inside the
//! file, do not overlap, leave no byte over, and have as many bytes as shape and dtype say; no input panics.

use super::error::HeaderError;
use crossmesh::base::bytes::product;
use crossmesh::base::json;
use crossmesh::base::unique_keys::{UniqueKeys, visit_unique};
use crossmesh::layout::Dtype;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use std::fmt;
use std::ops::Range;

/// Longest header that the format allows.
pub(crate) const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Bytes in front of the header that hold its length.
pub(crate) const LENGTH_BYTES: u64 = 8;

/// The key that is no tensor.
pub(super) const METADATA_KEY: &str = "__metadata__";

/// What a safetensors file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    /// Tensors in the order of their bytes.
    pub(crate) tensors: Vec<HeaderTensor>,
}

/// A tensor in a safetensors file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeaderTensor {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<u64>,
    /// Its bytes, counted from the start of the file.
    pub(crate) range: Range<u64>,
}

/// Bytes of a tensor; `None` when they do not fit 64 bits.
pub(crate) fn tensor_bytes(shape: &[u64], dtype: Dtype) -> Option<u64> {
    product(shape).ok()?.checked_mul(dtype.bytes())
}

impl Header {
    /// Reads and checks the header of `file`, the whole file.
    pub(crate) fn parse(file: &[u8]) -> Result<Self, HeaderError> {
        let (text, data) = split_header(file)?;
        if !text.starts_with('{') {
            return Err(HeaderError::NotAnObject { found: text.chars().next() });
        }
        let entries: HeaderText = json::read(text).map_err(HeaderError::NotJson)?;
        let mut tensors = entries
            .tensors
            .into_iter()
            .map(|(name, entry)| check_tensor(name, entry, data))
            .collect::<Result<Vec<_>, _>>()?;
        tensors.sort_by(|one, two| {
            (one.range.start, one.range.end, &one.name).cmp(&(two.range.start, two.range.end, &two.name))
        });
        check_cover(&tensors, data)?;
        let start = file.len() as u64 - data;
        for tensor in &mut tensors {
            tensor.range = tensor.range.start + start..tensor.range.end + start;
        }
        Ok(Self { tensors })
    }
}

/// Header text, and how many bytes follow it.
fn split_header(file: &[u8]) -> Result<(&str, u64), HeaderError> {
    let bytes = file.len() as u64;
    let Some((length, rest)) = file.split_first_chunk::<{ LENGTH_BYTES as usize }>() else {
        return Err(HeaderError::TooShort { bytes });
    };
    let length = u64::from_le_bytes(*length);
    let left = rest.len() as u64;
    if length > left {
        return Err(HeaderError::BeyondFile { length, left });
    }
    if length > MAX_HEADER_BYTES {
        return Err(HeaderError::TooLong { length, allowed: MAX_HEADER_BYTES });
    }
    let (header, data) = rest.split_at(length as usize);
    let text = std::str::from_utf8(header).map_err(HeaderError::NotUtf8)?;
    Ok((text, data.len() as u64))
}

/// Checks a tensor by itself; its range still counts from the end of the header.
fn check_tensor(name: String, entry: EntryText, data: u64) -> Result<HeaderTensor, HeaderError> {
    let EntryText { dtype, shape, data_offsets: (begin, end) } = entry;
    let dtype = match Dtype::parse(&dtype) {
        Ok(dtype) => dtype,
        Err(source) => return Err(HeaderError::Dtype { tensor: name, source }),
    };
    let Some(needed) = tensor_bytes(&shape, dtype) else {
        return Err(HeaderError::Size { tensor: name, shape, dtype });
    };
    let Some(found) = end.checked_sub(begin) else {
        return Err(HeaderError::Reversed { tensor: name, begin, end });
    };
    if end > data {
        return Err(HeaderError::OutsideFile { tensor: name, end, data });
    }
    if found != needed {
        return Err(HeaderError::SizeMismatch { tensor: name, shape, dtype, found, needed });
    }
    Ok(HeaderTensor { name, dtype, shape, range: begin..end })
}

/// Checks that sorted tensors follow each other from 0 to `data`.
fn check_cover(tensors: &[HeaderTensor], data: u64) -> Result<(), HeaderError> {
    let mut end = 0;
    let mut previous: Option<&HeaderTensor> = None;
    for tensor in tensors {
        let (begin, name) = (tensor.range.start, || tensor.name.clone());
        match previous {
            Some(first) if begin < end => {
                return Err(HeaderError::Overlap { first: first.name.clone(), end, second: name(), begin });
            }
            _ if begin > end => return Err(HeaderError::Hole { from: end, to: begin, tensor: name() }),
            _ => {}
        }
        end = tensor.range.end;
        previous = Some(tensor);
    }
    if end < data {
        return Err(HeaderError::Trailing { from: end, to: data });
    }
    Ok(())
}

/// The JSON of a header.
#[derive(Default)]
struct HeaderText {
    tensors: Vec<(String, EntryText)>,
}

#[derive(serde::Deserialize)]
#[serde(expecting = "an object with dtype, shape and data_offsets")]
struct EntryText {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for HeaderText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = HeaderText;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<HeaderText, A::Error> {
                let mut header = HeaderText::default();
                visit_unique(&mut map, |map, key| {
                    if key == METADATA_KEY {
                        // The writer's free texts: checked, and of no use here.
                        map.next_value::<UniqueKeys<String>>()?;
                    } else {
                        header.tensors.push((key.to_string(), map.next_value()?));
                    }
                    Ok(())
                })?;
                Ok(header)
            }
        }

        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
#[path = "header_tests.rs"]
mod tests;
