//! Cells of one tensor. In: its two layouts, and whose cells. Out: boxes with the ranks that hold and want them.
//! Guarantee: boxes are disjoint, in row-major order, and maximal: where two touch, holders or wanters differ, or some
//! rank does not store them as neighbours. A rank that stores any of a cell stores all of it, in one place or more. A
//! rank's own cells are found without looking at others.

use super::ClassId;
use crate::base::Rank;
use crate::layout::{DimensionMap, Interval, Layout};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A box of a global tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cell {
    /// Per dimension the indices.
    pub intervals: Vec<Interval>,
    /// Its holders and wanters.
    pub class: ClassId,
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
    /// Elements that some rank holds and nobody wants, by their lowest holder.
    pub untaken: Vec<(Rank, u64)>,
}

/// Holders and wanters of some cells of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sets {
    pub(super) holders: Vec<Rank>,
    pub(super) wanters: Vec<Rank>,
    /// Elements that stand before the first of these cells in what its holders hold alike, cell by cell.
    pub(super) source_offset: u64,
    /// The same in what its wanters want alike.
    pub(super) destination_offset: u64,
}

/// The cells of a pair of layouts, before classes are numbered.
#[derive(Debug, Default)]
pub(super) struct Refined {
    /// Boxes in row-major order with an index into `sets`.
    pub(super) cells: Vec<(Vec<Interval>, usize)>,
    /// In order of discovery.
    pub(super) sets: Vec<Sets>,
    pub(super) untaken: BTreeMap<Rank, u64>,
}

/// A stretch of one dimension that the same shards of each side hold.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Segment {
    interval: Interval,
    source: Held,
    destination: Held,
}

/// Who holds a stretch on one side.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    shards: Vec<usize>,
    /// Around the stretch, what all of them hold as one interval.
    around: Interval,
}

/// Refines every dimension, then takes the product; the number of cells when there are more than 32 bits can number.
/// With `of` only the cells that this rank holds or wants.
pub(super) fn refine(source: &Layout, destination: &Layout, of: Option<Rank>) -> Result<Refined, u128> {
    let mut refined = Refined::default();
    let everything: Vec<Vec<Interval>> = source.shape().iter().map(|&hi| vec![Interval { lo: 0, hi }]).collect();
    let Some(rank) = of else {
        refined.add(source, destination, &everything, |_| true)?;
        return Ok(refined);
    };
    let held = parts(source, rank);
    if let Some(held) = &held {
        refined.add(source, destination, held, |_| true)?;
    }
    if let Some(wanted) = parts(destination, rank) {
        let is_new = |cell: &[Interval]| held.as_ref().is_none_or(|held| !is_inside(cell, held));
        refined.add(source, destination, &wanted, is_new)?;
    }
    refined.cells.sort_unstable_by(|(left, _), (right, _)| left.cmp(right));
    Ok(refined)
}

/// Per dimension what `rank` stores, ascending, each index once; `None` when it is not in the mesh.
fn parts(layout: &Layout, rank: Rank) -> Option<Vec<Vec<Interval>>> {
    Some(layout.axis_maps(rank)?.iter().map(|map| union(map.intervals().collect())).collect())
}

/// The same indices in disjoint intervals, ascending.
fn union(mut intervals: Vec<Interval>) -> Vec<Interval> {
    intervals.sort_unstable();
    let mut disjoint: Vec<Interval> = Vec::with_capacity(intervals.len());
    for interval in intervals {
        match disjoint.last_mut() {
            Some(last) if interval.lo <= last.hi => last.hi = last.hi.max(interval.hi),
            _ => disjoint.push(interval),
        }
    }
    disjoint
}

fn is_inside(cell: &[Interval], parts: &[Vec<Interval>]) -> bool {
    cell.iter().zip(parts).all(|(interval, parts)| parts.iter().any(|part| part.contains(interval)))
}

