//! Contents of operands. In: a type, a rank. Out: elements that repeat after a prime number of them. Guarantee: no value is a
//! NaN, and none becomes one however often ranks with equal values are summed; parts that are swapped, or lie at a wrong
//! place, show, since no block of a launch is a multiple of the period.

use crossmesh::collective::{OperationError, ReduceOperation, reduce};
use crossmesh::layout::Dtype;

/// Elements after which values repeat.
pub(super) const PERIOD: u64 = 8191;

/// Values of [`PERIOD`] elements, which repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Values {
    dtype: Dtype,
    bytes: Vec<u8>,
}

impl Values {
    /// Of rank `rank`: any bits for integers; for floats both signs, all digits, magnitudes within 2^-7..2.
    pub(super) fn of_rank(dtype: Dtype, rank: u32) -> Self {
        let (mask, base) = bits(dtype);
        let width = dtype.bytes() as usize;
        let seed = u64::from(rank) << 32 | 0x5eed;
        let words = (0..PERIOD).map(|number| mixed(seed.wrapping_add(number)) & mask | base);
        Self { dtype, bytes: words.flat_map(|word| word.to_le_bytes().into_iter().take(width)).collect() }
    }

    /// What all ranks hold after their values are reduced.
    pub(super) fn reduced(all: &[&Self], operation: ReduceOperation) -> Result<Self, OperationError> {
        let dtype = all.first().map_or(Dtype::U8, |first| first.dtype);
        let parts: Vec<&[u8]> = all.iter().map(|values| values.bytes.as_slice()).collect();
        let mut bytes = vec![0; PERIOD as usize * dtype.bytes() as usize];
        reduce(dtype, operation, &parts, &mut bytes)?;
        Ok(Self { dtype, bytes })
    }

    /// `count` elements from element `first` on.
    pub(super) fn repeated(&self, first: u64, count: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity((count * self.dtype.bytes()) as usize);
        self.pieces(first, count, |piece| bytes.extend_from_slice(piece));
        bytes
    }

    /// How many elements of `found` are not those from element `first` on.
    pub(super) fn wrong(&self, first: u64, found: &[u8]) -> u64 {
        let width = self.dtype.bytes() as usize;
        let (mut at, mut wrong) = (0, 0);
        self.pieces(first, found.len() as u64 / width as u64, |piece| {
            let part = &found[at..at + piece.len()];
            if part != piece {
                let pairs = part.chunks_exact(width).zip(piece.chunks_exact(width));
                wrong += pairs.filter(|(one, other)| one != other).count() as u64;
            }
            at += piece.len();
        });
        wrong
    }

    /// The period's bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn pieces(&self, first: u64, count: u64, mut each: impl FnMut(&[u8])) {
        let width = self.dtype.bytes();
        let (mut at, mut left) = (first % PERIOD, count);
        while left > 0 {
            let length = left.min(PERIOD - at);
            each(&self.bytes[(at * width) as usize..((at + length) * width) as usize]);
            (at, left) = (0, left - length);
        }
    }
}

/// Bits of an element that are random, and those that are set.
fn bits(dtype: Dtype) -> (u64, u64) {
    match dtype {
        Dtype::F64 => (0x807f_ffff_ffff_ffff, 0x3f80_0000_0000_0000),
        Dtype::F32 => (0x83ff_ffff, 0x3c00_0000),
        Dtype::BF16 => (0x83ff, 0x3c00),
        Dtype::F16 => (0x8fff, 0x3000),
        Dtype::F8E4M3 => (0x9f, 0x20),
        Dtype::F8E5M2 => (0x8f, 0x30),
        _ => (u64::MAX, 0),
    }
}

/// SplitMix64's output function.
fn mixed(state: u64) -> u64 {
    let state = state.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ state >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn floats_are_finite_and_moderate() {
        let within = |value: f64| (2f64.powi(-8)..2.0).contains(&value.abs());
        let words = |dtype| Values::of_rank(dtype, 3).bytes;
        let pairs = |dtype| words(dtype).chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect::<Vec<_>>();
        assert!(pairs(Dtype::BF16).iter().all(|&pair| within(bf16::from_le_bytes(pair).to_f64())));
        assert!(pairs(Dtype::F16).iter().all(|&pair| within(f16::from_le_bytes(pair).to_f64())));
        let singles = words(Dtype::F32);
        assert!(singles.as_chunks::<4>().0.iter().all(|&bytes| within(f32::from_le_bytes(bytes).into())));
        let doubles = words(Dtype::F64);
        assert!(doubles.as_chunks::<8>().0.iter().all(|&bytes| within(f64::from_le_bytes(bytes))));
    }

    #[test]
    fn every_wrong_element_counts() {
        let values = Values::of_rank(Dtype::BF16, 0);
        let (first, count) = (PERIOD - 5, 3 * PERIOD);
        let mut found = values.repeated(first, count);
        assert_eq!(found.len() as u64, 2 * count);
        assert_eq!(values.wrong(first, &found), 0);
        for at in [0, 9, 2 * count as usize - 1] {
            found[at] ^= 1;
        }
        assert_eq!(values.wrong(first, &found), 3);
        assert!(Values::of_rank(Dtype::BF16, 1).wrong(first, &values.repeated(first, 100)) > 90);
    }

    #[test]
    fn reduction_goes_element_by_element() {
        let all = [Values::of_rank(Dtype::I32, 0), Values::of_rank(Dtype::I32, 1)];
        let sum = Values::reduced(&[&all[0], &all[1]], ReduceOperation::Sum).unwrap();
        let at = |values: &Values, place: usize| i32::from_le_bytes(values.bytes[place..place + 4].try_into().unwrap());
        assert_eq!(at(&sum, 400), at(&all[0], 400).wrapping_add(at(&all[1], 400)));
    }
}
