//! Box copies against a copy by index.

use super::*;
use crate::memory::Buffer;
use proptest::prelude::*;

const ROOM: u64 = 96 << 10;

/// A box: extents, element, and per side offset and strides under which elements do not overlap.
#[derive(Debug, Clone)]
struct Case {
    extents: Vec<u64>,
    element: u64,
    source: (u64, Vec<u64>),
    destination: (u64, Vec<u64>),
}

/// Byte offset of every element, in index order.
fn places(extents: &[u64], offset: u64, strides: &[u64]) -> Vec<u64> {
    let mut places = vec![offset];
    for (&extent, &stride) in extents.iter().zip(strides) {
        places = places.iter().flat_map(|&at| (0..extent).map(move |index| at + index * stride)).collect();
    }
    places
}

/// Strides for `extents` with gaps, dimensions in a given order of nesting.
fn strides(extents: &[u64], element: u64, order: &[usize], gaps: &[u64]) -> Vec<u64> {
    let mut strides = vec![0; extents.len()];
    let mut next = element;
    for &dim in order {
        strides[dim] = next;
        next = next * extents[dim] + gaps[dim];
    }
    strides
}

fn case() -> impl Strategy<Value = Case> {
    let dims = proptest::collection::vec(1u64..7, 0..4);
    (dims, prop_oneof![Just(1u64), Just(2), Just(4), Just(8)], 0u64..300, 0u64..300, any::<u64>(), 0usize..3).prop_map(
        |(mut extents, element, from, to, seed, long)| {
            if long > 0 && !extents.is_empty() {
                // Long rows, so that whole lines and gathering come into play.
                let last = extents.len() - 1;
                extents[last] *= if long == 1 { 37 } else { 150 };
            }
            let rank = extents.len();
            let inner_first: Vec<usize> = (0..rank).rev().collect();
            let rotated: Vec<usize> = (0..rank).map(|dim| (dim + seed as usize) % rank.max(1)).collect();
            let gaps = |bits: u64| -> Vec<u64> {
                (0..rank)
                    .map(|dim| if seed >> (bits + dim as u64) & 1 == 1 { 3 * (dim as u64 + 1) } else { 0 })
                    .collect()
            };
            let order = |turned: bool| if turned { rotated.clone() } else { inner_first.clone() };
            let source = (from, strides(&extents, element, &order(seed >> 60 & 3 == 0), &gaps(8)));
            let destination = (to, strides(&extents, element, &order(seed >> 62 & 3 == 0), &gaps(16)));
            Case { extents, element, source, destination }
        },
    )
}

fn filled(seed: u8) -> Buffer {
    let buffer = Buffer::private(ROOM).unwrap();
    for (index, byte) in buffer.write().unwrap().iter_mut().enumerate() {
        *byte = (index as u32).wrapping_mul(2_654_435_761).to_le_bytes()[2] ^ seed;
    }
    buffer
}

fn expected(case: &Case, source: &[u8], destination: &[u8]) -> Vec<u8> {
    let mut expected = destination.to_vec();
    let from = places(&case.extents, case.source.0, &case.source.1);
    let to = places(&case.extents, case.destination.0, &case.destination.1);
    for (&from, &to) in from.iter().zip(&to) {
        let element = &source[from as usize..][..case.element as usize];
        expected[to as usize..][..case.element as usize].copy_from_slice(element);
    }
    expected
}

fn table(case: &Case) -> CopyTable {
    let mut table = CopyTable::new();
    let placed = |side: &(u64, Vec<u64>)| (side.0, side.1.clone());
    let (source, destination) = (placed(&case.source), placed(&case.destination));
    table
        .push(
            &case.extents,
            case.element,
            Placed { offset: source.0, strides: &source.1 },
            Placed { offset: destination.0, strides: &destination.1 },
        )
        .unwrap();
    table
}

