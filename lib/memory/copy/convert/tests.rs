//! Every version of every kernel against the crate `half` and against plain arithmetic.

use super::versions::{Kernels, versions};
use super::{Cast, Operation, Sum};
use half::{bf16, f16};
use proptest::prelude::*;

/// Elements of `bytes` made from those of `from`; counts that do not fill a block and places without alignment.
fn cast<S: Copy, D: Copy + Default>(kernels: &Kernels, cast: Cast, from: &[S]) -> (Vec<D>, u64) {
    let mut read = vec![0u8; size_of_val(from) + 1];
    // SAFETY: plain numbers as bytes; the destination holds as many and one more.
    unsafe { read.as_mut_ptr().add(1).copy_from_nonoverlapping(from.as_ptr().cast(), size_of_val(from)) };
    let mut written = vec![0xeeu8; from.len() * size_of::<D>() + 4];
    // SAFETY: as many elements as both vectors hold behind their first bytes.
    let saturated =
        unsafe { kernels.casts[cast as usize](read.as_ptr().add(1), written.as_mut_ptr().add(3), from.len()) };
    assert!(written[..3].iter().chain(written.last()).all(|&byte| byte == 0xee), "bytes around the elements");
    let mut made = vec![D::default(); from.len()];
    // SAFETY: as many bytes as the elements have.
    unsafe {
        made.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(written.as_ptr().add(3), size_of_val(made.as_slice()));
    }
    (made, saturated)
}

/// All bit patterns of 16 bits, in an order in which no block has a pattern of its own.
fn patterns() -> Vec<u16> {
    (0..=u16::MAX).map(|index| index.wrapping_mul(0x9e37)).collect()
}

#[test]
fn all_patterns_of_16_bits() {
    let all = patterns();
    for kernels in versions() {
        let (made, saturated) = cast::<u16, u32>(kernels, Cast::F16ToF32, &all);
        let right: Vec<u32> = all.iter().map(|&bits| f16::from_bits(bits).to_f32().to_bits()).collect();
        assert!(made == right && saturated == 0, "{}", kernels.name);
        let (made, saturated) = cast::<u16, u32>(kernels, Cast::Bf16ToF32, &all);
        let right: Vec<u32> = all.iter().map(|&bits| bf16::from_bits(bits).to_f32().to_bits()).collect();
        assert!(made == right && saturated == 0, "{}", kernels.name);
        let (made, saturated) = cast::<u16, u16>(kernels, Cast::F16ToBf16, &all);
        let right: Vec<u16> = all.iter().map(|&bits| bf16::from_f32(f16::from_bits(bits).to_f32()).to_bits()).collect();
        assert!(made == right && saturated == 0, "{}", kernels.name);
        let (made, saturated) = cast::<u16, u16>(kernels, Cast::Bf16ToF16, &all);
        let right: Vec<u16> = all.iter().map(|&bits| f16::from_f32(bf16::from_bits(bits).to_f32()).to_bits()).collect();
        let beyond = |bits: u16| {
            bf16::from_bits(bits).is_finite() && f16::from_f32(bf16::from_bits(bits).to_f32()).is_infinite()
        };
        let over = all.iter().filter(|&&bits| beyond(bits)).count() as u64;
        assert!(made == right && saturated == over && over > 0, "{}: {saturated} of {over}", kernels.name);
    }
}

/// Narrow again what was widened: the same bits, but for NaNs, which are quiet after the first step.
#[test]
fn widening_loses_nothing() {
    let all = patterns();
    for kernels in versions() {
        for (widen, narrow) in [(Cast::F16ToF32, Cast::F32ToF16), (Cast::Bf16ToF32, Cast::F32ToBf16)] {
            let (wide, _) = cast::<u16, u32>(kernels, widen, &all);
            let (back, saturated) = cast::<u32, u16>(kernels, narrow, &wide);
            assert_eq!(saturated, 0);
            let (again, _) = cast::<u16, u32>(kernels, widen, &back);
            assert!(again == wide, "{}: {widen:?}", kernels.name);
            let nan = |bits: u32| f32::from_bits(bits).is_nan();
            let kept = back.iter().zip(&all).zip(&wide).all(|((back, was), &wide)| back == was || nan(wide));
            assert!(kept, "{}: {widen:?}", kernels.name);
        }
    }
}

/// binary32 values at which rounding turns, and their neighbours.
fn turning_points() -> Vec<u32> {
    let mut points = Vec::new();
    for exponent in 0..=255u32 {
        for mantissa in [
            0, 0xfff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0x8001, 0x1_8000, 0x7f_7fff, 0x7f_8000,
            0x7f_e000, 0x7f_efff, 0x7f_f000, 0x7f_ffff,
        ] {
            for sign in [0, 1 << 31] {
                points.push(sign | exponent << 23 | mantissa);
            }
        }
    }
    points
}

fn narrowed_like_half(bits: &[u32]) {
    for kernels in versions() {
        let (made, saturated) = cast::<u32, u16>(kernels, Cast::F32ToF16, bits);
        let half = |&bits: &u32| f16::from_f32(f32::from_bits(bits));
        let right: Vec<u16> = bits.iter().map(|bits| half(bits).to_bits()).collect();
        assert_eq!(made, right, "{}", kernels.name);
        let over = bits.iter().filter(|bits| f32::from_bits(**bits).is_finite() && half(bits).is_infinite()).count();
        assert_eq!(saturated, over as u64, "{}", kernels.name);
        let (made, saturated) = cast::<u32, u16>(kernels, Cast::F32ToBf16, bits);
        let half = |&bits: &u32| bf16::from_f32(f32::from_bits(bits));
        let right: Vec<u16> = bits.iter().map(|bits| half(bits).to_bits()).collect();
        assert_eq!(made, right, "{}", kernels.name);
        let over = bits.iter().filter(|bits| f32::from_bits(**bits).is_finite() && half(bits).is_infinite()).count();
        assert_eq!(saturated, over as u64, "{}", kernels.name);
    }
}

