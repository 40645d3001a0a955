//! What a rank holds of one dimension. In: intervals. Out: local extents and positions. Guarantee: intervals are
//! non-empty and kept in local storage order.

use serde::{Deserialize, Serialize};

/// Indices `lo..hi` of a global dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Interval {
    /// First index.
    pub lo: u64,
    /// One past the last index.
    pub hi: u64,
}

impl Interval {
    /// Number of indices; zero when `hi <= lo`.
    pub fn len(&self) -> u64 {
        self.hi.saturating_sub(self.lo)
    }

    /// Whether it holds no index.
    pub fn is_empty(&self) -> bool {
        self.hi <= self.lo
    }

    /// Whether `other` lies inside.
    pub fn contains(&self, other: &Interval) -> bool {
        self.lo <= other.lo && other.hi <= self.hi
    }
}

/// The intervals of one dimension that a rank holds, in local storage order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct AxisMap {
    intervals: Vec<Interval>,
}

impl AxisMap {
    /// A map of these intervals; empty ones are dropped, since they store nothing.
    pub fn new(intervals: impl IntoIterator<Item = Interval>) -> Self {
        Self { intervals: intervals.into_iter().filter(|interval| !interval.is_empty()).collect() }
    }

    /// The intervals in local storage order.
    pub fn intervals(&self) -> &[Interval] {
        &self.intervals
    }

    /// Local extent: the sum of the lengths.
    pub fn extent(&self) -> u64 {
        self.intervals.iter().map(Interval::len).sum()
    }

    /// Local position of `part`, when one interval holds all of it; the first such interval counts.
    pub fn locate(&self, part: Interval) -> Option<u64> {
        let mut local = 0;
        for interval in &self.intervals {
            if interval.contains(&part) {
                return Some(local + (part.lo - interval.lo));
            }
            local += interval.len();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(lo: u64, hi: u64) -> Interval {
        Interval { lo, hi }
    }

    #[test]
    fn positions_follow_storage_order() {
        let map = AxisMap::new([at(8, 12), at(3, 3), at(0, 2)]);
        assert_eq!(map.extent(), 6);
        assert_eq!(map.locate(at(9, 11)), Some(1));
        assert_eq!(map.locate(at(0, 2)), Some(4));
        assert_eq!(map.locate(at(1, 3)), None);
        assert_eq!(AxisMap::new([]).extent(), 0);
    }
}
