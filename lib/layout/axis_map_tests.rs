//! Positions, parts and composition of axis maps, against lists of what each local position is for.

use super::*;
use proptest::prelude::*;

fn at(lo: u64, hi: u64) -> Interval {
    Interval { lo, hi }
}

fn local(map: &AxisMap, lo: u64, hi: u64) -> Vec<(u64, u64)> {
    map.places(at(lo, hi)).map(|place| (place.local, place.step)).collect()
}

/// What a local position is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Global(u64),
    Padding,
    Hole,
}

fn uses(map: &AxisMap) -> Vec<Use> {
    let mut uses = vec![Use::Hole; map.extent() as usize];
    for segment in map.segments() {
        for (number, index) in (segment.global.lo..segment.global.hi).enumerate() {
            let position = (segment.local + number as u64 * segment.step) as usize;
            assert_eq!(uses[position], Use::Hole, "{map:?} uses position {position} twice");
            uses[position] = Use::Global(index);
        }
    }
    for position in map.padding().iter().flat_map(|span| span.lo..span.hi) {
        assert_eq!(uses[position as usize], Use::Hole, "{map:?} uses position {position} twice");
        uses[position as usize] = Use::Padding;
    }
    uses
}

#[test]
fn positions_follow_storage_order() {
    let map = AxisMap::new([at(8, 12), at(3, 3), at(0, 2)]);
    assert_eq!((map.extent(), map.stored(), map.segments().len()), (6, 6, 2));
    assert_eq!(local(&map, 9, 11), [(1, 1)]);
    assert_eq!(local(&map, 0, 2), [(4, 1)]);
    assert_eq!(map.locate(at(1, 3)), None);
    assert_eq!(AxisMap::new([]).extent(), 0);
    let repeated = AxisMap::new([at(0, 2), at(5, 6), at(0, 3)]);
    assert_eq!(local(&repeated, 0, 2), [(0, 1), (3, 1)]);
    assert!(!repeated.is_plain() && AxisMap::new([at(1, 2), at(2, 9)]).is_plain());
}

#[test]
fn parts_are_data_padding_and_holes() {
    let parts = [Part::Hole(2), Part::Global(at(4, 6)), Part::Global(at(6, 7)), Part::Padding(3), Part::Padding(0)];
    let map = AxisMap::of_parts(parts).unwrap();
    assert_eq!(map.segments(), [Segment { local: 2, step: 1, global: at(4, 7) }]);
    assert_eq!((map.padding(), map.extent(), map.stored(), map.padded()), (&[at(5, 8)][..], 8, 3, 3));
    let error = AxisMap::of_parts([Part::Padding(3), Part::Hole(u64::MAX)]).unwrap_err();
    assert_eq!(error, LayoutError::AxisTooLong { local: 3, count: u64::MAX });
}

#[test]
fn interleaved_indices_are_steps_apart() {
    let map = AxisMap::interleaved(at(10, 13), 1, 2).unwrap();
    assert_eq!((map.extent(), local(&map, 11, 13)), (6, vec![(3, 2)]));
    assert_eq!(local(&map, 12, 13), [(5, 2)]);
    assert_eq!(AxisMap::interleaved(at(0, 1), 2, 2), Err(LayoutError::InterleavePlace { place: 2, of: 2 }));
    assert!(AxisMap::interleaved(at(0, 3), 0, u64::MAX).is_err());
}

/// A few parts, then perhaps interleaved by composing.
fn maps(extent: u64) -> impl Strategy<Value = AxisMap> {
    let part = (0..3u8, 0..=extent, 0..=extent).prop_map(|(kind, one, other)| {
        let interval = at(one.min(other), one.max(other));
        match kind {
            0 => Part::Padding(interval.len().min(3)),
            1 => Part::Hole(interval.len().min(3)),
            _ => Part::Global(interval),
        }
    });
    let parts = proptest::collection::vec(part, 0..5).prop_map(|parts| AxisMap::of_parts(parts).unwrap());
    let interleaved = (0..=extent, 0..=extent, 0..3u64)
        .prop_map(|(one, other, place)| AxisMap::interleaved(at(one.min(other), one.max(other)), place, 3).unwrap());
    prop_oneof![3 => parts, 1 => interleaved]
}

proptest! {
    #[test]
    fn composition_is_by_position(pair in maps(12).prop_flat_map(|outer| {
        let extent = outer.extent();
        (Just(outer), maps(extent))
    })) {
        let (outer, inner) = pair;
        let outer_uses = uses(&outer);
        let expected: Vec<Use> = uses(&inner)
            .into_iter()
            .map(|own| match own {
                Use::Global(position) => outer_uses[position as usize],
                other => other,
            })
            .collect();
        prop_assert_eq!(uses(&outer.compose(&inner)), expected);
    }

    #[test]
    fn places_are_all_positions(map in maps(9), lo in 0u64..9) {
        let found: Vec<u64> = map.places(at(lo, lo + 1)).map(|place| place.local).collect();
        let all = uses(&map);
        let expected: Vec<u64> = (0..map.extent()).filter(|&at| all[at as usize] == Use::Global(lo)).collect();
        let mut sorted = found.clone();
        sorted.sort_unstable();
        prop_assert_eq!(sorted, expected);
    }
}
