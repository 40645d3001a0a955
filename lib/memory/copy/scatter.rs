//! Scattering: one pass over sources whose parts go to many destinations. In: boxes, and the spans that each lies
//! between. Out: steps of about a quarter of a megabyte. Guarantee: all bounds are checked when the steps are made,
//! from spans that they keep mapped; the steps tile the boxes; copying allocates nothing.
//!
//! The source is read in its own order, row by row, and every part of a row goes to its destination at once. A sweep
//! for each destination reads the same lines again, or skips from part to part, which the processor's prefetcher does
//! not follow: with runs of 256 B it moves half as much, even when a block stays in the first-level cache meanwhile.

use super::kernel::{Lane, Rows, Store, copy_run, stream_lanes};
use super::sweep::gathers;
use super::{BoxCopy, CopyDimension, CopyTable, Operation, check_end};
use crate::memory::{MemoryError, Span};
use std::ops::Range;

/// Source bytes that several destinations take one after another: they stay in the first-level cache meanwhile.
const BLOCK: u64 = 16 << 10;
/// Source bytes of a step.
const STEP: u64 = 256 << 10;
/// Fewest bytes of a row of runs worth a step of its own; boxes with shorter ones are copied block by block.
const SHORTEST_ROW: u64 = 4 << 10;

/// Steps in source order.
#[derive(Debug, Clone, Default)]
pub struct Scatter {
    steps: Vec<Step>,
    lanes: Vec<Lane>,
    /// Blocks of boxes with several loops.
    blocks: CopyTable,
    spans: Vec<Span>,
}

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// Source bytes that it took.
    pub bytes: u64,
    /// Finite values that became infinite, where they count.
    pub saturated: u64,
}

#[derive(Debug, Clone)]
enum Step {
    /// Rows of one source, each cut into lanes.
    Lanes { from: *const u8, rows: Rows, lanes: Range<u32>, whole: bool, bytes: u64 },
    /// A box of `blocks`.
    Block { source: u32, destination: u32, index: u32 },
}

// SAFETY: a step is an address and counts; the memory is kept mapped by the spans beside it, which are Send.
unsafe impl Send for Step {}
// SAFETY: as above; a step has no interior state.
unsafe impl Sync for Step {}

/// Equal runs in steps on both sides.
#[derive(Debug, Clone, Copy)]
struct Series {
    source: u32,
    destination: u32,
    from: u64,
    to: u64,
    run: u64,
    count: u64,
    step: (u64, u64),
}

/// A step with the place that it begins at.
struct At {
    source: u32,
    from: u64,
    step: Step,
}

impl Scatter {
    /// Steps for the boxes of `table`; `between` has the numbers of every box's source and destination in `spans`.
    pub fn new(spans: &[Span], table: &CopyTable, between: &[(u32, u32)]) -> Result<Self, MemoryError> {
        let mut cutter = Cutter { spans, series: Vec::new(), blocks: CopyTable::new(), placed: Vec::new() };
        for (copy, &(source, destination)) in table.boxes.iter().zip(between) {
            for (number, end) in [(source, copy.source_end), (destination, copy.destination_end)] {
                let span = cutter.span(number)?;
                span.check_host()?;
                check_end(0, end, span.bytes())?;
            }
            cutter.cut(copy, table.loops(copy), source, destination);
        }
        let mut scatter = Self { blocks: cutter.blocks, spans: spans.to_vec(), ..Self::default() };
        let series = cut_rows(cutter.series);
        let mut placed = cutter.placed;
        scatter.group(&series, &mut placed);
        placed.sort_by_key(|placed| (placed.source, placed.from));
        scatter.steps = placed.into_iter().map(|placed| placed.step).collect();
        Ok(scatter)
    }

