//! The slow model. In: a layout's description: shape, mesh, placements, nesting. Out: for every rank what each element of
//! its local tensor is. Guarantee: computed from the definition of shard bounds and parts alone, rank by rank and index by
//! index; no interval, cell or slot arithmetic of the product is used.

use crossmesh::base::Rank;
use crossmesh::layout::{AxisMap, Layout, Placement, Split};
use std::collections::BTreeMap;

/// What an element of a local tensor, or a position along one of its dimensions, is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// This global element (row-major number), or index.
    Global(u64),
    /// No element of the tensor, but part of its storage.
    Padding,
    /// Nothing of the tensor.
    Hole,
}

/// Per rank of the mesh: global element (row-major number) to local elements.
pub(crate) type Ownership = BTreeMap<Rank, Vec<Vec<u64>>>;

/// Where every rank of a layout keeps every element.
pub(crate) fn ownership(layout: &Layout) -> Ownership {
    let owned = |rank| {
        let mut owned = vec![Vec::new(); elements(layout.shape()) as usize];
        for (local, what) in uses(layout, rank).expect("a rank of the mesh").into_iter().enumerate() {
            if let Use::Global(element) = what {
                owned[element as usize].push(local as u64);
            }
        }
        owned
    };
    layout.mesh().ranks().map(|rank| (rank, owned(rank))).collect()
}

/// What the elements of `rank`'s local tensor are, row-major; `None` when it is not in the mesh.
pub(crate) fn uses(layout: &Layout, rank: Rank) -> Option<Vec<Use>> {
    let slot = layout.mesh().ranks().position(|member| member == rank)?;
    let dimensions: Vec<Vec<Use>> = (0..layout.shape().len()).map(|dim| positions(layout, slot, dim)).collect();
    let shape: Vec<u64> = dimensions.iter().map(|positions| positions.len() as u64).collect();
    let element = |index: Vec<u64>| {
        let along = index.iter().zip(&dimensions).map(|(&at, positions)| positions[at as usize]);
        along.zip(layout.shape()).fold(Use::Global(0), |element, (along, &extent)| match (element, along) {
            (Use::Global(number), Use::Global(index)) => Use::Global(number * extent + index),
            (Use::Hole, _) | (_, Use::Hole) => Use::Hole,
            _ => Use::Padding,
        })
    };
    Some(indices(&shape).map(element).collect())
}

/// All ranks that keep `element`, ascending.
pub(crate) fn keepers(ownership: &Ownership, element: usize) -> Vec<Rank> {
    ownership.iter().filter(|(_, local)| !local[element].is_empty()).map(|(&rank, _)| rank).collect()
}

/// Number of elements of a shape.
pub(crate) fn elements(shape: &[u64]) -> u64 {
    if shape.contains(&0) { 0 } else { shape.iter().product() }
}

/// Row-major number of an index.
pub(crate) fn number(index: &[u64], shape: &[u64]) -> usize {
    index.iter().zip(shape).fold(0, |number, (&at, &extent)| number * extent + at) as usize
}

/// All indices of a shape in row-major order.
pub(crate) fn indices(shape: &[u64]) -> impl Iterator<Item = Vec<u64>> + '_ {
    (0..elements(shape)).map(move |mut number| {
        let mut index = vec![0; shape.len()];
        for (at, &extent) in index.iter_mut().zip(shape).rev() {
            *at = number % extent;
            number /= extent;
        }
        index
    })
}

/// What the positions of the rank in `slot` along `dim` are: axis by axis, outermost first, from what there was before.
fn positions(layout: &Layout, slot: usize, dim: usize) -> Vec<Use> {
    let lengths = layout.mesh().shape();
    let (weight, block) =
        layout.blocks().map_or((layout.shape()[dim], 1), |(weight, blocks)| (weight[dim], blocks[dim]));
    let mut held: Vec<Use> = (0..weight).map(Use::Global).collect();
    for &axis in &layout.nesting()[dim] {
        let count = u64::from(lengths[axis]);
        let below: u64 = lengths[axis + 1..].iter().map(|&length| u64::from(length)).product();
        let coordinate = slot as u64 / below % count;
        match &layout.placements()[axis] {
            Placement::Shard { dim: sharded, split } => {
                assert_eq!(*sharded, dim);
                let border = |shard: u64| border(split, shard, count, held.len() as u64) as usize;
                held = held[border(coordinate)..border(coordinate + 1)].to_vec();
            }
            Placement::Parts { dim: arranged, maps } => {
                assert_eq!(*arranged, dim);
                held = arrange(&held, &maps[coordinate as usize]);
            }
            Placement::Replicate | Placement::Partial(_) => panic!("axis {axis} nests"),
        }
    }
    if block == 1 { held } else { blocks(&held, block) }
}

/// One position for every block: of indices, each time that another block or an earlier index of one begins; of padding,
/// which goes on counting; and of as many holes as a block has indices.
fn blocks(held: &[Use], block: u64) -> Vec<Use> {
    let mut made = Vec::new();
    let (mut last, mut holes) = (None, 0);
    for &what in held {
        match what {
            Use::Global(index) => {
                if last.is_none_or(|last| last / block != index / block || index <= last) {
                    made.push(Use::Global(index / block));
                }
                last = Some(index);
            }
            Use::Padding => {
                let next = last.map_or(0, |last| last + 1);
                if next.is_multiple_of(block) {
                    made.push(Use::Padding);
                }
                last = Some(next);
            }
            Use::Hole => {
                if holes % block == 0 {
                    made.push(Use::Hole);
                }
                holes += 1;
                last = None;
            }
        }
    }
    made
}

/// Beginning of a shard: NCCL M2N's Eq. 2, PyTorch's chunks, or given sizes.
fn border(split: &Split, shard: u64, count: u64, extent: u64) -> u64 {
    match split {
        Split::Floor => shard * extent / count,
        Split::Chunk => (shard * extent.div_ceil(count)).min(extent),
        Split::Sizes(sizes) => sizes.iter().take(shard as usize).sum(),
    }
}

/// The positions that a map makes of what there was.
fn arrange(held: &[Use], map: &AxisMap) -> Vec<Use> {
    let mut made = vec![Use::Hole; map.extent() as usize];
    for segment in map.segments() {
        for (number, index) in (segment.global.lo..segment.global.hi).enumerate() {
            made[segment.local as usize + number * segment.step as usize] = held[index as usize];
        }
    }
    for position in map.padding().iter().flat_map(|span| span.lo..span.hi) {
        made[position as usize] = Use::Padding;
    }
    made
}
