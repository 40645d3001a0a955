//! The connection to one peer.
//!
//! In: puts, words and signals in posting order. Out: bytes in the peer's segments, signals in its ring, and what
//! the peer does the other way. Guarantee: nothing is copied into a region that the peer has revoked; the queue
//! never grows beyond its capacity; one visit copies a bounded number of bytes.

use super::ring::{Ring, Writer};
use super::table::{self, chunk_of};
use crate::base::{Backoff, Deadline, Rank};
use crate::memory::{Lifeline, MemoryError, SharedMemory};
use crate::transport::region::RegionTable;
use crate::transport::{
    Event, FrameFault, LocalSlice, Posted, RemotePlace, RemoteRegion, Signal, Ticket, TransportError,
};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of one uninterrupted copy: how long a revocation may have to wait (about 50 us).
const COPY: u64 = 256 << 10;
/// Bytes, and signals, after which a visit ends.
const BUDGET: u64 = 1 << 20;
const SIGNALS: usize = 1 << 12;

/// A peer's region, mapped here.
struct Import {
    region: RemoteRegion,
    memory: Arc<SharedMemory>,
    offset: u64,
    /// The part of the peer's table that says whether it may be written.
    chunk: Arc<SharedMemory>,
}

enum Item {
    Put { import: usize, offset: u64, slice: LocalSlice, ticket: Ticket },
    Word { import: usize, offset: u64, word: u64 },
    Signal(u64),
}

/// A connection to one peer, or what became of it.
pub(super) struct Pair {
    peer: Rank,
    /// Written by the peer.
    inbound: Ring,
    /// Written by this rank.
    outbound: Ring,
    lifeline: Lifeline,
    queue: VecDeque<Item>,
    capacity: usize,
    /// Bytes of the first put that are copied.
    copied: u64,
    imports: Vec<Option<Import>>,
    by_key: HashMap<u64, usize>,
    chunks: HashMap<u32, Arc<SharedMemory>>,
    closing: bool,
    said_goodbye: bool,
    heard_goodbye: bool,
    ended: Option<TransportError>,
}

/// What a visit left.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Visit {
    /// Open.
    Open,
    /// Both ends have said goodbye.
    Finished,
}

impl Pair {
    /// A connection through two rings.
    pub(super) fn new(peer: Rank, inbound: Ring, outbound: Ring, lifeline: Lifeline, capacity: usize) -> Self {
        Self {
            peer,
            inbound,
            outbound,
            lifeline,
            queue: VecDeque::with_capacity(capacity),
            capacity,
            copied: 0,
            imports: Vec::new(),
            by_key: HashMap::new(),
            chunks: HashMap::new(),
            closing: false,
            said_goodbye: false,
            heard_goodbye: false,
            ended: None,
        }
    }

    /// Who is at the other end.
    pub(super) fn peer(&self) -> Rank {
        self.peer
    }

    /// Whether anything still moves.
    pub(super) fn is_open(&self) -> bool {
        self.ended.is_none()
    }

    /// Whether anything may be posted; otherwise why not.
    pub(super) fn health(&self) -> Result<(), TransportError> {
        match &self.ended {
            Some(cause) => Err(cause.clone()),
            None if self.heard_goodbye => Err(TransportError::PeerLeft { peer: self.peer }),
            None if self.closing => Err(TransportError::Closed { peer: self.peer }),
            None => Ok(()),
        }
    }