    /// Number of steps.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether there is nothing to copy.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Takes one step. After streaming stores the caller calls [`fence`](super::fence) before it tells anybody.
    pub fn copy(&self, step: usize, store: Store) -> Result<Copied, MemoryError> {
        match &self.steps[step] {
            Step::Lanes { from, rows, lanes, whole, bytes } => {
                let lanes = &self.lanes[lanes.start as usize..lanes.end as usize];
                // SAFETY: `new` checked every lane of every row against the spans that are kept; whole ones also for
                // alignment and that no source shares their memory.
                unsafe {
                    if *whole && store == Store::Streaming {
                        stream_lanes(*from, *rows, lanes);
                    } else {
                        copy_lanes(*from, *rows, lanes, store);
                    }
                }
                Ok(Copied { bytes: *bytes, saturated: 0 })
            }
            &Step::Block { source, destination, index } => {
                let (from, to) = (&self.spans[source as usize], &self.spans[destination as usize]);
                let index = index as usize;
                let saturated = self.blocks.copy(index..index + 1, from, 0, to, 0, store)?;
                Ok(Copied { bytes: self.blocks.bytes_of(index), saturated })
            }
        }
    }

    /// Makes a step of series, sorted by source, that are parts of the same rows.
    fn group(&mut self, series: &[Series], placed: &mut Vec<At>) {
        let mut rest = series;
        while let Some(&first) = rest.first() {
            let count = rest.iter().take_while(|next| next.shares_rows(&first)).count().max(1);
            let (group, others) = rest.split_at(count);
            rest = others;
            let begin = self.lanes.len() as u32;
            self.lanes.extend(group.iter().map(|part| part.lane(&self.spans, first.from)));
            let apart = group.iter().all(|part| part.is_apart(&self.spans));
            let whole = apart && self.lanes[begin as usize..].iter().all(Lane::is_whole);
            let from = self.spans[first.source as usize].start().wrapping_add(first.from as usize);
            let rows = Rows { count: first.count as usize, step: first.step.0 as usize };
            let bytes = group.iter().map(|part| part.run * part.count).sum();
            let step = Step::Lanes { from, rows, lanes: begin..self.lanes.len() as u32, whole, bytes };
            placed.push(At { source: first.source, from: first.from, step });
        }
    }
}

/// Copies lanes of any shape.
///
/// # Safety
/// Every lane of every row must be readable in the source and writable at its place.
unsafe fn copy_lanes(from: *const u8, rows: Rows, lanes: &[Lane], store: Store) {
    for row in 0..rows.count {
        let start = from.wrapping_add(row * rows.step);
        for lane in lanes {
            let (from, to) = (start.wrapping_add(lane.first), lane.to.wrapping_add(row * lane.step));
            // SAFETY: forwarded from the caller.
            unsafe { copy_run(from, to, lane.bytes, store) };
        }
    }
}

impl Series {
    /// End of the last run in the source.
    fn end(&self) -> u64 {
        self.from + (self.count - 1) * self.step.0 + self.run
    }

    fn rows(&self, first: u64, count: u64) -> Self {
        Self { from: self.from + first * self.step.0, to: self.to + first * self.step.1, count, ..*self }
    }

    /// Whether it takes another part of the rows of `first`, which begins no later.
    fn shares_rows(&self, first: &Series) -> bool {
        let begins = self.from - first.from.min(self.from);
        let inside = match first.count {
            1 => begins < BLOCK,
            _ => self.step.0 == first.step.0 && begins + self.run <= first.step.0,
        };
        self.source == first.source && self.count == first.count && inside
    }

    fn lane(&self, spans: &[Span], row: u64) -> Lane {
        let to = spans[self.destination as usize].start().wrapping_add(self.to as usize);
        Lane { to, step: self.step.1 as usize, first: (self.from - row) as usize, bytes: self.run as usize }
    }

    /// Whether its source and its destination are different memory.
    fn is_apart(&self, spans: &[Span]) -> bool {
        let [source, destination] = [self.source, self.destination].map(|number| &spans[number as usize]);
        let start = |span: &Span| span.start() as u64;
        let end = |span: &Span| start(span).saturating_add(span.bytes());
        end(source) <= start(destination) || end(destination) <= start(source)
    }
}

