//! What a rank holds of one dimension. In: parts in storage order. Out: local extents and positions. Guarantee: every
//! local position has one use: a global index, padding, or nothing of this tensor; neighbours that continue each other
//! are one segment, so that equal storage gives equal maps.

use super::LayoutError;
use serde::{Deserialize, Serialize};

/// Indices `lo..hi` of a dimension.
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

/// What the next local positions are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// These global indices.
    Global(Interval),
    /// So many positions without a global index; the layout says whether and with what they are filled.
    Padding(u64),
    /// So many positions that belong to other tensors in the same memory; they are neither read nor written.
    Hole(u64),
}

/// Global indices that are stored at equal distances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Segment {
    /// Local position of the first index.
    pub local: u64,
    /// Distance between the local positions of neighbours; 1 for a single index.
    pub step: u64,
    /// The indices.
    pub global: Interval,
}

/// Where a part of a segment lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// Local position of the first index.
    pub local: u64,
    /// Distance between the local positions of neighbours.
    pub step: u64,
}

/// What a rank stores of one dimension, in local storage order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct AxisMap {
    /// By local position of their first index.
    segments: Vec<Segment>,
    /// Local positions.
    padding: Vec<Interval>,
    extent: u64,
}

impl AxisMap {
    /// A map of these global intervals; empty ones are dropped, since they store nothing. Extents beyond 64 bits
    /// saturate; intervals of one tensor cannot reach them unless they repeat.
    pub fn new(intervals: impl IntoIterator<Item = Interval>) -> Self {
        let mut map = Self::default();
        for interval in intervals {
            map.push(Segment { local: map.extent, step: 1, global: interval });
            map.extent = map.extent.saturating_add(interval.len());
        }
        map
    }

    /// A map of parts, one behind the other.
    pub fn of_parts(parts: impl IntoIterator<Item = Part>) -> Result<Self, LayoutError> {
        let mut map = Self::default();
        for part in parts {
            let local = map.extent;
            let count = match part {
                Part::Global(interval) => interval.len(),
                Part::Padding(count) | Part::Hole(count) => count,
            };
            map.extent = local.checked_add(count).ok_or(LayoutError::AxisTooLong { local, count })?;
            match part {
                Part::Global(global) => map.push(Segment { local, step: 1, global }),
                Part::Padding(_) => map.pad(Interval { lo: local, hi: map.extent }),
                Part::Hole(_) => {}
            }
        }
        Ok(map)
    }

    /// A map of `global` in which neighbours are `of` positions apart, the first of them at position `place`; what lies
    /// between belongs to other tensors.
    pub fn interleaved(global: Interval, place: u64, of: u64) -> Result<Self, LayoutError> {
        if place >= of {
            return Err(LayoutError::InterleavePlace { place, of });
        }
        let (local, count) = (global.len(), of);
        let extent = local.checked_mul(of).ok_or(LayoutError::AxisTooLong { local, count })?;
        let mut map = Self { extent, ..Self::default() };
        map.push(Segment { local: place, step: of, global });
        Ok(map)
    }

    /// A map of segments in any order, which share no position and lie below `extent`.
    pub(super) fn of_segments(mut segments: Vec<Segment>, extent: u64) -> Self {
        segments.sort_unstable_by_key(|segment| segment.local);
        let mut map = Self { extent, ..Self::default() };
        segments.into_iter().for_each(|segment| map.push(segment));
        map
    }

    /// The map of what has one index for every `block` indices of this one: every block of which an index is stored.
    /// Where two segments that follow each other share a block it is stored once. Padding continues the indices before
    /// it.
    pub fn blocks(&self, block: u64) -> Result<AxisMap, LayoutError> {
        if block == 0 {
            return Err(LayoutError::Block { block });
        }
        let mut parts = Vec::new();
        // Behind the last part: local position, index it would have, first block that is not stored yet.
        let mut behind: (u64, Option<(u64, u64)>) = (0, None);
        let mut padding = self.padding.iter().peekable();
        let mut segments = self.segments.iter().peekable();
        while behind.0 < self.extent {
            let next_segment = segments.peek().map_or(self.extent, |segment| segment.local);
            let next = padding.peek().map_or(self.extent, |span| span.lo).min(next_segment);
            if next > behind.0 {
                parts.push(Part::Hole(whole_blocks(next - behind.0, block)?));
                behind = (next, None);
            } else if let Some(segment) = segments.next_if(|segment| segment.local == behind.0) {
                let Segment { step, global, .. } = *segment;
                if step > 1 {
                    return Err(LayoutError::BlockStep { step, block });
                }
                let (mut lo, hi) = (global.lo / block, global.hi.div_ceil(block));
                if behind.1.is_some_and(|(index, stored)| index <= global.lo && stored == lo + 1) {
                    lo += 1;
                }
                parts.push(Part::Global(Interval { lo, hi }));
                behind = (behind.0 + global.len(), Some((global.hi, hi)));
            } else if let Some(span) = padding.next() {
                let count = match behind.1 {
                    Some((index, stored)) => (index + span.len()).div_ceil(block) - stored,
                    None => whole_blocks(span.len(), block)?,
                };
                parts.push(Part::Padding(count));
                behind = (span.hi, None);
            }
        }
        Self::of_parts(parts)
    }

