//! Scattered boxes against the same boxes copied one by one.

use super::*;
use crate::memory::Buffer;
use crate::memory::copy::{Placed, fence};
use proptest::prelude::*;

const ROOM: u64 = 600 << 10;

/// Boxes between one or two sources and three destinations, none of which write the same byte.
#[derive(Debug, Clone)]
struct Boxes {
    table: CopyTable,
    between: Vec<(u32, u32)>,
}

fn buffer(seed: u8) -> Buffer {
    let buffer = Buffer::private(ROOM).unwrap();
    // Of a prime length, so that no two lines are equal.
    let pattern: Vec<u8> =
        (0..4093u32).map(|index| index.wrapping_mul(2_654_435_761).to_le_bytes()[2] ^ seed).collect();
    for part in buffer.write().unwrap().chunks_mut(pattern.len()) {
        part.copy_from_slice(&pattern[..part.len()]);
    }
    buffer
}

/// What `copy` makes of fresh destinations behind two sources.
fn outcome(mut copy: impl FnMut(&[Span])) -> Vec<Vec<u8>> {
    let buffers: Vec<Buffer> = [1, 2, 0, 0, 0].map(buffer).into();
    let spans: Vec<Span> = buffers.iter().map(Span::of_buffer).collect();
    copy(&spans);
    buffers.iter().map(|buffer| buffer.read().unwrap().to_vec()).collect()
}

/// Checks that scattering does what copying box by box does, and that steps count their bytes.
fn check(boxes: &Boxes) -> Result<usize, TestCaseError> {
    let right = outcome(|spans| {
        for (index, &(from, to)) in boxes.between.iter().enumerate() {
            let (from, to) = (&spans[from as usize], &spans[to as usize]);
            boxes.table.copy(index..index + 1, from, 0, to, 0, Store::Cached).unwrap();
        }
    });
    let all: u64 = (0..boxes.table.len()).map(|index| boxes.table.bytes_of(index)).sum();
    let mut steps = 0;
    for store in [Store::Cached, Store::Streaming] {
        let scattered = outcome(|spans| {
            let scatter = Scatter::new(spans, &boxes.table, &boxes.between).unwrap();
            steps = scatter.len();
            let bytes: u64 = (0..steps).map(|step| scatter.copy(step, store).unwrap().bytes).sum();
            fence();
            assert_eq!(bytes, all);
        });
        prop_assert!(scattered == right, "{boxes:?} {store:?}");
    }
    Ok(steps)
}

/// Rows of `width` bytes cut into columns at `cuts`, from row `first` on, for destinations in turn.
fn columns(rows: u64, width: u64, cuts: &[u64], (from, to): (u64, u64), contiguous: bool) -> Boxes {
    let mut boxes = Boxes { table: CopyTable::new(), between: Vec::new() };
    let borders: Vec<u64> = [0].into_iter().chain(cuts.iter().copied()).chain([width]).collect();
    for (number, border) in borders.windows(2).enumerate() {
        let run = border[1] - border[0];
        let step = if contiguous { run } else { width + 64 };
        // The fourth column lies behind the first.
        let behind = if number < 3 { 0 } else { (rows * borders[1]).next_multiple_of(64) };
        let base = to + if contiguous { behind } else { border[0] };
        let place = |offset, strides| Placed { offset, strides };
        let (source, destination) = ([width, 1], [step, 1]);
        boxes.table.push(&[rows, run], 1, place(from + border[0], &source), place(base, &destination)).unwrap();
        boxes.between.resize(boxes.table.len(), (0, 2 + number as u32 % 3));
    }
    boxes
}

#[test]
fn columns_of_one_source_share_rows() {
    // 4 columns of whole lines: as many steps as the source has quarters of a megabyte.
    let even = columns(256, 1024, &[256, 512, 768], (0, 0), true);
    assert_eq!(check(&even).unwrap(), 1);
    assert_eq!(check(&columns(512, 1024, &[256, 512, 768], (192, 64), true)).unwrap(), 2);
    // Columns of different widths, in lines and not.
    check(&columns(300, 1024, &[64, 192, 960], (0, 0), true)).unwrap();
    check(&columns(300, 1000, &[100, 333, 334], (7, 3), true)).unwrap();
    check(&columns(300, 1024, &[256, 512, 768], (0, 0), false)).unwrap();
}

