//! Boxes whose elements change on their way. In: loops around a run of elements, an operation. Out: written elements.
//! Guarantee: every run is read once, in loop order; what another process holds is read in as few calls as its ranges and
//! a fixed buffer allow; nothing is allocated after the buffer.

use super::convert::Operation;
use super::{CopyDimension, MemoryError, RANGES, join};
use crate::memory::process::{ProcessMemory, range};
use libc::iovec;

/// Bytes read from another process at once: they stay in the first-level cache until they are changed.
const STAGED: usize = 16 << 10;

/// Runs the loops of a box; how many finite values became infinite, where they count.
///
/// # Safety
/// Every run reached by the loops must be readable at `from` and what it becomes writable at `to`; the ranges must not
/// overlap, unless elements shrink in place.
pub(super) unsafe fn change_loops(
    from: *const u8,
    to: *mut u8,
    loops: &[CopyDimension],
    run: usize,
    operation: Operation,
) -> u64 {
    let Some((dim, inner)) = loops.split_first() else {
        // SAFETY: the caller vouches for the run.
        return unsafe { operation.run(from, to, run) };
    };
    let mut saturated = 0;
    for round in 0..dim.extent as usize {
        let from = from.wrapping_add(round * dim.source as usize);
        let to = to.wrapping_add(round * dim.destination as usize);
        // SAFETY: the caller vouches for every run of the loops.
        saturated += unsafe { change_loops(from, to, inner, run, operation) };
    }
    saturated
}

/// A part of the buffer on its way: where to, how long, what happens to it.
#[derive(Debug, Clone, Copy)]
struct Part {
    local: u64,
    bytes: usize,
    operation: Operation,
}

/// Elements of another process before they change.
#[derive(Debug)]
pub(super) struct Staged {
    buffer: Vec<u8>,
    filled: usize,
    remote: Vec<iovec>,
    parts: Vec<Part>,
    saturated: u64,
}

impl Default for Staged {
    fn default() -> Self {
        let (remote, parts) = (Vec::with_capacity(RANGES), Vec::with_capacity(RANGES));
        Self { buffer: vec![0; STAGED], filled: 0, remote, parts, saturated: 0 }
    }
}

impl Staged {
    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.filled = 0;
        self.remote.clear();
        self.parts.clear();
        self.saturated = 0;
    }

    /// Appends a run; a full buffer or list is read first.
    pub(super) fn add(
        &mut self,
        process: &ProcessMemory,
        remote: u64,
        local: u64,
        bytes: u64,
        operation: Operation,
    ) -> Result<(), MemoryError> {
        let mut at = 0;
        while at < bytes {
            let element = operation.read_element();
            let room = (STAGED - self.filled) as u64 / element * element;
            if room == 0 || self.parts.len() == RANGES {
                self.flush(process)?;
                continue;
            }
            let taken = room.min(bytes - at);
            join(&mut self.remote, remote + at, taken);
            self.parts.push(Part { local: local + operation.written(at), bytes: taken as usize, operation });
            self.filled += taken as usize;
            at += taken;
        }
        Ok(())
    }

    /// Reads what is left; how many finite values became infinite since the lists were cleared.
    pub(super) fn finish(&mut self, process: &ProcessMemory) -> Result<u64, MemoryError> {
        self.flush(process)?;
        Ok(self.saturated)
    }

    fn flush(&mut self, process: &ProcessMemory) -> Result<(), MemoryError> {
        if self.filled > 0 {
            let whole = [range(self.buffer.as_mut_ptr() as u64, self.filled as u64)];
            // SAFETY: the buffer holds as many bytes, and nothing else refers to them during the call.
            unsafe { process.read(&whole, &self.remote)? };
        }
        let mut at = 0;
        for part in &self.parts {
            // SAFETY: destinations were checked against their span when they were added; the buffer is this value's own.
            let saturated =
                unsafe { part.operation.run(self.buffer.as_ptr().add(at), part.local as *mut u8, part.bytes) };
            self.saturated += saturated;
            at += part.bytes;
        }
        self.filled = 0;
        self.remote.clear();
        self.parts.clear();
        Ok(())
    }
}
