//! Copies of boxes that are strided on both sides. In: a table of boxes, two spans. Out: copied bytes.
//! Guarantee: bounds are checked per box before its first byte moves; nothing is allocated after the table is
//! built; source and destination may overlap (bytes then move as by memmove, run by run).

mod change;
mod coalesce;
mod convert;
mod cut;
mod kernel;
mod scatter;
mod sweep;
#[cfg(test)]
mod tests;

pub use convert::{Cast, Operation, Sum};
pub use kernel::{Store, fence};
pub use scatter::{Copied, Scatter};

use super::process::{self, ProcessMemory};
use super::{MemoryError, Span};
use libc::iovec;
use std::ops::Range;

/// One loop of a box copy, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyDimension {
    /// Rounds.
    pub extent: u64,
    /// Step in the source.
    pub source: u64,
    /// Step in the destination.
    pub destination: u64,
}

/// One box: loops around a run that is contiguous on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoxCopy {
    /// First byte in the source.
    pub source: u64,
    /// First byte in the destination.
    pub destination: u64,
    /// Contiguous bytes in the source.
    pub run: u64,
    /// What happens to them on the way.
    pub operation: Operation,
    source_end: u64,
    destination_end: u64,
    first_dimension: u32,
    dimensions: u32,
}

impl BoxCopy {
    /// One past its last byte in source and destination.
    pub fn ends(&self) -> (u64, u64) {
        (self.source_end, self.destination_end)
    }
}

/// Where a box lies on one side: first byte and byte strides.
#[derive(Debug, Clone, Copy)]
pub struct Placed<'a> {
    /// Byte offset of the first element.
    pub offset: u64,
    /// Byte stride of every dimension.
    pub strides: &'a [u64],
}

/// Boxes with their loops.
#[derive(Debug, Clone, Default)]
pub struct CopyTable {
    boxes: Vec<BoxCopy>,
    dimensions: Vec<CopyDimension>,
}

/// Address lists for reading another process's memory; allocated once.
#[derive(Debug)]
pub struct RangeScratch {
    local: Vec<iovec>,
    remote: Vec<iovec>,
    changed: change::Staged,
}

// SAFETY: the addresses are only used by the call that filled them.
unsafe impl Send for RangeScratch {}

/// Most ranges of one process_vm call (the kernel's IOV_MAX).
const RANGES: usize = 1024;

impl Default for RangeScratch {
    fn default() -> Self {
        let changed = change::Staged::default();
        Self { local: Vec::with_capacity(RANGES), remote: Vec::with_capacity(RANGES), changed }
    }
}

impl CopyTable {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets all boxes and keeps their room.
    pub fn clear(&mut self) {
        self.boxes.clear();
        self.dimensions.clear();
    }

    /// Number of boxes.
    pub fn len(&self) -> usize {
        self.boxes.len()
    }

    /// Whether it has no box.
    pub fn is_empty(&self) -> bool {
        self.boxes.is_empty()
    }

    /// Adds a box of `extents` elements of `element` bytes; loops that are contiguous on both sides are folded.
    pub fn push(
        &mut self,
        extents: &[u64],
        element: u64,
        source: Placed<'_>,
        destination: Placed<'_>,
    ) -> Result<(), MemoryError> {
        self.push_changed(extents, element, Operation::Move, source, destination)
    }

    /// The same for elements, of `element` bytes in the source, to which `operation` is done.
    pub fn push_changed(
        &mut self,
        extents: &[u64],
        element: u64,
        operation: Operation,
        source: Placed<'_>,
        destination: Placed<'_>,
    ) -> Result<(), MemoryError> {
        if extents.contains(&0) {
            return Ok(());
        }
        let too_large = || MemoryError::CopyTooLarge { extents: extents.to_vec(), element };
        let first = self.dimensions.len();
        let mut run = element;
        for dim in (0..extents.len()).rev().filter(|&dim| extents[dim] > 1) {
            let (extent, from, to) = (extents[dim], source.strides[dim], destination.strides[dim]);
            if self.dimensions.len() == first && from == run && to == operation.written(run) {
                run = run.checked_mul(extent).ok_or_else(too_large)?;
                continue;
            }
            match self.dimensions[first..].last_mut() {
                Some(inner)
                    if inner.source.checked_mul(inner.extent) == Some(from)
                        && inner.destination.checked_mul(inner.extent) == Some(to) =>
                {
                    inner.extent = inner.extent.checked_mul(extent).ok_or_else(too_large)?;
                }
                _ => self.dimensions.push(CopyDimension { extent, source: from, destination: to }),
            }
        }
        let loops = &mut self.dimensions[first..];
        loops.reverse();
        let end = |offset: u64, run: u64, step: fn(&CopyDimension) -> u64| {
            loops.iter().try_fold(offset.checked_add(run)?, |end, dim| {
                end.checked_add((dim.extent - 1).checked_mul(step(dim))?)
            })
        };
        let written = operation.checked_written(run).ok_or_else(too_large)?;
        let source_end = end(source.offset, run, |dim| dim.source).ok_or_else(too_large)?;
        let destination_end = end(destination.offset, written, |dim| dim.destination).ok_or_else(too_large)?;
        let dimensions = loops.len() as u32;
        let first_dimension = u32::try_from(first).map_err(|_| too_large())?;
        self.boxes.push(BoxCopy {
            source: source.offset,
            destination: destination.offset,
            run,
            operation,
            source_end,
            destination_end,
            first_dimension,
            dimensions,
        });
        Ok(())
    }

