//! Joining boxes that continue each other. In: boxes in order. Out: fewer boxes that move the same bytes. Guarantee:
//! bytes move as before; only neighbours are joined.
//!
//! Ten thousand small tensors between the same ranks usually lie behind one another on both sides, or step on both
//! sides by the same distances. One loop over them costs what their bytes cost; a box each costs more than the bytes.

use super::{BoxCopy, CopyDimension, CopyTable, Operation};

/// A stretch of equal runs in steps.
#[derive(Debug, Clone, Copy)]
struct Series {
    first: (u64, u64),
    last: (u64, u64),
    run: u64,
    operation: Operation,
    count: u64,
    step: (u64, u64),
}

impl Series {
    fn of(copy: &BoxCopy) -> Self {
        let start = (copy.source, copy.destination);
        Self { first: start, last: start, run: copy.run, operation: copy.operation, count: 1, step: (0, 0) }
    }

    /// Takes a single run that continues the series; whether it does.
    fn take(&mut self, copy: &BoxCopy) -> bool {
        if copy.operation != self.operation {
            return false;
        }
        let written = self.operation.written(self.run);
        let touches = |last: u64, run: u64, next: u64| last.checked_add(run) == Some(next);
        let joins = touches(self.last.0, self.run, copy.source) && touches(self.last.1, written, copy.destination);
        if self.count == 1 && joins {
            self.run += copy.run;
            return true;
        }
        let step = (copy.source.checked_sub(self.last.0), copy.destination.checked_sub(self.last.1));
        let (Some(source), Some(destination)) = step else { return false };
        let apart = source >= self.run && destination >= written;
        if copy.run != self.run || !apart || (self.count > 1 && self.step != (source, destination)) {
            return false;
        }
        self.step = (source, destination);
        self.last = (copy.source, copy.destination);
        self.count += 1;
        true
    }
}

impl CopyTable {
    /// Appends the boxes of another table, joined where they continue each other.
    pub fn append_joined(&mut self, other: &CopyTable) {
        let mut open: Option<Series> = None;
        for index in 0..other.len() {
            let copy = &other.boxes[index];
            if copy.dimensions > 0 {
                self.close(open.take());
                self.push_from(other, index);
            } else if !open.as_mut().is_some_and(|series| series.take(copy)) {
                self.close(open.replace(Series::of(copy)));
            }
        }
        self.close(open);
    }

    fn close(&mut self, series: Option<Series>) {
        let Some(Series { first, run, operation, count, step, .. }) = series else { return };
        let steps = [CopyDimension { extent: count, source: step.0, destination: step.1 }];
        let loops = if count > 1 { &steps[..] } else { &[] };
        self.add_piece(first.0, first.1, loops, run, operation);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Placed;
    use super::*;

    fn table(runs: &[(u64, u64, u64)]) -> CopyTable {
        let mut table = CopyTable::new();
        for &(source, destination, bytes) in runs {
            let at = |offset| Placed { offset, strides: &[] };
            table.push(&[], bytes, at(source), at(destination)).unwrap();
        }
        table
    }

    fn joined(runs: &[(u64, u64, u64)]) -> (usize, Vec<(u64, u64, u64)>) {
        let mut joined = CopyTable::new();
        joined.append_joined(&table(runs));
        let mut bytes = Vec::new();
        joined
            .runs(0..joined.len(), |from, to, count| bytes.extend((0..count).map(|byte| (from + byte, to + byte, 1))));
        (joined.len(), bytes)
    }

    #[test]
    fn neighbours_and_steps_are_joined_and_move_the_same_bytes() {
        for (runs, boxes) in [
            (vec![(0, 0, 8), (8, 8, 8), (16, 16, 4)], 1),
            (vec![(0, 100, 8), (32, 108, 8), (64, 116, 8)], 1),
            (vec![(0, 100, 8), (32, 108, 8), (64, 117, 8)], 2),
            (vec![(0, 0, 8), (32, 8, 4)], 2),
            (vec![(64, 0, 8), (32, 8, 8), (0, 16, 8)], 3),
            (vec![(0, 0, 8), (4, 16, 8)], 2),
            (vec![(0, 0, 8), (8, 8, 8), (40, 40, 16), (80, 80, 16)], 1),
            (vec![], 0),
        ] {
            let (count, bytes) = joined(&runs);
            assert_eq!(count, boxes, "{runs:?}");
            let expected: Vec<_> =
                runs.iter().flat_map(|&(from, to, count)| (0..count).map(move |b| (from + b, to + b, 1))).collect();
            assert_eq!(bytes, expected, "{runs:?}");
        }
    }
}
