//! Nesting, parts, padding and scales of small layouts. In: layouts. Out: nothing. Guarantee: maps by dimension and by rank
//! agree, and what cannot be built is refused.

use super::*;
use crate::layout::Part;

fn mesh(shape: &[u32]) -> Arc<Mesh> {
    Arc::new(Mesh::contiguous(shape.to_vec(), Rank(0)).unwrap())
}

fn first(layout: &Layout, rank: u32, dim: usize) -> (u64, u64) {
    let maps = layout.axis_maps(Rank(rank)).unwrap();
    maps[dim].intervals().next().map_or((0, 0), |interval| (interval.lo, interval.hi))
}

#[test]
fn two_axes_on_one_dimension_nest_in_either_order() {
    let placements = vec![Placement::shard(0), Placement::shard(0)];
    let outer_first = Layout::new(vec![12, 4], Dtype::BF16, mesh(&[2, 3]), placements).unwrap();
    assert_eq!(first(&outer_first, 4, 0), (8, 10));
    let inner_first = outer_first.clone().with_nesting(0, &[1, 0]).unwrap();
    assert_eq!(first(&inner_first, 4, 0), (6, 8));
    assert!(outer_first.with_nesting(0, &[0]).is_err());
}

#[test]
fn dimension_maps_agree_with_axis_maps() {
    let placements = vec![Placement::shard(1), Placement::Replicate, Placement::chunk(0)];
    let layout = Layout::new(vec![5, 7], Dtype::F32, mesh(&[2, 2, 3]), placements).unwrap();
    let (rows, columns) = (layout.dimension(0), layout.dimension(1));
    let mut seen = 0;
    for row in &rows.shards {
        for column in &columns.shards {
            for replica in layout.replica_offsets() {
                let rank = Rank((row.slot_offset + column.slot_offset + replica) as u32);
                assert_eq!(layout.axis_maps(rank).unwrap(), [row.map.clone(), column.map.clone()]);
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 12);
}

#[test]
fn shards_within_a_part_are_those_that_hold_it() {
    let sizes = Placement::sizes(0, [9, 0, 21]);
    for (outer, inner) in [
        (Placement::shard(0), Placement::chunk(0)),
        (Placement::chunk(0), Placement::shard(0)),
        (sizes, Placement::shard(0)),
    ] {
        let layout = Layout::new(vec![30], Dtype::U8, mesh(&[3, 4]), vec![outer, inner]).unwrap();
        let all = layout.dimension(0).shards;
        for (lo, hi) in (0..=30).flat_map(|lo| (lo..=30).map(move |hi| (lo, hi))) {
            let meets = |held: Interval| held.lo.max(lo) < held.hi.min(hi);
            let expected: Vec<&AxisShard> = all.iter().filter(|shard| shard.map.intervals().any(meets)).collect();
            let found = layout.dimension_within(0, Interval { lo, hi }).shards;
            assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{lo}..{hi}");
        }
    }
}

#[test]
fn bad_layouts() {
    let build = |shape: &[u64], placements| Layout::new(shape.to_vec(), Dtype::F64, mesh(&[2]), placements);
    assert!(matches!(build(&[4], vec![]), Err(LayoutError::PlacementCount { .. })));
    assert!(matches!(build(&[4], vec![Placement::shard(1)]), Err(LayoutError::NoSuchDimension { .. })));
    assert!(matches!(build(&[4], vec![Placement::sizes(0, [1])]), Err(LayoutError::SizesCount { .. })));
    assert!(matches!(build(&[4], vec![Placement::sizes(0, [1, 2])]), Err(LayoutError::SizesSum { sum: 3, .. })));
    assert!(matches!(build(&[4], vec![Placement::sizes(0, [u64::MAX, 5])]), Err(LayoutError::SizesSum { .. })));
    assert!(matches!(build(&[1 << 62], vec![Placement::Replicate]), Err(LayoutError::Size(_))));
    assert!(matches!(build(&[1; 9], vec![Placement::Replicate]), Err(LayoutError::TooManyDimensions { rank: 9 })));
    assert_eq!(build(&[], vec![Placement::Replicate]).unwrap().global_bytes(), 8);
    let empty = build(&[1 << 40, 1 << 40, 0], vec![Placement::shard(0)]).unwrap();
    assert_eq!((empty.global_bytes(), empty.local_bytes(Rank(1))), (0, 0));
}

#[test]
fn parts_are_checked() {
    let build = |shape: &[u64], placements| Layout::new(shape.to_vec(), Dtype::F32, mesh(&[2]), placements);
    let part = |lo, hi| AxisMap::new([Interval { lo, hi }]);
    let parts = |maps: &[AxisMap]| vec![Placement::parts(0, maps)];
    let error = build(&[4], parts(&[part(0, 4)])).unwrap_err();
    assert_eq!(error, LayoutError::MapsCount { axis: 0, ranks: 2, maps: 1 });
    let error = build(&[4], parts(&[part(0, 4), part(3, 5)])).unwrap_err();
    let outside = LayoutError::MapOutside { axis: 0, coordinate: 1, dim: 0, lo: 3, hi: 5, extent: 4 };
    assert_eq!(error, outside);
    assert!(matches!(build(&[], parts(&[part(0, 0), part(0, 0)])), Err(LayoutError::NoSuchDimension { .. })));
    // Repeats and padding may not grow a local tensor beyond 64 bits.
    let long = AxisMap::of_parts([Part::Padding(1 << 62)]).unwrap();
    assert!(matches!(build(&[4, 4], parts(&[long.clone(), long])), Err(LayoutError::Size(_))));
    // What is left to an inner axis is the least of all coordinates.
    let placements = |inner: u64| vec![Placement::shard(0), Placement::parts(0, vec![part(0, inner); 3])];
    let layout = |inner| Layout::new(vec![5], Dtype::U8, mesh(&[2, 3]), placements(inner));
    assert!(layout(2).is_ok() && layout(3).is_err());
    assert_eq!(layout(2).unwrap().axis_maps(Rank(4)).unwrap(), [part(2, 4)]);
}

#[test]
fn padding_and_scales_are_checked() {
    let layout = Layout::new(vec![10, 6], Dtype::BF16, mesh(&[3]), vec![Placement::shard(0)]).unwrap();
    assert_eq!(layout.clone().with_padding(&[0]).unwrap_err(), LayoutError::PaddingValue { bytes: 1, element: 2 });
    assert_eq!(layout.clone().with_padding(&[1, 2]).unwrap().padding(), Some(&[1, 2][..]));
    let scales = layout.block_scales(&[4, 4], Dtype::F32).unwrap();
    assert_eq!((scales.shape(), scales.dtype(), scales.padding()), (&[3, 2][..], Dtype::F32, None));
    // Rows 0-2, 3-5, 6-9: the tile of rows 0-3 is on two ranks, and so is that of rows 4-7.
    assert_eq!((0..3).map(|rank| first(&scales, rank, 0)).collect::<Vec<_>>(), [(0, 1), (0, 2), (1, 3)]);
    assert_eq!(scales.block_scales(&[1, 1], Dtype::F32), Err(LayoutError::BlockTwice));
    assert_eq!(layout.block_scales(&[4], Dtype::F32), Err(LayoutError::BlockRank { blocks: 1, rank: 2 }));
    assert_eq!(layout.block_scales(&[4, 0], Dtype::F32), Err(LayoutError::Block { block: 0 }));
    let holes = AxisMap::of_parts([Part::Hole(3), Part::Global(Interval { lo: 0, hi: 10 })]).unwrap();
    let holed = Layout::new(vec![10], Dtype::U8, mesh(&[1]), vec![Placement::parts(0, [holes])]).unwrap();
    assert_eq!(holed.block_scales(&[2], Dtype::F32), Err(LayoutError::BlockHole { count: 3, block: 2 }));
    let padded = |padded, split: Split, ranks| Placement::padded(0, 10, padded, &split, ranks);
    assert_eq!(padded(9, Split::Floor, 2), Err(LayoutError::PaddedExtent { dim: 0, extent: 10, padded: 9 }));
    assert!(padded(12, Split::Sizes(vec![6, 5]), 2).is_err() && padded(12, Split::Sizes(vec![12]), 2).is_err());
    let Ok(Placement::Parts { maps, .. }) = padded(24, Split::Chunk, 3) else { panic!() };
    let sizes: Vec<_> = maps.iter().map(|map| (map.stored(), map.padded())).collect();
    assert_eq!(sizes, [(8, 0), (2, 6), (0, 8)]);
}

#[test]
fn few_bytes_do_not_become_very_many_runs() {
    let turned = |extent: u64, runs: usize| {
        let halves = [Interval { lo: extent / 2, hi: extent }, Interval { lo: 0, hi: extent / 2 }];
        Placement::parts(0, vec![AxisMap::new(halves.into_iter().cycle().take(runs))])
    };
    let layout = |runs: usize| {
        // Of two indices, then of as many as there are runs.
        let placements = vec![turned(2, runs), turned(runs as u64, runs)];
        Layout::new(vec![2], Dtype::U8, mesh(&[1, 1]), placements)
    };
    assert!(layout(64).is_ok());
    let error = layout(4096).unwrap_err();
    // Lower halves join the upper ones behind them.
    assert_eq!(error, LayoutError::MapsTooFine { dim: 0, segments: 2049 * 2049, most: 1 << 22 });
}
