//! Copying between mapped tensors of a domain. In: chunks that this rank copies into others' tensors, and that others
//! copy into its. Out: copied bytes, counted per receiver. Guarantee: nothing is written before the receiver has
//! started this epoch; every chunk is copied once, by one end.
//!
//! With as many senders as cores, senders copy alone and receivers sleep: the source is read once, in its order, and
//! every part of it goes to its receivers at once. With fewer senders than cores receivers copy
//! along: the sender takes chunks from the front, the receiver from the back.

use super::super::ExecuteError;
use super::super::board::BoardLayout;
use super::super::claim::{self, From};
use super::Execution;
use crate::memory::copy::{Scatter, Store, fence};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Bytes between two looks at everything else.
const TURN: u64 = 512 << 10;

/// A rank that this rank feeds.
#[derive(Debug, Clone)]
pub(in crate::execute) struct Receiver {
    pub(in crate::execute) peer: u32,
    /// Claim word on this rank's board; the one behind it counts chunks done.
    pub(in crate::execute) word: u32,
    pub(in crate::execute) chunks: u32,
    /// Copies per chunk, when receivers copy along.
    pub(in crate::execute) copies: Vec<Range<u32>>,
}

/// A rank that feeds this rank.
#[derive(Debug, Clone)]
pub(in crate::execute) struct Sender {
    pub(in crate::execute) peer: u32,
    /// Claim word on its board.
    pub(in crate::execute) word: u32,
    /// Items that it feeds; their copies are empty when this rank cannot copy along.
    pub(in crate::execute) items: Vec<u32>,
    pub(in crate::execute) helped: bool,
    pub(in crate::execute) finished: bool,
}

/// All that this rank feeds or is fed.
#[derive(Debug, Clone, Default)]
pub(in crate::execute) struct Feeds {
    pub(in crate::execute) receivers: Vec<Receiver>,
    pub(in crate::execute) senders: Vec<Sender>,
    /// The sweep, when senders copy alone.
    pub(in crate::execute) scatter: Scatter,
    pub(in crate::execute) helped: bool,
    pub(in crate::execute) store: Store,
    pub(in crate::execute) cursor: usize,
    pub(in crate::execute) swept: bool,
}

/// A count of chunks done, behind its epoch.
fn done_word(epoch: u32, chunks: u32) -> u64 {
    u64::from(epoch) << 32 | u64::from(chunks)
}

impl Execution {
    /// Opens the claims of this epoch; before the start is told.
    pub(super) fn open_feeds(&mut self) -> Result<(), ExecuteError> {
        for receiver in &self.bound.feeds.receivers {
            // Relaxed: the Release store of the start word publishes both.
            self.word(receiver.word)?.store(claim::open(self.epoch), Ordering::Relaxed);
            self.word(receiver.word + 1)?.store(done_word(self.epoch, 0), Ordering::Relaxed);
        }
        self.bound.feeds.cursor = 0;
        self.bound.feeds.swept = self.bound.feeds.scatter.is_empty();
        for sender in &mut self.bound.feeds.senders {
            sender.finished = false;
        }
        Ok(())
    }

    /// Feeds, copies along, and notices what has arrived.
    pub(super) fn feed(&mut self) -> Result<bool, ExecuteError> {
        let mut moved = if self.bound.feeds.helped { self.feed_shared()? } else { self.sweep()? };
        for number in 0..self.bound.feeds.senders.len() {
            moved |= self.fed_by(number)?;
        }
        Ok(moved)
    }

