//! One element from a number. In: a type, a value. Out: its bytes, little-endian. Guarantee: exact; a value that the
//! type does not have gives none.

use super::Dtype;

/// A binary float: widths of exponent and fraction, and what the highest exponent is for.
struct Format {
    exponent: u32,
    fraction: u32,
    special: Special,
}

/// Codes of the highest exponent.
#[derive(PartialEq)]
enum Special {
    /// Infinity and NaN, as in IEEE 754.
    Infinite,
    /// Numbers, but for the last code.
    Finite,
}

/// The bytes of `value` as an element of `dtype`; the bytes behind the element are zero.
pub(super) fn encode(dtype: Dtype, value: f64) -> Option<[u8; 8]> {
    let format = |exponent, fraction, special| Format { exponent, fraction, special };
    let code = match dtype {
        Dtype::F64 => value.to_bits(),
        Dtype::F32 => format(8, 23, Special::Infinite).code(value)?,
        Dtype::F16 => format(5, 10, Special::Infinite).code(value)?,
        Dtype::BF16 => format(8, 7, Special::Infinite).code(value)?,
        Dtype::F8E4M3 => format(4, 3, Special::Finite).code(value)?,
        Dtype::F8E5M2 => format(5, 2, Special::Infinite).code(value)?,
        Dtype::I64 | Dtype::I32 | Dtype::I16 | Dtype::I8 => {
            let bits = 8 * dtype.bytes() as i32 - 1;
            let fits = value.fract() == 0.0 && value >= -(2f64.powi(bits)) && value < 2f64.powi(bits);
            fits.then_some(value as i64 as u64)?
        }
        Dtype::U64 | Dtype::U32 | Dtype::U16 | Dtype::U8 => {
            let fits = value.fract() == 0.0 && value >= 0.0 && value < 2f64.powi(8 * dtype.bytes() as i32);
            fits.then_some(value as u64)?
        }
        Dtype::Bool => (value == 0.0 || value == 1.0).then_some(value as u64)?,
        // Zero has no code in F8_E8M0, and the others have one zero.
        Dtype::F8E8M0 => None?,
        Dtype::F8E4M3Fnuz | Dtype::F8E5M2Fnuz | Dtype::C64 => (value.to_bits() == 0).then_some(0)?,
    };
    let mut bytes = code.to_le_bytes();
    bytes[dtype.bytes() as usize..].fill(0);
    Some(bytes)
}

impl Format {
    /// The code of a value that the format has.
    fn code(&self, value: f64) -> Option<u64> {
        let sign = u64::from(value.is_sign_negative()) << (self.exponent + self.fraction);
        let highest = (1u64 << self.exponent) - 1;
        if value == 0.0 {
            return Some(sign);
        }
        if !value.is_finite() {
            return (value.is_infinite() && self.special == Special::Infinite)
                .then_some(sign | highest << self.fraction);
        }
        let bias = (1i32 << (self.exponent - 1)) - 1;
        // value = significand * 2^(power - fraction), with the leading bit of a normal number at `fraction`.
        let exponent = ((value.to_bits() >> 52) & 0x7ff) as i32 - 1023;
        let power = exponent.max(1 - bias);
        let significand = value.abs() * 2f64.powi(self.fraction as i32 - power);
        if significand.fract() != 0.0 {
            return None;
        }
        let significand = significand as u64;
        let lead = 1u64 << self.fraction;
        let code = match significand < lead {
            true => significand,
            false => ((power + bias) as u64) << self.fraction | (significand - lead),
        };
        let last = match self.special {
            Special::Infinite => (highest << self.fraction) - 1,
            Special::Finite => (highest << self.fraction) + lead - 2,
        };
        (code <= last).then_some(sign | code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(dtype: Dtype, value: f64) -> Option<u64> {
        encode(dtype, value).map(u64::from_le_bytes)
    }

    #[test]
    fn floats_are_those_of_the_processor_and_of_the_crate_half() {
        let values = [0.0, -0.0, 1.0, -1.5, 65504.0, 2f64.powi(-24), 2f64.powi(-14), -6.103515625e-5, f64::INFINITY];
        for value in values {
            assert_eq!(code(Dtype::F32, value), Some(u64::from((value as f32).to_bits())), "{value}");
            assert_eq!(code(Dtype::F64, value), Some(value.to_bits()), "{value}");
        }
        for (value, f16, bf16) in [
            (1.0, Some(0x3c00), Some(0x3f80)),
            (-1.5, Some(0xbe00), Some(0xbfc0)),
            (65504.0, Some(0x7bff), None),
            (65536.0, None, Some(0x4780)),
            (2f64.powi(-24), Some(1), Some(0x3380)),
            (2f64.powi(-133), None, Some(1)),
            (f64::NEG_INFINITY, Some(0xfc00), Some(0xff80)),
            (0.1, None, None),
            (f64::NAN, None, None),
        ] {
            assert_eq!((code(Dtype::F16, value), code(Dtype::BF16, value)), (f16, bf16), "{value}");
        }
        assert_eq!([448.0, 480.0, 2f64.powi(-9)].map(|value| code(Dtype::F8E4M3, value)), [Some(0x7e), None, Some(1)]);
        assert_eq!([57344.0, 65536.0].map(|value| code(Dtype::F8E5M2, value)), [Some(0x7b), None]);
    }

    #[test]
    fn integers_and_others() {
        assert_eq!(code(Dtype::I8, -128.0), Some(0x80));
        assert_eq!([128.0, 0.5, f64::NAN].map(|value| code(Dtype::I8, value)), [None; 3]);
        assert_eq!([255.0, 256.0, -1.0].map(|value| code(Dtype::U8, value)), [Some(255), None, None]);
        assert_eq!(code(Dtype::I64, -1.0), Some(u64::MAX));
        assert_eq!([0.0, 1.0, 2.0].map(|value| code(Dtype::Bool, value)), [Some(0), Some(1), None]);
        assert_eq!((code(Dtype::C64, 0.0), code(Dtype::C64, 1.0), code(Dtype::F8E8M0, 0.0)), (Some(0), None, None));
        assert_eq!(code(Dtype::F8E4M3Fnuz, -0.0), None);
    }
}
