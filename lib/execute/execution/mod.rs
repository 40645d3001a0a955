//! The state machine of one transfer at one rank. In: items with addresses, links, events. Out: moved bytes.
//! Guarantee: `progress` never blocks and never allocates; every step is taken at most once per start.

mod bound;
mod copies;
mod feed;
mod passing;
mod receive;
mod send;
mod sums;

pub(super) use feed::{Feeds, Receiver, Sender};

pub(super) use bound::{Bound, BoundItem, BoundPush, LocalRef, Peer, PutOp, RemoteRef, Stage};

use super::ExecuteError;
use super::board::{self, BoardLayout, DIRECT, NO_WORD};
use super::links::Links;
use super::program::{Incoming, Item, Storage};
use crate::base::Rank;
use crate::memory::Bell;
use crate::memory::copy::RangeScratch;
use crate::memory::device::{Bridge, Stream};
use copies::Landing;
use passing::PassingOn;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ItemPhase {
    Waiting,
    Granted,
    /// In its slot, before its turn to be added.
    Arrived,
    Available,
}

#[derive(Debug, Clone, Copy)]
struct ItemState {
    phase: ItemPhase,
    slot: Option<u32>,
    /// Pushes, slot readers and own tensors that still need it.
    holds: u32,
    /// Copies of devices that are on their way for it.
    under_way: u32,
    /// The next term to be added to a sum.
    next_term: u32,
}

/// Of an item before its start.
const NEW: ItemState = ItemState { phase: ItemPhase::Waiting, slot: None, holds: 0, under_way: 0, next_term: 0 };

/// A chunk that is read from a peer.
#[derive(Debug, Clone, Copy)]
struct Read {
    /// Number of the peer.
    peer: usize,
    /// Which of the chunks that are read there.
    position: usize,
    /// Its slot there.
    slot: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PushPhase {
    Waiting,
    Posting { next: u32 },
    Signalling,
    Sent,
    Done,
}

#[derive(Debug, Clone, Copy)]
struct PushState {
    phase: PushPhase,
    send_slot: Option<u32>,
    completed: bool,
}

/// A transfer that can run.
#[derive(Debug)]
pub(super) struct Execution {
    bound: Bound,
    /// Numbers of peers by world rank, ascending.
    by_world: Vec<(Rank, u32)>,
    id: u32,
    epoch: u32,
    active: bool,
    /// Active, and not behind what the caller's stream held any more: peers have been told.
    opened: bool,
    /// Started by its user, and waiting for its turn with shared slots.
    awaits_turn: bool,
    items: Vec<ItemState>,
    pushes: Vec<PushState>,
    free_send_slots: Vec<u32>,
    arrived: VecDeque<u32>,
    own_cursor: usize,
    pack_cursor: usize,
    /// Flags were written that mapped peers may sleep for.
    told: bool,
    /// Links in use.
    links: Vec<usize>,
    /// Slot items whose readers are counted.
    read_slots: Vec<u32>,
    /// Items in slots that this rank's tensors take from there.
    unpacking: VecDeque<u32>,
    /// Per lane of the bridge, what its copies under way are for, oldest first.
    flights: Vec<VecDeque<Landing>>,
    items_left: usize,
    pushes_left: usize,
    /// What its GPU passes on to others of its domain.
    passing: PassingOn,
    /// Finite values of this start that this rank made infinite.
    saturated: u64,
    scratch: RangeScratch,
}

impl Execution {
    pub(super) fn new(bound: Bound, id: u32) -> Self {
        let items = bound.program.items.len();
        let pushes = bound.program.pushes.len();
        let mut by_world: Vec<(Rank, u32)> =
            bound.peers.iter().zip(0..).map(|(peer, number)| (peer.world, number)).collect();
        by_world.sort_unstable();
        let lanes = bound.bridge.as_ref().map_or(0, Bridge::lanes);
        Self {
            id,
            epoch: 0,
            active: false,
            opened: false,
            awaits_turn: false,
            items: vec![NEW; items],
            pushes: vec![PushState { phase: PushPhase::Waiting, send_slot: None, completed: false }; pushes],
            free_send_slots: Vec::with_capacity(bound.send_slots.len()),
            arrived: VecDeque::with_capacity(items),
            own_cursor: 0,
            pack_cursor: 0,
            told: false,
            links: links_in_use(&bound),
            read_slots: Vec::with_capacity(items),
            unpacking: VecDeque::with_capacity(items),
            flights: (0..lanes).map(|_| VecDeque::with_capacity(Bridge::DEPTH)).collect(),
            items_left: 0,
            pushes_left: 0,
            passing: PassingOn::new(bound.steps.clone(), &bound.program),
            saturated: 0,
            scratch: RangeScratch::default(),
            by_world,
            bound,
        }
    }