    /// Whether everybody that this rank feeds has everything.
    pub(super) fn feeds_done(&self) -> Result<bool, ExecuteError> {
        for receiver in &self.bound.feeds.receivers {
            // Acquire: pairs with the Release addition of a receiver that copied along from this rank's tensors.
            let done = self.word(receiver.word + 1)?.load(Ordering::Acquire);
            if done != done_word(self.epoch, receiver.chunks) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What is outstanding, for a deadline's message.
    pub(super) fn feeds_waiting(&self, parts: &mut Vec<String>) {
        let who = |peer: u32| {
            let peer = &self.bound.peers[peer as usize];
            format!("rank {} on host {}", peer.rank, peer.host)
        };
        let late = |peer: u32| !self.peer_started(peer).unwrap_or(false);
        for receiver in &self.bound.feeds.receivers {
            if late(receiver.peer) {
                parts.push(format!("{} has not started", who(receiver.peer)));
            }
        }
        for sender in self.bound.feeds.senders.iter().filter(|sender| !sender.finished) {
            let started = if late(sender.peer) { "has not started" } else { "is copying" };
            parts.push(format!("{} {started}, its {} chunks are not all here", who(sender.peer), sender.items.len()));
        }
    }

    fn peer_started(&self, peer: u32) -> Result<bool, ExecuteError> {
        let Some(segment) = &self.bound.peers[peer as usize].segment else { return Ok(false) };
        // Acquire: pairs with the Release store in `start`; its tensors are complete, or free to be written, from then.
        let started = segment.words(u64::from(BoardLayout::STARTED) * 8, 1)?[0].load(Ordering::Acquire);
        Ok(started == u64::from(self.epoch))
    }

    /// Takes the next steps of the sweep, once every receiver has started.
    fn sweep(&mut self) -> Result<bool, ExecuteError> {
        if self.bound.feeds.swept {
            return Ok(false);
        }
        if self.bound.feeds.cursor == 0 {
            for number in 0..self.bound.feeds.receivers.len() {
                if !self.peer_started(self.bound.feeds.receivers[number].peer)? {
                    return Ok(false);
                }
            }
        }
        let mut bytes = 0;
        let feeds = &mut self.bound.feeds;
        while feeds.cursor < feeds.scatter.len() && bytes < TURN {
            let copied = feeds.scatter.copy(feeds.cursor, feeds.store)?;
            bytes += copied.bytes;
            self.saturated += copied.saturated;
            feeds.cursor += 1;
        }
        if feeds.cursor == feeds.scatter.len() {
            fence();
            self.bound.feeds.swept = true;
            self.told = true;
            for receiver in &self.bound.feeds.receivers {
                // Release: pairs with the Acquire load in `fed_by`.
                self.word(receiver.word + 1)?.store(done_word(self.epoch, receiver.chunks), Ordering::Release);
            }
        }
        Ok(true)
    }

    /// Copies one chunk from the front for every receiver that has started.
    fn feed_shared(&mut self) -> Result<bool, ExecuteError> {
        let mut moved = false;
        for number in 0..self.bound.feeds.receivers.len() {
            let (peer, word, chunks) = {
                let receiver = &self.bound.feeds.receivers[number];
                (receiver.peer, receiver.word, receiver.chunks)
            };
            if !self.peer_started(peer)? {
                continue;
            }
            let Some(chunk) = claim::take(self.word(word)?, self.epoch, chunks, From::Front) else { continue };
            for op in self.bound.feeds.receivers[number].copies[chunk as usize].clone() {
                self.run_copy(op, None, None, None, self.bound.feeds.store)?;
            }
            fence();
            // Release: pairs with the Acquire load in `fed_by`.
            self.word(word + 1)?.fetch_add(1, Ordering::Release);
            self.told = true;
            moved = true;
        }
        Ok(moved)
    }

    /// Copies along with a sender, and notices when all of it is here.
    fn fed_by(&mut self, number: usize) -> Result<bool, ExecuteError> {
        let sender = &self.bound.feeds.senders[number];
        if sender.finished {
            return Ok(false);
        }
        let chunks = sender.items.len() as u32;
        let Some(segment) = self.bound.peers[sender.peer as usize].segment.clone() else { return Ok(false) };
        let words = segment.words(u64::from(sender.word) * 8, 2)?;
        // Acquire: pairs with the Release stores and additions of the sender. It may be an epoch ahead already.
        let done = words[1].load(Ordering::Acquire);
        let ahead = ((done >> 32) as u32).wrapping_sub(self.epoch) as i32;
        if ahead > 0 || done == done_word(self.epoch, chunks) {
            self.bound.feeds.senders[number].finished = true;
            self.items_left -= chunks as usize;
            return Ok(true);
        }
        if !sender.helped || !self.peer_started(sender.peer)? {
            return Ok(false);
        }
        let Some(chunk) = claim::take(&words[0], self.epoch, chunks, From::Back) else { return Ok(false) };
        let item = self.bound.feeds.senders[number].items[chunk as usize];
        self.run_copies(item, None)?;
        fence();
        // Release: pairs with the Acquire loads in `feeds_done` of the sender and in this function.
        words[1].fetch_add(1, Ordering::Release);
        self.told = true;
        Ok(true)
    }
}