/// Cuts boxes into series and blocks.
struct Cutter<'a> {
    spans: &'a [Span],
    series: Vec<Series>,
    blocks: CopyTable,
    placed: Vec<At>,
}

impl Cutter<'_> {
    fn span(&self, number: u32) -> Result<&Span, MemoryError> {
        let limit = self.spans.len() as u64;
        self.spans.get(number as usize).ok_or(MemoryError::Range { offset: number.into(), bytes: 1, limit })
    }

    fn cut(&mut self, copy: &BoxCopy, loops: &[CopyDimension], source: u32, destination: u32) {
        let whole = Series {
            source,
            destination,
            from: copy.source,
            to: copy.destination,
            run: copy.run,
            count: 1,
            step: (0, 0),
        };
        if copy.operation != Operation::Move {
            return self.add_blocks(whole, loops, copy.operation);
        }
        self.cut_loops(whole, loops);
    }

    fn cut_loops(&mut self, part: Series, loops: &[CopyDimension]) {
        match loops {
            [] => self.cut_run(part),
            [dim] if part.run <= BLOCK => self.add_rows(part, *dim),
            [outer, inner @ ..] if inner.iter().map(|dim| dim.extent).product::<u64>() * part.run >= SHORTEST_ROW => {
                for round in 0..outer.extent {
                    let (from, to) = (part.from + round * outer.source, part.to + round * outer.destination);
                    self.cut_loops(Series { from, to, ..part }, inner);
                }
            }
            _ => self.add_blocks(part, loops, Operation::Move),
        }
    }

    /// Cuts a long run where blocks of the source begin, so that all destinations of a block meet.
    fn cut_run(&mut self, part: Series) {
        let end = part.from + part.run;
        let mut from = part.from;
        while from < end {
            let next = (from / BLOCK + 1).saturating_mul(BLOCK).min(end);
            self.series.push(Series { from, to: part.to + (from - part.from), run: next - from, ..part });
            from = next;
        }
    }

    fn add_rows(&mut self, part: Series, dim: CopyDimension) {
        let rows = Series { count: dim.extent, step: (dim.source, dim.destination), ..part };
        if !rows.lane(self.spans, rows.from).is_whole() && gathers(&dim, part.run as usize) {
            self.add_blocks(part, &[dim], Operation::Move);
        } else {
            self.series.push(rows);
        }
    }

    fn add_blocks(&mut self, part: Series, loops: &[CopyDimension], operation: Operation) {
        self.blocks.add_piece(part.from, part.to, loops, part.run, operation);
        for index in self.blocks.cut_last(BLOCK) {
            let step = Step::Block { source: part.source, destination: part.destination, index: index as u32 };
            self.placed.push(At { source: part.source, from: self.blocks.source_of(index), step });
        }
    }
}

/// Cuts series after the same rows where they lie over each other, so that their parts can be grouped; sorted by
/// source.
fn cut_rows(mut series: Vec<Series>) -> Vec<Series> {
    series.sort_by_key(|part| (part.source, part.step.0, part.from));
    let mut cut = Vec::with_capacity(series.len());
    // Where the rows of neighbours that overlap begin and end.
    let (mut begin, mut end, mut class) = (0, 0, None);
    for part in series {
        if class != Some((part.source, part.step.0)) || part.from >= end {
            (begin, end, class) = (part.from, 0, Some((part.source, part.step.0)));
        }
        end = end.max(part.end());
        let step = part.step.0.max(1);
        let rows = (STEP / step).max(1);
        let mut row = 0;
        while row < part.count {
            let beyond = ((part.from - begin) / step + row) % rows;
            let count = (rows - beyond).min(part.count - row);
            cut.push(part.rows(row, count));
            row += count;
        }
    }
    cut.sort_by_key(|part| (part.source, part.from, part.count));
    cut
}

#[cfg(test)]
#[path = "scatter_tests.rs"]
mod tests;
