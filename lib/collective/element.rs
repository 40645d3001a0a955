//! Elements as numbers. In: bytes of a type. Out: binary64 values, and back, rounded to nearest, ties to even. Guarantee:
//! binary16, bfloat16 and the 8-bit floats widen exactly; narrowing goes over binary32 as on the device; 8-bit floats
//! saturate to their largest value as CUDA's conversions do (`cvt.rn.satfinite`); a NaN stays a NaN.

use crate::layout::Dtype;
use half::{bf16, f16};

/// How an 8-bit float is made up (OCP 8-bit floating point, revision 1.0).
#[derive(Debug, Clone, Copy)]
struct Small {
    mantissa: u32,
    bias: i32,
    /// The magnitude with the largest value; those above are not numbers.
    largest: u8,
}

const E4M3: Small = Small { mantissa: 3, bias: 7, largest: 0x7e };
/// 0x7c, the infinity, lies above the largest.
const E5M2: Small = Small { mantissa: 2, bias: 15, largest: 0x7b };

impl Small {
    fn magnitude(self, code: u8) -> f32 {
        let fraction = f32::from(code & ((1 << self.mantissa) - 1)) / (1u32 << self.mantissa) as f32;
        match i32::from(code >> self.mantissa) {
            0 => fraction * 2f32.powi(1 - self.bias),
            exponent => (1.0 + fraction) * 2f32.powi(exponent - self.bias),
        }
    }

    fn widen(self, code: u8) -> f32 {
        let (sign, code) = (if code & 0x80 != 0 { -1.0 } else { 1.0 }, code & 0x7f);
        match code {
            code if code <= self.largest => sign * self.magnitude(code),
            0x7c if self.largest == 0x7b => sign * f32::INFINITY,
            _ => f32::NAN,
        }
    }

    fn narrow(self, value: f32) -> u8 {
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        if value.is_nan() {
            return sign | 0x7f;
        }
        let value = value.abs();
        // The magnitudes rise with their codes.
        let codes = 0..=self.largest;
        let above = codes.clone().rev().take_while(|&code| self.magnitude(code) >= value).last();
        let Some(above) = above else { return sign | self.largest };
        if above == 0 || self.magnitude(above) == value {
            return sign | above;
        }
        let (low, high) = (value - self.magnitude(above - 1), self.magnitude(above) - value);
        let is_low = low < high || (low == high && above % 2 == 1);
        sign | (above - u8::from(is_low))
    }
}

/// The float at `bytes`, in binary32; of binary32 and narrower types.
pub(super) fn widen(dtype: Dtype, bytes: &[u8]) -> Option<f32> {
    Some(match dtype {
        Dtype::F32 => f32::from_le_bytes(bytes.try_into().ok()?),
        Dtype::F16 => f16::from_le_bytes(bytes.try_into().ok()?).to_f32(),
        Dtype::BF16 => bf16::from_le_bytes(bytes.try_into().ok()?).to_f32(),
        Dtype::F8E4M3 => E4M3.widen(*bytes.first()?),
        Dtype::F8E5M2 => E5M2.widen(*bytes.first()?),
        _ => return None,
    })
}

/// Writes a binary32 as an element of `dtype`.
pub(super) fn narrow(dtype: Dtype, value: f32, bytes: &mut [u8]) -> Option<()> {
    match dtype {
        Dtype::F32 => bytes.copy_from_slice(&value.to_le_bytes()),
        Dtype::F16 => bytes.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
        Dtype::BF16 => bytes.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
        Dtype::F8E4M3 => bytes[0] = E4M3.narrow(value),
        Dtype::F8E5M2 => bytes[0] = E5M2.narrow(value),
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bit_floats_have_their_published_values() {
        let table = [
            (E4M3, 0x01, 2f32.powi(-9)),
            (E4M3, 0x08, 2f32.powi(-6)),
            (E4M3, 0x7e, 448.0),
            (E5M2, 0x01, 2f32.powi(-16)),
            (E5M2, 0x04, 2f32.powi(-14)),
            (E5M2, 0x7b, 57344.0),
            (E5M2, 0xfc, f32::NEG_INFINITY),
            (E4M3, 0x80, -0.0),
        ];
        for (small, code, value) in table {
            assert_eq!(small.widen(code).to_bits(), value.to_bits(), "{small:?} {code:#x}");
        }
        assert!(E4M3.widen(0x7f).is_nan() && E5M2.widen(0x7d).is_nan());
    }

    #[test]
    fn eight_bit_floats_are_rounded_to_the_nearest() {
        for small in [E4M3, E5M2] {
            for code in 0..=small.largest {
                let value = small.magnitude(code);
                assert_eq!(small.narrow(value), code);
                assert_eq!(small.narrow(-value), code | 0x80);
                if code == small.largest {
                    continue;
                }
                let next = small.magnitude(code + 1);
                let middle = (value + next) / 2.0;
                assert_eq!(small.narrow(middle), code + code % 2, "{small:?}: tie between {value} and {next}");
                assert_eq!(small.narrow(middle - (next - value) / 8.0), code);
                assert_eq!(small.narrow(middle + (next - value) / 8.0), code + 1);
            }
            assert_eq!(small.narrow(f32::INFINITY), small.largest);
            assert_eq!(small.narrow(-1e30), small.largest | 0x80);
            assert!(small.widen(small.narrow(f32::NAN)).is_nan());
        }
    }
}
