//! A rank's end of a channel. In: memory of its own, where each peer's is mapped. Out: what kernels get to know of the
//! channel, the verdict of one that gave up. Guarantee: all of the channel's memory stays mapped as long as this lives.

use super::params::{Channel, ChannelLayout, CollectiveVerdict, Header, MAX_RANKS};
use crate::base::Deadline;
use crate::memory::device::{Device, DeviceError, DeviceMemory, DeviceSpan, Pinned, Stream};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Word of the host's memory that tells kernels to give up, behind the verdict.
const ABORT_WORD: usize = size_of::<CollectiveVerdict>() / 4;

/// One rank's end.
pub struct ChannelEnd {
    device: Device,
    memory: Arc<DeviceMemory>,
    host: Pinned,
    view: Channel,
    _peers: Vec<DeviceSpan>,
}

impl ChannelEnd {
    /// Memory for one end, zeroed: to be shared with all ranks before [`ChannelEnd::new`].
    pub fn allocate(
        device: &Device,
        layout: &ChannelLayout,
        stream: &Stream,
        deadline: Deadline,
    ) -> Result<Arc<DeviceMemory>, DeviceError> {
        let memory = Arc::new(DeviceMemory::new(device, layout.bytes)?);
        clear(&memory, stream, deadline)?;
        Ok(memory)
    }

    /// The end of rank `rank`; `spans` has every rank's memory as this device sees it, its own too. `None`: there are more
    /// ranks than a channel takes, or a span is too short.
    pub fn new(
        memory: Arc<DeviceMemory>,
        spans: Vec<DeviceSpan>,
        layout: &ChannelLayout,
        rank: u32,
        limit: Duration,
    ) -> Result<Option<Self>, DeviceError> {
        let fits = spans.iter().all(|span| span.place().bytes >= layout.bytes);
        if spans.len() > MAX_RANKS || !fits {
            return Ok(None);
        }
        let device = memory.device().clone();
        let host = Pinned::new(&device, (ABORT_WORD as u64 + 1) * 4)?;
        let mut base = [0; MAX_RANKS];
        for (address, span) in base.iter_mut().zip(&spans) {
            *address = span.place().address;
        }
        let view = Channel {
            base,
            verdict: host.device_address(),
            abort: host.device_address() + ABORT_WORD as u64 * 4,
            limit: u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX),
            slots: layout.slots,
            slot_words: layout.slot_words,
            lines: layout.lines,
            line_bytes: layout.line_bytes,
            staging: layout.staging,
            staging_bytes: layout.staging_bytes,
            rank,
            ranks: spans.len() as u32,
        };
        Ok(Some(Self { device, memory, host, view, _peers: spans }))
    }

    /// What kernels get to know of it.
    pub fn view(&self) -> &Channel {
        &self.view
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Tells kernels that wait to give up.
    pub fn abort(&self) {
        if let Some(word) = self.host.word(ABORT_WORD) {
            // Release: pairs with the kernel's load; nothing else is published by it.
            word.store(1, Ordering::Release);
        }
    }

    /// Whether a kernel has given up; one load.
    pub fn gave_up(&self) -> bool {
        // Acquire: pairs with the kernel's release of the complete verdict.
        self.host.word(0).is_some_and(|state| state.load(Ordering::Acquire) == 2)
    }

    /// Why a kernel gave up, if one has.
    pub fn verdict(&self) -> Option<CollectiveVerdict> {
        if !self.gave_up() {
            return None;
        }
        let word = |at: usize| self.host.word(at).map_or(0, |word| word.load(Ordering::Relaxed));
        let wide = |at: usize| u64::from(word(at)) | u64::from(word(at + 1)) << 32;
        let header = |at: usize| Header {
            sequence_low: word(at),
            what: word(at + 1),
            bytes: wide(at + 2),
            sequence_again: word(at + 4),
            sequence_high: word(at + 5),
            shape: word(at + 6),
            detail: word(at + 7),
        };
        Some(CollectiveVerdict {
            state: word(0),
            reason: word(1),
            peer: word(2),
            block: word(3),
            wait: word(4),
            expected: word(5),
            found: word(6),
            sequence: wide(8),
            mine: header(10),
            theirs: header(18),
            ..CollectiveVerdict::default()
        })
    }

    /// Makes the end as it was when it was new. No rank may have a call under way.
    pub fn renew(&self, stream: &Stream, deadline: Deadline) -> Result<(), DeviceError> {
        for word in (0..=ABORT_WORD).filter_map(|word| self.host.word(word)) {
            word.store(0, Ordering::Release);
        }
        clear(&self.memory, stream, deadline)
    }
}

impl fmt::Debug for ChannelEnd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ChannelEnd(rank {} of {}, {})", self.view.rank, self.view.ranks, self.device.label())
    }
}

fn clear(memory: &Arc<DeviceMemory>, stream: &Stream, deadline: Deadline) -> Result<(), DeviceError> {
    stream.clear(memory)?;
    stream.synchronize(deadline)
}

const _: () = assert!(std::mem::offset_of!(CollectiveVerdict, sequence) == 32);
const _: () = assert!(std::mem::offset_of!(CollectiveVerdict, mine) == 40);
const _: () = assert!(std::mem::offset_of!(CollectiveVerdict, theirs) == 72);
