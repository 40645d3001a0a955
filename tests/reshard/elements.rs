//! The values of elements: what ranks hold of them, and what must arrive. In: a tensor, a global index, a round. Out: bytes.
//! Guarantee: nothing of the product is used; casts are those of the crate `half`, sums are exact, so that their order
//! does not count here.

use super::transfer::mix;
use crossmesh::base::Rank;
use crossmesh::layout::{Dtype, Layout, Placement};
use crossmesh::plan::TensorSpec;
use half::{bf16, f16};

/// An element of tensor number `tensor`, row-major number `index`, in a round.
#[derive(Debug, Clone, Copy)]
pub(super) struct Element {
    pub(super) tensor: usize,
    pub(super) index: u64,
    pub(super) round: u64,
}

impl Element {
    /// Bytes unlike those of any other element, row, expert or tensor.
    fn bytes(self) -> [u8; 8] {
        mix(self.index ^ (self.tensor as u64) << 40 ^ self.round << 56).to_le_bytes()
    }

    /// A small whole number, of which every type holds sums exactly.
    fn term(self, coordinate: u64) -> i64 {
        let bytes = Element { index: self.index ^ (coordinate + 1) << 28, ..self }.bytes();
        i64::from(bytes[0] as i8) / 4
    }

    /// What a rank with this coordinate along the partial axes holds.
    pub(super) fn held(self, source: &Layout, coordinate: u64) -> [u8; 8] {
        if terms(source) == 1 { self.bytes() } else { whole(self.term(coordinate), source.dtype()) }
    }

    /// What must arrive.
    pub(super) fn wanted(self, spec: &TensorSpec) -> [u8; 8] {
        let (from, to) = (spec.source.dtype(), spec.destination.dtype());
        match terms(&spec.source) {
            1 => cast(self.bytes(), from, to),
            terms => whole((0..terms).map(|coordinate| self.term(coordinate)).sum(), to),
        }
    }

    /// Whether a finite value arrives as an infinite one.
    pub(super) fn saturates(self, spec: &TensorSpec) -> bool {
        let (from, to) = (spec.source.dtype(), spec.destination.dtype());
        from != to
            && terms(&spec.source) == 1
            && single(self.bytes(), from).is_finite()
            && single(self.wanted(spec), to).is_infinite()
    }
}

/// Number of terms of every element.
pub(super) fn terms(source: &Layout) -> u64 {
    partial_axes(source).map(|axis| u64::from(source.mesh().shape()[axis])).product()
}

/// Which term of its elements a rank of the mesh holds.
pub(super) fn coordinate(source: &Layout, rank: Rank) -> u64 {
    let slot = source.mesh().ranks().position(|member| member == rank).expect("a rank of the mesh") as u64;
    let lengths = source.mesh().shape();
    partial_axes(source).fold(0, |coordinate, axis| {
        let below: u64 = lengths[axis + 1..].iter().map(|&length| u64::from(length)).product();
        coordinate * u64::from(lengths[axis]) + slot / below % u64::from(lengths[axis])
    })
}

fn partial_axes(source: &Layout) -> impl Iterator<Item = usize> + '_ {
    (0..source.placements().len()).filter(|&axis| matches!(source.placements()[axis], Placement::Partial(_)))
}

/// A whole number as an element.
fn whole(number: i64, dtype: Dtype) -> [u8; 8] {
    let float = number as f32;
    match dtype {
        Dtype::F64 => f64::from(float).to_le_bytes(),
        Dtype::F32 | Dtype::F16 | Dtype::BF16 => narrowed(float, dtype),
        _ => number.to_le_bytes(),
    }
}

fn single(bytes: [u8; 8], dtype: Dtype) -> f32 {
    let half = u16::from_le_bytes([bytes[0], bytes[1]]);
    match dtype {
        Dtype::F32 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
        Dtype::F16 => f16::from_bits(half).to_f32(),
        Dtype::BF16 => bf16::from_bits(half).to_f32(),
        other => panic!("no test casts {other}"),
    }
}

fn narrowed(value: f32, dtype: Dtype) -> [u8; 8] {
    let bits = match dtype {
        Dtype::F32 => value.to_bits(),
        Dtype::F16 => u32::from(f16::from_f32(value).to_bits()),
        Dtype::BF16 => u32::from(bf16::from_f32(value).to_bits()),
        other => panic!("no test casts to {other}"),
    };
    u64::from(bits).to_le_bytes()
}

fn cast(bytes: [u8; 8], from: Dtype, to: Dtype) -> [u8; 8] {
    if from == to { bytes } else { narrowed(single(bytes, from), to) }
}