fn fits(case: &Case) -> bool {
    let last = |side: &(u64, Vec<u64>)| places(&case.extents, side.0, &side.1).iter().max().copied().unwrap_or(0);
    last(&case.source) + 8 + 64 < ROOM && last(&case.destination) + 8 + 64 < ROOM
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 400 }))]

    #[test]
    fn boxes_equal_copies_by_index(case in case(), base in 0u64..64) {
        prop_assume!(fits(&case));
        let (source, table) = (filled(0x55), table(&case));
        for store in [Store::Cached, Store::Streaming] {
            let destination = filled(0);
            let right = {
                let mut moved = case.clone();
                moved.destination.0 += base;
                expected(&moved, &source.read().unwrap(), &destination.read().unwrap())
            };
            let (from, to) = (Span::of_buffer(&source), Span::of_buffer(&destination));
            table.copy(0..table.len(), &from, 0, &to, base, store).unwrap();
            prop_assert!(destination.read().unwrap()[..] == right[..], "{case:?} {store:?}");
        }
    }

    #[test]
    fn runs_tile_the_box_in_order(case in case()) {
        prop_assume!(fits(&case));
        let table = table(&case);
        let mut runs = Vec::new();
        table.runs(0..table.len(), |from, to, bytes| runs.push((from, to, bytes)));
        prop_assert_eq!(runs.len() as u64, table.run_count(0..table.len()));
        let bytes = |from: u64, to: u64, count: u64| (0..count).map(move |byte| (from + byte, to + byte));
        let mut by_run: Vec<_> = runs.iter().flat_map(|&(from, to, count)| bytes(from, to, count)).collect();
        let from = places(&case.extents, case.source.0, &case.source.1);
        let to = places(&case.extents, case.destination.0, &case.destination.1);
        let mut by_index: Vec<_> =
            from.iter().zip(&to).flat_map(|(&from, &to)| bytes(from, to, case.element)).collect();
        by_run.sort_unstable();
        by_index.sort_unstable();
        prop_assert_eq!(by_run, by_index);
    }
}

proptest! {
    #[test]
    fn cut_pieces_tile_the_box(case in case(), block in 1u64..5000) {
        prop_assume!(fits(&case));
        let whole = table(&case);
        let mut cut = table(&case);
        let pieces = cut.cut_last(block);
        prop_assert_eq!(pieces.len(), cut.len());
        let bytes = |table: &CopyTable| {
            let mut all = Vec::new();
            table.runs(0..table.len(), |from, to, count| all.extend((0..count).map(|byte| (from + byte, to + byte))));
            all.sort_unstable();
            all
        };
        prop_assert_eq!(bytes(&whole), bytes(&cut));
        prop_assert_eq!(pieces.map(|piece| cut.bytes_of(piece)).sum::<u64>(), whole.bytes_of(0));
    }
}

/// A box whose elements change on their way, with room for the larger side.
fn changed(case: &Case, operation: Operation) -> (CopyTable, u64, u64) {
    let (read, written) = (operation.read_element(), operation.written(operation.read_element()));
    let mut table = CopyTable::new();
    let scale = |strides: &[u64], element: u64| -> Vec<u64> {
        strides.iter().map(|stride| stride / case.element * element).collect()
    };
    let (from, to) = (scale(&case.source.1, read), scale(&case.destination.1, written));
    let (source, destination) =
        (Placed { offset: case.source.0, strides: &from }, Placed { offset: case.destination.0, strides: &to });
    table.push_changed(&case.extents, read, operation, source, destination).unwrap();
    (table, read, written)
}

const OPERATIONS: [Operation; 5] = [
    Operation::Cast { cast: Cast::F32ToBf16, counted: true },
    Operation::Cast { cast: Cast::F16ToF32, counted: true },
    Operation::Cast { cast: Cast::Bf16ToF16, counted: true },
    Operation::Add(Sum::F16),
    Operation::Add(Sum::Bits32),
];