impl Refined {
    /// Adds the cells inside `within` that `is_new` lets pass.
    fn add(
        &mut self,
        source: &Layout,
        destination: &Layout,
        within: &[Vec<Interval>],
        is_new: impl Fn(&[Interval]) -> bool,
    ) -> Result<(), u128> {
        let dimension = |(dim, parts): (usize, &Vec<Interval>)| {
            let lo = parts.iter().map(|part| part.lo).min().unwrap_or(0);
            let hull = Interval { lo, hi: parts.iter().map(|part| part.hi).max().unwrap_or(0) };
            segments(&source.dimension_within(dim, hull), &destination.dimension_within(dim, hull), parts)
        };
        let segments: Vec<Vec<Segment>> = within.iter().enumerate().map(dimension).collect();
        let count = segments.iter().try_fold(1u128, |count, dim| count.checked_mul(dim.len() as u128));
        if let Some(count) = Some(count.unwrap_or(u128::MAX)).filter(|&count| count > u128::from(u32::MAX)) {
            return Err(count);
        }
        if segments.iter().any(Vec::is_empty) {
            return Ok(());
        }
        // Segments of a dimension with equal shards share a group, so that equal products are found by their groups.
        let groups: Vec<Vec<usize>> = segments.iter().map(|dim| group(dim)).collect();
        let replicas = (source.replica_offsets(), destination.replica_offsets());
        let mut known: HashMap<Vec<usize>, Option<usize>> = HashMap::new();
        let mut position = vec![0usize; segments.len()];
        loop {
            let chosen: Vec<&Segment> = position.iter().zip(&segments).map(|(&at, segments)| &segments[at]).collect();
            let intervals: Vec<Interval> = chosen.iter().map(|segment| segment.interval).collect();
            if is_new(&intervals) {
                let key: Vec<usize> = position.iter().zip(&groups).map(|(&at, groups)| groups[at]).collect();
                let find = || self.sets_of(&chosen, source, destination, &replicas);
                match *known.entry(key).or_insert_with(find) {
                    Some(sets) if self.sets[sets].wanters.is_empty() => {
                        let elements: u64 = intervals.iter().map(Interval::len).product();
                        *self.untaken.entry(self.sets[sets].holders[0]).or_default() += elements;
                    }
                    Some(sets) => self.cells.push((intervals, sets)),
                    None => {}
                }
            }
            if !advance(&mut position, &segments) {
                return Ok(());
            }
        }
    }

    /// The ranks of a product of segments, as an index; `None` when nobody has anything to do with it.
    fn sets_of(
        &mut self,
        chosen: &[&Segment],
        source: &Layout,
        destination: &Layout,
        replicas: &(Vec<usize>, Vec<usize>),
    ) -> Option<usize> {
        let holders = ranks(source, chosen.iter().map(|segment| &segment.source.shards), &replicas.0);
        let wanters = ranks(destination, chosen.iter().map(|segment| &segment.destination.shards), &replicas.1);
        if holders.is_empty() && wanters.is_empty() {
            return None;
        }
        // A box that nobody has on a side has no place there.
        let place = |ranks: &[Rank], of: fn(&Segment) -> &Held| match ranks.is_empty() {
            true => 0,
            false => offset(chosen.iter().map(|segment| (segment.interval, of(segment).around))),
        };
        let source_offset = place(&holders, |segment| &segment.source);
        let destination_offset = place(&wanters, |segment| &segment.destination);
        self.sets.push(Sets { holders, wanters, source_offset, destination_offset });
        Some(self.sets.len() - 1)
    }
}

/// Elements of a box that stand before a cell of it, when the box is passed cell by cell; per dimension the cell's
/// interval and the box's.
fn offset(dimensions: impl DoubleEndedIterator<Item = (Interval, Interval)>) -> u64 {
    // From the innermost: before = (cells of lower index, whole) + own length * before inside.
    dimensions
        .rev()
        .fold((0, 1), |(before, inner), (cell, around)| {
            ((cell.lo - around.lo) * inner + cell.len() * before, around.len() * inner)
        })
        .0
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
            *seen.entry((&segment.source.shards, &segment.destination.shards)).or_insert(next)
        })
        .collect()
}

/// Ranks of the slots that are the sum of one offset per dimension and one replica offset; ascending.
pub(super) fn ranks<'a>(
    layout: &Layout,
    dimensions: impl Iterator<Item = &'a Vec<usize>>,
    replicas: &[usize],
) -> Vec<Rank> {
    let mut slots = replicas.to_vec();
    for offsets in dimensions {
        slots = slots.iter().flat_map(|&slot| offsets.iter().map(move |&offset| slot + offset)).collect();
    }
    let mut ranks: Vec<Rank> = slots.into_iter().map(|slot| layout.mesh().rank(slot)).collect();
    ranks.sort_unstable();
    ranks
}

