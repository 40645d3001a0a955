//! One direction of signals between two ranks, and the state of their connection.
//!
//! In: 64-bit entries of one producer. Out: the same entries, in order, to one consumer, possibly in another
//! process. Guarantee: bounded, without locks; a consumer that sees an entry sees everything the producer wrote
//! before it.
//!
//! The segment belongs to the consumer (the owner of the memory that is written); the producer (the writer) maps
//! it. Words by their cache line, two lines of 64 bytes each because processors fetch pairs:
//!
//! ```text
//! 0   tail      entries pushed so far                   written by the writer
//! 16  head      entries popped so far                   written by the owner
//! 32  writer    Open, Left, Gone, Refused; its fault    written by the writer
//! 33  busy      the writer is inside a copy             written by the writer
//! 34  attached  the writer has mapped the ring          written by the writer
//! 48  owner     Open, Revoked                           written by the owner
//! 64  entries   a power of two of them
//! ```
//!
//! Orderings, each store with the load that sees it:
//! - `tail` Release in `push` / Acquire in `pop`: the entry, and all payload copied before it.
//! - `head` Release in `pop` / Acquire in `push`: an entry was read before its place is written again.
//! - `writer` Release in `set_writer` / Acquire in `writer`: all entries and payload before the goodbye.
//! - `busy` and `owner` are a Dekker pair: the writer stores `busy` and then loads `owner` and the region's key, the
//!   owner stores `owner` or the key and then loads `busy`, all SeqCst, so that either the writer sees the
//!   revocation or the owner sees the copy and waits. `busy` is cleared by Release, seen by that same load: the
//!   copied bytes happened before whatever the owner does with its memory next.

use crate::memory::{MemoryError, SegmentId, SharedMemory};
use crate::transport::FrameFault;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const TAIL: usize = 0;
const HEAD: usize = 16;
const WRITER: usize = 32;
const BUSY: usize = 33;
const ATTACHED: usize = 34;
/// Kind and three numbers of the fault that made the writer refuse a put.
const FAULT: usize = 36;
const OWNER: usize = 48;
const ENTRIES: usize = 64;

/// What a writer says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writer {
    /// It may write.
    Open,
    /// It has said goodbye.
    Left,
    /// Its link was dropped or has aborted this connection.
    Gone,
    /// It was asked to put what the owner does not take.
    Refused(FrameFault),
}

/// A ring in a shared segment.
pub(super) struct Ring {
    memory: Arc<SharedMemory>,
    mask: u64,
}

impl Ring {
    /// A new ring of `entries` entries, rounded up to a power of two.
    pub(super) fn create(id: SegmentId, entries: u64) -> Result<Self, MemoryError> {
        let entries = entries.clamp(1, 1 << 32).next_power_of_two();
        let memory = SharedMemory::create_as(id, "crossmesh-ring", (ENTRIES as u64 + entries) * 8)?;
        Ok(Self { memory: Arc::new(memory), mask: entries - 1 })
    }

    /// A ring that its owner made; `None` when the segment is none.
    pub(super) fn attach(memory: Arc<SharedMemory>) -> Option<Self> {
        let entries = (memory.bytes() / 8).checked_sub(ENTRIES as u64)?;
        entries.is_power_of_two().then(|| Self { memory, mask: entries - 1 })
    }

    /// Its segment.
    pub(super) fn memory(&self) -> &Arc<SharedMemory> {
        &self.memory
    }

    fn words(&self) -> &[AtomicU64] {
        // The range is the whole segment, so that it cannot be refused.
        self.memory.words(0, self.memory.bytes() / 8).unwrap_or_default()
    }

    /// Appends an entry; `false` when the ring is full. For the writer.
    pub(super) fn push(&self, entry: u64) -> bool {
        let words = self.words();
        let tail = words[TAIL].load(Ordering::Relaxed);
        let head = words[HEAD].load(Ordering::Acquire);
        if tail.wrapping_sub(head) > self.mask {
            return false;
        }
        words[ENTRIES + (tail & self.mask) as usize].store(entry, Ordering::Relaxed);
        words[TAIL].store(tail.wrapping_add(1), Ordering::Release);
        true
    }