#[test]
fn rounding_turns_where_it_must() {
    narrowed_like_half(&turning_points());
    narrowed_like_half(&[]);
    let (made, saturated) =
        cast::<u32, u16>(versions()[0], Cast::F32ToF16, &[65504f32, 65519.9, 65520.0, -1e9].map(f32::to_bits));
    assert_eq!((made, saturated), (vec![0x7bff, 0x7bff, 0x7c00, 0xfc00], 2));
}

proptest! {
    #[test]
    fn any_binary32(bits in proptest::collection::vec(any::<u32>(), 0..70), near in proptest::collection::vec(0x3300_0000u32..0x4780_2000, 0..70)) {
        narrowed_like_half(&bits);
        narrowed_like_half(&near);
    }

    #[test]
    fn sums_are_those_of_plain_arithmetic(terms in proptest::collection::vec(any::<(u64, u64)>(), 0..50)) {
        for kernels in versions() {
            let same = |sum: Sum, right: &[u64]| {
                let (read, written) = sum.sizes();
                let bytes = |numbers: &mut dyn Iterator<Item = u64>, size: u64| -> Vec<u8> {
                    numbers.flat_map(|number| number.to_le_bytes()[..size as usize].to_vec()).collect()
                };
                let from = bytes(&mut terms.iter().map(|term| term.0), read);
                let mut to = bytes(&mut terms.iter().map(|term| term.1), written);
                // SAFETY: as many elements as both vectors hold.
                unsafe { kernels.sums[sum as usize](from.as_ptr(), to.as_mut_ptr(), terms.len()) };
                assert_eq!(to, bytes(&mut right.iter().copied(), written), "{sum:?} {}", kernels.name);
            };
            let each = |add: &dyn Fn(u64, u64) -> u64| terms.iter().map(|&(term, sum)| add(term, sum)).collect::<Vec<u64>>();
            for sum in [Sum::Bits8, Sum::Bits16, Sum::Bits32, Sum::Bits64] {
                same(sum, &each(&|term, sum| sum.wrapping_add(term)));
            }
        }
    }

    #[test]
    fn float_sums_are_those_of_plain_arithmetic(terms in proptest::collection::vec((-1e4f32..1e4, -1e6f32..1e6), 0..50)) {
        for kernels in versions() {
            let halves: Vec<u16> = terms.iter().map(|term| f16::from_f32(term.0).to_bits()).collect();
            let brains: Vec<u16> = terms.iter().map(|term| bf16::from_f32(term.0).to_bits()).collect();
            let singles: Vec<f32> = terms.iter().map(|term| term.0).collect();
            let sums: Vec<f32> = terms.iter().map(|term| term.1).collect();
            let add = |sum: Sum, from: *const u8| {
                let mut to = sums.clone();
                // SAFETY: as many elements as both hold.
                unsafe { kernels.sums[sum as usize](from, to.as_mut_ptr().cast(), to.len()) };
                to
            };
            let right = |value: &dyn Fn(usize) -> f32| sums.iter().enumerate().map(|(at, sum)| sum + value(at)).collect::<Vec<f32>>();
            prop_assert_eq!(add(Sum::F32, singles.as_ptr().cast()), right(&|at| singles[at]));
            prop_assert_eq!(add(Sum::F16, halves.as_ptr().cast()), right(&|at| f16::from_bits(halves[at]).to_f32()));
            prop_assert_eq!(add(Sum::Bf16, brains.as_ptr().cast()), right(&|at| bf16::from_bits(brains[at]).to_f32()));
            let wide: Vec<f64> = singles.iter().map(|&single| f64::from(single) / 3.0).collect();
            let mut to: Vec<f64> = sums.iter().map(|&sum| f64::from(sum) / 7.0).collect();
            let expected: Vec<f64> = to.iter().zip(&wide).map(|(sum, term)| sum + term).collect();
            // SAFETY: as many elements as both hold.
            unsafe { kernels.sums[Sum::F64 as usize](wide.as_ptr().cast(), to.as_mut_ptr().cast(), to.len()) };
            prop_assert_eq!(to, expected);
        }
    }
}

#[test]
fn elements_shrink_in_place() {
    for count in [0, 1, 15, 16, 17, 100] {
        let values: Vec<f32> = (0..count).map(|index| index as f32 * 1.37 - 20.0).collect();
        let mut memory: Vec<f32> = values.clone();
        let operation = Operation::between(crate::layout::Dtype::F32, crate::layout::Dtype::BF16, true).unwrap();
        let start = memory.as_mut_ptr().cast::<u8>();
        // SAFETY: the elements of the vector; half as many bytes are written from its start on.
        assert_eq!(unsafe { operation.run(start, start, 4 * count) }, 0);
        for (index, value) in values.iter().enumerate() {
            // SAFETY: the first half of the vector's bytes holds the narrowed elements.
            let made = unsafe { start.add(2 * index).cast::<u16>().read_unaligned() };
            assert_eq!(made, bf16::from_f32(*value).to_bits());
        }
    }
}
