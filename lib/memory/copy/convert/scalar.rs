//! Rounding and widening of single elements. In: bits. Out: bits. Guarantee: round to nearest, ties to even, as IEEE 754
//! says; subnormals are kept; a NaN stays a NaN of its sign with the upper bits of its payload, made quiet, as processors
//! do it; pure, without branches that depend on the order of elements.

/// Magnitude of the infinity of binary32.
pub(super) const INFINITY: u32 = 0x7f80_0000;
/// Smallest binary32 magnitude that rounds to the infinity of bfloat16: half a unit above its largest value.
pub(super) const BF16_OVERFLOW: u32 = 0x7f7f_8000;
/// Smallest binary32 magnitude that rounds to the infinity of binary16: 65520.
pub(super) const F16_OVERFLOW: u32 = 0x477f_f000;
/// 2^-14, the smallest normal binary16, as binary32.
const F16_NORMAL: u32 = 0x3880_0000;
/// Difference of the exponent biases, 127 - 15, at binary32's place of the exponent.
const F16_REBIAS: u32 = 112 << 23;

/// binary32 to bfloat16.
#[inline(always)]
pub(super) fn f32_to_bf16(bits: u32) -> u16 {
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let quiet = bits >> 16 | 0x40;
    (if magnitude(bits) > INFINITY { quiet } else { rounded }) as u16
}

/// bfloat16 to binary32.
#[inline(always)]
pub(super) fn bf16_to_f32(bits: u16) -> u32 {
    let quiet = if bits & 0x7fff > 0x7f80 { 0x40 } else { 0 };
    u32::from(bits | quiet) << 16
}

/// binary32 to binary16.
#[inline(always)]
pub(super) fn f32_to_f16(bits: u32) -> u16 {
    let magnitude = magnitude(bits);
    let rebiased = magnitude.wrapping_sub(F16_REBIAS);
    let normal = rebiased.wrapping_add(0xfff + (rebiased >> 13 & 1)) >> 13;
    // A unit in the last place of 0.5 is 2^-24, as is that of a subnormal binary16, so this addition rounds.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let finite = if magnitude < F16_NORMAL { subnormal } else { normal };
    let special = if magnitude > INFINITY { 0x7e00 | (magnitude >> 13 & 0x3ff) } else { 0x7c00 };
    let value = if magnitude >= F16_OVERFLOW { special } else { finite };
    (bits >> 16 & 0x8000 | value) as u16
}

/// binary16 to binary32.
#[inline(always)]
pub(super) fn f16_to_f32(bits: u16) -> u32 {
    let (sign, magnitude) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7fff));
    let normal = (magnitude << 13) + F16_REBIAS;
    // 2^-24, the smallest subnormal; the product is exact.
    let subnormal = (magnitude as f32 * f32::from_bits(103 << 23)).to_bits();
    let quiet = if magnitude > 0x7c00 { 0x0040_0000 } else { 0 };
    let special = INFINITY | (magnitude & 0x3ff) << 13 | quiet;
    let finite = if magnitude < 0x400 { subnormal } else { normal };
    sign | if magnitude >= 0x7c00 { special } else { finite }
}

/// Whether a finite binary32 rounds to the infinity of bfloat16.
#[inline(always)]
pub(super) fn overflows_bf16(bits: u32) -> bool {
    (BF16_OVERFLOW..INFINITY).contains(&magnitude(bits))
}

/// Whether a finite binary32 rounds to the infinity of binary16.
#[inline(always)]
pub(super) fn overflows_f16(bits: u32) -> bool {
    (F16_OVERFLOW..INFINITY).contains(&magnitude(bits))
}

#[inline(always)]
fn magnitude(bits: u32) -> u32 {
    bits & 0x7fff_ffff
}
