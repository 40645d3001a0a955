//! Storage that engines and trainers use and one interval per rank cannot say: fused, padded, permuted, repeated, blocks.

use super::transfer::{Spot, row_major};
use super::traps::{ALL, Place, Trap, apart, halves, rows};
use crate::planner::layout;
use crossmesh::comm::Side;
use crossmesh::layout::{
    AxisMap, Dtype, ExpertMap, FusedAxis, FusedForm, HeadSplit, Heads, Interval, Layout, Placement, Split, View,
};
use std::sync::Arc;

/// All storage of one side in one buffer, the other's apart.
const INTO_ONE: Place = |tensor, side, shape| match side {
    Side::Source => apart(tensor, side, shape),
    Side::Destination => Spot { buffer: 0, view: View::contiguous() },
};
const OUT_OF_ONE: Place = |tensor, side, shape| match side {
    Side::Source => Spot { buffer: 1, view: View::contiguous() },
    Side::Destination => apart(tensor, side, shape),
};
const ONE_EACH: Place = |_, side, _| Spot { buffer: usize::from(side == Side::Source), view: View::contiguous() };
/// Into one buffer that is stored transposed.
const TRANSPOSED_ONE: Place = |tensor, side, shape| {
    let mut strides = row_major(&shape.iter().rev().copied().collect::<Vec<_>>());
    strides.reverse();
    match side {
        Side::Source => apart(tensor, side, shape),
        Side::Destination => Spot { buffer: 0, view: View::strided(6, strides) },
    }
};

/// The tensors of a fused axis, 5 columns wide, on four ranks of each side; `None` shards them one by one.
fn fused(from: Option<&FusedAxis>, to: Option<&FusedAxis>) -> Vec<(Arc<Layout>, Arc<Layout>)> {
    let extents = from.or(to).expect("fused on a side").extents().to_vec();
    let placement = |axis: Option<&FusedAxis>, tensor| axis.map_or(rows(0), |axis| axis.placement(tensor, 0));
    let pair = |(tensor, &extent)| halves(&[extent, 5], Dtype::BF16, placement(from, tensor), placement(to, tensor));
    extents.iter().enumerate().map(pair).collect()
}

fn attention(query: u64, key_value: u64, form: FusedForm, split: HeadSplit) -> FusedAxis {
    FusedAxis::attention(Heads { query, key_value, size: 3 }, form, split, 4).expect("heads of the test")
}

fn fused_tensors() -> Vec<Trap> {
    use FusedForm::{Concatenated, Grouped, Interleaved};
    let (even, needed) = (HeadSplit::Even, HeadSplit::AsNeeded);
    let (concatenated, grouped) = (attention(8, 4, Concatenated, even), attention(8, 4, Grouped, even));
    let interleaved = attention(4, 4, Interleaved, even);
    let into = |axis: &FusedAxis| fused(None, Some(axis));
    let split = |form, extents: &[u64]| FusedAxis::split(extents, form, &Split::Floor, 4).expect("extents of the test");
    let gate_up = [split(Concatenated, &[14, 14]), split(Interleaved, &[14, 14])];
    let bias: Vec<_> =
        (0..3).map(|part| halves(&[12], Dtype::F32, interleaved.placement(part, 0), Placement::chunk(0))).collect();
    let whole = |form| {
        FusedAxis::attention(Heads { query: 8, key_value: 4, size: 3 }, form, even, 1).expect("heads of the test")
    };
    let already =
        |form, stored| attention(8, 4, form, even).fused_placement(&whole(stored), 0).expect("the same heads");
    vec![
        Trap("into [Q | K | V]", into(&concatenated), INTO_ONE),
        Trap("into groups", into(&grouped), INTO_ONE),
        Trap("into groups, transposed", into(&grouped), TRANSPOSED_ONE),
        Trap("into q k v q k v", into(&interleaved), INTO_ONE),
        Trap("into q k v q k v, transposed", into(&interleaved), TRANSPOSED_ONE),
        Trap("out of groups", fused(Some(&grouped), None), OUT_OF_ONE),
        Trap("groups to [Q | K | V]", fused(Some(&grouped), Some(&concatenated)), ONE_EACH),
        Trap("keys on two ranks each", into(&attention(8, 2, Grouped, even)), INTO_ONE),
        Trap(
            "keys on all ranks",
            fused(Some(&attention(8, 1, Concatenated, even)), Some(&attention(8, 1, Grouped, even))),
            ONE_EACH,
        ),
        Trap("heads that do not divide", into(&attention(6, 3, Grouped, needed)), INTO_ONE),
        Trap(
            "groups cut by rows",
            fused(Some(&attention(4, 2, Grouped, HeadSplit::Rows)), Some(&attention(4, 2, Concatenated, needed))),
            ONE_EACH,
        ),
        Trap("[gate | up] to gate up gate up", fused(Some(&gate_up[0]), Some(&gate_up[1])), ONE_EACH),
        Trap("gate up gate up to [gate | up]", fused(Some(&gate_up[1]), Some(&gate_up[0])), ONE_EACH),
        Trap("interleaved bias", bias, OUT_OF_ONE),
        Trap(
            "fused in the checkpoint",
            vec![halves(&[48, 5], Dtype::F32, already(Grouped, Grouped), already(Concatenated, Grouped))],
            apart,
        ),
    ]
}

