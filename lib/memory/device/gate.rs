//! A caller's stream around work that the host does. In: a stream. Out: whether what it held is done; the word that lets it
//! go on. Guarantee: what follows on the stream waits until the work is finished or given up, and no longer; one start at
//! a time.

use super::error::DeviceError;
use super::gpu::Device;
use super::stream::{Event, Pinned, Stream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Mark and word of a transfer that the host drives.
#[derive(Debug)]
pub struct StreamGate {
    /// End of what the caller's stream held.
    ready: Event,
    /// Whether the start under way has such a mark.
    marked: AtomicBool,
    /// Starts so far.
    entered: AtomicU32,
    /// Word 0: the last start that is finished.
    finished: Pinned,
}

impl StreamGate {
    /// A gate for streams of `device`, with no start under way.
    pub fn new(device: &Device) -> Result<Self, DeviceError> {
        Ok(Self {
            ready: Event::new(device)?,
            marked: AtomicBool::new(false),
            entered: AtomicU32::new(0),
            finished: Pinned::new(device, 4)?,
        })
    }

    /// Begins a start; the one before must be finished. Given a stream, the work comes behind what it holds, and what
    /// follows on it waits for the end, which makes the device switch between its processes, some 300 us each.
    pub fn enter(&self, stream: Option<&Stream>) -> Result<(), DeviceError> {
        let start = self.entered.load(Ordering::Relaxed).wrapping_add(1).max(1);
        if let Some(stream) = stream {
            self.ready.record(stream)?;
            stream.wait_word(&self.finished, 0, start)?;
        }
        // Relaxed: published by the store below.
        self.marked.store(stream.is_some(), Ordering::Relaxed);
        // Release: pairs with the Acquire load in `under_way` of the thread that does the work, which then asks for the mark.
        self.entered.store(start, Ordering::Release);
        Ok(())
    }

    /// The start that is not finished.
    pub fn under_way(&self) -> Option<u32> {
        // Acquire: pairs with the Release store in `enter`. One look at each word, since a start may come between two.
        let entered = self.entered.load(Ordering::Acquire);
        // Acquire: pairs with the Release store in `finish`.
        let finished = self.finished.word(0).map_or(0, |word| word.load(Ordering::Acquire));
        (finished != entered).then_some(entered)
    }

    /// Whether what the caller's stream held is done.
    pub fn is_open(&self) -> Result<bool, DeviceError> {
        Ok(!self.marked.load(Ordering::Relaxed) || self.ready.is_done()?)
    }

    /// Ends the start under way, if any, and lets the caller's stream go on.
    pub fn finish(&self) {
        if let Some(word) = self.finished.word(0) {
            // Release: pairs with the Acquire load in `under_way`; the caller's stream goes on as well.
            word.store(self.entered.load(Ordering::Acquire), Ordering::Release);
        }
    }
}
