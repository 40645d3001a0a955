//! Kernels in every version that this processor runs. In: a processor. Out: the best version. Guarantee: all versions are
//! compiled from the same loops and give the same bits; a portable one is always built and tested.

use super::blocks::{LANES, count, fold, lanes, map};
use super::scalar;
use std::sync::OnceLock;

/// Writes as many elements; how many finite ones became infinite.
pub(super) type CastKernel = unsafe fn(*const u8, *mut u8, usize) -> u64;
/// Adds as many elements.
pub(super) type SumKernel = unsafe fn(*const u8, *mut u8, usize);

/// A version of every kernel, in the order of [`Cast`](super::Cast) and [`Sum`](super::Sum).
pub(super) struct Kernels {
    pub(super) name: &'static str,
    pub(super) casts: [CastKernel; 6],
    pub(super) sums: [SumKernel; 8],
}

/// The best version that this processor runs.
pub(super) fn kernels() -> &'static Kernels {
    static CHOSEN: OnceLock<&'static Kernels> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let chosen = vectorised().unwrap_or(&portable::KERNELS);
        log::debug!("casts and sums use the {} version", chosen.name);
        chosen
    })
}

/// Versions that this processor runs.
#[cfg(test)]
pub(super) fn versions() -> Vec<&'static Kernels> {
    std::iter::once(&portable::KERNELS).chain(vectorised()).collect()
}

/// The version in vectors, where this processor runs it.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn vectorised() -> Option<&'static Kernels> {
    let runs = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
    runs.then_some(&avx2::KERNELS)
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn vectorised() -> Option<&'static Kernels> {
    None
}

/// A block from two.
#[inline(always)]
fn zip<D: Copy>(term: [D; LANES], mut sum: [D; LANES], each: impl Fn(D, D) -> D) -> [D; LANES] {
    for (sum, term) in sum.iter_mut().zip(term) {
        *sum = each(term, *sum);
    }
    sum
}

/// A term and the sum so far, binary64.
#[inline(always)]
fn plus_f64(term: u64, sum: u64) -> u64 {
    (f64::from_bits(sum) + f64::from_bits(term)).to_bits()
}

/// A term and the sum so far, binary32.
#[inline(always)]
fn plus_f32(term: u32, sum: u32) -> u32 {
    (f32::from_bits(sum) + f32::from_bits(term)).to_bits()
}

/// Kernels with a processor feature and its way with blocks of floats.
macro_rules! kernels {
    ($module:ident, $name:literal, $floats:ident $(, $feature:literal)?) => {
        mod $module {
            use super::*;

            pub(super) static KERNELS: Kernels = Kernels {
                name: $name,
                casts: [f32_to_f16, f32_to_bf16, f16_to_f32, bf16_to_f32, f16_to_bf16, bf16_to_f16],
                sums: [add_f64, add_f32, add_f16, add_bf16, add_8, add_16, add_32, add_64],
            };

            kernels!(@cast f32_to_f16(block: u32) -> ($floats::to_f16(block), $floats::beyond_f16(block)), $($feature)?);
            kernels!(@cast f32_to_bf16(block: u32) -> ($floats::to_bf16(block), $floats::beyond_bf16(block)), $($feature)?);
            kernels!(@cast f16_to_f32(block: u16) -> ($floats::of_f16(block), 0), $($feature)?);
            kernels!(@cast bf16_to_f32(block: u16) -> ($floats::of_bf16(block), 0), $($feature)?);
            kernels!(@cast f16_to_bf16(block: u16) -> ($floats::to_bf16($floats::of_f16(block)), 0), $($feature)?);
            kernels!(@cast bf16_to_f16(block: u16) -> {
                let wide = $floats::of_bf16(block);
                ($floats::to_f16(wide), $floats::beyond_f16(wide))
            }, $($feature)?);
            kernels!(@sum add_f64(term: u64, sum: u64) -> zip(term, sum, plus_f64), $($feature)?);
            kernels!(@sum add_f32(term: u32, sum: u32) -> zip(term, sum, plus_f32), $($feature)?);
            kernels!(@sum add_f16(term: u16, sum: u32) -> zip($floats::of_f16(term), sum, plus_f32), $($feature)?);
            kernels!(@sum add_bf16(term: u16, sum: u32) -> zip($floats::of_bf16(term), sum, plus_f32), $($feature)?);
            kernels!(@sum add_8(term: u8, sum: u8) -> zip(term, sum, u8::wrapping_add), $($feature)?);
            kernels!(@sum add_16(term: u16, sum: u16) -> zip(term, sum, u16::wrapping_add), $($feature)?);
            kernels!(@sum add_32(term: u32, sum: u32) -> zip(term, sum, u32::wrapping_add), $($feature)?);
            kernels!(@sum add_64(term: u64, sum: u64) -> zip(term, sum, u64::wrapping_add), $($feature)?);
        }
    };
    (@cast $kernel:ident($block:ident: $from:ty) -> $made:expr, $($feature:literal)?) => {
        /// # Safety
        /// As [`map`], on a processor with the version's features.
        $(#[target_feature(enable = $feature)])?
        unsafe fn $kernel(from: *const u8, to: *mut u8, elements: usize) -> u64 {
            // SAFETY: forwarded from the caller.
            unsafe { map(from, to, elements, |$block: [$from; LANES]| $made) }
        }
    };
    (@sum $kernel:ident($term:ident: $from:ty, $sum:ident: $to:ty) -> $made:expr, $($feature:literal)?) => {
        /// # Safety
        /// As [`fold`], on a processor with the version's features.
        $(#[target_feature(enable = $feature)])?
        unsafe fn $kernel(from: *const u8, to: *mut u8, elements: usize) {
            // SAFETY: forwarded from the caller.
            unsafe { fold(from, to, elements, |$term: [$from; LANES], $sum: [$to; LANES]| $made) }
        }
    };
}

kernels!(portable, "portable", bitwise);
#[cfg(all(target_arch = "x86_64", not(miri)))]
kernels!(avx2, "avx2", vectors, "avx2,f16c");

/// Blocks of floats by their bits.
mod bitwise {
    use super::{LANES, count, lanes, scalar};

    #[inline(always)]
    pub(super) fn of_f16(block: [u16; LANES]) -> [u32; LANES] {
        lanes(block, scalar::f16_to_f32)
    }

    #[inline(always)]
    pub(super) fn of_bf16(block: [u16; LANES]) -> [u32; LANES] {
        lanes(block, scalar::bf16_to_f32)
    }

    #[inline(always)]
    pub(super) fn to_f16(block: [u32; LANES]) -> [u16; LANES] {
        lanes(block, scalar::f32_to_f16)
    }

    #[inline(always)]
    pub(super) fn to_bf16(block: [u32; LANES]) -> [u16; LANES] {
        lanes(block, scalar::f32_to_bf16)
    }

    #[inline(always)]
    pub(super) fn beyond_f16(block: [u32; LANES]) -> u32 {
        count(block, scalar::overflows_f16)
    }

    #[inline(always)]
    pub(super) fn beyond_bf16(block: [u32; LANES]) -> u32 {
        count(block, scalar::overflows_bf16)
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod vectors;
