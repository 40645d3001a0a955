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

/// Copies rows of whole lines.
type LineCopy = unsafe fn(*const u8, *mut u8, Rows);

/// Rows of whole lines: how many, how long, and how far apart on either side.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows {
    pub(super) count: usize,
    pub(super) bytes: usize,
    pub(super) source: usize,
    pub(super) destination: usize,
}

impl Rows {
    fn one(bytes: usize) -> Self {
        Self { count: 1, bytes, source: 0, destination: 0 }
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
    let lines = line_copy();
    // SAFETY: head, body and tail make up the range that the caller vouches for; the body's destination is aligned
    // and a whole number of lines, and the ranges do not overlap.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        lines(from.add(head), to.add(head), Rows::one(body));
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
    unsafe { stream_rows(from, to, Rows::one(bytes)) }
}

/// Copies rows of whole lines to aligned destinations, past the cache.
///
/// # Safety
/// Every row must be readable at its source and writable at its destination, which lies on a line border; rows are
/// whole lines; sources and destinations must not overlap.
pub(super) unsafe fn stream_rows(from: *const u8, to: *mut u8, rows: Rows) {
    debug_assert!((rows.bytes | rows.destination | to as usize).is_multiple_of(LINE));
    // SAFETY: forwarded from the caller.
    unsafe { line_copy()(from, to, rows) }
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
fn line_copy() -> LineCopy {
    static CHOSEN: OnceLock<LineCopy> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let (name, chosen) = versions().into_iter().next_back().unwrap_or(("portable", portable));
        log::debug!("copies of whole lines use the {name} version");
        chosen
    })
}

/// Versions that this processor runs, the best last.
fn versions() -> Vec<(&'static str, LineCopy)> {
    #[allow(unused_mut)]
    let mut versions: Vec<(&'static str, LineCopy)> = vec![("portable", portable)];
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
/// As [`stream_rows`].
unsafe fn portable(from: *const u8, to: *mut u8, rows: Rows) {
    for row in 0..rows.count {
        let (from, to) = (from.wrapping_add(row * rows.source), to.wrapping_add(row * rows.destination));
        // SAFETY: the caller vouches for every row and that they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to, rows.bytes) }
    }
}

/// One loop over lines for every vector width.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! line_loop {
    ($module:ident, $feature:literal, $load:ident, $stream:ident, $width:literal) => {
        mod $module {
            use super::{LINE, Rows};
            use std::arch::x86_64::{$load, $stream};

            /// # Safety
            /// As [`stream_rows`](super::stream_rows), on a processor with the feature.
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn copy(from: *const u8, to: *mut u8, rows: Rows) {
                for row in 0..rows.count {
                    let (from, to) = (from.wrapping_add(row * rows.source), to.wrapping_add(row * rows.destination));
                    for line in (0..rows.bytes).step_by(LINE) {
                        // SAFETY: the line lies inside a row that the caller vouches for; its destination is aligned.
                        unsafe { copy_line(from.add(line), to.add(line)) };
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
            for bytes in (0..200).chain([255, 256, 257, 319, 320, 511, 1000]) {
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
            // SAFETY: the aligned part of the vector holds 64 lines; the source has 7 bytes more than that.
            unsafe { copy(source.as_ptr().add(7), memory.as_mut_ptr().add(aligned), Rows::one(64 * LINE)) };
            fence();
            assert_eq!(memory[aligned..aligned + 64 * LINE], source[7..], "{name}");
        }
    }
}
