//! Cells of one tensor. In: its two layouts. Out: boxes with the slots that hold and want them. Guarantee: boxes
//! are disjoint, in row-major order, and maximal: where two touch, holders or wanters differ, or some rank does not
//! store them as neighbours. A rank that stores any of a cell stores all of it, in one place or more.

use crate::layout::{DimensionMap, Interval, Layout};
use std::collections::{BTreeSet, HashMap};

/// A box of a global tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cell {
    /// Per dimension the indices.
    pub intervals: Vec<Interval>,
    /// Index of its holders and wanters among the tensor's sets.
    pub sets: usize,
}

impl Cell {
    /// Number of elements; 1 for a scalar.
    pub fn elements(&self) -> u64 {
        self.intervals.iter().map(Interval::len).product()
    }
}

/// The cells of a pair of layouts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorCells {
    /// In row-major order; those that nobody wants are left out.
    pub cells: Vec<Cell>,
    /// Distinct (source slots, destination slots), each ascending.
    pub sets: Vec<(Vec<usize>, Vec<usize>)>,
}

/// A stretch of one dimension that the same shards of each side hold.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Segment {
    interval: Interval,
    source: Vec<usize>,
    destination: Vec<usize>,
}

/// Refines every dimension, then takes the product; the number of cells when there are more than 32 bits can number.
pub(super) fn refine(source: &Layout, destination: &Layout) -> Result<TensorCells, u128> {
    let segments: Vec<Vec<Segment>> =
        (0..source.shape().len()).map(|dim| segments(&source.dimension(dim), &destination.dimension(dim))).collect();
    let count = segments.iter().try_fold(1u128, |count, dim| count.checked_mul(dim.len() as u128)).unwrap_or(u128::MAX);
    if count > u128::from(u32::MAX) {
        return Err(count);
    }
    let mut cells = TensorCells { cells: Vec::new(), sets: Vec::new() };
    let mut known: HashMap<Vec<usize>, Option<usize>> = HashMap::new();
    // Segments of a dimension with equal shards share a group, so that equal products are found by their groups.
    let groups: Vec<Vec<usize>> = segments.iter().map(|dim| group(dim)).collect();
    if segments.iter().any(Vec::is_empty) {
        return Ok(cells);
    }
    let (source_replicas, destination_replicas) = (source.replica_offsets(), destination.replica_offsets());
    let mut position = vec![0usize; segments.len()];
    loop {
        let key: Vec<usize> = position.iter().zip(&groups).map(|(&at, groups)| groups[at]).collect();
        let sets = *known.entry(key).or_insert_with(|| {
            let chosen = || position.iter().zip(&segments).map(|(&at, segments)| &segments[at]);
            let wanters = slots(chosen().map(|segment| &segment.destination), &destination_replicas);
            if wanters.is_empty() {
                return None;
            }
            let holders = slots(chosen().map(|segment| &segment.source), &source_replicas);
            cells.sets.push((holders, wanters));
            Some(cells.sets.len() - 1)
        });
        if let Some(sets) = sets {
            let intervals = position.iter().zip(&segments).map(|(&at, segments)| segments[at].interval).collect();
            cells.cells.push(Cell { intervals, sets });
        }
        if !advance(&mut position, &segments) {
            return Ok(cells);
        }
    }
}

/// Next product in row-major order.
fn advance(position: &mut [usize], segments: &[Vec<Segment>]) -> bool {
    for (at, segments) in position.iter_mut().zip(segments).rev() {
        *at += 1;
        if *at < segments.len() {
            return true;
        }
        *at = 0;
    }
    false
}

/// Numbers segments by their shards.
fn group(segments: &[Segment]) -> Vec<usize> {
    let mut seen = HashMap::new();
    segments
        .iter()
        .map(|segment| {
            let next = seen.len();
            *seen.entry((&segment.source, &segment.destination)).or_insert(next)
        })
        .collect()
}

/// Sum of one offset per dimension and one replica offset, over all choices; ascending.
fn slots<'a>(dimensions: impl Iterator<Item = &'a Vec<usize>>, replicas: &[usize]) -> Vec<usize> {
    let mut slots = replicas.to_vec();
    for offsets in dimensions {
        slots = slots.iter().flat_map(|&slot| offsets.iter().map(move |&offset| slot + offset)).collect();
    }
    slots.sort_unstable();
    slots
}

