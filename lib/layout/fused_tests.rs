//! Fused storage against a reference written from the definitions: for every rank the list of what its rows are, made
//! by moving whole heads and rows about. And some tables by hand, so that the reference itself is checked.

use super::*;
use crate::layout::LayoutError;

/// A row of a rank: tensor (0 queries, 1 keys, 2 values), index in the whole tensor.
type Row = (usize, u64);

/// The rows of head `head` of tensor `tensor`.
fn head(tensor: usize, head: u64, heads: &Heads) -> Vec<Row> {
    (0..heads.size).map(|row| (tensor, head * heads.size + row)).collect()
}

/// Rows of the whole fused tensor, by definition of the form.
fn whole(heads: &Heads, form: FusedForm) -> Vec<Row> {
    stored(heads, form, &(0..heads.query).collect::<Vec<_>>())
}

/// Rows of a rank that has these query heads: it needs the key-value head of each.
fn stored(heads: &Heads, form: FusedForm, query: &[u64]) -> Vec<Row> {
    let group = heads.query / heads.key_value;
    let mut key_value: Vec<u64> = query.iter().map(|head| head / group).collect();
    key_value.dedup();
    let all = |tensor: usize, list: &[u64]| list.iter().flat_map(|&one| head(tensor, one, heads)).collect::<Vec<_>>();
    match form {
        FusedForm::Concatenated => [all(0, query), all(1, &key_value), all(2, &key_value)].concat(),
        FusedForm::Grouped => key_value
            .iter()
            .flat_map(|&one| {
                let queries: Vec<u64> = query.iter().copied().filter(|head| head / group == one).collect();
                [all(0, &queries), head(1, one, heads), head(2, one, heads)].concat()
            })
            .collect(),
        FusedForm::Interleaved => {
            let (queries, keys, values) = (all(0, query), all(1, &key_value), all(2, &key_value));
            queries.iter().zip(keys).zip(values).flat_map(|((&q, k), v)| [q, k, v]).collect()
        }
    }
}

fn reference(heads: &Heads, form: FusedForm, split: HeadSplit, rank: u64, ranks: u64) -> Vec<Row> {
    let share = |count: u64| (rank * count / ranks, (rank + 1) * count / ranks);
    match split {
        HeadSplit::Rows => {
            let rows = whole(heads, form);
            let (lo, hi) = share(rows.len() as u64);
            rows[lo as usize..hi as usize].to_vec()
        }
        _ => {
            let (lo, hi) = share(heads.query);
            stored(heads, form, &(lo..hi).collect::<Vec<_>>())
        }
    }
}

/// Rows of a rank as its maps have them.
fn rows(axis: &FusedAxis, rank: usize) -> Vec<Row> {
    let mut rows = vec![None; axis.local_extent(rank as u32) as usize];
    for (tensor, maps) in axis.maps.iter().enumerate() {
        assert_eq!(maps[rank].extent(), rows.len() as u64, "tensors of one buffer are equally long");
        for Segment { local, step, global } in maps[rank].segments() {
            for index in global.lo..global.hi {
                let row = &mut rows[(local + (index - global.lo) * step) as usize];
                assert_eq!(row.replace((tensor, index)), None, "two tensors share a row");
            }
        }
    }
    rows.into_iter().map(|row| row.expect("a row of no tensor")).collect()
}

const FORMS: [FusedForm; 3] = [FusedForm::Concatenated, FusedForm::Grouped, FusedForm::Interleaved];

#[test]
fn every_form_at_every_number_of_ranks() {
    let mut built = 0;
    for (query, key_value) in [(1, 1), (4, 4), (6, 6), (8, 2), (12, 4), (12, 12), (6, 1), (10, 5), (64, 8)] {
        for size in [1, 3] {
            let heads = Heads { query, key_value, size };
            for form in FORMS {
                for split in [HeadSplit::Even, HeadSplit::AsNeeded, HeadSplit::Rows] {
                    for ranks in 1..=17 {
                        let axis = FusedAxis::attention(heads, form, split, ranks);
                        if form == FusedForm::Interleaved && query != key_value {
                            assert_eq!(axis, Err(FusedError::InterleavedHeads { query, key_value }));
                            continue;
                        }
                        let count = u64::from(ranks);
                        let even = query % count == 0 && (key_value % count == 0 || count % key_value == 0);
                        if split == HeadSplit::Even && !even {
                            assert_eq!(axis, Err(FusedError::Uneven { query, key_value, ranks }));
                            continue;
                        }
                        let axis = axis.unwrap();
                        for rank in 0..ranks {
                            let expected = reference(&heads, form, split, rank.into(), count);
                            let found = rows(&axis, rank as usize);
                            assert_eq!(found, expected, "{heads:?} {form:?} {split:?} rank {rank} of {ranks}");
                        }
                        built += 1;
                    }
                }
            }
        }
    }
    assert!(built > 1000, "{built}");
}