#[cfg(not(miri))]
proptest! {
    /// Whole, cut into blocks, joined, and read from another process: all like element by element.
    #[test]
    fn changed_boxes_equal_changes_by_index(case in case(), which in 0..OPERATIONS.len(), block in 1u64..5000) {
        // Strides scaled to 4-byte elements still fit.
        prop_assume!(fits(&Case { element: 4, ..case.clone() }) && case.element > 1);
        let operation = OPERATIONS[which];
        let (table, read, written) = changed(&case, operation);
        prop_assume!(table.boxes.iter().all(|copy| copy.source_end.max(copy.destination_end) <= ROOM));
        let source = filled(0x55);
        let (mut right, mut saturated) = (filled(0x0a).read().unwrap().to_vec(), 0);
        let scale = |side: &(u64, Vec<u64>), element: u64| {
            let strides: Vec<u64> = side.1.iter().map(|stride| stride / case.element * element).collect();
            places(&case.extents, side.0, &strides)
        };
        for (from, to) in scale(&case.source, read).into_iter().zip(scale(&case.destination, written)) {
            let bytes = source.read().unwrap()[from as usize..][..read as usize].to_vec();
            // SAFETY: one element on both sides.
            saturated += unsafe { operation.run(bytes.as_ptr(), right[to as usize..].as_mut_ptr(), read as usize) };
        }
        let mut cut = table.clone();
        cut.cut_last(block);
        let mut joined = CopyTable::new();
        joined.append_joined(&cut);
        let process = ProcessMemory { pid: std::process::id() as i32 };
        let from = Span::of_buffer(&source);
        for (name, table) in [("whole", &table), ("cut", &cut), ("joined", &joined)] {
            let destination = filled(0x0a);
            let to = Span::of_buffer(&destination);
            let found = table.copy(0..table.len(), &from, 0, &to, 0, Store::Streaming).unwrap();
            prop_assert!(destination.read().unwrap()[..] == right[..] && found == saturated, "{name} {operation:?} {case:?}");
            let destination = filled(0x0a);
            let (to, mut scratch) = (Span::of_buffer(&destination), RangeScratch::default());
            let start = source.as_ptr() as u64;
            let found = table.read_process(0..table.len(), &process, start, &to, 0, &mut scratch).unwrap();
            prop_assert!(destination.read().unwrap()[..] == right[..] && found == saturated, "process {name} {operation:?}");
        }
    }
}

#[cfg(not(miri))]
proptest! {
    #[test]
    fn another_process_is_read_like_memory(case in case()) {
        prop_assume!(fits(&case));
        let (source, destination, table) = (filled(0x55), filled(0), table(&case));
        let right = expected(&case, &source.read().unwrap(), &destination.read().unwrap());
        let process = ProcessMemory { pid: std::process::id() as i32 };
        let mut scratch = RangeScratch::default();
        let to = Span::of_buffer(&destination);
        table.read_process(0..table.len(), &process, source.as_ptr() as u64, &to, 0, &mut scratch).unwrap();
        prop_assert!(destination.read().unwrap()[..] == right[..]);
    }
}

#[test]
fn long_rows_of_short_runs_are_gathered_whole() {
    // Larger than the gathering buffer, with every phase of the destination in its line.
    for run in [1u64, 7, 64, 96, 250, 256, 1024, 2048] {
        let rounds = (60 << 10) / run / 2;
        for phase in [0, 1, 31, 63] {
            let case = Case {
                extents: vec![rounds, run],
                element: 1,
                source: (5, vec![run * 3 / 2 + 1, 1]),
                destination: (phase, vec![run, 1]),
            };
            let (source, destination, table) = (filled(0x55), filled(0), table(&case));
            let right = expected(&case, &source.read().unwrap(), &destination.read().unwrap());
            let (from, to) = (Span::of_buffer(&source), Span::of_buffer(&destination));
            table.copy(0..table.len(), &from, 0, &to, 0, Store::Streaming).unwrap();
            assert!(destination.read().unwrap()[..] == right[..], "run {run}, phase {phase}");
        }
    }
}

#[test]
fn boxes_outside_their_memory_are_refused() {
    let case = Case { extents: vec![4], element: 8, source: (0, vec![8]), destination: (0, vec![16]) };
    let (source, table) = (filled(1), table(&case));
    let span = Span::of_buffer(&source);
    let small = Span::of_buffer(&Buffer::private(55).unwrap());
    assert!(table.copy(0..1, &span, 0, &small, 0, Store::Cached).is_err());
    assert!(table.copy(0..1, &small, 24, &span, 0, Store::Cached).is_err());
    assert!(table.copy(0..1, &span, u64::MAX, &span, 0, Store::Cached).is_err());
    let mut huge = CopyTable::new();
    let far = Placed { offset: u64::MAX - 3, strides: &[8] };
    assert!(huge.push(&[2], 8, far, Placed { offset: 0, strides: &[8] }).is_err());
}
