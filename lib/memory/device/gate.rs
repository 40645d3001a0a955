//! A caller's stream around work that the host does. In: a stream. Out: whether what it held is done; words that let it
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
    /// Word 0: the last start that is finished. Word 1 and on: the last of which a stage has come.
    finished: Pinned,
    stages: u32,
}

impl StreamGate {
    /// A gate for streams of `device`, with no start under way; streams may wait for `stages` stages of one by
    /// themselves.
    pub fn new(device: &Device, stages: u32) -> Result<Self, DeviceError> {
        Ok(Self {
            ready: Event::new(device)?,
            marked: AtomicBool::new(false),
            entered: AtomicU32::new(0),
            finished: Pinned::new(device, 4 * (1 + u64::from(stages)))?,
            stages,
        })
    }

    /// Begins a start; the one before must be finished. Given a stream, the work comes behind what it holds, and what
    /// follows on it waits for the end, which makes the device switch between its processes, some 300 us each. Where there are
    /// stages it waits for what it is told to by [`follow`](Self::follow).
    pub fn enter(&self, stream: Option<&Stream>) -> Result<(), DeviceError> {
        let start = self.entered.load(Ordering::Relaxed).wrapping_add(1).max(1);
        if let Some(stream) = stream {
            self.ready.record(stream)?;
            if self.stages == 0 {
                stream.wait_word(&self.finished, 0, start)?;
            }
        }
        // Relaxed: published by the store below.
        self.marked.store(stream.is_some(), Ordering::Relaxed);
        // Release: pairs with the Acquire load in `under_way` of the thread that does the work, which then asks for the mark.
        self.entered.store(start, Ordering::Release);
        Ok(())
    }

    /// Lets what follows on a stream wait for a stage of the start that began last, or for its end.
    pub fn follow(&self, stream: &Stream, stage: Option<u32>) -> Result<(), DeviceError> {
        let word = stage.map_or(0, |stage| 1 + stage);
        stream.wait_word(&self.finished, word as usize, self.entered.load(Ordering::Relaxed))
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

    /// Tells that a stage of the start under way has come.
    pub fn finish_stage(&self, stage: u32) {
        self.tell(1 + stage);
    }

    /// Ends the start under way, if any, and lets the caller's stream go on.
    pub fn finish(&self) {
        (0..=self.stages).rev().for_each(|word| self.tell(word));
    }

    fn tell(&self, word: u32) {
        if let Some(word) = self.finished.word(word as usize) {
            // Release: pairs with the Acquire load in `under_way`; the caller's stream goes on as well.
            word.store(self.entered.load(Ordering::Acquire), Ordering::Release);
        }
    }
}
