//! Boxes of a model's contents. In: a tensor, a box, a buffer. Out: the box's bytes, row-major, or the first index
//! at which given bytes differ. Guarantee: files and synthesised contents behave alike.

use super::error::RegionError;
use super::model::{Contents, Model, TensorSource};
use super::region::{Region, Run};
use super::synthetic::synthesise;

/// Bytes synthesised at a time for comparison; a multiple of every element size, on the stack.
const PIECE: usize = 4096;

/// Where bytes are found.
enum Bytes<'a> {
    File(&'a [u8]),
    Seed(u64),
}

impl Model {
    /// Copies the box `region` of tensor number `tensor` to `out`, row-major without gaps.
    ///
    /// # Panics
    ///
    /// When the model has no tensor of that number.
    pub(crate) fn gather(&self, tensor: usize, region: Region<'_>, out: &mut [u8]) -> Result<(), RegionError> {
        let tensor = &self.tensors()[tensor];
        region.check(tensor, out.len())?;
        match &tensor.contents {
            Contents::Part { whole, axes } => self.gather_of_whole(whole, axes, region, out),
            _ => self.gather_from(tensor, region, out),
        }
    }

    /// Copies a checked box of a tensor that is no part.
    pub(super) fn gather_from(
        &self,
        tensor: &TensorSource,
        region: Region<'_>,
        out: &mut [u8],
    ) -> Result<(), RegionError> {
        let bytes = self.bytes_of(tensor)?;
        region.for_each_run(tensor, |Run { global, local, bytes: length }| {
            let out = &mut out[local..local + length];
            match bytes {
                Bytes::File(file) => out.copy_from_slice(&file[global as usize..][..length]),
                Bytes::Seed(seed) => synthesise(seed, global, out),
            }
        });
        Ok(())
    }

    /// Compares `held`, row-major without gaps, with the box `region` of tensor number `tensor`.
    ///
    /// # Panics
    ///
    /// When the model has no tensor of that number.
    pub(crate) fn matches(&self, tensor: usize, region: Region<'_>, held: &[u8]) -> Result<(), RegionError> {
        let tensor = &self.tensors()[tensor];
        region.check(tensor, held.len())?;
        if let Contents::Part { whole, axes } = &tensor.contents {
            let mut right = vec![0u8; held.len()];
            self.gather_of_whole(whole, axes, region, &mut right)?;
            return compare_box(tensor, region, &right, held);
        }
        let bytes = self.bytes_of(tensor)?;
        region.try_for_each_run(tensor, |Run { global, local, bytes: length }| {
            let held = &held[local..local + length];
            match bytes {
                Bytes::File(file) => compare(tensor, global, &file[global as usize..][..length], held),
                Bytes::Seed(seed) => held.chunks(PIECE).zip(0u64..).try_for_each(|(held, piece)| {
                    let mut right = [0u8; PIECE];
                    let (right, global) = (&mut right[..held.len()], global + piece * PIECE as u64);
                    synthesise(seed, global, right);
                    compare(tensor, global, right, held)
                }),
            }
        })
    }

    /// The tensor's bytes in its file, or the seed of its synthesised contents.
    fn bytes_of(&self, tensor: &TensorSource) -> Result<Bytes<'_>, RegionError> {
        match &tensor.contents {
            Contents::File { file, range } => {
                Ok(Bytes::File(&self.files()[*file].bytes()[range.start as usize..range.end as usize]))
            }
            Contents::Synthetic { seed } => Ok(Bytes::Seed(*seed)),
            // A part is made of a tensor that is none.
            Contents::Elsewhere | Contents::Part { .. } => Err(RegionError::Elsewhere { tensor: tensor.name.clone() }),
        }
    }
}

/// Compares bytes that start at an element border, byte `global` of the tensor.
fn compare(tensor: &TensorSource, global: u64, right: &[u8], held: &[u8]) -> Result<(), RegionError> {
    let Some(start) = first_difference(tensor, right, held) else { return Ok(()) };
    let element = (global + start as u64) / tensor.dtype.bytes();
    Err(differs(tensor, place(element, &tensor.shape), start, right, held))
}

/// Compares the bytes of a box.
fn compare_box(tensor: &TensorSource, region: Region<'_>, right: &[u8], held: &[u8]) -> Result<(), RegionError> {
    let Some(start) = first_difference(tensor, right, held) else { return Ok(()) };
    let index = place(start as u64 / tensor.dtype.bytes(), region.extent);
    let index = index.iter().zip(region.lo).map(|(index, lo)| index + lo).collect();
    Err(differs(tensor, index, start, right, held))
}

/// First byte of the first element that differs.
fn first_difference(tensor: &TensorSource, right: &[u8], held: &[u8]) -> Option<usize> {
    if right == held {
        return None;
    }
    let at = right.iter().zip(held).position(|(right, held)| right != held).unwrap_or_default();
    Some(at - at % tensor.dtype.bytes() as usize)
}

/// Indices of element number `rest` of a row-major box.
fn place(mut rest: u64, extents: &[u64]) -> Vec<u64> {
    let mut index = vec![0; extents.len()];
    for (index, &extent) in index.iter_mut().zip(extents).rev() {
        *index = rest % extent;
        rest /= extent;
    }
    index
}

fn differs(tensor: &TensorSource, index: Vec<u64>, start: usize, right: &[u8], held: &[u8]) -> RegionError {
    let element = |bytes: &[u8]| bytes[start..start + tensor.dtype.bytes() as usize].to_vec();
    RegionError::Differs { tensor: tensor.name.clone(), index, expected: element(right), found: element(held) }
}