    /// Whether everything that was posted is done.
    pub(super) fn is_flushed(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether `region` is mapped here.
    pub(super) fn has_import(&self, region: &RemoteRegion) -> bool {
        self.by_key.contains_key(&region.key)
    }

    /// The ring that this rank writes.
    #[cfg(test)]
    pub(super) fn outbound(&self) -> &Ring {
        &self.outbound
    }

    /// Number of regions mapped here.
    #[cfg(test)]
    pub(super) fn imported_regions(&self) -> usize {
        self.by_key.len()
    }

    /// Maps a region of the peer; `open` opens a segment of the peer, `table` names a part of its table.
    pub(super) fn import(
        &mut self,
        region: RemoteRegion,
        open: impl Fn(crate::memory::SegmentId) -> Result<Arc<SharedMemory>, MemoryError>,
        table: impl Fn(u32) -> crate::memory::SegmentId,
    ) -> Result<(), TransportError> {
        let Some(place) = region.segment else {
            let what = "its region names no segment".to_string();
            return Err(TransportError::Address { peer: self.peer, what });
        };
        self.drop_revoked();
        let number = chunk_of(region.key);
        let chunk = match self.chunks.get(&number) {
            Some(chunk) => chunk.clone(),
            None => open(table(number))?,
        };
        let memory = open(place.segment)?;
        memory.pointer(place.offset, region.bytes)?;
        self.chunks.insert(number, chunk.clone());
        let import = Import { region, memory, offset: place.offset, chunk };
        let index = match self.imports.iter().position(Option::is_none) {
            Some(index) => index,
            None => {
                self.imports.push(None);
                self.imports.len() - 1
            }
        };
        self.imports[index] = Some(import);
        self.by_key.insert(region.key, index);
        Ok(())
    }

    /// Unmaps what the peer has deregistered, unless something queued still means it.
    fn drop_revoked(&mut self) {
        for (index, slot) in self.imports.iter_mut().enumerate() {
            let queued = self.queue.iter().any(|item| match item {
                Item::Put { import, .. } | Item::Word { import, .. } => *import == index,
                Item::Signal(_) => false,
            });
            let revoked = |import: &mut Import| table::admits(&import.chunk, import.region.key, 0, 0).is_err();
            if let Some(import) = slot.take_if(|import| !queued && revoked(import)) {
                self.by_key.remove(&import.region.key);
            }
        }
    }

    /// Queues a put of a checked slice into an imported region.
    pub(super) fn post_put(
        &mut self,
        slice: LocalSlice,
        remote: RemotePlace,
        ticket: Ticket,
        regions: &mut RegionTable,
    ) -> Result<Posted, TransportError> {
        let import = self.imported(&remote.region)?;
        let posted = self.post(Item::Put { import, offset: remote.offset, slice, ticket })?;
        if posted == Posted::Queued {
            regions.put_queued(slice.region);
        }
        Ok(posted)
    }

    /// Queues a word for an imported region.
    pub(super) fn post_word(&mut self, word: u64, remote: RemotePlace) -> Result<Posted, TransportError> {
        let import = self.imported(&remote.region)?;
        self.post(Item::Word { import, offset: remote.offset, word })
    }

    /// Queues a signal.
    pub(super) fn post_signal(&mut self, signal: Signal) -> Result<Posted, TransportError> {
        self.post(Item::Signal(u64::from(signal.epoch) << 24 | u64::from(signal.index)))
    }

    fn imported(&self, region: &RemoteRegion) -> Result<usize, TransportError> {
        let slot = crate::transport::region::slot_of(region.key);
        let fault = FrameFault::UnknownRegion { slot };
        self.by_key.get(&region.key).copied().ok_or(TransportError::RefusedByPeer { peer: self.peer, fault })
    }

    fn post(&mut self, item: Item) -> Result<Posted, TransportError> {
        self.health()?;
        if self.queue.len() >= self.capacity {
            return Ok(Posted::Busy);
        }
        self.queue.push_back(item);
        Ok(Posted::Queued)
    }

    /// Says goodbye once the queue is empty.
    pub(super) fn close(&mut self) {
        self.closing = true;
    }

    /// Moves a bounded amount in both directions. `check_life`: also looks whether the peer's process lives.
    pub(super) fn visit(
        &mut self,
        check_life: bool,
        regions: &mut RegionTable,
        events: &mut Vec<Event>,
    ) -> Result<Visit, TransportError> {
        // Looked at before the ring, so that all signals of a dead or departed peer are taken first.
        let dead = check_life && !self.lifeline.is_alive();
        let writer = self.inbound.writer();
        let drained = self.take_signals(events)?;
        if drained {
            match writer {
                Writer::Open if dead => return Err(TransportError::EndOfStream { peer: self.peer }),
                Writer::Open => {}
                Writer::Left => self.heard_goodbye = true,
                Writer::Gone => return Err(TransportError::EndOfStream { peer: self.peer }),
                Writer::Refused(fault) => return Err(TransportError::BadFrame { peer: self.peer, fault }),
            }
        }
        // A peer that finished before this rank noticed has both left and revoked.
        if self.outbound.is_revoked() && !(self.heard_goodbye && self.queue.is_empty()) {
            return if drained { Err(TransportError::EndOfStream { peer: self.peer }) } else { Ok(Visit::Open) };
        }
        self.work(regions, events)?;
        if self.queue.is_empty() && (self.closing || self.heard_goodbye) && !self.said_goodbye {
            self.outbound.set_writer(Writer::Left);
            self.said_goodbye = true;
        }
        if self.said_goodbye && self.heard_goodbye { Ok(Visit::Finished) } else { Ok(Visit::Open) }
    }

    /// Takes signals out of the ring; whether it is empty now.
    fn take_signals(&mut self, events: &mut Vec<Event>) -> Result<bool, TransportError> {
        for _ in 0..SIGNALS {
            let Some(entry) = self.inbound.pop() else { return Ok(true) };
            let Ok(bits) = u32::try_from(entry) else {
                return Err(TransportError::BadFrame { peer: self.peer, fault: FrameFault::Signal(entry) });
            };
            let signal = Signal { epoch: (bits >> 24) as u8, index: bits & (Signal::INDICES - 1) };
            events.push(Event::Signalled { peer: self.peer, signal });
        }
        Ok(false)
    }

    /// Carries out what is queued, in order.
    fn work(&mut self, regions: &mut RegionTable, events: &mut Vec<Event>) -> Result<(), TransportError> {
        let mut spent = 0;
        while spent < BUDGET {
            let Some(item) = self.queue.front() else { return Ok(()) };
            match *item {
                Item::Signal(entry) if !self.outbound.push(entry) => return Ok(()),
                Item::Signal(_) => {}
                Item::Word { import, offset, word } => self.store(import, offset, word)?,
                Item::Put { import, offset, slice, ticket } => {
                    let bytes = (slice.bytes - self.copied).min(COPY);
                    self.copy(import, offset, slice, bytes, regions)?;
                    self.copied += bytes;
                    spent += bytes;
                    if self.copied < slice.bytes {
                        continue;
                    }
                    self.copied = 0;
                    regions.put_over(slice.region);
                    if ticket != Ticket::SILENT {
                        events.push(Event::Completed(ticket));
                    }
                }
            }
            self.queue.pop_front();
            // What carries no bytes must not keep a visit going for ever either.
            spent += 256;
        }
        Ok(())
    }

    /// Copies the next `bytes` bytes of the put of `slice` to `offset` of an imported region.
    fn copy(
        &self,
        import: usize,
        offset: u64,
        slice: LocalSlice,
        bytes: u64,
        regions: &RegionTable,
    ) -> Result<(), TransportError> {
        let source = regions.source(slice)?.wrapping_add(self.copied as usize);
        self.guarded(import, offset + self.copied, bytes, |target| {
            // SAFETY: the source is inside a region that stays registered while puts of it are queued; the target
            // is inside the mapping of the peer's segment, in a region that the peer takes puts into right now.
            // The two may be the same memory only if a rank puts a region onto itself, hence the overlapping copy.
            unsafe { std::ptr::copy(source, target, bytes as usize) };
            Ok(())
        })
    }

    fn store(&self, import: usize, offset: u64, word: u64) -> Result<(), TransportError> {
        self.guarded(import, offset, 8, |target| {
            let target = target.cast::<u64>();
            if !target.is_aligned() {
                return Err(FrameFault::Misaligned { offset });
            }
            // SAFETY: eight aligned bytes inside the mapping of the peer's segment.
            let target = unsafe { AtomicU64::from_ptr(target) };
            // Release pairs with the Acquire load of whoever waits for the word: copies before it are seen.
            target.store(word, Ordering::Release);
            Ok(())
        })
    }

    /// Runs `write` on `bytes` bytes of an imported region while the peer takes them.
    fn guarded(
        &self,
        import: usize,
        offset: u64,
        bytes: u64,
        write: impl FnOnce(*mut u8) -> Result<(), FrameFault>,
    ) -> Result<(), TransportError> {
        let Some(import) = self.imports.get(import).and_then(Option::as_ref) else { return Ok(()) };
        let mut admission = Ok(());
        let begun = self.outbound.begin_copy(|| {
            admission = table::admits(&import.chunk, import.region.key, offset, bytes);
            admission.is_ok()
        });
        let outcome = match admission {
            Ok(()) if !begun => return Err(TransportError::EndOfStream { peer: self.peer }),
            Ok(()) => {
                let limit = import.memory.bytes();
                let start = import.offset.saturating_add(offset);
                let fault = FrameFault::Range { offset: start, bytes, limit };
                let outcome = import.memory.pointer(start, bytes).map_err(|_| fault).and_then(write);
                self.outbound.end_copy();
                outcome
            }
            Err(fault) => Err(fault),
        };
        outcome.map_err(|fault| {
            self.outbound.set_writer(Writer::Refused(fault));
            TransportError::RefusedByPeer { peer: self.peer, fault }
        })
    }

    /// Ends the connection; the first cause is kept. What waits is forgotten, and the peer begins no further copy.
    pub(super) fn end(&mut self, cause: TransportError, regions: &mut RegionTable) {
        if self.ended.is_some() {
            return;
        }
        self.inbound.revoke();
        self.outbound.set_writer(Writer::Gone);
        for item in self.queue.drain(..) {
            if let Item::Put { slice, .. } = item {
                regions.put_over(slice.region);
            }
        }
        self.imports.clear();
        self.by_key.clear();
        self.chunks.clear();
        self.ended = Some(cause);
    }

    /// Waits until the peer is inside no copy, or proved dead. To be called after something was revoked.
    pub(super) fn wait_quiet(&self, deadline: Deadline) -> bool {
        let mut backoff = Backoff::new();
        while self.inbound.is_busy() {
            if !self.lifeline.is_alive() {
                return true;
            }
            if deadline.expired() {
                return false;
            }
            backoff.snooze();
        }
        true
    }
}