    /// Copies boxes `range`; offsets count from `source_base` and `destination_base`. After streaming stores the
    /// caller calls [`fence`] before it tells anybody. Returns how many finite values became infinite, where they count.
    pub fn copy(
        &self,
        range: Range<usize>,
        source: &Span,
        source_base: u64,
        destination: &Span,
        destination_base: u64,
        store: Store,
    ) -> Result<u64, MemoryError> {
        source.check_host()?;
        destination.check_host()?;
        let mut saturated = 0;
        for copy in &self.boxes[range] {
            check_end(source_base, copy.source_end, source.bytes())?;
            check_end(destination_base, copy.destination_end, destination.bytes())?;
            // SAFETY: both ends were just checked, and spans are mapped as long as they exist.
            let (from, to) = unsafe {
                (
                    source.start().add((source_base + copy.source) as usize),
                    destination.start().add((destination_base + copy.destination) as usize),
                )
            };
            // SAFETY: every run of the box lies between its first byte and its checked end.
            unsafe {
                if copy.operation == Operation::Move {
                    sweep::copy_loops(from, to, self.loops(copy), copy.run as usize, store);
                } else {
                    saturated += change::change_loops(from, to, self.loops(copy), copy.run as usize, copy.operation);
                }
            }
        }
        Ok(saturated)
    }

    /// Reads boxes `range` from another process whose memory begins at address `source_base`; returns the same as
    /// [`copy`](Self::copy).
    pub fn read_process(
        &self,
        range: Range<usize>,
        process: &ProcessMemory,
        source_base: u64,
        destination: &Span,
        destination_base: u64,
        scratch: &mut RangeScratch,
    ) -> Result<u64, MemoryError> {
        scratch.clear();
        destination.check_host()?;
        for copy in &self.boxes[range] {
            check_end(destination_base, copy.destination_end, destination.bytes())?;
            check_end(source_base, copy.source_end, u64::MAX)?;
            let mut failed = Ok(());
            self.for_each_run(copy, |from, to| {
                if failed.is_ok() {
                    let local = destination.start() as u64 + destination_base + to;
                    failed = match copy.operation {
                        Operation::Move => scratch.add(process, source_base + from, local, copy.run),
                        changed => scratch.changed.add(process, source_base + from, local, copy.run, changed),
                    };
                }
            });
            failed?;
        }
        scratch.flush(process)?;
        scratch.changed.finish(process)
    }

    /// Contiguous runs of boxes `range`, as (source, destination, bytes in the source), in loop order.
    pub fn runs(&self, range: Range<usize>, mut each: impl FnMut(u64, u64, u64)) {
        for copy in &self.boxes[range] {
            self.for_each_run(copy, |from, to| each(from, to, copy.run));
        }
    }

    /// Number of contiguous runs of boxes `range`.
    pub fn run_count(&self, range: Range<usize>) -> u64 {
        self.boxes[range].iter().map(|copy| self.loops(copy).iter().map(|dim| dim.extent).product::<u64>()).sum()
    }

    /// A box with its loops, outermost first.
    pub fn get(&self, index: usize) -> (&BoxCopy, &[CopyDimension]) {
        let copy = &self.boxes[index];
        (copy, self.loops(copy))
    }

    fn loops(&self, copy: &BoxCopy) -> &[CopyDimension] {
        &self.dimensions[copy.first_dimension as usize..][..copy.dimensions as usize]
    }

    fn for_each_run(&self, copy: &BoxCopy, mut each: impl FnMut(u64, u64)) {
        let loops = self.loops(copy);
        let mut counters = [0u64; crate::layout::Layout::MAX_RANK];
        let (mut from, mut to) = (copy.source, copy.destination);
        loop {
            each(from, to);
            let mut dim = loops.len();
            loop {
                if dim == 0 {
                    return;
                }
                dim -= 1;
                counters[dim] += 1;
                from += loops[dim].source;
                to += loops[dim].destination;
                if counters[dim] < loops[dim].extent {
                    break;
                }
                from -= loops[dim].source * loops[dim].extent;
                to -= loops[dim].destination * loops[dim].extent;
                counters[dim] = 0;
            }
        }
    }
}

impl RangeScratch {
    fn clear(&mut self) {
        self.local.clear();
        self.remote.clear();
        self.changed.clear();
    }

    /// Appends a run, joined with the one before where they touch; full lists are read first.
    fn add(&mut self, process: &ProcessMemory, remote: u64, local: u64, bytes: u64) -> Result<(), MemoryError> {
        // The lists may be cut differently: the call pairs them by bytes, not by entries.
        join(&mut self.remote, remote, bytes);
        join(&mut self.local, local, bytes);
        if self.remote.len() == RANGES || self.local.len() == RANGES {
            self.flush(process)?;
        }
        Ok(())
    }

    fn flush(&mut self, process: &ProcessMemory) -> Result<(), MemoryError> {
        if !self.local.is_empty() {
            // SAFETY: local ranges were checked against their span when added.
            unsafe { process.read(&self.local, &self.remote)? };
        }
        self.local.clear();
        self.remote.clear();
        Ok(())
    }
}

/// Extends the last range when `address` continues it, else appends.
fn join(ranges: &mut Vec<iovec>, address: u64, bytes: u64) {
    if let Some(last) = ranges.last_mut()
        && last.iov_base as u64 + last.iov_len as u64 == address
    {
        last.iov_len += bytes as usize;
    } else {
        ranges.push(process::range(address, bytes));
    }
}

fn check_end(base: u64, end: u64, bytes: u64) -> Result<(), MemoryError> {
    match base.checked_add(end) {
        Some(last) if last <= bytes => Ok(()),
        _ => Err(MemoryError::Range { offset: base, bytes: end, limit: bytes }),
    }
}
