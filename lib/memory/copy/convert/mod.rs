//! Elements that change on their way. In: what is read, what is written. Out: kernels over contiguous elements. Guarantee:
//! pure; every version of a kernel gives the same bits on every processor, but for the payload of a sum that is a NaN.
//!
//! Casts between binary32, binary16 and bfloat16 round once, to nearest, ties to even; finite values beyond the largest
//! become infinite and are counted; a NaN stays a quiet NaN. binary16 and bfloat16 meet in binary32, which holds both.
//! Sums are made in binary32 for these three types, in their own type for binary64, and modulo 2^bits for integers.
//!
//! The version for AVX2 and F16C runs the same loops over other blocks of floats. It changes 3 to 13 billion elements a
//! second on one core (EPYC, in the second-level cache; the portable one mostly 0.5 to 1.2), about as fast as memory is
//! read, so there is none for AVX-512, whose bfloat16 instruction flushes subnormals besides.

mod blocks;
mod scalar;
#[cfg(test)]
mod tests;
mod versions;

use crate::layout::Dtype;
use versions::kernels;

/// What a copy does to the elements that it moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Operation {
    /// Nothing.
    #[default]
    Move,
    /// Changes their type.
    Cast {
        /// From what to what.
        cast: Cast,
        /// Whether finite values that become infinite count.
        counted: bool,
    },
    /// Adds them to what the destination holds.
    Add(Sum),
}

/// A change of type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cast {
    /// binary32 to binary16.
    F32ToF16,
    /// binary32 to bfloat16.
    F32ToBf16,
    /// binary16 to binary32, exact.
    F16ToF32,
    /// bfloat16 to binary32, exact.
    Bf16ToF32,
    /// binary16 to bfloat16.
    F16ToBf16,
    /// bfloat16 to binary16.
    Bf16ToF16,
}

/// What is added to what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sum {
    /// binary64.
    F64,
    /// binary32.
    F32,
    /// binary16 to binary32.
    F16,
    /// bfloat16 to binary32.
    Bf16,
    /// Integers of 8 bits.
    Bits8,
    /// Integers of 16 bits.
    Bits16,
    /// Integers of 32 bits.
    Bits32,
    /// Integers of 64 bits.
    Bits64,
}

impl Cast {
    /// The change from one type to another; `None` when there is none.
    pub fn between(from: Dtype, to: Dtype) -> Option<Self> {
        Some(match (from, to) {
            (Dtype::F32, Dtype::F16) => Self::F32ToF16,
            (Dtype::F32, Dtype::BF16) => Self::F32ToBf16,
            (Dtype::F16, Dtype::F32) => Self::F16ToF32,
            (Dtype::BF16, Dtype::F32) => Self::Bf16ToF32,
            (Dtype::F16, Dtype::BF16) => Self::F16ToBf16,
            (Dtype::BF16, Dtype::F16) => Self::Bf16ToF16,
            _ => return None,
        })
    }

    /// Bytes of an element before and after.
    const fn sizes(self) -> (u64, u64) {
        match self {
            Self::F32ToF16 | Self::F32ToBf16 => (4, 2),
            Self::F16ToF32 | Self::Bf16ToF32 => (2, 4),
            Self::F16ToBf16 | Self::Bf16ToF16 => (2, 2),
        }
    }
}

impl Sum {
    /// The addition of elements to sums of a type; `None` when there is none.
    pub fn of(term: Dtype, sum: Dtype) -> Option<Self> {
        Some(match (term, sum) {
            (Dtype::F64, Dtype::F64) => Self::F64,
            (Dtype::F32, Dtype::F32) => Self::F32,
            (Dtype::F16, Dtype::F32) => Self::F16,
            (Dtype::BF16, Dtype::F32) => Self::Bf16,
            (Dtype::I8, Dtype::I8) | (Dtype::U8, Dtype::U8) => Self::Bits8,
            (Dtype::I16, Dtype::I16) | (Dtype::U16, Dtype::U16) => Self::Bits16,
            (Dtype::I32, Dtype::I32) | (Dtype::U32, Dtype::U32) => Self::Bits32,
            (Dtype::I64, Dtype::I64) | (Dtype::U64, Dtype::U64) => Self::Bits64,
            _ => return None,
        })
    }

    /// Bytes of an element and of a sum.
    const fn sizes(self) -> (u64, u64) {
        match self {
            Self::F64 | Self::Bits64 => (8, 8),
            Self::F32 | Self::Bits32 => (4, 4),
            Self::F16 | Self::Bf16 => (2, 4),
            Self::Bits16 => (2, 2),
            Self::Bits8 => (1, 1),
        }
    }
}

impl Operation {
    /// What turns elements of one type into those of another; `None` when nothing does.
    pub fn between(from: Dtype, to: Dtype, counted: bool) -> Option<Self> {
        if from == to { Some(Self::Move) } else { Cast::between(from, to).map(|cast| Self::Cast { cast, counted }) }
    }

    /// Bytes written for `bytes`, a whole number of elements, read.
    pub(super) const fn written(self, bytes: u64) -> u64 {
        let (read, written) = match self {
            Self::Move => (1, 1),
            Self::Cast { cast, .. } => cast.sizes(),
            Self::Add(sum) => sum.sizes(),
        };
        bytes / read * written
    }

    /// The same where it may exceed 64 bits.
    pub(super) fn checked_written(self, bytes: u64) -> Option<u64> {
        let element = self.read_element();
        (bytes / element).checked_mul(self.written(element))
    }

    /// Bytes of an element that is read, where the operation fixes them; 1 otherwise.
    pub(super) const fn read_element(self) -> u64 {
        match self {
            Self::Move => 1,
            Self::Cast { cast, .. } => cast.sizes().0,
            Self::Add(sum) => sum.sizes().0,
        }
    }

    /// Runs over `bytes` contiguous bytes read; how many finite values became infinite, where they count.
    ///
    /// # Safety
    /// `bytes`, a whole number of elements, must be readable at `from` and what they become writable at `to`; ranges may
    /// overlap when bytes move as they are, or shrink towards lower addresses.
    pub(super) unsafe fn run(self, from: *const u8, to: *mut u8, bytes: usize) -> u64 {
        let elements = bytes / self.read_element() as usize;
        match self {
            Self::Move => {
                // SAFETY: forwarded from the caller.
                unsafe { std::ptr::copy(from, to, bytes) };
                0
            }
            Self::Cast { cast, counted } => {
                // SAFETY: forwarded from the caller.
                let saturated = unsafe { kernels().casts[cast as usize](from, to, elements) };
                if counted { saturated } else { 0 }
            }
            Self::Add(sum) => {
                // SAFETY: forwarded from the caller.
                unsafe { kernels().sums[sum as usize](from, to, elements) };
                0
            }
        }
    }
}
