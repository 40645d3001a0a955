//! A rank's part of a transfer whose every byte is known.
//!
//! In: a manifest, where each local tensor lies in which memory. Out: buffers, filled for a round and compared after
//! it. Guarantee: what is expected comes from global indices alone; bytes that belong to no tensor hold a pattern that
//! must survive, and sources must too.

use super::access::{put, take};
use super::elements::{Element, coordinate};
use crate::planner::oracle::{self, Use};
use crossmesh::base::Rank;
use crossmesh::comm::{Buffer, Buffers, Side};
use crossmesh::layout::{Layout, View};
use crossmesh::plan::Manifest;
use std::sync::Arc;

/// Where a local tensor is put.
#[derive(Debug, Clone)]
pub(super) struct Spot {
    /// Number of the buffer at this rank.
    pub(super) buffer: usize,
    pub(super) view: View,
}

/// A local tensor: where every one of its elements lies, and which of the global tensor it is.
struct Local {
    name: String,
    buffer: usize,
    element_bytes: usize,
    /// Byte position in the buffer and global element.
    elements: Vec<(usize, u64)>,
    /// Byte positions of padding, and what it is once written.
    padding: (Vec<usize>, Vec<u8>),
    tensor: usize,
    side: Side,
    /// Which term of its elements a source holds.
    coordinate: u64,
}

/// A rank's part of a transfer.
pub(super) struct Transfer {
    pub(super) buffers: Buffers,
    manifest: Arc<Manifest>,
    memories: Vec<Buffer>,
    locals: Vec<Local>,
    /// What is said when something is wrong.
    name: String,
}

/// The finalizer of splitmix64: every bit of the input changes half of the output.
pub(super) fn mix(word: u64) -> u64 {
    let mut mixed = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// What bytes outside all tensors, and destinations before a round, hold.
fn poison(buffer: usize, position: usize) -> u8 {
    (position.wrapping_mul(167).wrapping_add(buffer * 59 + 91)) as u8
}

impl Transfer {
    /// `place` gives the spot of a local tensor of a layout, which is not empty; `memory` makes a buffer of this
    /// number and size.
    pub(super) fn new(
        name: &str,
        manifest: &Arc<Manifest>,
        rank: Rank,
        mut place: impl FnMut(usize, Side, &Layout) -> Spot,
        memory: impl Fn(usize, u64) -> Buffer,
    ) -> Self {
        let mut locals = Vec::new();
        let mut views = Vec::new();
        let mut sizes: Vec<u64> = Vec::new();
        for (tensor, spec) in manifest.tensors().iter().enumerate() {
            for (side, layout) in [(Side::Source, &spec.source), (Side::Destination, &spec.destination)] {
                let shape = layout.local_shape(rank);
                let Some(shape) = shape.filter(|shape| !shape.contains(&0)) else { continue };
                let spot = place(tensor, side, layout);
                let strides = spot.view.strides.clone().unwrap_or_else(|| row_major(&shape));
                let element_bytes = layout.dtype().bytes();
                let (mut elements, mut padding) = (Vec::new(), Vec::new());
                let mut end = 0;
                let uses = oracle::uses(layout, rank).expect("a rank with a local tensor");
                for (local, what) in (0..).zip(uses) {
                    let at = offset(local, &shape, &strides) * element_bytes + spot.view.offset;
                    end = end.max(at + element_bytes);
                    match what {
                        Use::Global(element) => elements.push((at as usize, element)),
                        Use::Padding if side == Side::Destination => padding.push(at as usize),
                        Use::Padding | Use::Hole => {}
                    }
                }
                if layout.padding().is_none() {
                    padding.clear();
                }
                let padding = (padding, layout.padding().unwrap_or_default().to_vec());
                sizes.resize(sizes.len().max(spot.buffer + 1), 0);
                sizes[spot.buffer] = sizes[spot.buffer].max(end);
                let (name, element_bytes) = (spec.name.clone(), element_bytes as usize);
                let coordinate = if side == Side::Source { coordinate(layout, rank) } else { 0 };
                let buffer = spot.buffer;
                locals.push(Local { name, buffer, element_bytes, elements, padding, tensor, side, coordinate });
                views.push(spot.view);
            }
        }
        // A few bytes behind the last tensor, where a copy that runs too far would be seen.
        let memories: Vec<Buffer> = sizes.iter().enumerate().map(|(number, &size)| memory(number, size + 19)).collect();
        let mut buffers = Buffers::new(manifest);
        for (local, view) in locals.iter().zip(views) {
            buffers.set(local.side, local.tensor, memories[local.buffer].clone(), view);
        }
        Self { buffers, manifest: manifest.clone(), memories, locals, name: name.to_string() }
    }

    /// Makes sources hold the values of `round`, everything else the pattern.
    pub(super) fn fill(&self, round: u64) {
        for (number, memory) in self.memories.iter().enumerate() {
            let mut bytes: Vec<u8> = (0..memory.bytes() as usize).map(|at| poison(number, at)).collect();
            self.write(number, &mut bytes, round, |local| local.side == Side::Source);
            put(memory, &bytes);
        }
    }

    /// Compares every byte with what `round` must leave.
    pub(super) fn check(&self, round: u64) {
        for (number, memory) in self.memories.iter().enumerate() {
            let mut expected: Vec<u8> = (0..memory.bytes() as usize).map(|at| poison(number, at)).collect();
            self.write(number, &mut expected, round, |_| true);
            let found = take(memory);
            if found != expected {
                let wrong = (0..expected.len()).filter(|&at| found[at] != expected[at]);
                let count = wrong.clone().count();
                let first = wrong.clone().next().unwrap_or(0);
                panic!("{}, round {round}: {count} wrong bytes, the first {}", self.name, self.describe(number, first));
            }
        }
    }

    fn write(&self, number: usize, bytes: &mut [u8], round: u64, which: impl Fn(&Local) -> bool) {
        for local in self.locals.iter().filter(|local| local.buffer == number && which(local)) {
            let spec = &self.manifest.tensors()[local.tensor];
            for &(at, index) in &local.elements {
                let element = Element { tensor: local.tensor, index, round };
                let value = match local.side {
                    Side::Source => element.held(&spec.source, local.coordinate),
                    Side::Destination => element.wanted(spec),
                };
                bytes[at..at + local.element_bytes].copy_from_slice(&value[..local.element_bytes]);
            }
            let (padding, element) = &local.padding;
            padding.iter().for_each(|&at| bytes[at..at + element.len()].copy_from_slice(element));
        }
    }

    fn describe(&self, number: usize, at: usize) -> String {
        let found = self.locals.iter().filter(|local| local.buffer == number).find_map(|local| {
            let inside = local.elements.iter().find(|&&(start, _)| (start..start + local.element_bytes).contains(&at));
            inside.map(|&(_, element)| format!("in element {element} of {} of {:?}", local.side, local.name))
        });
        format!("at byte {at} of buffer {number}, {}", found.unwrap_or_else(|| "outside all tensors".into()))
    }
}

/// Strides in elements.
pub(super) fn row_major(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim] * shape[dim];
    }
    strides
}

/// Position, in elements, of local element number `local`.
fn offset(mut local: u64, shape: &[u64], strides: &[u64]) -> u64 {
    let mut sum = 0;
    for (&extent, &stride) in shape.iter().zip(strides).rev() {
        sum += local % extent * stride;
        local /= extent;
    }
    sum
}
