//! All-reduce, residual addition and RMSNorm in one launch. In: rows of partial sums, a residual, weights. Out: the sum with
//! the residual, and its normed rows. Guarantee: values are rounded where three kernels in a row would round them; a row's
//! bits do not depend on how many rows there are.

use super::calls::Places;
use super::{Channel, CollectiveError, Operand};
use crate::collective::call::{Call, Kind, with_operands};
use crate::collective::{Algorithm, ReduceOperation, element};
use crate::layout::Dtype;
use crate::memory::device::Stream;
use crate::memory::device::collective::Grid;
use crate::memory::device::collective::params::NormCall;

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
        let row = u64::from(hidden) * dtype.bytes();
        let slot = self.settled.layout.slot_words * 8;
        if !matches!(dtype, Dtype::F16 | Dtype::BF16) || hidden == 0 || hidden % 4 != 0 || row > slot {
            let what = format!("rows of {hidden} {dtype} elements (a row of a channel's slot has {slot} bytes)");
            return Err(CollectiveError::NoFusedKernel { what });
        }
        let captured = self.enter(stream)?;
        let rows_at_once = u32::try_from(slot / row).unwrap_or(u32::MAX).max(1);
        let mut first = 0;
        loop {
            let part = NormShape { tokens: (tokens - first).min(rows_at_once), ..shape };
            // SAFETY: the caller's promise.
            unsafe { self.launch_norm(stream, operands, part, first, captured)? };
            first += part.tokens;
            if first >= tokens {
                return Ok(());
            }
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
        captured: bool,
    ) -> Result<(), CollectiveError> {
        let NormShape { tokens, hidden, dtype, epsilon } = shape;
        let count = u64::from(tokens) * u64::from(hidden);
        let call = Call { kind: Kind::AllReduceNorm, count, dtype, operation: ReduceOperation::Sum, root: 0 };
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
        let planned = self.plan(&call, captured, &places)?;
        if planned.launch.algorithm != Algorithm::OneShotPush {
            let why = "it is made for GPUs that reach each other, one process on each";
            return Err(CollectiveError::NotHere { kind: call.kind, why });
        }
        let mut parameters = self.parameters(&call, &planned, &places, (0, count));
        // Rows of other lengths are other calls.
        parameters.header = with_operands(parameters.header, hidden);
        parameters.fingerprint = parameters.header.fingerprint();
        let mut norm = NormCall::new(parameters);
        (norm.residual, norm.residual_output, norm.weight) = (residual, residual_output, weight);
        (norm.scale, norm.tokens, norm.hidden, norm.epsilon) = (scale.unwrap_or(0), tokens, hidden, epsilon);
        let grid = Grid { blocks: tokens.clamp(1, self.placed.most_blocks.into()), threads: norm_threads(hidden) };
        let kernels = self.kernels.get(&element(dtype)?);
        // SAFETY: the caller's promise; one block for each multiprocessor at most is resident.
        let launched = kernels.map(|kernels| unsafe { kernels.launch_norm(stream, &norm, grid) }).transpose()?;
        match launched {
            Some(true) => Ok(()),
            _ => Err(CollectiveError::NoFusedKernel { what: format!("{dtype}") }),
        }
    }
}

/// Threads of a block for rows of `hidden` elements, four in a word.
fn norm_threads(hidden: u32) -> u32 {
    (hidden / 4).next_multiple_of(32).clamp(64, 512)
}
