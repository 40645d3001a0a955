//! Chains of fused calls: all-reduce, residual addition, RMSNorm. In: rows, how many calls. Out: where each reads and writes, how
//! many elements are wrong afterwards. Guarantee: the residual, which every call of the chain adds to, is compared bit by bit;
//! normed elements may differ from the exact value by two units in the last place of bfloat16.

use super::chain::{Expected, Form};
use super::measure::count_wrong;
use super::values::{PERIOD, Values};
use crate::bench::deadline;
use crate::bench::error::BenchError;
use crossmesh::collective::device::{NormOffsets, NormShape, Rehearsal};
use crossmesh::collective::{OperationError, ReduceOperation};
use crossmesh::layout::Dtype;
use half::{bf16, f16};

const ALIGNMENT: u64 = 256;
const EPSILON: f32 = 1e-5;
/// Stand for the values of weights and residual beside those of the ranks.
const WEIGHT: u32 = 1 << 20;
const RESIDUAL: u32 = WEIGHT + 1;

/// Fused calls on one rank.
#[derive(Debug, Clone)]
pub(super) struct NormChain {
    pub(super) form: Form,
    pub(super) dtype: Dtype,
    pub(super) tokens: u32,
    pub(super) hidden: u32,
    pub(super) rank: u32,
    pub(super) ranks: u32,
    pub(super) calls: u32,
}

impl NormChain {
    pub(super) fn shape(&self) -> NormShape {
        NormShape { tokens: self.tokens, hidden: self.hidden, dtype: self.dtype, epsilon: EPSILON }
    }

    /// Bytes of memory for operands.
    pub(super) fn bytes(&self) -> u64 {
        3 * self.pitch() + self.row()
    }

    /// Call `number`: every one reads the residual that the one before wrote.
    pub(super) fn step(&self, _number: u32) -> NormOffsets {
        let pitch = self.pitch();
        NormOffsets { input: 0, residual: pitch, output: 2 * pitch, weight: 3 * pitch }
    }

    /// What memory must hold before the chain.
    pub(super) fn before(&self) -> Vec<Expected> {
        let NormOffsets { input, residual, weight, .. } = self.step(0);
        let elements = self.elements();
        let of = |offset, rank, count| Expected { offset, values: Values::of_rank(self.dtype, rank), first: 0, count };
        vec![
            of(input, self.rank, elements),
            of(residual, RESIDUAL, elements),
            of(weight, WEIGHT, u64::from(self.hidden)),
        ]
    }

    /// Elements of residual and normed rows that are wrong after the chain.
    pub(super) fn count_wrong(&self, rehearsal: &mut Rehearsal) -> Result<u64, BenchError> {
        let offsets = self.step(0);
        let residual = self.residual()?;
        let expected =
            Expected { offset: offsets.residual, values: residual.clone(), first: 0, count: self.elements() };
        let wrong = count_wrong(rehearsal, &[expected], self.dtype)?;
        let mut normed = vec![0; (self.elements() * self.dtype.bytes()) as usize];
        rehearsal.read(offsets.output, &mut normed, deadline()?)?;
        Ok(wrong + self.wrong_rows(&residual, &normed))
    }

    /// The residual after all calls.
    fn residual(&self) -> Result<Values, OperationError> {
        let all: Vec<Values> = (0..self.ranks).map(|rank| Values::of_rank(self.dtype, rank)).collect();
        let sum = Values::reduced(&all.iter().collect::<Vec<_>>(), ReduceOperation::Sum)?;
        let mut residual = Values::of_rank(self.dtype, RESIDUAL);
        for _ in 0..self.calls {
            residual = Values::reduced(&[&sum, &residual], ReduceOperation::Sum)?;
        }
        Ok(residual)
    }

    /// Elements of `normed` that are not what rows of `residual` become.
    fn wrong_rows(&self, residual: &Values, normed: &[u8]) -> u64 {
        let (rows, weights) = (self.floats(residual.bytes()), self.floats(Values::of_rank(self.dtype, WEIGHT).bytes()));
        let found = self.floats(normed);
        let hidden = self.hidden as usize;
        let mut wrong = 0;
        for (row, found) in found.chunks_exact(hidden).enumerate() {
            let value = |column: usize| rows[(row * hidden + column) % PERIOD as usize];
            let squares: f64 = (0..hidden).map(|column| value(column) * value(column)).sum();
            let factor = 1.0 / (squares / f64::from(self.hidden) + f64::from(EPSILON)).sqrt();
            let is_wrong = |(column, found): (usize, &f64)| {
                let exact = value(column) * factor * weights[column % PERIOD as usize];
                let error = (found - exact).abs();
                error.is_nan() || error > exact.abs() / 64.0
            };
            wrong += found.iter().enumerate().filter(|&pair| is_wrong(pair)).count() as u64;
        }
        wrong
    }

    fn floats(&self, bytes: &[u8]) -> Vec<f64> {
        let pairs = bytes.as_chunks::<2>().0.iter();
        match self.dtype {
            Dtype::F16 => pairs.map(|&pair| f16::from_le_bytes(pair).to_f64()).collect(),
            _ => pairs.map(|&pair| bf16::from_le_bytes(pair).to_f64()).collect(),
        }
    }

    fn elements(&self) -> u64 {
        u64::from(self.tokens) * u64::from(self.hidden)
    }

    fn row(&self) -> u64 {
        u64::from(self.hidden) * self.dtype.bytes()
    }

    fn pitch(&self) -> u64 {
        (self.elements() * self.dtype.bytes()).next_multiple_of(ALIGNMENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_normed_by_their_own_mean() {
        let form = Form { captured: true, cold: false, in_place: false };
        let chain = NormChain { form, dtype: Dtype::BF16, tokens: 3, hidden: 4096, rank: 0, ranks: 2, calls: 2 };
        let residual = chain.residual().unwrap();
        let rows = chain.floats(&residual.repeated(0, chain.elements()));
        let weights = chain.floats(&Values::of_rank(Dtype::BF16, WEIGHT).repeated(0, 4096));
        let mut normed = Vec::new();
        for row in rows.chunks_exact(4096) {
            let mean = row.iter().map(|value| value * value).sum::<f64>() / 4096.0;
            let factor = 1.0 / (mean + 1e-5).sqrt();
            normed.extend(row.iter().zip(&weights).map(|(value, weight)| bf16::from_f64(value * factor * weight)));
        }
        let mut bytes: Vec<u8> = normed.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(chain.wrong_rows(&residual, &bytes), 0);
        bytes[2 * 5000..2 * 5000 + 2].copy_from_slice(&bf16::NAN.to_le_bytes());
        bytes[1] ^= 0x80;
        assert_eq!(chain.wrong_rows(&residual, &bytes), 2);
    }

    #[test]
    fn the_residual_grows_with_every_call() {
        let form = Form { captured: false, cold: false, in_place: false };
        let chain = |calls| NormChain { form, dtype: Dtype::F16, tokens: 1, hidden: 64, rank: 0, ranks: 2, calls };
        let once = chain(1).residual().unwrap();
        assert_ne!(once, Values::of_rank(Dtype::F16, RESIDUAL));
        assert_ne!(once, chain(2).residual().unwrap());
    }
}