/// Cuts a dimension at every interval end of both sides. Intervals of a map are as long as its storage allows, so two
/// neighbours are never one.
fn segments(source: &DimensionMap, destination: &DimensionMap) -> Vec<Segment> {
    let mut cuts = BTreeSet::new();
    for map in [source, destination] {
        for interval in map.shards.iter().flat_map(|shard| shard.map.intervals()) {
            cuts.insert(interval.lo);
            cuts.insert(interval.hi);
        }
    }
    let cuts: Vec<u64> = cuts.into_iter().collect();
    let mut segments: Vec<Segment> = cuts
        .windows(2)
        .map(|pair| Segment {
            interval: Interval { lo: pair[0], hi: pair[1] },
            source: Vec::new(),
            destination: Vec::new(),
        })
        .collect();
    cover(source, &cuts, &mut segments, |segment| &mut segment.source);
    cover(destination, &cuts, &mut segments, |segment| &mut segment.destination);
    segments
}

/// Notes in every stretch which shards of `map` hold it.
fn cover(map: &DimensionMap, cuts: &[u64], segments: &mut [Segment], side: impl Fn(&mut Segment) -> &mut Vec<usize>) {
    for shard in &map.shards {
        for interval in shard.map.intervals() {
            let first = cuts.partition_point(|&cut| cut < interval.lo);
            let last = cuts.partition_point(|&cut| cut < interval.hi);
            for segment in &mut segments[first..last] {
                // A map may store it more than once.
                let shards = side(segment);
                if shards.last() != Some(&shard.slot_offset) {
                    shards.push(shard.slot_offset);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{AxisMap, AxisShard};

    fn map(shards: &[(usize, &[(u64, u64)])]) -> DimensionMap {
        let axis_map = |intervals: &[(u64, u64)]| AxisMap::new(intervals.iter().map(|&(lo, hi)| Interval { lo, hi }));
        let shards = shards.iter().map(|&(slot_offset, intervals)| AxisShard { slot_offset, map: axis_map(intervals) });
        DimensionMap { shards: shards.collect() }
    }

    #[test]
    fn holes_repeats_and_several_intervals() {
        // A source that lacks 4..6, holds 0..2 twice and 8..10 in no order; a destination of one piece.
        let source = map(&[(0, &[(8, 10), (0, 4)]), (1, &[(6, 8), (0, 2)])]);
        let segments = segments(&source, &map(&[(7, &[(0, 10)])]));
        let found: Vec<_> =
            segments.iter().map(|s| (s.interval.lo, s.interval.hi, &s.source[..], &s.destination[..])).collect();
        let whole = &[7][..];
        let expected: [(u64, u64, &[usize], &[usize]); 5] = [
            (0, 2, &[0, 1], whole),
            (2, 4, &[0], whole),
            (4, 6, &[], whole),
            (6, 8, &[1], whole),
            (8, 10, &[0], whole),
        ];
        assert_eq!(found, expected);
        assert_eq!(group(&segments), [0, 1, 2, 3, 1]);
    }

    #[test]
    fn neighbours_are_one_unless_stored_apart() {
        let source = map(&[(0, &[(0, 3), (3, 5)]), (2, &[(5, 5), (5, 9)])]);
        let segments = segments(&source, &map(&[(0, &[(0, 4), (4, 9)])]));
        let ends: Vec<u64> = segments.iter().map(|segment| segment.interval.hi).collect();
        assert_eq!(ends, [5, 9]);
        let reordered = super::segments(&source, &map(&[(0, &[(2, 9), (0, 2)])]));
        let found: Vec<_> = reordered.iter().map(|s| (s.interval.hi, &s.source[..], &s.destination[..])).collect();
        assert_eq!(found, [(2, &[0][..], &[0][..]), (5, &[0], &[0]), (9, &[2], &[0])]);
        // Of 0..4 one copy is whole, of the other the rest is elsewhere.
        let repeated = super::segments(&map(&[(0, &[(0, 4)])]), &map(&[(0, &[(0, 4), (0, 1), (2, 4)])]));
        assert_eq!(repeated.iter().map(|s| s.interval.hi).collect::<Vec<_>>(), [1, 2, 4]);
        assert!(repeated.iter().all(|s| s.destination == [0]));
        assert!(super::segments(&map(&[(0, &[])]), &map(&[(0, &[])])).is_empty());
    }
}
