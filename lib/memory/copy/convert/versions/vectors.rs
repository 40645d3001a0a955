//! Blocks of floats by AVX2 and F16C, eight elements at a time. In: a block. Out: a block, or how many of its finite
//! elements are beyond the largest of a type. Guarantee: the same bits as the bitwise version; compilers do not find these
//! instructions in it by themselves.

use super::super::blocks::LANES;
use super::super::scalar::{BF16_OVERFLOW, F16_OVERFLOW, INFINITY};
use std::arch::x86_64::*;

/// Elements of a vector.
const VECTOR: usize = 8;

#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn of_f16(block: [u16; LANES]) -> [u32; LANES] {
    let [low, high] = halves(block);
    joined(_mm256_castps_si256(_mm256_cvtph_ps(low)), _mm256_castps_si256(_mm256_cvtph_ps(high)))
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn of_bf16(block: [u16; LANES]) -> [u32; LANES] {
    let [low, high] = halves(block);
    joined(widened(low), widened(high))
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn to_f16(block: [u32; LANES]) -> [u16; LANES] {
    let [low, high] = wholes(block);
    let narrow = |wide| _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_castsi256_ps(wide));
    stored(_mm256_set_m128i(narrow(high), narrow(low)))
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn to_bf16(block: [u32; LANES]) -> [u16; LANES] {
    let [low, high] = wholes(block);
    // Packing goes by halves of 128 bits; the permutation puts their quarters in order.
    let packed = _mm256_packus_epi32(rounded(low), rounded(high));
    stored(_mm256_permute4x64_epi64::<0b11_01_10_00>(packed))
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn beyond_f16(block: [u32; LANES]) -> u32 {
    beyond(block, F16_OVERFLOW)
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn beyond_bf16(block: [u32; LANES]) -> u32 {
    beyond(block, BF16_OVERFLOW)
}

/// Finite elements whose magnitude is at least `least`.
#[target_feature(enable = "avx2")]
#[inline]
fn beyond(block: [u32; LANES], least: u32) -> u32 {
    let [low, high] = wholes(block);
    let count = |wide| {
        let magnitude = _mm256_and_si256(wide, all(0x7fff_ffff));
        let above = _mm256_cmpgt_epi32(magnitude, all(least - 1));
        let finite = _mm256_cmpgt_epi32(all(INFINITY), magnitude);
        _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_and_si256(above, finite))).count_ones()
    };
    count(low) + count(high)
}

/// binary32 to bfloat16, in the low half of every element.
#[target_feature(enable = "avx2")]
#[inline]
fn rounded(wide: __m256i) -> __m256i {
    let upper = _mm256_srli_epi32::<16>(wide);
    let bias = _mm256_add_epi32(_mm256_and_si256(upper, all(1)), all(0x7fff));
    let nearest = _mm256_srli_epi32::<16>(_mm256_add_epi32(wide, bias));
    let quiet = _mm256_or_si256(upper, all(0x40));
    let nan = _mm256_cmpgt_epi32(_mm256_and_si256(wide, all(0x7fff_ffff)), all(INFINITY));
    _mm256_blendv_epi8(nearest, quiet, nan)
}

/// bfloat16 to binary32.
#[target_feature(enable = "avx2")]
#[inline]
fn widened(half: __m128i) -> __m256i {
    let wide = _mm256_cvtepu16_epi32(half);
    let nan = _mm256_cmpgt_epi32(_mm256_and_si256(wide, all(0x7fff)), all(0x7f80));
    _mm256_slli_epi32::<16>(_mm256_or_si256(wide, _mm256_and_si256(nan, all(0x40))))
}

#[target_feature(enable = "avx2")]
#[inline]
fn all(bits: u32) -> __m256i {
    _mm256_set1_epi32(bits as i32)
}

#[target_feature(enable = "avx2")]
#[inline]
fn halves(block: [u16; LANES]) -> [__m128i; 2] {
    let start = block.as_ptr();
    // SAFETY: each load takes eight of the block's sixteen elements.
    unsafe { [_mm_loadu_si128(start.cast()), _mm_loadu_si128(start.add(VECTOR).cast())] }
}

#[target_feature(enable = "avx2")]
#[inline]
fn wholes(block: [u32; LANES]) -> [__m256i; 2] {
    let start = block.as_ptr();
    // SAFETY: each load takes eight of the block's sixteen elements.
    unsafe { [_mm256_loadu_si256(start.cast()), _mm256_loadu_si256(start.add(VECTOR).cast())] }
}

#[target_feature(enable = "avx2")]
#[inline]
fn joined(low: __m256i, high: __m256i) -> [u32; LANES] {
    let mut block = [0u32; LANES];
    // SAFETY: each store fills eight of the block's sixteen elements.
    unsafe {
        _mm256_storeu_si256(block.as_mut_ptr().cast(), low);
        _mm256_storeu_si256(block.as_mut_ptr().add(VECTOR).cast(), high);
    }
    block
}

#[target_feature(enable = "avx2")]
#[inline]
fn stored(half: __m256i) -> [u16; LANES] {
    let mut block = [0u16; LANES];
    // SAFETY: the store fills the block's sixteen elements.
    unsafe { _mm256_storeu_si256(block.as_mut_ptr().cast(), half) };
    block
}
