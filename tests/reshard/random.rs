//! Random transfers. In: a seed, a number of ranks. Out: the same manifest on every rank, and spots of local tensors
//! in one or several buffers. Guarantee: everything follows from the seed, which failures print.

use super::transfer::{Spot, Transfer, mix, row_major};
use crate::planner::random::{Choices, layout, on_mesh};
use crossmesh::base::Rank;
use crossmesh::comm::{Buffer, Side};
use crossmesh::layout::{Dtype, Layout, Placement, Reduction, View};
use crossmesh::plan::{Manifest, Transform};
use std::sync::Arc;

/// Whose memory peers can map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    Shared,
    Private,
    /// Every second rank has shared memory.
    PerRank,
    /// Every second buffer is shared.
    PerBuffer,
}

impl Memory {
    pub(super) const ALL: [Memory; 4] = [Memory::Shared, Memory::Private, Memory::PerRank, Memory::PerBuffer];

    /// Buffer `number` of `rank`.
    pub(super) fn buffer(self, rank: Rank, number: usize, bytes: u64) -> Buffer {
        let shared = match self {
            Memory::Shared => true,
            Memory::Private => false,
            Memory::PerRank => rank.0.is_multiple_of(2),
            Memory::PerBuffer => (number + rank.index()).is_multiple_of(2),
        };
        if shared { Buffer::shared(bytes) } else { Buffer::private(bytes) }.expect("memory for a small buffer")
    }
}

/// Added to the seeds of a run, for longer searches.
const SEED: &str = "CROSSMESH_TEST_SEED";

/// A seed that no other `job` and `number` have.
pub(super) fn seed(job: u64, number: u64) -> u64 {
    let of_run = std::env::var(SEED).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    mix(mix(of_run) ^ job << 32 ^ number) >> 8
}

/// Choices that follow from a seed.
pub(super) fn choices(seed: u64) -> Choices {
    Choices::new((0..512).flat_map(|word| mix(seed ^ word << 48).to_le_bytes()).collect())
}

/// A manifest of 1 to 5 tensors of at most `elements` elements over any of `size` ranks.
pub(super) fn manifest(seed: u64, size: usize, elements: u64) -> Arc<Manifest> {
    let choices = &mut choices(mix(seed));
    let mut manifest = Manifest::new();
    for index in 0..1 + choices.below(5) {
        let shape = shape(choices, elements);
        let dtype = choices.of(&[Dtype::U8, Dtype::BF16, Dtype::F32, Dtype::F64, Dtype::F16]);
        let cast = matches!(dtype, Dtype::BF16 | Dtype::F32 | Dtype::F16) && choices.below(2) == 0;
        let wanted = if cast { choices.of(&[Dtype::BF16, Dtype::F32, Dtype::F16]) } else { dtype };
        let source = layout(choices, &shape, dtype, size);
        let destination = match choices.below(6) {
            0 if !cast => source.clone(),
            0 | 1 => on_mesh(choices, &shape, wanted, source.mesh().clone()),
            _ => layout(choices, &shape, wanted, size),
        };
        let source = if choices.below(3) == 0 { with_terms(choices, source) } else { source };
        let transform = if cast { Transform::Cast } else { Transform::None };
        let pushed = manifest.push_with(format!("t{index}"), Arc::new(source), Arc::new(destination), transform);
        pushed.expect("same shape, and dtypes that a cast joins");
    }
    Arc::new(manifest)
}

/// The same layout with terms along some of the axes that replicate it.
fn with_terms(choices: &mut Choices, layout: Layout) -> Layout {
    let placements = layout.placements().iter().map(|placement| match placement {
        Placement::Replicate if choices.below(3) > 0 => Placement::Partial(Reduction::Sum),
        other => other.clone(),
    });
    let (mesh, shape) = (Arc::new(layout.mesh().clone()), layout.shape().to_vec());
    let mut partial = Layout::new(shape, layout.dtype(), mesh, placements.collect()).expect("types that add up");
    for (dim, axes) in layout.nesting().iter().enumerate().filter(|(_, axes)| axes.len() > 1) {
        partial = partial.with_nesting(dim, axes).expect("an order that the layout had");
    }
    partial
}

/// Up to 8 dimensions; few are empty.
fn shape(choices: &mut Choices, elements: u64) -> Vec<u64> {
    let mut left = elements;
    (0..choices.below(9))
        .map(|_| {
            let extents = if choices.below(12) == 0 { [0, 1, 1, 1, 1, 1] } else { [2, 3, 1, 5, 7, 64] };
            let extent = choices.of(&extents).min(left);
            left /= extent.max(1);
            extent
        })
        .collect()
}

/// This rank's part of a manifest, placed by the seed.
pub(super) fn transfer(seed: u64, manifest: &Arc<Manifest>, rank: Rank, memory: Memory) -> Transfer {
    let choices = &mut choices(mix(seed ^ u64::from(rank.0) << 32 ^ 1));
    let mut ends: Vec<u64> = Vec::new();
    let place = |_: usize, _: Side, layout: &Layout| {
        let shape = layout.local_shape(rank).unwrap_or_default();
        let strides = strides(choices, &shape);
        // One buffer may hold sources and destinations of several tensors.
        let buffer = if ends.is_empty() || choices.below(2) == 0 { ends.len() } else { choices.below(ends.len()) };
        ends.resize(ends.len().max(buffer + 1), 0);
        let offset = ends[buffer] + choices.of(&[0, 1, 3, 8, 13, 64]);
        let reach: u64 = shape.iter().zip(&strides).map(|(&extent, &stride)| (extent - 1) * stride).sum();
        ends[buffer] = offset + (reach + 1) * layout.dtype().bytes();
        let plain = strides == row_major(&shape) && choices.below(2) == 0;
        Spot { buffer, view: if plain { View::at(offset) } else { View::strided(offset, strides) } }
    };
    let name = format!("seed {seed}, {memory:?} memory, rank {rank}");
    Transfer::new(&name, manifest, rank, place, |number, bytes| memory.buffer(rank, number, bytes))
}

/// Contiguous, padded, or with dimensions in another order.
fn strides(choices: &mut Choices, shape: &[u64]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..shape.len()).rev().collect();
    let kind = choices.below(4);
    if kind == 3 && shape.len() > 1 {
        let (one, other) = (choices.below(shape.len()), choices.below(shape.len()));
        order.swap(one, other);
    }
    let mut strides = vec![0; shape.len()];
    let mut step = 1;
    for dim in order {
        strides[dim] = step;
        let padding = if kind == 2 { choices.of(&[0, 0, 1, 3]) } else { 0 };
        step *= shape[dim] + padding;
    }
    strides
}