    /// Whether it has been started and is not finished.
    pub(super) fn is_active(&self) -> bool {
        self.active || self.awaits_turn
    }

    /// Whether it takes steps.
    pub(super) fn is_running(&self) -> bool {
        self.active
    }

    /// Puts a start off until its turn has come.
    pub(super) fn await_turn(&mut self) {
        self.awaits_turn = true;
    }

    /// Links that this transfer uses.
    pub(super) fn links(&self) -> impl Iterator<Item = usize> + '_ {
        self.links.iter().copied()
    }

    /// Whether some peers tell their news by flags in mapped memory.
    pub(super) fn has_mapped_peers(&self) -> bool {
        self.bound.peers.iter().any(|peer| peer.bell.is_some())
    }

    /// Wakes mapped peers, when flags were written since the last time.
    fn ring(&mut self) {
        if std::mem::take(&mut self.told) {
            self.bound.peers.iter().filter_map(|peer| peer.bell.as_ref()).for_each(Bell::ring);
        }
    }

    /// Steps done and steps in all.
    pub(super) fn done(&self) -> (u64, u64) {
        let (taken, steps) = self.passing.done();
        let all = self.bound.program.items.iter().map(steps_of).sum::<usize>() + self.pushes.len() + steps;
        let left = if self.awaits_turn {
            all
        } else if self.active {
            self.items_left + self.pushes_left + steps - taken
        } else {
            0
        };
        ((all - left) as u64, all as u64)
    }

    /// Finite values that became infinite here since the last start.
    pub(super) fn saturated(&self) -> u64 {
        self.saturated
    }

    /// Notes the stream that the next start comes behind, if any.
    pub(super) fn enter(&mut self, stream: Option<&Stream>) -> Result<(), ExecuteError> {
        self.enter_passing(stream.is_some());
        match (&self.bound.gate, stream) {
            (Some(gate), stream) => Ok(gate.enter(stream)?),
            (None, Some(_)) => Err(ExecuteError::StreamOfHost),
            (None, None) => Ok(()),
        }
    }

    /// Takes a start back that could not begin.
    pub(super) fn cancel(&mut self) {
        (self.active, self.awaits_turn) = (false, false);
        self.leave();
    }

    /// Lets the caller's stream go on: the transfer is finished, or will never be.
    pub(super) fn leave(&self) {
        self.bound.gate.iter().for_each(|gate| gate.finish());
    }

    /// Whether it waits for what the caller's stream holds.
    pub(super) fn awaits_stream(&self) -> bool {
        self.active && !self.opened
    }

