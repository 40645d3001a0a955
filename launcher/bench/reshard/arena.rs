//! One rank's memory of one side. In: shape, layout, rank. Out: where tensors lie, their contents, wrong elements.
//! Guarantee: many tensors lie in a random order that is the same in every run and on the peers.

use super::shape::Shape;
use crate::bench::pattern;
use crossmesh::base::Rank;
use crossmesh::layout::Layout;

/// Between tensors.
const GAP: u64 = 64;

/// Places of a rank's tensors in its buffer.
#[derive(Debug)]
pub(super) struct Arena {
    /// First byte of each tensor.
    pub(super) offsets: Vec<u64>,
    pub(super) bytes: u64,
    first: [u64; 3],
    extent: [u64; 3],
}

impl Arena {
    /// `None` on ranks that hold nothing of `layout`; `side` is 0 for sources and 1 for destinations.
    pub(super) fn new(shape: &Shape, layout: &Layout, rank: Rank, side: u64) -> Option<Self> {
        let maps = layout.axis_maps(rank)?;
        let interval = |dim: usize| maps.get(dim)?.intervals().next();
        let intervals = [interval(0)?, interval(1)?, interval(2)?];
        let shard = layout.local_bytes(rank);
        let step = shard + if shape.tensors > 1 { GAP } else { 0 };
        let offsets = shuffled(shape.tensors, 5 + side).into_iter().map(|place| place * step).collect();
        Some(Self {
            offsets,
            bytes: step * shape.tensors,
            first: intervals.map(|interval| interval.lo),
            extent: intervals.map(|interval| interval.len()),
        })
    }

    /// Writes every element.
    pub(super) fn fill(&self, shape: &Shape, memory: &mut [u8], seed: u32) {
        self.rows(shape, |place, first| {
            if let Some(row) = memory.get_mut(place) {
                pattern::fill_row(row, shape.element, first, seed);
            }
        });
    }

    /// Compares every element.
    pub(super) fn count_wrong(&self, shape: &Shape, memory: &[u8], seed: u32) -> u64 {
        let mut wrong = 0;
        let mut compared = 0;
        self.rows(shape, |place, first| {
            if let Some(row) = memory.get(place) {
                compared += row.len() as u64 / shape.element.bytes();
                wrong += pattern::wrong_in_row(row, shape.element, first, seed);
            }
        });
        // What lies outside the memory has not arrived.
        wrong + (shape.tensors * self.extent.iter().product::<u64>() - compared)
    }

    /// Calls with the place of every row and the number of its first element.
    fn rows(&self, shape: &Shape, mut each: impl FnMut(std::ops::Range<usize>, u32)) {
        let [outer, middle, elements] = self.extent;
        let row_bytes = elements * shape.element.bytes();
        for (tensor, &offset) in (0u64..).zip(&self.offsets) {
            let mut place = offset as usize;
            for i in self.first[0]..self.first[0] + outer {
                for j in self.first[1]..self.first[1] + middle {
                    let row = (tensor * shape.global[0] + i) * shape.global[1] + j;
                    // Values repeat after 2^32 elements.
                    each(place..place + row_bytes as usize, (row * shape.global[2] + self.first[2]) as u32);
                    place += row_bytes as usize;
                }
            }
        }
    }
}

/// Fisher and Yates' shuffle with a fixed generator of random numbers.
fn shuffled(count: u64, mut state: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..count).collect();
    for at in (1..order.len()).rev() {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        order.swap(at, ((state >> 33) % (at as u64 + 1)) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::pattern::POISON;
    use crate::bench::reshard::shape::choose;

    #[test]
    fn destination_differs_until_every_element_is_there() {
        for shape in choose("columns-256,small-256,experts", 2, 2, Some(20_000)).unwrap() {
            let [source, destination] = shape.layouts().unwrap();
            assert!(Arena::new(&shape, &source, Rank(2), 0).is_none());
            let arena = Arena::new(&shape, &destination, Rank(3), 1).unwrap();
            let elements = shape.tensors * destination.local_bytes(Rank(3)) / shape.element.bytes();
            let mut memory = vec![POISON; arena.bytes as usize];
            assert!(arena.count_wrong(&shape, &memory, 3) > elements * 9 / 10);
            arena.fill(&shape, &mut memory, 3);
            assert_eq!(arena.count_wrong(&shape, &memory, 3), 0);
            for &offset in &arena.offsets {
                memory[offset as usize] ^= 1;
            }
            assert_eq!(arena.count_wrong(&shape, &memory, 3), shape.tensors, "{}", shape.name);
            assert!(arena.count_wrong(&shape, &memory[..0], 3) == elements);
        }
    }

    #[test]
    fn ranks_hold_different_values() {
        let shape = choose("contiguous", 2, 2, Some(64 << 10)).unwrap().remove(0);
        let [source, _] = shape.layouts().unwrap();
        let filled = |rank| {
            let arena = Arena::new(&shape, &source, Rank(rank), 0).unwrap();
            let mut memory = vec![0; arena.bytes as usize];
            arena.fill(&shape, &mut memory, 1);
            memory
        };
        assert_ne!(filled(0), filled(1));
    }

    #[test]
    fn shuffle_keeps_every_place() {
        let mut order = shuffled(1000, 5);
        assert_ne!(order, (0..1000).collect::<Vec<_>>());
        assert_ne!(order, shuffled(1000, 6));
        order.sort_unstable();
        assert_eq!(order, (0..1000).collect::<Vec<_>>());
    }
}
