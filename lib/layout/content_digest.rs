//! Digest of tensor contents. In: a box of a tensor in memory, its global position, a seed. Out: 64 bits. Guarantee:
//! digests of disjoint boxes add up (wrapping) to that of their union, so ranks digest what they hold and the sum
//! does not depend on the layout; every element is mixed with its global position, so swapped, shifted or
//! duplicated rows change the sum. It guards against mistakes, not against forgery.
//!
//! Each element, read as a little-endian integer, is multiplied by its place in a Weyl sequence over the linear
//! global index, and the halves of the 128-bit product are folded: one multiplication an element, about twice as
//! fast as two rounds of 64-bit mixing, which loop vectorisers emulate. Nothing is allocated.

use super::Dtype;
use thiserror::Error;

/// A box that cannot be digested.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DigestError {
    /// Lists of different lengths.
    #[error(
        "digest of a tensor of {rank} dimensions with {lo} lower bounds, {extent} extents and {strides} strides; \
         give one of each per dimension"
    )]
    RankMismatch {
        /// Length of the shape.
        rank: usize,
        /// Length of the lower bounds.
        lo: usize,
        /// Length of the extents.
        extent: usize,
        /// Length of the strides.
        strides: usize,
    },
    /// The box leaves the tensor.
    #[error("box at {lo:?} of extent {extent:?} leaves the tensor of shape {shape:?}")]
    OutsideTensor {
        /// Global shape.
        shape: Vec<u64>,
        /// Lower bounds.
        lo: Vec<u64>,
        /// Extents.
        extent: Vec<u64>,
    },
    /// The box leaves the bytes.
    #[error("box of extent {extent:?} with strides {strides:?} bytes ends beyond the {bytes} bytes that hold it")]
    OutsideBytes {
        /// Extents.
        extent: Vec<u64>,
        /// Strides in bytes.
        strides: Vec<u64>,
        /// Bytes given.
        bytes: usize,
    },
}

/// A box of a tensor as it lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorBox<'a> {
    /// Bytes from the first element of the box on.
    pub bytes: &'a [u8],
    /// Element type.
    pub dtype: Dtype,
    /// Shape of the whole tensor.
    pub shape: &'a [u64],
    /// Global index of the first element, per dimension.
    pub lo: &'a [u64],
    /// Extent per dimension.
    pub extent: &'a [u64],
    /// Distance in bytes between neighbours in memory, per dimension.
    pub strides: &'a [u64],
}

/// Seed of the tensor called `name`: FNV-1a, finished so that similar names lie far apart.
pub fn name_seed(name: &str) -> u64 {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    mix64(hash)
}

