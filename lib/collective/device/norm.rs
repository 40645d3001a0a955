//! All-reduce, residual addition and RMSNorm in one launch. In: rows of partial sums, a residual, weights. Out: the sum with
//! the residual, and its normed rows. Guarantee: values are rounded where three kernels in a row would round them; a row's
//! bits do not depend on how many rows there are.

use super::calls::Places;
use super::channel::Planned;
use super::{Channel, CollectiveError, Operand};
use crate::collective::call::{Call, Kind, with_operands};
use crate::collective::{Algorithm, ReduceOperation, element};
use crate::layout::Dtype;
use crate::memory::device::Stream;
use crate::memory::device::collective::Grid;
use crate::memory::device::collective::params::{BUNDLE_PIECES, ChannelLayout, NormCall, PART_FOLLOWED};

/// Words of a bundle that travels as words.
const BUNDLE_WORDS: u64 = 2 * BUNDLE_PIECES;
/// Most threads of a block of the fused kernel, by lines and by words.
const MOST_THREADS: u32 = 576;
const MOST_THREADS_OF_WORDS: u32 = 512;

/// What the fused call reads and writes: rows of `hidden` elements of one type, unless another is said.
#[derive(Debug, Clone, Copy)]
pub struct NormOperands<'a> {
    /// This rank's partial sums.
    pub input: Operand<'a>,
    /// Added to the sum.
    pub residual: Operand<'a>,
    /// Becomes sum plus residual; may be the residual.
    pub residual_output: Operand<'a>,
    /// One row: what each column is multiplied by.
    pub weight: Operand<'a>,
    /// Becomes the normed rows; of 8-bit floats (e4m3) where there is a scale.
    pub output: Operand<'a>,
    /// One binary32 that normed values are divided by before they become 8-bit floats.
    pub scale: Option<Operand<'a>>,
}

/// Its sizes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormShape {
    /// Rows.
    pub tokens: u32,
    /// Elements of a row, a multiple of 4.
    pub hidden: u32,
    /// F16 or BF16.
    pub dtype: Dtype,
    /// Added to the mean of squares.
    pub epsilon: f32,
}

impl Channel {
    /// Rows of the sum over all ranks plus a residual, and the same normed: y = x / sqrt(mean(x^2) + epsilon) * weight. What
    /// is beyond the slots of a push goes in several launches, whole rows in each.
    ///
    /// # Safety
    /// As [`Channel::all_reduce`], for all operands.
    pub unsafe fn all_reduce_norm(
        &mut self,
        stream: &Stream,
        operands: &NormOperands<'_>,
        shape: NormShape,
    ) -> Result<(), CollectiveError> {
        let NormShape { tokens, hidden, dtype, .. } = shape;
        if !matches!(dtype, Dtype::F16 | Dtype::BF16) || hidden == 0 || hidden % 4 != 0 {
            return Err(no_kernel(shape, &self.settled.layout));
        }
        let captured = self.enter(stream)?;
        let mut first = 0;
        // All ranks know that there are no rows.
        while first < tokens {
            let (rows, planned) = self.plan_norm(NormShape { tokens: tokens - first, ..shape }, captured)?;
            // SAFETY: the caller's promise.
            unsafe { self.launch_norm(stream, operands, NormShape { tokens: rows, ..shape }, first, &planned)? };
            first += rows;
        }
        Ok(())
    }

    /// How many of the rows a launch takes, and how it runs.
    fn plan_norm(&mut self, shape: NormShape, captured: bool) -> Result<(u32, Planned), CollectiveError> {
        let layout = self.settled.layout;
        let by_words = shape.tokens.min(rows_of(shape.hidden, layout.slot_words / BUNDLE_WORDS));
        let by_lines = shape.tokens.min(rows_of(shape.hidden, layout.bundles()));
        // No part of it is in place.
        let places = Places { input: 0, output: 1, registered: None };
        let least = by_words.min(by_lines);
        let first = self.plan(&shape.call(least), captured, &places)?;
        let most = match first.launch.algorithm {
            Algorithm::LinePush => by_lines,
            Algorithm::OneShotPush => by_words,
            _ => {
                let why = "it is made for GPUs that reach each other, one process on each";
                return Err(CollectiveError::NotHere { kind: Kind::AllReduceNorm, why });
            }
        };
        // Where more rows go another way, there are no more than both take.
        let all = self.plan(&shape.call(most), captured, &places)?;
        match all.launch.algorithm == first.launch.algorithm {
            true if most > 0 => Ok((most, all)),
            false if least > 0 => Ok((least, first)),
            _ => Err(no_kernel(shape, &layout)),
        }
    }

