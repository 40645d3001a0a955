//! Reductions by the definition. In: the same number of elements from every rank. Out: their reduction. Guarantee: terms are
//! taken from rank 0 to the last, beginning with rank 0's value (so -0.0 stays), in binary32 for binary32 and narrower
//! floats, in binary64, or in integers modulo 2^bits, of 32 bits for those of 8, and rounded once at the end: what every kernel of
//! [`Determinism::SizeInvariant`](super::Determinism) computes, to the bit but for the payload of NaNs.

use super::element::{narrow, widen};
use super::operation::{OperationError, element};
use crate::layout::Dtype;
use crate::memory::device::collective::params::Operation as ReduceOperation;

/// Number of terms, and their reduction before the average's division.
macro_rules! floats {
    ($type:ty, $terms:expr, $operation:expr) => {{
        let (mut count, mut value): (u64, Option<$type>) = (0, None);
        for term in $terms {
            count += 1;
            value = Some(match value {
                None => term,
                Some(value) => match $operation {
                    ReduceOperation::Sum | ReduceOperation::Average => value + term,
                    ReduceOperation::Product => value * term,
                    _ if value.is_nan() || term.is_nan() => value + term,
                    ReduceOperation::Minimum if term < value || (term == value && term.is_sign_negative()) => term,
                    ReduceOperation::Maximum if term > value || (term == value && term.is_sign_positive()) => term,
                    _ => value,
                },
            });
        }
        (count.max(1), value.unwrap_or_default())
    }};
}

/// Reduces `parts`, one for each rank and each as long as `result`, whose length is a multiple of the element.
pub fn reduce(
    dtype: Dtype,
    operation: ReduceOperation,
    parts: &[&[u8]],
    result: &mut [u8],
) -> Result<(), OperationError> {
    element(dtype)?;
    let width = dtype.bytes() as usize;
    for (index, element) in result.chunks_exact_mut(width).enumerate() {
        let place = index * width..(index + 1) * width;
        let terms = parts.iter().filter_map(|part| part.get(place.clone()));
        reduce_element(dtype, operation, terms, element);
    }
    Ok(())
}

fn reduce_element<'a>(
    dtype: Dtype,
    operation: ReduceOperation,
    terms: impl Iterator<Item = &'a [u8]>,
    result: &mut [u8],
) {
    macro_rules! integers {
        ($type:ty, $accumulator:ty) => {{
            let terms = terms.filter_map(|bytes| bytes.try_into().ok().map(<$type>::from_le_bytes));
            let terms = terms.map(<$accumulator>::from);
            let (mut count, mut sum): (u64, Option<$accumulator>) = (0, None);
            for term in terms {
                count += 1;
                sum = Some(sum.map_or(term, |sum| match operation {
                    ReduceOperation::Sum | ReduceOperation::Average => sum.wrapping_add(term),
                    ReduceOperation::Product => sum.wrapping_mul(term),
                    ReduceOperation::Minimum => sum.min(term),
                    ReduceOperation::Maximum => sum.max(term),
                }));
            }
            let sum = sum.unwrap_or_default();
            let divides = operation == ReduceOperation::Average && count > 0;
            let value = if divides { sum.wrapping_div(count as $accumulator) } else { sum };
            result.copy_from_slice(&(value as $type).to_le_bytes());
        }};
    }
    match dtype {
        Dtype::I64 => integers!(i64, i64),
        Dtype::I32 => integers!(i32, i32),
        Dtype::U8 => integers!(u8, u32),
        Dtype::F64 => {
            let terms = terms.filter_map(|bytes| bytes.try_into().ok().map(f64::from_le_bytes));
            let (count, value) = floats!(f64, terms, operation);
            let value = if operation == ReduceOperation::Average { value / count as f64 } else { value };
            result.copy_from_slice(&value.to_le_bytes());
        }
        dtype => {
            let terms = terms.filter_map(|bytes| widen(dtype, bytes));
            let (count, value) = floats!(f32, terms, operation);
            let value = if operation == ReduceOperation::Average { value / count as f32 } else { value };
            narrow(dtype, value, result);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    fn of_f32(operation: ReduceOperation, terms: &[f32]) -> f32 {
        let parts: Vec<[u8; 4]> = terms.iter().map(|term| term.to_le_bytes()).collect();
        let parts: Vec<&[u8]> = parts.iter().map(|part| &part[..]).collect();
        let mut result = [0; 4];
        reduce(Dtype::F32, operation, &parts, &mut result).unwrap();
        f32::from_le_bytes(result)
    }

    #[test]
    fn order_and_first_term_show() {
        // In another order the one would not be lost.
        assert_eq!(of_f32(ReduceOperation::Sum, &[1.0, 1e9, -1e9]), 0.0);
        assert_eq!(of_f32(ReduceOperation::Sum, &[1e9, -1e9, 1.0]), 1.0);
        assert_eq!(of_f32(ReduceOperation::Sum, &[-0.0, -0.0]).to_bits(), (-0.0f32).to_bits());
        assert_eq!(of_f32(ReduceOperation::Average, &[1.0, 2.0, 6.0]), 3.0);
        assert_eq!(of_f32(ReduceOperation::Product, &[3.0, -2.0, 0.5]), -3.0);
    }

    #[test]
    fn extremes_know_signed_zeros_and_nans() {
        for (terms, least, greatest) in
            [([0.0, -0.0], -0.0f32, 0.0f32), ([-0.0, 0.0], -0.0, 0.0), ([2.0, -3.0], -3.0, 2.0)]
        {
            assert_eq!(of_f32(ReduceOperation::Minimum, &terms).to_bits(), least.to_bits());
            assert_eq!(of_f32(ReduceOperation::Maximum, &terms).to_bits(), greatest.to_bits());
        }
        for terms in [[f32::NAN, 1.0], [1.0, f32::NAN]] {
            assert!(of_f32(ReduceOperation::Minimum, &terms).is_nan());
            assert!(of_f32(ReduceOperation::Maximum, &terms).is_nan());
        }
    }

    #[test]
    fn narrow_floats_are_rounded_once() {
        // 1 + 2^-8 + 2^-8 is 1 + 2^-7 in binary32; rounded at every step it would stay 1.
        let terms = [1.0, 2f32.powi(-8), 2f32.powi(-8)].map(|term| bf16::from_f32(term).to_le_bytes());
        let parts: Vec<&[u8]> = terms.iter().map(|part| &part[..]).collect();
        let mut result = [0; 2];
        reduce(Dtype::BF16, ReduceOperation::Sum, &parts, &mut result).unwrap();
        assert_eq!(bf16::from_le_bytes(result).to_f32(), 1.0 + 2f32.powi(-7));
    }

    #[test]
    fn integers_wrap_and_round_toward_zero() {
        let mut result = [0; 1];
        reduce(Dtype::U8, ReduceOperation::Sum, &[&[200], &[100]], &mut result).unwrap();
        assert_eq!(result, [44]);
        reduce(Dtype::U8, ReduceOperation::Average, &[&[200], &[100]], &mut result).unwrap();
        assert_eq!(result, [150]);
        let (one, other) = ((-5i32).to_le_bytes(), (-2i32).to_le_bytes());
        let mut result = [0; 4];
        reduce(Dtype::I32, ReduceOperation::Average, &[&one, &other], &mut result).unwrap();
        assert_eq!(i32::from_le_bytes(result), -3);
    }
}
