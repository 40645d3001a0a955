//! Moving runs. In: two pointers, a length, how to store. Out: copied bytes. Guarantee: overlapping runs move as by
//! memmove; after a call with streaming stores and [`fence`], every byte is ordered before later stores.
//!
//! A store of a part of a cache line first reads the line, so a copy of more than the cache holds moves three bytes
//! of memory traffic for two. Streaming (non-temporal) stores of whole lines save that read. glibc does the same
//! only above three quarters of the shared cache for one call, which copies in chunks never reach.
//!
//! The vector width is chosen once, at first use; a portable version is always built and tested.

use std::sync::OnceLock;

/// How bytes are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Store {
    /// Into the cache: for bytes that are read again at once.
    #[default]
    Cached,
    /// Past the cache: for bytes that fill more than the cache holds.
    Streaming,
}

/// Bytes of a cache line: streaming stores that do not fill one are slower than cached ones.
pub(super) const LINE: usize = 64;
/// Shortest run worth streaming: head and tail are stored through the cache.
const SHORTEST_STREAM: usize = 4 * LINE;

/// Copies lanes of whole lines.
type LaneCopy = unsafe fn(*const u8, Rows, &[Lane]);

/// Rows of a source: how many, and how far apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) count: usize,
    pub(super) step: usize,
}

impl Rows {
    pub(super) const ONE: Self = Self { count: 1, step: 0 };
}

/// What becomes of a part of every row: where it begins in the row, its bytes, and where it goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lane {
    /// Place of the first row's part.
    pub(super) to: *mut u8,
    /// Between the places of two rows.
    pub(super) step: usize,
    /// First byte in the row.
    pub(super) first: usize,
    pub(super) bytes: usize,
}

// SAFETY: a lane is an address and three counts; whoever copies vouches for the memory.
unsafe impl Send for Lane {}
// SAFETY: as above; a lane has no interior state.
unsafe impl Sync for Lane {}

impl Lane {
    fn run(to: *mut u8, bytes: usize) -> Self {
        Self { to, step: 0, first: 0, bytes }
    }

    /// Whether it fills whole lines of its destination in every row.
    pub(super) fn is_whole(&self) -> bool {
        (self.to as usize | self.bytes | self.step).is_multiple_of(LINE)
    }
}

/// Copies one run.
///
/// # Safety
/// `bytes` bytes must be readable at `from` and writable at `to`.
pub(super) unsafe fn copy_run(from: *const u8, to: *mut u8, bytes: usize, store: Store) {
    let apart = (from as usize).abs_diff(to as usize) >= bytes;
    if store == Store::Cached || bytes < SHORTEST_STREAM || !apart {
        // SAFETY: the caller vouches for both ranges.
        return unsafe { std::ptr::copy(from, to, bytes) };
    }
    let head = to.align_offset(LINE).min(bytes);
    let body = (bytes - head) / LINE * LINE;
    let lines = lane_copy();
    // SAFETY: head, body and tail make up the range that the caller vouches for; the body's destination is aligned
    // and a whole number of lines, and the ranges do not overlap.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        lines(from.add(head), Rows::ONE, &[Lane::run(to.add(head), body)]);
        std::ptr::copy_nonoverlapping(from.add(head + body), to.add(head + body), bytes - head - body);
    }
}

/// Copies whole lines to an aligned destination, past the cache.
///
/// # Safety
/// `bytes`, a multiple of [`LINE`], must be readable at `from` and writable at `to`, which lies on a line border;
/// the ranges must not overlap.
pub(super) unsafe fn stream_lines(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: forwarded from the caller.
    unsafe { stream_lanes(from, Rows::ONE, &[Lane::run(to, bytes)]) }
}

/// Copies lanes of whole lines to their places, past the cache, row by row: the source is read in its order, which
/// is what the processor's prefetcher follows.
///
/// # Safety
/// Every lane of every row must be readable in the source and writable at its place, be [whole](Lane::is_whole), and
/// not overlap any source.
pub(super) unsafe fn stream_lanes(from: *const u8, rows: Rows, lanes: &[Lane]) {
    debug_assert!(lanes.iter().all(Lane::is_whole));
    // SAFETY: forwarded from the caller.
    unsafe { lane_copy()(from, rows, lanes) }
}

/// Orders streaming stores before whatever this thread stores next, such as a flag.
pub fn fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: SSE is part of every x86_64 processor.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// The widest version that this processor runs.
fn lane_copy() -> LaneCopy {
    static CHOSEN: OnceLock<LaneCopy> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let (name, chosen) = versions().into_iter().next_back().unwrap_or(("portable", portable));
        log::debug!("copies of whole lines use the {name} version");
        chosen
    })
}

/// Versions that this processor runs, the best last.
fn versions() -> Vec<(&'static str, LaneCopy)> {
    #[allow(unused_mut)]
    let mut versions: Vec<(&'static str, LaneCopy)> = vec![("portable", portable)];
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        if is_x86_feature_detected!("avx2") {
            versions.push(("avx2", avx2::copy));
        }
        if is_x86_feature_detected!("avx512f") {
            versions.push(("avx512", avx512::copy));
        }
    }
    versions
}

/// Through the cache, on any processor.
///
/// # Safety
/// As [`stream_lanes`].
unsafe fn portable(from: *const u8, rows: Rows, lanes: &[Lane]) {
    for row in 0..rows.count {
        let start = from.wrapping_add(row * rows.step);
        for lane in lanes {
            let (from, to) = (start.wrapping_add(lane.first), lane.to.wrapping_add(row * lane.step));
            // SAFETY: the caller vouches for every lane of every row and that they do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(from, to, lane.bytes) }
        }
    }
}