#[test]
fn a_run_that_several_want_is_cut_where_all_of_them_meet() {
    let mut boxes = Boxes { table: CopyTable::new(), between: Vec::new() };
    let (begin, bytes) = (1000, 5 * BLOCK + 77);
    // The second begins later and ends earlier than the others.
    for (destination, skip) in [(2, 0), (3, 3000), (4, 0)] {
        let place = |offset| Placed { offset, strides: &[] };
        boxes.table.push(&[], bytes - 2 * skip, place(begin + skip), place(skip)).unwrap();
        boxes.between.push((0, destination));
    }
    let steps = check(&boxes).unwrap();
    assert!(steps <= 7, "{steps} steps");
}

#[test]
fn small_pieces_in_any_order_share_steps() {
    let mut boxes = Boxes { table: CopyTable::new(), between: Vec::new() };
    for number in 0..500u64 {
        let (from, to) = (number * 1088, number * 7 % 500 * 320);
        let place = |offset| Placed { offset, strides: &[] };
        boxes.table.push(&[], 256, place(from), place(to)).unwrap();
        boxes.between.push((0, 2 + number as u32 % 3));
    }
    let steps = check(&boxes).unwrap();
    assert!(steps as u64 <= 500 * 1088 / BLOCK + 1, "{steps} steps");
}

#[test]
fn boxes_outside_their_spans_are_refused() {
    let place = |offset| Placed { offset, strides: &[] };
    for (from, to, between) in [(1, 0, (0, 1)), (0, 1, (0, 1)), (0, 0, (0, 2)), (0, 0, (2, 0))] {
        let mut table = CopyTable::new();
        table.push(&[], ROOM, place(from), place(to)).unwrap();
        let spans = [buffer(1), buffer(2)].map(|buffer| Span::of_buffer(&buffer));
        assert!(Scatter::new(&spans, &table, &[between]).is_err(), "{from} {to} {between:?}");
        assert!(Scatter::new(&spans, &CopyTable::new(), &[]).unwrap().is_empty());
    }
}

/// A box of up to three loops of which the inner ones may be the longer ones, in one of two sources.
fn tensor() -> impl Strategy<Value = (Vec<u64>, u64, u64, u32)> {
    let extents = prop_oneof![
        proptest::collection::vec(1u64..9, 0..4),
        (1u64..40, 1u64..2000).prop_map(|(rows, run)| vec![rows, run]),
        (1u64..4, 1u64..20, 1u64..600).prop_map(|(planes, rows, run)| vec![planes, rows, run]),
        (1u64..60_000).prop_map(|run| vec![run]),
    ];
    (extents, 0u64..80, 0u64..200, 0u32..2)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 3 } else { 150 }))]

    #[test]
    fn scattered_boxes_equal_boxes_one_by_one(tensors in proptest::collection::vec(tensor(), 0..6)) {
        let mut boxes = Boxes { table: CopyTable::new(), between: Vec::new() };
        // Behind one another in every destination; each source is read as its boxes lie.
        let mut to = [0u64; 3];
        for (number, (extents, gap, from, source)) in tensors.into_iter().enumerate() {
            let destination = number % 3;
            let mut strides = [vec![0; extents.len()], vec![0; extents.len()]];
            let (mut near, mut far) = (1, 1);
            for dim in (0..extents.len()).rev() {
                (strides[0][dim], strides[1][dim]) = (near, far);
                near = near * extents[dim] + gap;
                far *= extents[dim];
            }
            prop_assume!(from + near < ROOM && to[destination] + far < ROOM);
            let place = |offset, side: usize| Placed { offset, strides: &strides[side] };
            boxes.table.push(&extents, 1, place(from, 0), place(to[destination], 1)).unwrap();
            boxes.between.resize(boxes.table.len(), (source, 2 + destination as u32));
            to[destination] += far + gap;
        }
        check(&boxes)?;
    }
}