    /// Begins a start: everything that is held is available, everyone else may be told, unless the caller's stream is not
    /// there yet.
    pub(super) fn start(&mut self) -> Result<(), ExecuteError> {
        self.epoch = self.epoch.wrapping_add(1).max(1);
        self.active = true;
        self.awaits_turn = false;
        self.items_left = 0;
        self.pushes_left = self.pushes.len();
        self.saturated = 0;
        self.passing.begin();
        for (item, state) in self.bound.program.items.iter().zip(&mut self.items) {
            let held = item.incoming == Incoming::Held;
            let slot_readers = u32::from(item.storage == Storage::Slot && item.readers > 0);
            state.phase = if held { ItemPhase::Available } else { ItemPhase::Waiting };
            state.slot = None;
            state.next_term = item.terms.start;
            state.holds = item.pushes.len() as u32 + slot_readers + u32::from(item.unpacks);
            self.items_left += if held { 0 } else { steps_of(item) };
        }
        self.pushes.fill(PushState { phase: PushPhase::Waiting, send_slot: None, completed: false });
        self.free_send_slots.clear();
        self.free_send_slots.extend(self.bound.send_slots.clone().rev());
        self.arrived.clear();
        self.read_slots.clear();
        self.unpacking.clear();
        self.own_cursor = 0;
        self.pack_cursor = 0;
        for hop in &mut self.bound.hops {
            hop.reset();
        }
        for peer in &mut self.bound.peers {
            (peer.pull_cursor, peer.read, peer.arrival_cursor, peer.push_cursor) = (0, 0, 0, 0);
        }
        self.opened = false;
        self.open()?;
        Ok(())
    }

    /// Tells peers of a start, once what the caller's stream held is done; whether it is.
    fn open(&mut self) -> Result<bool, ExecuteError> {
        if !self.bound.gate.as_ref().map_or(Ok(true), |gate| gate.is_open())? {
            return Ok(false);
        }
        self.opened = true;
        self.open_feeds()?;
        self.write_padding()?;
        // Release: pairs with the Acquire loads in `readable` and `peer_started` of readers; the caller wrote its tensors before.
        self.word(BoardLayout::STARTED)?.store(u64::from(self.epoch), Ordering::Release);
        self.told = true;
        self.ring();
        Ok(true)
    }

    /// Takes every step that can be taken now; true when something moved.
    pub(super) fn progress(&mut self, links: &mut Links) -> Result<bool, ExecuteError> {
        if !self.opened && !self.open()? {
            return Ok(false);
        }
        let mut moved = self.land()?;
        moved |= self.grant(links)?;
        moved |= self.unpack()?;
        moved |= self.unpack_slots()?;
        moved |= self.copy_own()?;
        moved |= self.pack_own()?;
        moved |= self.feed()?;
        moved |= self.pull()?;
        moved |= self.push(links)?;
        moved |= self.release_read_slots()?;
        moved |= self.passing.look()?;
        let steps_left =
            self.items_left > 0 || self.pushes_left > 0 || !self.read_slots.is_empty() || self.is_crossing();
        let steps_left = steps_left || !self.passing.is_done();
        if !steps_left && self.readers_done()? && self.feeds_done()? && self.sent(links) {
            self.active = false;
            self.leave();
            moved = true;
        }
        self.ring();
        Ok(moved)
    }

    /// Whether copies or launches of devices are on their way.
    pub(super) fn is_crossing(&self) -> bool {
        self.flights.iter().any(|lane| !lane.is_empty()) || self.passing.is_launched()
    }

    fn word(&self, word: u32) -> Result<&AtomicU64, ExecuteError> {
        Ok(&self.bound.segment.words(u64::from(word) * 8, 1)?[0])
    }

    /// An item's bytes are where they stay: tell readers, let pushes go.
    fn available(&mut self, item: u32) -> Result<(), ExecuteError> {
        let state = &mut self.items[item as usize];
        state.phase = ItemPhase::Available;
        self.items_left -= 1;
        let (slot, holds) = (state.slot, state.holds);
        let word = self.bound.items[item as usize].available_word;
        let in_slot = self.bound.program.items[item as usize].storage == Storage::Slot;
        if word != NO_WORD {
            let low = if in_slot { slot.map_or(DIRECT, |slot| slot + 1) } else { DIRECT };
            // Release: pairs with the Acquire load in `readable` of the readers.
            self.word(word)?.store(board::word(self.epoch, low), Ordering::Release);
            self.told = true;
            if in_slot {
                self.read_slots.push(item);
            }
        }
        if self.bound.program.items[item as usize].unpacks {
            self.unpacking.push_back(item);
        } else {
            self.came(item);
        }
        if holds == 0 {
            self.release_slot(item);
        }
        match self.bound.program.items[item as usize].sum {
            Some(sum) => self.added(sum),
            None => Ok(()),
        }
    }