    /// # Safety
    /// As [`Channel::all_reduce`].
    unsafe fn launch_norm(
        &mut self,
        stream: &Stream,
        operands: &NormOperands<'_>,
        shape: NormShape,
        first: u32,
        planned: &Planned,
    ) -> Result<(), CollectiveError> {
        let NormShape { tokens, hidden, dtype, epsilon } = shape;
        let call = shape.call(tokens);
        let count = call.count;
        let (bytes, skipped) = (count * dtype.bytes(), u64::from(first) * u64::from(hidden));
        let address = |operand: Operand<'_>, name, bytes: u64, skipped: u64, multiple: u64| {
            let operand = Operand { offset: operand.offset + skipped, ..operand };
            let address = operand.address(self, call.kind, name, bytes)?;
            match address % multiple {
                0 => Ok(address),
                _ => Err(CollectiveError::Misaligned { kind: call.kind, operand: name, address, multiple }),
            }
        };
        let width = if operands.scale.is_some() { 1 } else { dtype.bytes() };
        let rows = skipped * dtype.bytes();
        let input = address(operands.input, "input", bytes, rows, 8)?;
        let output = address(operands.output, "output", count * width, skipped * width, 4 * width)?;
        let residual = address(operands.residual, "residual", bytes, rows, 8)?;
        let residual_output = address(operands.residual_output, "residual output", bytes, rows, 8)?;
        let weight = address(operands.weight, "weight", u64::from(hidden) * dtype.bytes(), 0, 8)?;
        let scale = operands.scale.map(|scale| address(scale, "scale", 4, 0, 4)).transpose()?;
        let places = Places { input, output, registered: None };
        let mut parameters = self.parameters(&call, planned, &places, (0, count));
        // Rows of other lengths are other calls.
        parameters.header = with_operands(parameters.header, hidden);
        parameters.fingerprint = parameters.header.fingerprint();
        let mut norm = NormCall::new(parameters);
        (norm.residual, norm.residual_output, norm.weight) = (residual, residual_output, weight);
        (norm.scale, norm.tokens, norm.hidden, norm.epsilon) = (scale.unwrap_or(0), tokens, hidden, epsilon);
        let (kernels, lines) = (self.kernels.get(&element(dtype)?), planned.launch.algorithm == Algorithm::LinePush);
        let blocks = tokens.clamp(1, self.placed.most_blocks.into());
        let grid = Grid { blocks, threads: norm_threads(hidden, lines) };
        if !self.are_few(u64::from(grid.blocks) * u64::from(grid.threads)) {
            norm.call.parts &= !PART_FOLLOWED;
        }
        // SAFETY: the caller's promise; one block for each multiprocessor at most is resident.
        let launched = kernels.map(|kernels| unsafe { kernels.launch_norm(stream, &norm, grid, lines) }).transpose()?;
        match launched {
            Some(true) => Ok(()),
            _ => Err(CollectiveError::NoFusedKernel { what: format!("{dtype}") }),
        }
    }
}

impl NormShape {
    /// The call of so many rows.
    fn call(&self, rows: u32) -> Call {
        let count = u64::from(rows) * u64::from(self.hidden);
        Call { kind: Kind::AllReduceNorm, count, dtype: self.dtype, operation: ReduceOperation::Sum, root: 0 }
    }
}

fn no_kernel(shape: NormShape, layout: &ChannelLayout) -> CollectiveError {
    let NormShape { hidden, dtype, .. } = shape;
    let most = layout.bundles().max(layout.slot_words / BUNDLE_WORDS) * BUNDLE_PIECES * 16;
    let what = format!("rows of {hidden} {dtype} elements (a row in a channel's slots has at most {most} bytes)");
    CollectiveError::NoFusedKernel { what }
}

/// Bundles of a row, which begins with one.
fn bundles_of_row(hidden: u32) -> u64 {
    (u64::from(hidden) * 2).div_ceil(16 * BUNDLE_PIECES).max(1)
}

/// Rows that so many bundles carry.
fn rows_of(hidden: u32, bundles: u64) -> u32 {
    u32::try_from(bundles / bundles_of_row(hidden)).unwrap_or(u32::MAX)
}

/// Threads of a block: a warp for each bundle of a row, as far as there are that many.
fn norm_threads(hidden: u32, lines: bool) -> u32 {
    let most = if lines { MOST_THREADS } else { MOST_THREADS_OF_WORDS };
    u32::try_from(bundles_of_row(hidden) * 32).unwrap_or(most).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_a_warp_for_each_bundle() {
        let of = |lines| [4, 480, 481, 8192, 9600, 100_000].map(|hidden| norm_threads(hidden, lines));
        assert_eq!(of(true), [32, 32, 64, 576, 576, 576]);
        assert_eq!(of(false), [32, 32, 64, 512, 512, 512]);
        assert_eq!((bundles_of_row(0), bundles_of_row(8192)), (1, 18));
    }

    #[test]
    fn rows_that_fit_begin_with_a_bundle() {
        let fit = |hidden| rows_of(hidden, 1000);
        assert_eq!([4, 480, 484, 8192, 480_000, 480_004].map(fit), [1000, 1000, 500, 55, 1, 0]);
    }
}