    /// Takes the oldest entry. For the owner.
    pub(super) fn pop(&self) -> Option<u64> {
        let words = self.words();
        let head = words[HEAD].load(Ordering::Relaxed);
        let tail = words[TAIL].load(Ordering::Acquire);
        if head == tail {
            return None;
        }
        let entry = words[ENTRIES + (head & self.mask) as usize].load(Ordering::Relaxed);
        words[HEAD].store(head.wrapping_add(1), Ordering::Release);
        Some(entry)
    }

    /// The writer has mapped the ring. For the writer.
    pub(super) fn set_attached(&self) {
        self.words()[ATTACHED].store(1, Ordering::Release);
    }

    /// Whether the writer has mapped the ring. For the owner.
    pub(super) fn is_attached(&self) -> bool {
        self.words()[ATTACHED].load(Ordering::Acquire) != 0
    }

    /// Changes what the writer says about itself; only an open one can change. For the writer.
    pub(super) fn set_writer(&self, state: Writer) {
        let words = self.words();
        if words[WRITER].load(Ordering::Relaxed) != 0 {
            return;
        }
        let code = match state {
            Writer::Open => 0,
            Writer::Left => 1,
            Writer::Gone => 2,
            Writer::Refused(fault) => {
                for (word, value) in words[FAULT..].iter().zip(encode_fault(fault)) {
                    word.store(value, Ordering::Relaxed);
                }
                3
            }
        };
        words[WRITER].store(code, Ordering::Release);
    }

    /// What the writer says about itself. For the owner.
    pub(super) fn writer(&self) -> Writer {
        let words = self.words();
        match words[WRITER].load(Ordering::Acquire) {
            0 => Writer::Open,
            1 => Writer::Left,
            3 => Writer::Refused(decode_fault([0, 1, 2, 3].map(|at| words[FAULT + at].load(Ordering::Relaxed)))),
            _ => Writer::Gone,
        }
    }

    /// Marks the begin of a copy; `false`, and no copy may begin, when the owner has revoked the connection or
    /// `admits` finds that it no longer takes this one. For the writer.
    pub(super) fn begin_copy(&self, admits: impl FnOnce() -> bool) -> bool {
        let words = self.words();
        words[BUSY].store(1, Ordering::SeqCst);
        let admitted = words[OWNER].load(Ordering::SeqCst) == 0 && admits();
        if !admitted {
            words[BUSY].store(0, Ordering::Release);
        }
        admitted
    }

    /// Marks the end of a copy. For the writer.
    pub(super) fn end_copy(&self) {
        self.words()[BUSY].store(0, Ordering::Release);
    }

    /// Whether the writer is inside a copy. For the owner, after it revoked something.
    pub(super) fn is_busy(&self) -> bool {
        self.words()[BUSY].load(Ordering::SeqCst) != 0
    }

    /// Lets no copy begin any more. For the owner.
    pub(super) fn revoke(&self) {
        self.words()[OWNER].store(1, Ordering::SeqCst);
    }

    /// Whether the owner has revoked the connection. For the writer.
    pub(super) fn is_revoked(&self) -> bool {
        self.words()[OWNER].load(Ordering::Acquire) != 0
    }
}

fn encode_fault(fault: FrameFault) -> [u64; 4] {
    match fault {
        FrameFault::UnknownRegion { slot } => [1, u64::from(slot), 0, 0],
        FrameFault::NotWritable { slot } => [2, u64::from(slot), 0, 0],
        FrameFault::Range { offset, bytes, limit } => [3, offset, bytes, limit],
        FrameFault::Misaligned { offset } => [4, offset, 0, 0],
        FrameFault::Signal(entry) => [5, entry, 0, 0],
        FrameFault::AfterGoodbye => [6, 0, 0, 0],
        FrameFault::UnknownKind(kind) => [7, u64::from(kind), 0, 0],
    }
}