/// Cuts `parts` of a dimension (disjoint, ascending) at every interval end of both sides. Intervals of a map are as long as its
/// storage allows, so two neighbours are never one.
fn segments(source: &DimensionMap, destination: &DimensionMap, parts: &[Interval]) -> Vec<Segment> {
    let mut cuts = BTreeSet::new();
    let stored = [source, destination].into_iter().flat_map(|map| &map.shards).flat_map(|shard| shard.map.intervals());
    for interval in stored.chain(parts.iter().copied()) {
        cuts.insert(interval.lo);
        cuts.insert(interval.hi);
    }
    let cuts: Vec<u64> = cuts.into_iter().collect();
    let nobody = Held { shards: Vec::new(), around: Interval { lo: 0, hi: u64::MAX } };
    let is_asked = |interval: &Interval| {
        let after = parts.partition_point(|part| part.lo <= interval.lo);
        parts[..after].last().is_some_and(|part| part.contains(interval))
    };
    let mut segments: Vec<Segment> = cuts
        .windows(2)
        .map(|pair| Interval { lo: pair[0], hi: pair[1] })
        .filter(is_asked)
        .map(|interval| Segment { interval, source: nobody.clone(), destination: nobody.clone() })
        .collect();
    cover(source, &mut segments, |segment| &mut segment.source);
    cover(destination, &mut segments, |segment| &mut segment.destination);
    segments
}

/// Notes in every stretch which shards of `map` hold it.
fn cover(map: &DimensionMap, segments: &mut [Segment], side: impl Fn(&mut Segment) -> &mut Held) {
    for shard in &map.shards {
        for interval in shard.map.intervals() {
            let first = segments.partition_point(|segment| segment.interval.lo < interval.lo);
            let last = segments.partition_point(|segment| segment.interval.lo < interval.hi);
            for segment in &mut segments[first..last] {
                let held = side(segment);
                // A map may store it more than once.
                if held.shards.last() != Some(&shard.slot_offset) {
                    held.shards.push(shard.slot_offset);
                }
                held.around.lo = held.around.lo.max(interval.lo);
                held.around.hi = held.around.hi.min(interval.hi);
            }
        }
    }
}