#[test]
fn tables_by_hand() {
    let text = |axis: &FusedAxis, rank| {
        rows(axis, rank)
            .iter()
            .map(|&(tensor, index)| format!("{}{index}", ["q", "k", "v"][tensor]))
            .collect::<Vec<_>>()
            .join(" ")
    };
    let axis = |query, key_value, size, form, split, ranks| {
        FusedAxis::attention(Heads { query, key_value, size }, form, split, ranks).unwrap()
    };
    let (even, needed) = (HeadSplit::Even, HeadSplit::AsNeeded);
    let grouped = axis(4, 2, 1, FusedForm::Grouped, even, 1);
    assert_eq!(text(&grouped, 0), "q0 q1 k0 v0 q2 q3 k1 v1");
    assert_eq!(text(&axis(4, 2, 1, FusedForm::Concatenated, even, 2), 1), "q2 q3 k1 v1");
    // Two key-value heads over four ranks: each is on two.
    let repeated = axis(4, 2, 2, FusedForm::Concatenated, even, 4);
    assert_eq!(
        [0, 1, 2, 3].map(|rank| text(&repeated, rank)),
        ["q0 q1 k0 k1 v0 v1", "q2 q3 k0 k1 v0 v1", "q4 q5 k2 k3 v2 v3", "q6 q7 k2 k3 v2 v3",]
    );
    assert_eq!(text(&axis(2, 2, 2, FusedForm::Interleaved, even, 2), 1), "q2 k2 v2 q3 k3 v3");
    // Six query heads over four ranks: 1, 2, 1, 2; the group of three crosses a border.
    let uneven = axis(6, 2, 1, FusedForm::Grouped, needed, 4);
    assert_eq!([0, 1, 2, 3].map(|rank| text(&uneven, rank)), ["q0 k0 v0", "q1 q2 k0 v0", "q3 k1 v1", "q4 q5 k1 v1"]);
    let across = axis(4, 2, 1, FusedForm::Grouped, needed, 3);
    assert_eq!(text(&across, 1), "q1 k0 v0", "{across:?}");
    // Rows wherever heads end: the second of four ranks has no queries.
    let rows_only = axis(4, 2, 1, FusedForm::Grouped, HeadSplit::Rows, 4);
    assert_eq!([0, 1, 2, 3].map(|rank| text(&rows_only, rank)), ["q0 q1", "k0 v0", "q2 q3", "k1 v1"]);
}

#[test]
fn gate_and_up() {
    for (extent, ranks) in [(8, 1), (8, 2), (7, 3), (3, 5)] {
        for split in [Split::Floor, Split::Chunk] {
            for rank in 0..ranks {
                let share = split.part(Interval { lo: 0, hi: extent }, rank, ranks);
                let gate: Vec<Row> = (share.lo..share.hi).map(|index| (0, index)).collect();
                let up: Vec<Row> = (share.lo..share.hi).map(|index| (1, index)).collect();
                let axis = |form| FusedAxis::split(&[extent, extent], form, &split, ranks).unwrap();
                let found = rows(&axis(FusedForm::Concatenated), rank as usize);
                assert_eq!(found, [gate.clone(), up.clone()].concat());
                let in_turn: Vec<Row> = gate.into_iter().zip(up).flat_map(|(gate, up)| [gate, up]).collect();
                assert_eq!(rows(&axis(FusedForm::Interleaved), rank as usize), in_turn);
            }
        }
    }
    let interleaved = FusedAxis::split(&[9, 9], FusedForm::Interleaved, &Split::Floor, 2).unwrap();
    assert_eq!(interleaved.maps[1][1].segments().len(), 1, "one segment however long");
}

#[test]
fn tensors_that_are_fused_already() {
    let heads = Heads { query: 8, key_value: 4, size: 2 };
    for stored_form in [FusedForm::Concatenated, FusedForm::Grouped] {
        let checkpoint = FusedAxis::attention(heads, stored_form, HeadSplit::Even, 1).unwrap();
        let order = whole(&heads, stored_form);
        for form in [FusedForm::Concatenated, FusedForm::Grouped] {
            for (split, ranks) in [(HeadSplit::Even, 8), (HeadSplit::AsNeeded, 3), (HeadSplit::Rows, 5)] {
                let axis = FusedAxis::attention(heads, form, split, ranks).unwrap();
                let Placement::Parts { dim: 1, maps } = axis.fused_placement(&checkpoint, 1).unwrap() else { panic!() };
                for (rank, map) in maps.iter().enumerate() {
                    let expected = rows(&axis, rank);
                    let found: Vec<u64> = map.intervals().flat_map(|part| part.lo..part.hi).collect();
                    assert_eq!(found.iter().map(|&at| order[at as usize]).collect::<Vec<_>>(), expected);
                    assert_eq!(map.stored(), map.extent());
                }
            }
        }
    }
    // Interleaved on disk and in memory: rows follow each other as they are.
    let heads = Heads { query: 4, key_value: 4, size: 2 };
    let interleaved = |ranks| FusedAxis::attention(heads, FusedForm::Interleaved, HeadSplit::Even, ranks).unwrap();
    let Placement::Parts { maps, .. } = interleaved(2).fused_placement(&interleaved(1), 0).unwrap() else { panic!() };
    assert_eq!(
        maps.to_vec(),
        [AxisMap::new([Interval { lo: 0, hi: 12 }]), AxisMap::new([Interval { lo: 12, hi: 24 }])]
    );
    let other = FusedAxis::split(&[3], FusedForm::Concatenated, &Split::Floor, 1).unwrap();
    assert!(matches!(interleaved(2).fused_placement(&other, 0), Err(FusedError::Whole { .. })));
    assert!(matches!(interleaved(2).fused_placement(&interleaved(2), 0), Err(FusedError::Whole { .. })));
}

