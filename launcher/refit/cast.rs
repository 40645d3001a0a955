//! What a cast must make of elements. In: bytes, two types. Out: bytes, and how many finite values became infinite.
//! Guarantee: computed by the crate `half`, element by element, and by nothing that the transfer uses.

use crate::checkpoint::{Model, Region, RegionError};
use crossmesh::layout::Dtype;
use crossmesh::layout::content_digest::TensorBox;
use half::{bf16, f16};

/// Elements of `from` as elements of `to`; those of types that no cast takes stay as they are.
pub(super) fn cast(bytes: &[u8], from: Dtype, to: Dtype) -> (Vec<u8>, u64) {
    if from == to {
        return (bytes.to_vec(), 0);
    }
    let mut made = Vec::with_capacity(bytes.len() / from.bytes() as usize * to.bytes() as usize);
    let mut saturated = 0;
    for element in bytes.chunks_exact(from.bytes() as usize) {
        let value = match (from, element) {
            (Dtype::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            (Dtype::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
            (Dtype::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
            _ => return (bytes.to_vec(), 0),
        };
        let infinite = match to {
            Dtype::F16 => {
                made.extend(f16::from_f32(value).to_le_bytes());
                f16::from_f32(value).is_infinite()
            }
            Dtype::BF16 => {
                made.extend(bf16::from_f32(value).to_le_bytes());
                bf16::from_f32(value).is_infinite()
            }
            _ => {
                made.extend(value.to_le_bytes());
                false
            }
        };
        saturated += u64::from(infinite && value.is_finite());
    }
    (made, saturated)
}

/// Row-major bytes, without gaps, of a box that lies in memory with strides.
pub(super) fn packed(region: &TensorBox<'_>) -> Vec<u8> {
    let element = region.dtype.bytes() as usize;
    let mut starts = vec![0usize];
    for (&extent, &stride) in region.extent.iter().zip(region.strides) {
        starts = starts.iter().flat_map(|&at| (0..extent).map(move |index| at + (index * stride) as usize)).collect();
    }
    starts.iter().flat_map(|&at| region.bytes[at..at + element].iter().copied()).collect()
}

/// Compares `held`, row-major without gaps, with what a cast makes of a box of the model.
pub(super) fn matches(
    model: &Model,
    index: usize,
    region: Region<'_>,
    (from, to): (Dtype, Dtype),
    held: &[u8],
) -> Result<(), RegionError> {
    if from == to {
        return model.matches(index, region, held);
    }
    let elements = region.extent.iter().product::<u64>();
    let mut bytes = vec![0; (elements * from.bytes()) as usize];
    model.gather(index, region, &mut bytes)?;
    let size = to.bytes() as usize;
    let (right, _) = cast(&bytes, from, to);
    let mut pairs = right.chunks(size).zip(held.chunks(size));
    let Some(mut rest) = pairs.position(|(right, held)| right != held) else { return Ok(()) };
    let at = rest * size;
    let mut place = region.lo.to_vec();
    for (place, &extent) in place.iter_mut().zip(region.extent).rev() {
        *place += (rest as u64) % extent;
        rest /= extent as usize;
    }
    let element = |bytes: &[u8]| bytes[at..at + size].to_vec();
    let tensor = model.tensors()[index].name.clone();
    Err(RegionError::Differs { tensor, index: place, expected: element(&right), found: element(held) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_beyond_the_largest_count() {
        let bytes: Vec<u8> = [1.5f32, 70000.0, -7e4, f32::NEG_INFINITY].iter().flat_map(|v| v.to_le_bytes()).collect();
        let (made, saturated) = cast(&bytes, Dtype::F32, Dtype::F16);
        assert_eq!((made, saturated), (vec![0x00, 0x3e, 0x00, 0x7c, 0x00, 0xfc, 0x00, 0xfc], 2));
        let (wide, _) = cast(&[0x00, 0x3e], Dtype::F16, Dtype::F32);
        assert_eq!(wide, 1.5f32.to_le_bytes());
        assert_eq!(cast(&[1, 2, 3], Dtype::U8, Dtype::U8), (vec![1, 2, 3], 0));
    }
}