/// What one side holds, by who holds it: ranks, and the elements of one tensor that exactly these hold.
pub(super) fn families(layout: &Layout) -> Vec<(Vec<Rank>, u64)> {
    let nothing = DimensionMap { shards: Vec::new() };
    let dimensions: Vec<Vec<(Vec<usize>, u64)>> = (0..layout.shape().len())
        .map(|dim| {
            let whole = Interval { lo: 0, hi: layout.shape()[dim] };
            let mut lengths: Vec<(Vec<usize>, u64)> = Vec::new();
            let mut known = HashMap::new();
            for segment in segments(&layout.dimension(dim), &nothing, &[whole]) {
                let next = lengths.len();
                let number = *known.entry(segment.source.shards.clone()).or_insert(next);
                if number == next {
                    lengths.push((segment.source.shards, 0));
                }
                lengths[number].1 += segment.interval.len();
            }
            lengths
        })
        .collect();
    let replicas = layout.replica_offsets();
    let mut products: Vec<(Vec<&Vec<usize>>, u64)> = vec![(Vec::new(), 1)];
    for lengths in &dimensions {
        products = products
            .iter()
            .flat_map(|(chosen, elements)| {
                lengths.iter().filter(|(shards, _)| !shards.is_empty()).map(move |(shards, length)| {
                    let mut chosen = chosen.clone();
                    chosen.push(shards);
                    (chosen, elements * length)
                })
            })
            .collect();
    }
    products
        .into_iter()
        .filter(|&(_, elements)| elements > 0)
        .map(|(chosen, elements)| (ranks(layout, chosen.into_iter(), &replicas), elements))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{AxisMap, AxisShard, Dtype, Mesh, Placement};
    use std::sync::Arc;

    fn map(shards: &[(usize, &[(u64, u64)])]) -> DimensionMap {
        let axis_map = |intervals: &[(u64, u64)]| AxisMap::new(intervals.iter().map(|&(lo, hi)| Interval { lo, hi }));
        let shards = shards.iter().map(|&(slot_offset, intervals)| AxisShard { slot_offset, map: axis_map(intervals) });
        DimensionMap { shards: shards.collect() }
    }

    fn whole(hi: u64) -> [Interval; 1] {
        [Interval { lo: 0, hi }]
    }

    #[test]
    fn holes_repeats_and_several_intervals() {
        // A source that lacks 4..6, holds 0..2 twice and 8..10 in no order; a destination of one piece.
        let source = map(&[(0, &[(8, 10), (0, 4)]), (1, &[(6, 8), (0, 2)])]);
        let segments = segments(&source, &map(&[(7, &[(0, 10)])]), &whole(10));
        let found: Vec<_> = segments
            .iter()
            .map(|s| (s.interval.lo, s.interval.hi, &s.source.shards[..], &s.destination.shards[..]))
            .collect();
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
        assert!(super::segments(&map(&[(0, &[])]), &map(&[(0, &[])]), &[]).is_empty());
    }

    #[test]
    fn only_the_parts_asked_for() {
        let source = map(&[(0, &[(0, 5)]), (1, &[(5, 10)])]);
        let parts = [Interval { lo: 1, hi: 3 }, Interval { lo: 4, hi: 7 }];
        let found: Vec<_> = segments(&source, &map(&[(0, &[(0, 2), (2, 10)])]), &parts)
            .iter()
            .map(|segment| (segment.interval.lo, segment.interval.hi, segment.source.shards[0]))
            .collect();
        assert_eq!(found, [(1, 3, 0), (4, 5, 0), (5, 7, 1)]);
    }

    #[test]
    fn what_is_stored_again_is_stored() {
        let at = |pairs: &[(u64, u64)]| pairs.iter().map(|&(lo, hi)| Interval { lo, hi }).collect::<Vec<_>>();
        assert_eq!(union(at(&[(8, 9), (0, 6), (2, 3), (5, 8), (11, 12)])), at(&[(0, 9), (11, 12)]));
        assert_eq!(union(Vec::new()), []);
    }

    #[test]
    fn offsets_count_the_cells_before() {
        // A box of 4 x 6 in cells of 2 x 3 and 2 x 2, 2 x 1 columns: the cells before hold exactly the offset.
        let around = (Interval { lo: 8, hi: 12 }, Interval { lo: 0, hi: 6 });
        let mut before = 0;
        for (top, bottom) in [(8, 10), (10, 12)] {
            for (left, right) in [(0, 3), (3, 5), (5, 6)] {
                let cell = (Interval { lo: top, hi: bottom }, Interval { lo: left, hi: right });
                assert_eq!(offset([(cell.0, around.0), (cell.1, around.1)].into_iter()), before);
                before += cell.0.len() * cell.1.len();
            }
        }
        assert_eq!(offset([].into_iter()), 0);
    }

    #[test]
    fn neighbours_are_one_unless_stored_apart() {
        let source = map(&[(0, &[(0, 3), (3, 5)]), (2, &[(5, 5), (5, 9)])]);
        let segments = |destination| segments(&source, &destination, &whole(9));
        let ends = |segments: &[Segment]| segments.iter().map(|s| s.interval.hi).collect::<Vec<_>>();
        assert_eq!(ends(&segments(map(&[(0, &[(0, 4), (4, 9)])]))), [5, 9]);
        let reordered = segments(map(&[(0, &[(2, 9), (0, 2)])]));
        let shards = reordered.iter().map(|s| (s.source.shards[0], s.destination.shards[0]));
        assert_eq!(ends(&reordered), [2, 5, 9]);
        assert_eq!(shards.collect::<Vec<_>>(), [(0, 0), (0, 0), (2, 0)]);
        // Of 0..4 one copy is whole, of the other the rest is elsewhere.
        let once = map(&[(0, &[(0, 4)])]);
        let repeated = super::segments(&once, &map(&[(0, &[(0, 4), (0, 1), (2, 4)])]), &whole(4));
        assert_eq!(ends(&repeated), [1, 2, 4]);
        assert!(repeated.iter().all(|segment| segment.destination.shards == [0]));
    }

    #[test]
    fn families_of_a_side_sum_to_the_tensor() {
        let mesh = Arc::new(Mesh::contiguous(vec![2, 3], Rank(4)).unwrap());
        let placements = vec![Placement::Replicate, Placement::shard(1)];
        let layout = Layout::new(vec![5, 7], Dtype::F32, mesh, placements).unwrap();
        let found: Vec<_> = families(&layout).into_iter().map(|(ranks, n)| (ranks[0].0, ranks[1].0, n)).collect();
        assert_eq!(found, [(4, 7, 10), (5, 8, 10), (6, 9, 15)]);
    }
}
