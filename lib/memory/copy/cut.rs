//! Cutting boxes into blocks of the source. In: a box of a table, a block size. Out: boxes that touch at most about a
//! block of the source each. Guarantee: the pieces tile the box.
//!
//! Several destinations that take runs of the same source rows are fed block by block, so that a source line is read
//! from memory once, whatever the number of destinations (a sweep per destination reads every line, or its
//! neighbours' halves of it, once per destination).

use super::{BoxCopy, CopyDimension, CopyTable, Operation};

impl CopyTable {
    /// Replaces the last box by pieces that touch about `block` bytes of the source each; their indices.
    pub fn cut_last(&mut self, block: u64) -> std::ops::Range<usize> {
        let Some(last) = self.boxes.pop() else { return self.boxes.len()..self.boxes.len() };
        let first = self.boxes.len();
        let loops = self.loops(&last).to_vec();
        self.cut(&last, last.source, last.destination, &loops, block.max(1));
        first..self.boxes.len()
    }

    /// Appends a box of another table.
    pub fn push_from(&mut self, other: &CopyTable, index: usize) {
        let copy = other.boxes[index];
        let first_dimension = self.dimensions.len() as u32;
        self.dimensions.extend_from_slice(other.loops(&copy));
        self.boxes.push(BoxCopy { first_dimension, ..copy });
    }

    /// First byte of a box in the source.
    pub fn source_of(&self, index: usize) -> u64 {
        self.boxes[index].source
    }

    /// Bytes of the source that a box moves.
    pub fn bytes_of(&self, index: usize) -> u64 {
        let copy = &self.boxes[index];
        self.loops(copy).iter().map(|dim| dim.extent).product::<u64>() * copy.run
    }

    fn cut(&mut self, whole: &BoxCopy, source: u64, destination: u64, loops: &[CopyDimension], block: u64) {
        let BoxCopy { run, operation, .. } = *whole;
        let Some((outer, inner)) = loops.split_first() else {
            let block = block.next_multiple_of(operation.read_element());
            for at in (0..run).step_by(usize::try_from(block).unwrap_or(usize::MAX)) {
                let piece = run.min(at + block) - at;
                self.add_piece(source + at, destination + operation.written(at), &[], piece, operation);
            }
            return;
        };
        let rows = block / outer.source.max(1);
        if rows == 0 {
            for row in 0..outer.extent {
                self.cut(whole, source + row * outer.source, destination + row * outer.destination, inner, block);
            }
            return;
        }
        let mut row = 0;
        while row < outer.extent {
            let extent = rows.min(outer.extent - row);
            let mut piece = vec![CopyDimension { extent, ..*outer }];
            piece.extend_from_slice(inner);
            let (from, to) = (source + row * outer.source, destination + row * outer.destination);
            self.add_piece(from, to, &piece, run, operation);
            row += extent;
        }
    }

    /// Adds a part of a box whose ends were checked when the box was added.
    pub(super) fn add_piece(
        &mut self,
        source: u64,
        destination: u64,
        loops: &[CopyDimension],
        run: u64,
        operation: Operation,
    ) {
        let first_dimension = self.dimensions.len() as u32;
        self.dimensions.extend_from_slice(loops);
        let reach = |step: fn(&CopyDimension) -> u64| loops.iter().map(|dim| (dim.extent - 1) * step(dim)).sum::<u64>();
        self.boxes.push(BoxCopy {
            source,
            destination,
            run,
            operation,
            source_end: source + reach(|dim| dim.source) + run,
            destination_end: destination + reach(|dim| dim.destination) + operation.written(run),
            first_dimension,
            dimensions: loops.len() as u32,
        });
    }
}