/// One loop over lines for every vector width.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! line_loop {
    ($module:ident, $feature:literal, $load:ident, $stream:ident, $width:literal) => {
        mod $module {
            use super::{LINE, Lane, Rows};
            use std::arch::x86_64::{$load, $stream};

            /// # Safety
            /// As [`stream_lanes`](super::stream_lanes), on a processor with the feature.
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn copy(from: *const u8, rows: Rows, lanes: &[Lane]) {
                for row in 0..rows.count {
                    let start = from.wrapping_add(row * rows.step);
                    for lane in lanes {
                        let (from, to) = (start.wrapping_add(lane.first), lane.to.wrapping_add(row * lane.step));
                        for line in (0..lane.bytes).step_by(LINE) {
                            // SAFETY: the line lies inside a lane that the caller vouches for; its place is aligned.
                            unsafe { copy_line(from.add(line), to.add(line)) };
                        }
                    }
                }
            }

            /// # Safety
            /// A line must be readable at `from` and writable at `to`, a line border.
            #[target_feature(enable = $feature)]
            #[inline]
            unsafe fn copy_line(from: *const u8, to: *mut u8) {
                const VECTORS: usize = LINE / $width;
                // SAFETY: the caller vouches for the line; unaligned loads, aligned stores.
                unsafe {
                    let mut vectors = [$load(from.cast()); VECTORS];
                    for (index, vector) in vectors.iter_mut().enumerate().skip(1) {
                        *vector = $load(from.add(index * $width).cast());
                    }
                    for (index, vector) in vectors.into_iter().enumerate() {
                        $stream(to.add(index * $width).cast(), vector);
                    }
                }
            }
        }
    };
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
line_loop!(avx2, "avx2", _mm256_loadu_si256, _mm256_stream_si256, 32);
#[cfg(all(target_arch = "x86_64", not(miri)))]
line_loop!(avx512, "avx512f", _mm512_loadu_si512, _mm512_stream_si512, 64);

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(bytes: usize) -> Vec<u8> {
        (0..bytes as u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
    }

    #[test]
    fn every_length_and_alignment_copies_exactly_the_run() {
        let source = pattern(1200);
        for store in [Store::Cached, Store::Streaming] {
            for bytes in (0..if cfg!(miri) { 3 } else { 200 }).chain([255, 256, 257, 319, 320, 511, 1000]) {
                for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 61), (63, 63), (17, 32)] {
                    let mut destination = vec![0xee; 1200];
                    // SAFETY: both ranges lie inside their vectors.
                    unsafe { copy_run(source.as_ptr().add(from), destination.as_mut_ptr().add(to), bytes, store) };
                    assert_eq!(destination[to..to + bytes], source[from..from + bytes], "{bytes} {from} {to}");
                    assert!(destination[..to].iter().chain(&destination[to + bytes..]).all(|&byte| byte == 0xee));
                }
            }
        }
    }

    #[test]
    fn overlapping_runs_move() {
        for shift in [1, 64, 300] {
            let mut memory = pattern(2000);
            let expected = memory[..1500].to_vec();
            let start = memory.as_mut_ptr();
            // SAFETY: both ranges lie inside the vector.
            unsafe { copy_run(start, start.add(shift), 1500, Store::Streaming) };
            assert_eq!(memory[shift..shift + 1500], expected);
        }
    }

    #[test]
    fn all_versions_of_this_processor_agree() {
        let source = pattern(64 * LINE + 7);
        for (name, copy) in versions() {
            let mut memory = vec![0u8; 65 * LINE];
            let aligned = memory.as_ptr().align_offset(LINE);
            let lane = Lane::run(memory[aligned..].as_mut_ptr(), 64 * LINE);
            // SAFETY: the aligned part of the vector holds 64 lines; the source has 7 bytes more than that.
            unsafe { copy(source.as_ptr().add(7), Rows::ONE, &[lane]) };
            fence();
            assert_eq!(memory[aligned..aligned + 64 * LINE], source[7..], "{name}");
        }
    }

    #[test]
    fn every_version_sends_each_lane_to_its_place() {
        let rows = Rows { count: 5, step: 7 * LINE + 3 };
        let source = pattern(5 * rows.step);
        for (name, copy) in versions() {
            let mut memory = vec![0u8; 41 * LINE];
            let aligned = memory.as_ptr().align_offset(LINE);
            let start = memory.as_mut_ptr().wrapping_add(aligned);
            // Two lanes of one and three lines, the second one beginning inside a line of the source.
            let lanes = [
                Lane { to: start, step: 2 * LINE, first: 0, bytes: LINE },
                Lane { to: start.wrapping_add(10 * LINE), step: 6 * LINE, first: 2 * LINE + 1, bytes: 3 * LINE },
            ];
            // SAFETY: the last lane ends at line 37 of the destination, the last row at the end of the source.
            unsafe { copy(source.as_ptr(), rows, &lanes) };
            fence();
            let mut expected = vec![0u8; 40 * LINE];
            for row in 0..5 {
                let from = row * rows.step;
                expected[row * 2 * LINE..][..LINE].copy_from_slice(&source[from..][..LINE]);
                let second = &source[from + 2 * LINE + 1..][..3 * LINE];
                expected[(10 + row * 6) * LINE..][..3 * LINE].copy_from_slice(second);
            }
            assert!(memory[aligned..aligned + 40 * LINE] == expected[..], "{name}");
        }
    }
}