#[test]
fn scales_of_fused_tensors() {
    // Gate and up of 6 rows over 2 ranks in blocks of 2: the tile of rows 2 and 3 is on both ranks, for either tensor.
    let axis = FusedAxis::split(&[6, 6], FusedForm::Concatenated, &Split::Floor, 2).unwrap();
    let scales = axis.blocks(2).unwrap();
    assert_eq!(scales.extents(), [3, 3]);
    assert_eq!(rows(&scales, 0), [(0, 0), (0, 1), (1, 0), (1, 1)]);
    assert_eq!(rows(&scales, 1), [(0, 1), (0, 2), (1, 1), (1, 2)]);
    assert_eq!(axis.blocks(4).unwrap().extents(), [2, 2]);
    assert!(matches!(axis.blocks(0), Err(FusedError::Layout(LayoutError::Block { block: 0 }))));
    let interleaved = FusedAxis::split(&[6, 6], FusedForm::Interleaved, &Split::Floor, 2).unwrap();
    assert!(matches!(interleaved.blocks(2), Err(FusedError::Layout(LayoutError::BlockStep { step: 2, block: 2 }))));
}

#[test]
fn bad_input() {
    let build = |query, key_value, size, ranks| {
        FusedAxis::attention(Heads { query, key_value, size }, FusedForm::Grouped, HeadSplit::Even, ranks)
    };
    for (query, key_value, size) in
        [(0, 1, 1), (4, 0, 1), (4, 2, 0), (4, 3, 1), (1 << 40, 1, 1 << 40), (2, 2, u64::MAX / 4)]
    {
        assert!(
            matches!(build(query, key_value, size, 1), Err(FusedError::Heads { .. })),
            "{query} {key_value} {size}"
        );
    }
    assert!(build(4, 2, 1, 0).is_err());
    let text = build(12, 12, 32, 8).unwrap_err().to_string();
    assert!(text.contains("12 query heads") && text.contains("8 ranks") && text.contains("as-needed"), "{text}");
    for part in
        ["--rules", "heads = { of = \"query\", split = \"as-needed\" } for q_proj and o_proj", "[[store]]", "[[rule]]"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(matches!(build(12, 4, 32, 6), Err(FusedError::Uneven { .. })), "neither divides nor repeats");
    let split = |extents: &[u64], form, ranks| FusedAxis::split(extents, form, &Split::Floor, ranks);
    assert!(matches!(split(&[3, 4], FusedForm::Interleaved, 1), Err(FusedError::InterleavedExtents { .. })));
    assert_eq!(split(&[4, 4], FusedForm::Grouped, 1), Err(FusedError::GroupsWithoutHeads));
    assert!(matches!(split(&[], FusedForm::Concatenated, 1), Err(FusedError::Nothing { .. })));
    assert!(matches!(split(&[1], FusedForm::Concatenated, 0), Err(FusedError::Nothing { .. })));
    let sizes = FusedAxis::split(&[4, 5], FusedForm::Concatenated, &Split::Sizes(vec![1, 3]), 2);
    assert!(matches!(sizes, Err(FusedError::Sizes { .. })));
    let outside = |tensor, lo, hi| FusedAxis::of_sequences(vec![3], vec![vec![(tensor, Interval { lo, hi })]]);
    assert!(matches!(outside(0, 0, 4), Err(FusedError::Outside { hi: 4, extent: 3, .. })));
    assert!(outside(1, 0, 1).is_err() && outside(0, 2, 1).is_err() && outside(0, 0, 3).is_ok());
    let rows = FusedAxis::attention(Heads { query: 1, key_value: 1, size: 1 }, FusedForm::Grouped, HeadSplit::Rows, 0);
    assert!(matches!(rows, Err(FusedError::Nothing { .. })));
}
