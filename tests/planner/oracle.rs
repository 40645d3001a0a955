//! The slow model. In: a layout's description: shape, mesh, placements, nesting. Out: for every rank and every
//! element of the global tensor the element's position in the rank's local tensor. Guarantee: computed from the
//! definition of the shard bounds alone, rank by rank and element by element; no interval, cell or slot arithmetic
//! of the product is used.

use crossmesh::base::Rank;
use crossmesh::layout::{Layout, Placement, Split};
use std::collections::BTreeMap;

/// Per rank of the mesh: global element (row-major number) to local element.
pub(crate) type Ownership = BTreeMap<Rank, Vec<Option<u64>>>;

/// Where every rank of a layout keeps every element.
pub(crate) fn ownership(layout: &Layout) -> Ownership {
    layout.mesh().ranks().map(|rank| (rank, owned(layout, rank).expect("a rank of the mesh"))).collect()
}

/// Where `rank` keeps every element; `None` when it is not in the mesh.
pub(crate) fn owned(layout: &Layout, rank: Rank) -> Option<Vec<Option<u64>>> {
    let slot = layout.mesh().ranks().position(|member| member == rank)?;
    let bounds: Vec<(u64, u64)> = (0..layout.shape().len()).map(|dim| bounds(layout, slot, dim)).collect();
    Some(indices(layout.shape()).map(|index| local_element(&index, &bounds)).collect())
}

/// All ranks that keep `element`, ascending.
pub(crate) fn keepers(ownership: &Ownership, element: usize) -> Vec<Rank> {
    ownership.iter().filter(|(_, local)| local[element].is_some()).map(|(&rank, _)| rank).collect()
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

/// Local row-major number of a global index, if it lies inside the bounds.
fn local_element(index: &[u64], bounds: &[(u64, u64)]) -> Option<u64> {
    index
        .iter()
        .zip(bounds)
        .try_fold(0, |number, (&at, &(lo, hi))| (lo <= at && at < hi).then(|| number * (hi - lo) + (at - lo)))
}

/// Bounds `[lo, hi)` of the rank in `slot` along `dim`: NCCL M2N's Eq. 2, applied axis by axis.
fn bounds(layout: &Layout, slot: usize, dim: usize) -> (u64, u64) {
    let lengths = layout.mesh().shape();
    let (mut lo, mut hi) = (0, layout.shape()[dim]);
    for &axis in &layout.nesting()[dim] {
        let Placement::Shard { dim: sharded, split } = &layout.placements()[axis] else { panic!("axis {axis} nests") };
        assert_eq!(*sharded, dim);
        let count = u64::from(lengths[axis]);
        let below: u64 = lengths[axis + 1..].iter().map(|&length| u64::from(length)).product();
        let coordinate = slot as u64 / below % count;
        let extent = hi - lo;
        let border = |shard: u64| match split {
            Split::Floor => shard * extent / count,
            Split::Chunk => (shard * extent.div_ceil(count)).min(extent),
            Split::Sizes(sizes) => sizes.iter().take(shard as usize).sum(),
        };
        (lo, hi) = (lo + border(coordinate), lo + border(coordinate + 1));
    }
    (lo, hi)
}