fn decode_fault(words: [u64; 4]) -> FrameFault {
    match words {
        [1, slot, ..] => FrameFault::UnknownRegion { slot: slot as u32 },
        [2, slot, ..] => FrameFault::NotWritable { slot: slot as u32 },
        [3, offset, bytes, limit] => FrameFault::Range { offset, bytes, limit },
        [4, offset, ..] => FrameFault::Misaligned { offset },
        [5, entry, ..] => FrameFault::Signal(entry),
        [6, ..] => FrameFault::AfterGoodbye,
        [_, kind, ..] => FrameFault::UnknownKind(kind as u8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Backoff, Deadline};

    fn pair(entries: u64) -> (Ring, Ring) {
        let owner = Ring::create(SegmentId::random().unwrap(), entries).unwrap();
        let writer = Ring::attach(owner.memory().clone()).unwrap();
        (owner, writer)
    }

    #[test]
    fn is_bounded_and_in_order() {
        for (asked, capacity) in [(0, 1), (1, 1), (2, 2), (3, 4), (8, 8)] {
            let (owner, writer) = pair(asked);
            for round in 0..5 {
                for entry in 0..capacity {
                    assert!(writer.push(round * 100 + entry));
                }
                assert!(!writer.push(7));
                for entry in 0..capacity {
                    assert_eq!(owner.pop(), Some(round * 100 + entry));
                }
                assert_eq!(owner.pop(), None);
            }
        }
    }

    #[test]
    fn counters_wrap_around() {
        let (owner, writer) = pair(2);
        for counter in [TAIL, HEAD] {
            owner.words()[counter].store(u64::MAX, Ordering::Relaxed);
        }
        for entry in 0..5 {
            assert!(writer.push(entry));
            assert_eq!(owner.pop(), Some(entry));
        }
    }

    #[test]
    fn other_segments_are_no_rings() {
        for bytes in [0, 8, 511, 512, 512 + 24] {
            assert!(Ring::attach(Arc::new(SharedMemory::create("test", bytes).unwrap())).is_none(), "{bytes}");
        }
    }

    #[test]
    fn two_threads_see_every_entry_once() {
        let (owner, writer) = pair(4);
        let (count, deadline) = (50_000u64, Deadline::seconds(60));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut backoff = Backoff::new();
                for entry in 0..count {
                    while !writer.push(entry * 3) {
                        assert!(!deadline.expired());
                        backoff.snooze();
                    }
                    backoff.reset();
                }
            });
            let (mut backoff, mut next) = (Backoff::new(), 0);
            while next < count {
                match owner.pop() {
                    Some(entry) => {
                        assert_eq!(entry, next * 3);
                        next += 1;
                        backoff.reset();
                    }
                    None => {
                        assert!(!deadline.expired());
                        backoff.snooze();
                    }
                }
            }
        });
    }

    #[test]
    fn states_and_faults_cross() {
        let faults = [
            FrameFault::UnknownRegion { slot: 5 },
            FrameFault::NotWritable { slot: 6 },
            FrameFault::Range { offset: u64::MAX, bytes: 2, limit: 3 },
            FrameFault::Misaligned { offset: 4 },
            FrameFault::Signal(1 << 40),
            FrameFault::AfterGoodbye,
            FrameFault::UnknownKind(9),
        ];
        let states = faults.map(Writer::Refused).into_iter().chain([Writer::Left, Writer::Gone]);
        for state in states {
            let (owner, writer) = pair(1);
            assert_eq!(owner.writer(), Writer::Open);
            writer.set_writer(state);
            writer.set_writer(Writer::Gone);
            assert_eq!(owner.writer(), state, "the first state stays");
        }
    }

    #[test]
    fn a_revoked_ring_admits_no_copy() {
        let (owner, writer) = pair(1);
        assert!(writer.begin_copy(|| true) && owner.is_busy());
        writer.end_copy();
        assert!(!owner.is_busy() && !writer.begin_copy(|| false) && !owner.is_busy());
        owner.revoke();
        assert!(writer.is_revoked() && !writer.begin_copy(|| true) && !owner.is_busy());
    }

    /// Once the owner has revoked and seen the writer idle, its memory does not change any more.
    #[test]
    fn revocation_excludes_copies() {
        for _ in 0..200 {
            let (owner, writer) = pair(1);
            let target = AtomicU64::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while writer.begin_copy(|| true) {
                        target.fetch_add(1, Ordering::Relaxed);
                        writer.end_copy();
                    }
                });
                while target.load(Ordering::Relaxed) == 0 {
                    std::thread::yield_now();
                }
                owner.revoke();
                while owner.is_busy() {
                    std::thread::yield_now();
                }
                let seen = target.load(Ordering::Relaxed);
                std::thread::yield_now();
                assert_eq!(target.load(Ordering::Relaxed), seen);
            });
        }
    }
}
