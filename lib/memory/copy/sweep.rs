//! Moving boxes. In: loops around a run, how to store. Out: copied bytes. Guarantee: every run is read and written
//! once, in loop order.
//!
//! Runs shorter than a few lines cannot be streamed one by one: their ends would share lines with their neighbours.
//! Where the destination is contiguous they are gathered in a small buffer with the destination's line phase and
//! leave it in whole lines. Tried and not kept: streaming the whole lines inside each short run and storing the rest
//! through the cache, which mixes both kinds of store in one line and is slower than either.

use super::CopyDimension;
use super::kernel::{LINE, Lane, Rows, Store, copy_run, stream_lanes, stream_lines};

/// Bytes gathered before they are streamed: half of a small first-level cache leaves room for the source.
const GATHER: usize = 16 << 10;
/// Longest run that is gathered rather than streamed by itself.
const LONGEST_GATHERED: usize = 2 << 10;
/// Fewest bytes of a row of runs worth gathering.
const SHORTEST_ROW: usize = 1 << 10;

/// A buffer on a line border.
#[repr(align(64))]
struct Gathered([u8; GATHER]);

/// Runs the loops of a box.
///
/// # Safety
/// Every run reached by the loops must be readable at `from` and writable at `to`.
pub(super) unsafe fn copy_loops(from: *const u8, to: *mut u8, loops: &[CopyDimension], run: usize, store: Store) {
    match loops {
        // SAFETY: the caller vouches for the run.
        [] => unsafe { copy_run(from, to, run, store) },
        [dim] if store == Store::Streaming && whole_lines(from, to, dim, run) => {
            let rows = Rows { count: dim.extent as usize, step: dim.source as usize };
            let lane = Lane { to, step: dim.destination as usize, first: 0, bytes: run };
            // SAFETY: the caller vouches for every run; each is whole lines on a line border, away from all sources.
            unsafe { stream_lanes(from, rows, &[lane]) }
        }
        [dim] if store == Store::Streaming && gathers(dim, run) => {
            // SAFETY: the caller vouches for every run; the destination is contiguous, as `gathers` checked.
            unsafe { gather(from, to, dim, run) }
        }
        [dim] => {
            for round in 0..dim.extent as usize {
                let (from, to) =
                    (from.wrapping_add(round * dim.source as usize), to.wrapping_add(round * dim.destination as usize));
                // SAFETY: the caller vouches for every run of the loop.
                unsafe { copy_run(from, to, run, store) };
            }
        }
        [dim, inner @ ..] => {
            for round in 0..dim.extent as usize {
                let (from, to) =
                    (from.wrapping_add(round * dim.source as usize), to.wrapping_add(round * dim.destination as usize));
                // SAFETY: the caller vouches for every run of the loops.
                unsafe { copy_loops(from, to, inner, run, store) };
            }
        }
    }
}

/// Whether every run fills whole lines of the destination, none of which the source shares.
fn whole_lines(from: *const u8, to: *mut u8, dim: &CopyDimension, run: usize) -> bool {
    let reach = |step: u64| dim.extent.saturating_sub(1).saturating_mul(step).saturating_add(run as u64);
    let (from, target) = (from as u64, to as u64);
    let apart =
        from.saturating_add(reach(dim.source)) <= target || target.saturating_add(reach(dim.destination)) <= from;
    apart && (to as usize | run | dim.destination as usize).is_multiple_of(LINE)
}

pub(super) fn gathers(dim: &CopyDimension, run: usize) -> bool {
    dim.destination as usize == run && run <= LONGEST_GATHERED && run * dim.extent as usize >= SHORTEST_ROW
}

/// Copies runs to a contiguous destination in whole lines.
///
/// # Safety
/// As [`copy_loops`], with a destination step equal to the run, and source and destination apart.
unsafe fn gather(from: *const u8, to: *mut u8, dim: &CopyDimension, run: usize) {
    let mut buffer = Gathered([0; GATHER]);
    let start = buffer.0.as_mut_ptr();
    // The buffer holds the bytes from `flushed` on, shifted so that line borders fall on line borders.
    let phase = to as usize % LINE;
    let mut flushed = to.wrapping_sub(phase);
    let mut filled = phase;
    let mut first = phase;
    for round in 0..dim.extent as usize {
        let source = from.wrapping_add(round * dim.source as usize);
        // SAFETY: `filled` + `run` fits, because a fuller buffer was emptied below; the source run is vouched for.
        unsafe { std::ptr::copy_nonoverlapping(source, start.add(filled), run) };
        filled += run;
        if filled + run > GATHER {
            let whole = filled / LINE * LINE;
            // SAFETY: the destination of bytes `first..whole` lies inside the contiguous range vouched for.
            unsafe { flush(start, flushed, first, whole) };
            // SAFETY: the rest is less than a line, far from the front that it moves to.
            unsafe { std::ptr::copy_nonoverlapping(start.add(whole), start, filled - whole) };
            flushed = flushed.wrapping_add(whole);
            filled -= whole;
            first = 0;
        }
    }
    let whole = filled / LINE * LINE;
    // SAFETY: as above; the tail behind the last whole line is stored through the cache.
    unsafe {
        flush(start, flushed, first, whole);
        let tail = whole.max(first);
        std::ptr::copy_nonoverlapping(start.add(tail), flushed.add(tail), filled - tail);
    }
}

/// Writes buffered bytes `first..whole` to their places from `to`: a first partial line through the cache, the rest
/// in whole lines.
///
/// # Safety
/// Bytes `first..whole` from `to`, a line border, must be writable.
unsafe fn flush(buffer: *const u8, to: *mut u8, first: usize, whole: usize) {
    if whole <= first {
        return;
    }
    let begin = first.next_multiple_of(LINE);
    // SAFETY: the caller vouches for the range; `begin` is a line border in both.
    unsafe {
        std::ptr::copy_nonoverlapping(buffer.add(first), to.wrapping_add(first), begin - first);
        stream_lines(buffer.add(begin), to.wrapping_add(begin), whole - begin);
    }
}