/// A bijection of 64 bits in which every output bit depends on every input bit.
#[inline(always)]
pub const fn mix64(word: u64) -> u64 {
    let word = (word ^ (word >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let word = (word ^ (word >> 29)).wrapping_mul(0xa0761d6478bd642f);
    word ^ (word >> 32)
}

/// Step of the Weyl sequence over linear indices: 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Keeps elements of value zero from a product of zero.
const KEY: u64 = 0xa076_1d64_78bd_642f;

/// Place of the element with linear index `index`.
const fn place(index: u64, seed: u64) -> u64 {
    mix64(seed.wrapping_add(STEP)).wrapping_add(index.wrapping_mul(STEP))
}

/// Places of a box's elements, for those who digest on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// Place of the first element.
    pub first: u64,
    /// What is added from neighbour to neighbour, per dimension.
    pub steps: Vec<u64>,
}

/// Places of the box at `lo` of a tensor of `shape`. An element's digest is the product of it (with the key mixed in) and its
/// place, folded.
pub fn place_steps(shape: &[u64], lo: &[u64], seed: u64) -> Places {
    let below = |dim: usize| shape[dim + 1..].iter().fold(1u64, |product, &extent| product.wrapping_mul(extent));
    Places {
        first: place(origin(shape, lo), seed),
        steps: (0..shape.len()).map(|dim| below(dim).wrapping_mul(STEP)).collect(),
    }
}

/// Linear index of the element at `lo`, wrapping.
fn origin(shape: &[u64], lo: &[u64]) -> u64 {
    shape.iter().zip(lo).fold(0u64, |index, (&extent, &lo)| index.wrapping_mul(extent).wrapping_add(lo))
}

#[inline(always)]
const fn fold(element: u64, place: u64) -> u64 {
    let product = (element ^ KEY) as u128 * place as u128;
    product as u64 ^ (product >> 64) as u64
}

/// What one element adds to the digest: `element` is its bytes as a little-endian integer, `index` its row-major
/// position in the whole tensor.
pub const fn element_digest(element: u64, index: u64, seed: u64) -> u64 {
    fold(element, place(index, seed))
}

/// Sum of [`element_digest`] over the elements of `region`, wrapping.
pub fn digest_box(region: &TensorBox<'_>, seed: u64) -> Result<u64, DigestError> {
    check(region)?;
    if region.extent.contains(&0) {
        return Ok(0);
    }
    let first = place(origin(region.shape, region.lo), seed);
    // `Dtype` has no other sizes; a test holds it to that.
    Ok(match region.dtype.bytes() {
        1 => walk::<1>(region, 0, 0, first),
        2 => walk::<2>(region, 0, 0, first),
        4 => walk::<4>(region, 0, 0, first),
        _ => walk::<8>(region, 0, 0, first),
    })
}

fn check(region: &TensorBox<'_>) -> Result<(), DigestError> {
    let TensorBox { bytes, dtype, shape, lo, extent, strides } = *region;
    let rank = shape.len();
    if lo.len() != rank || extent.len() != rank || strides.len() != rank {
        let (lo, extent, strides) = (lo.len(), extent.len(), strides.len());
        return Err(DigestError::RankMismatch { rank, lo, extent, strides });
    }
    let inside = |dim: usize| lo[dim].checked_add(extent[dim]).is_some_and(|hi| hi <= shape[dim]);
    if !(0..rank).all(inside) {
        let (shape, lo, extent) = (shape.to_vec(), lo.to_vec(), extent.to_vec());
        return Err(DigestError::OutsideTensor { shape, lo, extent });
    }
    if extent.contains(&0) {
        return Ok(());
    }
    let reach = extent.iter().zip(strides).try_fold(u128::from(dtype.bytes()), |reach, (&extent, &stride)| {
        reach.checked_add(u128::from(extent - 1) * u128::from(stride))
    });
    if reach.is_none_or(|reach| reach > bytes.len() as u128) {
        let (extent, strides) = (extent.to_vec(), strides.to_vec());
        return Err(DigestError::OutsideBytes { extent, strides, bytes: bytes.len() });
    }
    Ok(())
}

/// The part of the digest below dimension `dim`, for the elements from byte `offset` on, the first of them at
/// `place`. Offsets stay in `region.bytes`, which `check` made sure of.
fn walk<const SIZE: usize>(region: &TensorBox<'_>, dim: usize, offset: usize, place: u64) -> u64 {
    let Some(&extent) = region.extent.get(dim) else {
        return row::<SIZE>(&region.bytes[offset..], 1, SIZE, place);
    };
    let stride = region.strides[dim] as usize;
    if dim + 1 == region.extent.len() {
        return row::<SIZE>(&region.bytes[offset..], extent as usize, stride, place);
    }
    let below = region.shape[dim + 1..].iter().fold(1u64, |product, &extent| product.wrapping_mul(extent));
    let mut sum = 0u64;
    let (mut offset, mut place) = (offset, place);
    for step in 0..extent {
        sum = sum.wrapping_add(walk::<SIZE>(region, dim + 1, offset, place));
        if step + 1 < extent {
            offset += stride;
        }
        place = place.wrapping_add(below.wrapping_mul(STEP));
    }
    sum
}

/// `count` elements, `stride` bytes apart in memory and neighbours in the tensor.
fn row<const SIZE: usize>(bytes: &[u8], count: usize, stride: usize, mut place: u64) -> u64 {
    let mut sum = 0u64;
    let mut add = |element: &[u8]| {
        sum = sum.wrapping_add(fold(word::<SIZE>(element), place));
        place = place.wrapping_add(STEP);
    };
    if stride == SIZE {
        bytes[..count * SIZE].chunks_exact(SIZE).for_each(add);
    } else {
        (0..count).for_each(|index| add(&bytes[index * stride..index * stride + SIZE]));
    }
    sum
}

#[inline(always)]
fn word<const SIZE: usize>(element: &[u8]) -> u64 {
    let mut word = [0u8; 8];
    word[..SIZE].copy_from_slice(element);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Row-major bytes of a whole tensor, all different.
    fn contents(shape: &[u64], size: u64) -> Vec<u8> {
        let bytes = shape.iter().product::<u64>() * size;
        (0..bytes).map(|at| (mix64(at + 1) >> 56) as u8).collect()
    }

    fn strides(shape: &[u64], size: u64) -> Vec<u64> {
        (0..shape.len()).map(|dim| shape[dim + 1..].iter().product::<u64>() * size).collect()
    }

    fn whole(bytes: &[u8], dtype: Dtype, shape: &[u64]) -> u64 {
        let (lo, strides) = (vec![0; shape.len()], strides(shape, dtype.bytes()));
        digest_box(&TensorBox { bytes, dtype, shape, lo: &lo, extent: shape, strides: &strides }, 7).unwrap()
    }

    /// The definition, element by element.
    fn naive(bytes: &[u8], size: usize) -> u64 {
        let word = |element: &[u8]| element.iter().rev().fold(0u64, |word, &byte| word << 8 | u64::from(byte));
        bytes
            .chunks(size)
            .enumerate()
            .fold(0, |sum, (at, element)| sum.wrapping_add(element_digest(word(element), at as u64, 7)))
    }

    #[test]
    fn equals_the_definition() {
        for &dtype in Dtype::ALL {
            assert!([1, 2, 4, 8].contains(&dtype.bytes()));
            for shape in [&[][..], &[0], &[1], &[37], &[5, 3], &[3, 0, 2], &[2, 3, 4, 5]] {
                let bytes = contents(shape, dtype.bytes());
                assert_eq!(whole(&bytes, dtype, shape), naive(&bytes, dtype.bytes() as usize), "{dtype} {shape:?}");
            }
        }
    }

    #[test]
    fn mistakes_change_it() {
        for dtype in [Dtype::U8, Dtype::BF16, Dtype::F32, Dtype::I64] {
            let shape = [16, 256];
            let row = 256 * dtype.bytes() as usize;
            let right = contents(&shape, dtype.bytes());
            let digest = whole(&right, dtype, &shape);
            let differs = |what: &str, change: &dyn Fn(&mut Vec<u8>)| {
                let mut wrong = right.clone();
                change(&mut wrong);
                assert_ne!(whole(&wrong, dtype, &shape), digest, "{dtype}: {what}");
            };
            let size = dtype.bytes() as usize;
            differs("swapped rows", &|bytes| (0..row).for_each(|at| bytes.swap(3 * row + at, 9 * row + at)));
            differs("swapped elements", &|bytes| (0..size).for_each(|at| bytes.swap(at, size + at)));
            differs("shifted by 256 bytes", &|bytes| bytes.rotate_right(256));
            differs("duplicated row", &|bytes| bytes.copy_within(row..2 * row, 5 * row));
            differs("one bit", &|bytes| bytes[row + 1] ^= 0x80);
            differs("zeroed row", &|bytes| bytes[..row].fill(0));
        }
        assert_ne!(name_seed("layers.1.w"), name_seed("layers.2.w"));
        // No seed leaves the first element out.
        assert!((0..1000).all(|seed| element_digest(0, 0, seed) != element_digest(1, 0, seed)));
        // A row of zeros in the wrong place: positions count even where values do not.
        let (zero, lo, at) = ([0u8; 8], [0u64], [1u64]);
        let single = |lo: &[u64]| {
            let region = TensorBox { bytes: &zero, dtype: Dtype::F64, shape: &[2], lo, extent: &[1], strides: &[8] };
            digest_box(&region, 7).unwrap()
        };
        assert_ne!(single(&lo), single(&at));
    }

    #[test]
    fn bad_boxes() {
        let digest = |bytes: &[u8], lo: &[u64], extent: &[u64], strides: &[u64]| {
            digest_box(&TensorBox { bytes, dtype: Dtype::F32, shape: &[4, 4], lo, extent, strides }, 0)
        };
        let bytes = [0u8; 64];
        assert!(digest(&bytes, &[0, 0], &[4, 4], &[16, 4]).is_ok());
        assert!(matches!(digest(&bytes, &[0], &[4, 4], &[16, 4]), Err(DigestError::RankMismatch { lo: 1, .. })));
        assert!(matches!(digest(&bytes, &[1, 0], &[4, 4], &[16, 4]), Err(DigestError::OutsideTensor { .. })));
        assert!(matches!(digest(&bytes, &[u64::MAX, 0], &[1, 4], &[16, 4]), Err(DigestError::OutsideTensor { .. })));
        assert!(matches!(digest(&bytes[1..], &[0, 0], &[4, 4], &[16, 4]), Err(DigestError::OutsideBytes { .. })));
        assert!(matches!(digest(&bytes, &[0, 0], &[4, 4], &[u64::MAX, 4]), Err(DigestError::OutsideBytes { .. })));
        assert_eq!(digest(&[], &[2, 4], &[0, 0], &[16, 4]), Ok(0));
    }

    proptest! {
        /// A tensor cut at two places, stored column-major with gaps, digests as the whole does.
        #[test]
        fn disjoint_boxes_add_up(rows in 0u64..9, columns in 0u64..9, at in 0.0f64..1.0, across in 0.0f64..1.0, gap in 0u64..4) {
            for dtype in [Dtype::I8, Dtype::F16, Dtype::F32, Dtype::C64] {
                let size = dtype.bytes();
                let bytes = contents(&[rows, columns], size);
                let (row, column) = ((rows as f64 * at) as u64, (columns as f64 * across) as u64);
                let mut sum = 0u64;
                for (lo, extent) in [
                    ([0, 0], [row, column]),
                    ([0, column], [row, columns - column]),
                    ([row, 0], [rows - row, columns]),
                ] {
                    let strides = [size + gap, (size + gap) * extent[0]];
                    let mut held = vec![0xa5; (strides[1] * extent[1]) as usize];
                    for (i, j) in (0..extent[0]).flat_map(|i| (0..extent[1]).map(move |j| (i, j))) {
                        let from = (((lo[0] + i) * columns + lo[1] + j) * size) as usize;
                        let to = (i * strides[0] + j * strides[1]) as usize;
                        held[to..to + size as usize].copy_from_slice(&bytes[from..from + size as usize]);
                    }
                    let region =
                        TensorBox { bytes: &held, dtype, shape: &[rows, columns], lo: &lo, extent: &extent, strides: &strides };
                    sum = sum.wrapping_add(digest_box(&region, 7).unwrap());
                }
                prop_assert_eq!(sum, whole(&bytes, dtype, &[rows, columns]));
            }
        }
    }
}