fn padding() -> Vec<Trap> {
    let padded = |to, split| Placement::padded(0, 37, to, &split, 4).expect("room for all rows");
    let with = |(from, to): (Arc<Layout>, Arc<Layout>), element: &[u8]| {
        (from, Arc::new(to.as_ref().clone().with_padding(element).expect("one element")))
    };
    let both = || halves(&[37, 5], Dtype::BF16, padded(40, Split::Floor), padded(64, Split::Chunk));
    let (cut, grown) = (halves(&[37, 5], Dtype::F32, padded(48, Split::Floor), rows(0)), with(both(), &[0, 0]));
    // Rows and columns are padded: the corner once.
    let corner = |shape: &[u64], first: u32| {
        let columns = Placement::padded(1, 5, 9, &Split::Floor, 2).expect("room for all columns");
        let rows = Placement::padded(0, 37, 40, &Split::Floor, 2).expect("room for all rows");
        layout(shape, Dtype::F32, &[2, 2], first..first + 4, &[rows, columns])
    };
    let corners = with((corner(&[37, 5], 0), corner(&[37, 5], 4)), &[1, 2, 3, 4]);
    // Longer than a pattern of padding.
    let long = Placement::padded(0, 9, 4000, &Split::Floor, 4).expect("room for all rows");
    let long = with(halves(&[9, 7], Dtype::F64, rows(0), long), &[8, 7, 6, 5, 4, 3, 2, 1]);
    vec![
        Trap("padding left as it is", vec![both()], apart),
        Trap("padding cut off", vec![cut], apart),
        Trap("padding written", vec![grown, corners, long], apart),
    ]
}

fn experts() -> Vec<Trap> {
    let map = |slots: &[u64]| ExpertMap::new(6, slots.to_vec(), 4).expect("every expert has a slot");
    // Twice on one rank, twice on different ranks.
    let redundant = map(&[5, 3, 5, 0, 1, 0, 2, 0, 4, 3, 1, 1]);
    let trained = map(&[4, 1, 0, 5, 2, 3, 3, 2]);
    let stacked = || halves(&[6, 4, 5], Dtype::BF16, trained.stacked(0), redundant.stacked(0));
    let single = |map: &ExpertMap, expert| map.single(0, expert).expect("one of six");
    let into_stack = (0..6).map(|expert| halves(&[1, 4, 5], Dtype::F32, rows(1), single(&redundant, expert))).collect();
    let out_of_stack = (0..6).map(|expert| halves(&[1, 4, 5], Dtype::F32, single(&trained, expert), ALL)).collect();
    let fused = (0..6)
        .map(|expert| halves(&[1, 4, 5], Dtype::U8, single(&trained, expert), single(&redundant, expert)))
        .collect();
    vec![
        Trap("experts in another order, some twice", vec![stacked()], apart),
        Trap("experts into stacks", into_stack, INTO_ONE),
        Trap("experts out of stacks", out_of_stack, OUT_OF_ONE),
        Trap("stacks to stacks, expert by expert", fused, ONE_EACH),
    ]
}

fn blocks() -> Vec<Trap> {
    let scales = |layout: &Arc<Layout>| Arc::new(layout.block_scales(&[4, 4], Dtype::F32).expect("whole blocks"));
    let with_scales = |from, to| {
        let (from, to) = halves(&[26, 18], Dtype::U8, from, to);
        let scales = (scales(&from), scales(&to));
        vec![(from, to), scales]
    };
    let vocabulary = Placement::padded(0, 26, 32, &Split::Floor, 4).expect("room for all rows");
    let gate_up = FusedAxis::split(&[26, 26], FusedForm::Concatenated, &Split::Floor, 4).expect("two extents");
    let of_fused = fused(None, Some(&gate_up.blocks(4).expect("rows in one piece")));
    // Every fourth block of 3.
    let cyclic = |first: u64| {
        AxisMap::new((0..3).map(|round| Interval { lo: 12 * round + 3 * first, hi: 12 * round + 3 * first + 3 }))
    };
    let cyclic: Vec<AxisMap> = (0..4).map(cyclic).collect();
    vec![
        Trap("scales of shards that are no whole blocks", with_scales(rows(0), rows(1)), apart),
        Trap("scales of a padded weight", with_scales(Placement::chunk(1), vocabulary), apart),
        Trap("scales of fused tensors", of_fused, INTO_ONE),
        Trap("block-cyclic", vec![halves(&[36, 5], Dtype::F32, Placement::parts(0, cyclic.clone()), rows(1))], apart),
        Trap(
            "to block-cyclic",
            vec![halves(&[36, 5], Dtype::F32, Placement::chunk(0), Placement::parts(0, cyclic))],
            apart,
        ),
    ]
}

/// All of them.
pub(super) fn segments() -> Vec<Trap> {
    [fused_tensors(), padding(), experts(), blocks()].into_iter().flatten().collect()
}