    fn release_slot(&mut self, item: u32) {
        if let Some(slot) = self.items[item as usize].slot.take()
            && let Some(hop) = self.bound.hops.iter_mut().find(|hop| hop.owns(slot))
        {
            hop.release(slot);
        }
    }

    fn drop_hold(&mut self, item: u32) {
        let state = &mut self.items[item as usize];
        state.holds -= 1;
        if state.holds == 0 {
            self.release_slot(item);
        }
    }

    fn release_read_slots(&mut self) -> Result<bool, ExecuteError> {
        let mut moved = false;
        let mut index = 0;
        while let Some(&item) = self.read_slots.get(index) {
            let readers = u64::from(self.bound.program.items[item as usize].readers);
            let word = self.word(self.bound.items[item as usize].release_word)?;
            // Acquire: pairs with the Release addition in `note_read`. Only this rank sets it back, when all came.
            if word.load(Ordering::Acquire) == readers {
                word.store(0, Ordering::Relaxed);
                self.read_slots.swap_remove(index);
                self.drop_hold(item);
                moved = true;
            } else {
                index += 1;
            }
        }
        Ok(moved)
    }

    fn readers_done(&self) -> Result<bool, ExecuteError> {
        for peer in self.bound.peers.iter().filter(|peer| peer.reader_word != NO_WORD) {
            // Acquire: pairs with the Release store in `note_read` of the reader.
            if self.word(peer.reader_word)?.load(Ordering::Acquire) != u64::from(self.epoch) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether nothing that a peer waits for needs another step of this rank: the last signal may be queued behind a
    /// put that has completed.
    fn sent(&self, links: &mut Links) -> bool {
        let mut receivers = self.bound.peers.iter().filter(|peer| !peer.pushes.is_empty());
        receivers.all(|peer| peer.link.is_none_or(|link| links.get(link).is_flushed(peer.world)))
    }

    /// What is outstanding, for a deadline's message.
    pub(super) fn waiting_for(&self) -> String {
        if self.awaits_turn {
            return "its turn with the shared staging memory, which comes when all its ranks have started it and \
                    those before it are finished"
                .into();
        }
        if self.awaits_stream() {
            return "what the caller's stream held before the start has not run".into();
        }
        let mut parts = Vec::new();
        for peer in &self.bound.peers {
            let who = format!("rank {} on host {}", peer.rank, peer.host);
            if peer.read < peer.pulls.len() {
                parts.push(format!("{who}: {} of {} chunks read", peer.read, peer.pulls.len()));
            }
            if peer.arrival_cursor < peer.arrivals.len() {
                parts.push(format!("{who}: {} of {} chunks received", peer.arrival_cursor, peer.arrivals.len()));
            }
            if peer.push_cursor < peer.pushes.len() {
                parts.push(format!("{who}: {} of {} chunks sent", peer.push_cursor, peer.pushes.len()));
            }
            let done = peer.reader_word == NO_WORD
                || self.word(peer.reader_word).is_ok_and(|w| w.load(Ordering::Acquire) == u64::from(self.epoch));
            if !done {
                parts.push(format!("{who} has not read everything from here"));
            }
        }
        self.feeds_waiting(&mut parts);
        parts.extend(self.passing.waiting_for());
        if self.flights.iter().any(|lane| !lane.is_empty()) {
            parts.push("copies of this rank's GPU are not done".into());
        }
        if parts.is_empty() { "nothing is outstanding".into() } else { parts.join("; ") }
    }
}

/// Steps of an item: to get it, and to take it from its slot.
fn steps_of(item: &Item) -> usize {
    1 + usize::from(item.unpacks)
}

fn links_in_use(bound: &Bound) -> Vec<usize> {
    let mut links: Vec<usize> = bound.peers.iter().filter_map(|peer| peer.link).collect();
    links.sort_unstable();
    links.dedup();
    links
}