    /// Appends a segment that begins behind the beginning of the last.
    fn push(&mut self, segment: Segment) {
        let count = segment.global.len();
        if count == 0 {
            return;
        }
        let step = if count == 1 { 1 } else { segment.step };
        match self.segments.last_mut() {
            Some(last)
                if last.step == step
                    && last.global.hi == segment.global.lo
                    && last.local + last.global.len() * step == segment.local =>
            {
                last.global.hi = segment.global.hi;
            }
            _ => self.segments.push(Segment { step, ..segment }),
        }
    }

    fn pad(&mut self, span: Interval) {
        match self.padding.last_mut() {
            _ if span.is_empty() => {}
            Some(last) if last.hi == span.lo => last.hi = span.hi,
            _ => self.padding.push(span),
        }
    }

    /// The segments, by their first local position.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Their global intervals, in the same order.
    pub fn intervals(&self) -> impl ExactSizeIterator<Item = Interval> + '_ {
        self.segments.iter().map(|segment| segment.global)
    }

    /// Local positions without a global index.
    pub fn padding(&self) -> &[Interval] {
        &self.padding
    }

    /// Local extent: everything that is stored, padding and holes.
    pub fn extent(&self) -> u64 {
        self.extent
    }

    /// Local positions that have a global index.
    pub fn stored(&self) -> u64 {
        self.segments.iter().map(|segment| segment.global.len()).sum()
    }

    /// Local positions of padding.
    pub fn padded(&self) -> u64 {
        self.padding.iter().map(Interval::len).sum()
    }

    /// Whether it is one interval without padding or holes, or empty.
    pub fn is_plain(&self) -> bool {
        self.stored() == self.extent && self.segments.len() <= 1
    }

    /// Every place of `part`: once for each segment that holds all of it. Segments that hold a piece of it only do not
    /// count; cells never ask for such a part.
    pub fn places(&self, part: Interval) -> impl Iterator<Item = Location> + '_ {
        self.segments.iter().filter(move |segment| segment.global.contains(&part)).map(move |segment| Location {
            local: segment.local + (part.lo - segment.global.lo) * segment.step,
            step: segment.step,
        })
    }

    /// The first place of `part`.
    pub fn locate(&self, part: Interval) -> Option<Location> {
        self.places(part).next()
    }

    /// The map of a rank that stores `inner`, whose indices are local positions of this map.
    pub fn compose(&self, inner: &AxisMap) -> AxisMap {
        let mut segments = Vec::new();
        let mut padding = inner.padding.clone();
        for Segment { local, step, global } in &inner.segments {
            for outer in &self.segments {
                // Positions outer.local + k * outer.step that lie in `global`.
                let below = |end: u64| end.saturating_sub(outer.local).div_ceil(outer.step).min(outer.global.len());
                let (first, last) = (below(global.lo), below(global.hi));
                if first < last {
                    let position = outer.local + first * outer.step;
                    segments.push(Segment {
                        local: local + (position - global.lo) * step,
                        step: if last - first == 1 { 1 } else { outer.step * step },
                        global: Interval { lo: outer.global.lo + first, hi: outer.global.lo + last },
                    });
                }
            }
            for outer in &self.padding {
                let (lo, hi) = (outer.lo.max(global.lo), outer.hi.min(global.hi));
                let at = |position: u64| local + (position - global.lo) * step;
                match step {
                    1 if lo < hi => padding.push(Interval { lo: at(lo), hi: at(hi) }),
                    1 => {}
                    _ => padding.extend((lo..hi).map(|index| Interval { lo: at(index), hi: at(index) + 1 })),
                }
            }
        }
        padding.sort_unstable();
        let mut map = Self::of_segments(segments, inner.extent);
        padding.into_iter().for_each(|span| map.pad(span));
        map
    }
}

/// `count` positions in blocks.
fn whole_blocks(count: u64, block: u64) -> Result<u64, LayoutError> {
    if count.is_multiple_of(block) { Ok(count / block) } else { Err(LayoutError::BlockHole { count, block }) }
}

#[cfg(test)]
#[path = "axis_map_tests.rs"]
mod tests;
