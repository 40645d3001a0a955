//! Layouts and views that other tools get wrong, each by name. In: nothing. Out: tensors between eight ranks, and where
//! they lie. Guarantee: small enough that every byte can be compared.

use super::segments::segments;
use super::transfer::{Spot, row_major};
use crate::planner::layout;
use crossmesh::comm::Side;
use crossmesh::layout::{Dtype, Layout, Placement, View};
use std::sync::Arc;

/// Number of ranks.
pub(super) const SIZE: u32 = 8;
pub(super) const ALL: Placement = Placement::Replicate;

pub(super) type Tensors = Vec<(Arc<Layout>, Arc<Layout>)>;
/// Where tensor number, side, shape of the local tensor go.
pub(super) type Place = fn(usize, Side, &[u64]) -> Spot;

/// A trap: its name, tensors, views.
pub(super) struct Trap(pub(super) &'static str, pub(super) Tensors, pub(super) Place);

/// Every local tensor in a buffer of its own.
pub(super) fn apart(tensor: usize, side: Side, _: &[u64]) -> Spot {
    Spot { buffer: 2 * tensor + usize::from(side == Side::Source), view: View::contiguous() }
}

pub(super) fn rows(dim: usize) -> Placement {
    Placement::shard(dim)
}

/// A tensor from ranks 0 to 3 to ranks 4 to 7.
pub(super) fn halves(shape: &[u64], dtype: Dtype, from: Placement, to: Placement) -> (Arc<Layout>, Arc<Layout>) {
    (layout(shape, dtype, &[4], 0..4, &[from]), layout(shape, dtype, &[4], 4..8, &[to]))
}

fn nested(layout: &Arc<Layout>, dim: usize, axes: &[usize]) -> Arc<Layout> {
    Arc::new(layout.as_ref().clone().with_nesting(dim, axes).expect("the axes of the dimension"))
}

fn uneven() -> Vec<Trap> {
    use Dtype::{BF16, F32, U8};
    let sizes = |sizes: [u64; 4]| Placement::sizes(0, sizes);
    vec![
        Trap("floor", vec![halves(&[7, 3], F32, rows(0), ALL), halves(&[5, 9], BF16, ALL, rows(1))], apart),
        Trap("chunk", vec![halves(&[7, 3], F32, Placement::chunk(0), rows(0))], apart),
        Trap("floor to chunk", vec![halves(&[10, 3], U8, rows(0), Placement::chunk(0))], apart),
        Trap("empty last chunk", vec![halves(&[5, 2], F32, Placement::chunk(0), rows(0))], apart),
        Trap("more ranks than rows", vec![halves(&[2, 5], F32, rows(0), Placement::chunk(0))], apart),
        Trap("one element", vec![halves(&[1], U8, ALL, rows(0)), halves(&[1, 1], U8, rows(1), ALL)], apart),
        Trap("empty shards", vec![halves(&[9, 4], F32, sizes([0, 9, 0, 0]), sizes([3, 0, 0, 6]))], apart),
        Trap("empty tensor", vec![halves(&[0, 4], F32, rows(0), rows(1)), halves(&[3], U8, ALL, ALL)], apart),
        Trap("scalar", vec![halves(&[], Dtype::F64, ALL, ALL)], apart),
    ]
}

fn meshes() -> Vec<Trap> {
    let over = |ranks: &[u32], placement| {
        layout(&[12, 5], Dtype::F32, &[ranks.len() as u32], ranks.iter().copied(), &[placement])
    };
    let pair = |from: &[u32], to: &[u32]| vec![(over(from, rows(0)), over(to, rows(1)))];
    vec![
        Trap("ranks in neither mesh", pair(&[1, 3], &[4, 6]), apart),
        Trap("destination before source", pair(&[5, 6, 7], &[0, 1]), apart),
        Trap("listed ranks out of order", pair(&[7, 0, 4], &[6, 2, 3, 1]), apart),
        Trap("overlapping", pair(&[0, 1, 2, 3, 4], &[3, 4, 5]), apart),
        Trap("the same ranks", pair(&[2, 3, 4], &[2, 3, 4]), apart),
        Trap("the same ranks in another order", pair(&[2, 3, 4], &[4, 2, 3]), apart),
        Trap("the same layout", vec![(over(&[1, 6], rows(0)), over(&[1, 6], rows(0)))], apart),
        Trap("one rank to all", pair(&[3], &[0, 1, 2, 3, 4, 5, 6, 7]), apart),
        Trap("all to one rank", pair(&[0, 1, 2, 3, 4, 5, 6, 7], &[5]), apart),
        Trap(
            "all to all",
            vec![(over(&[0, 1, 2, 3, 4, 5, 6, 7], rows(0)), over(&[7, 6, 5, 4, 3, 2, 1, 0], ALL))],
            apart,
        ),
    ]
}

fn dimensions() -> Vec<Trap> {
    let square = |shape: &[u64], first: u32, a, b| layout(shape, Dtype::BF16, &[2, 2], first..first + 4, &[a, b]);
    let deep = [2, 3, 2, 1, 2, 2, 3, 2];
    let strided = nested(&square(&[12, 5], 4, rows(0), rows(0)), 0, &[1, 0]);
    vec![
        Trap(
            "four dimensions",
            vec![(square(&[4, 3, 6, 5], 0, rows(2), rows(0)), square(&[4, 3, 6, 5], 4, rows(3), rows(1)))],
            apart,
        ),
        Trap("eight dimensions", vec![(square(&deep, 0, rows(7), rows(1)), square(&deep, 4, rows(6), rows(0)))], apart),
        Trap(
            "two axes on one dimension",
            vec![(square(&[12, 5], 0, rows(1), ALL), square(&[12, 5], 4, rows(0), rows(0)))],
            apart,
        ),
        Trap("strided shards", vec![(square(&[12, 5], 0, rows(0), rows(0)), strided.clone())], apart),
        Trap(
            "strided uneven shards",
            vec![(
                nested(&square(&[13, 5], 0, rows(0), Placement::chunk(0)), 0, &[1, 0]),
                square(&[13, 5], 4, ALL, rows(0)),
            )],
            apart,
        ),
        Trap(
            "two axes on two dimensions",
            vec![(square(&[7, 9], 0, rows(1), rows(0)), square(&[7, 9], 4, rows(0), rows(1)))],
            apart,
        ),
        Trap("experts split by rows", vec![halves(&[16, 6, 4], Dtype::BF16, rows(0), rows(1))], apart),
        Trap("replicated experts", vec![(square(&[6, 10], 0, rows(0), ALL), square(&[6, 10], 4, ALL, rows(0)))], apart),
    ]
}

fn views() -> Vec<Trap> {
    let tensor = |dtype| halves(&[8, 12], dtype, rows(0), rows(1));
    let odd: Place = |tensor, side, shape| Spot { view: View::at(3 + tensor as u64), ..apart(tensor, side, shape) };
    let transposed: Place = |tensor, side, shape| {
        let mut strides = row_major(&shape.iter().rev().copied().collect::<Vec<_>>());
        strides.reverse();
        let view = if side == Side::Source { View::at(1) } else { View::strided(5, strides) };
        Spot { view, ..apart(tensor, side, shape) }
    };
    // Both tensors in one buffer, rows of one between rows of the other, as gate and up are in a fused weight.
    let fused: Place = |tensor, side, shape| {
        let width = shape[1];
        let view = View::strided(7 + tensor as u64 * width * 2, [2 * width, 1]);
        Spot { buffer: usize::from(side == Side::Source), view }
    };
    // Element by element, which only exact bounds tell from an overlap.
    let interleaved: Place = |tensor, side, shape| {
        let view = View::strided(tensor as u64 * 2, [3 * shape[1], 3]);
        Spot { buffer: usize::from(side == Side::Source), view }
    };
    vec![
        Trap("odd byte offsets", vec![tensor(Dtype::F32), tensor(Dtype::F64)], odd),
        Trap("transposed", vec![tensor(Dtype::BF16), tensor(Dtype::U8)], transposed),
        Trap("fused", vec![tensor(Dtype::BF16), tensor(Dtype::BF16)], fused),
        Trap("interleaved", vec![tensor(Dtype::BF16), tensor(Dtype::BF16)], interleaved),
        Trap("all types", Dtype::ALL.iter().map(|&dtype| tensor(dtype)).collect(), apart),
    ]
}

/// All of them.
pub(super) fn traps() -> Vec<Trap> {
    [uneven(), meshes(), dimensions(), views(), segments()].into_iter().flatten().collect()
}
