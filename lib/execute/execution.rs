//! The state machine of one transfer at one rank. In: items with addresses, links, events. Out: moved bytes.
//! Guarantee: `progress` never blocks and never allocates; every step is taken at most once per start.

use super::bind::{CopyOp, Place};
use super::board::{self, BoardLayout, DIRECT, NO_WORD};
use super::engine::Links;
use super::hop::{Hop, Need};
use super::program::{Incoming, Program, Storage};
use super::ExecuteError;
use crate::base::Rank;
use crate::memory::copy::{CopyTable, RangeScratch};
use crate::memory::{ProcessMemory, SharedMemory, Span};
use crate::transport::{LocalSlice, Posted, RegionId, RemotePlace, RemoteRegion, Signal, Ticket};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Pushes to one peer that are looked at beyond the first that cannot go yet.
const LOOKAHEAD: usize = 32;

/// Local bytes of a put.
#[derive(Debug, Clone, Copy)]
pub(super) enum LocalRef {
    Region(RegionId),
    Slot,
    SendSlot,
}

/// Remote place of a put.
#[derive(Debug, Clone, Copy)]
pub(super) enum RemoteRef {
    Region(RemoteRegion),
    Slot,
}

/// One put.
#[derive(Debug, Clone, Copy)]
pub(super) struct PutOp {
    pub(super) local: LocalRef,
    pub(super) local_offset: u64,
    pub(super) remote: RemoteRef,
    pub(super) remote_offset: u64,
    pub(super) bytes: u64,
}

/// A push with its addresses.
#[derive(Debug, Clone, Default)]
pub(super) struct BoundPush {
    pub(super) item: u32,
    pub(super) pack: Range<u32>,
    pub(super) puts: Range<u32>,
    pub(super) grant_word: u32,
    pub(super) signal_index: u32,
}

/// An item with its addresses.
#[derive(Debug, Clone, Default)]
pub(super) struct BoundItem {
    /// Copies that bring it in: an own copy, a pull, or the unpacking of its slot.
    pub(super) copies: Range<u32>,
    /// Straight into the tensors.
    pub(super) direct: bool,
    pub(super) available_word: u32,
    pub(super) release_word: u32,
}

/// A rank that this transfer deals with.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) rank: Rank,
    pub(super) world: Rank,
    pub(super) host: String,
    pub(super) link: Option<usize>,
    /// Its board and slots, when mapped.
    pub(super) segment: Option<Arc<SharedMemory>>,
    pub(super) segment_span: Option<u32>,
    pub(super) slots_offset: u64,
    pub(super) slot_bytes: u64,
    pub(super) region: Option<RemoteRegion>,
    pub(super) process: ProcessMemory,
    /// Items read from it, with the words on its board.
    pub(super) pulls: Vec<u32>,
    pub(super) pull_words: Vec<u32>,
    pub(super) pull_releases: Vec<u32>,
    pub(super) done_word: u32,
    pub(super) pull_cursor: usize,
    /// Items it puts here, by signal index less `signal_base`.
    pub(super) arrivals: Vec<u32>,
    pub(super) arrival_cursor: usize,
    pub(super) signal_base: u32,
    pub(super) grant_base: u32,
    /// Pushes to it.
    pub(super) pushes: Vec<u32>,
    pub(super) push_cursor: usize,
    /// Word on this rank's board in which it notes that it has read everything; `NO_WORD` when it reads nothing.
    pub(super) reader_word: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ItemPhase {
    Waiting,
    Granted,
    Available,
}

#[derive(Debug, Clone, Copy)]
struct ItemState {
    phase: ItemPhase,
    slot: Option<u32>,
    /// Pushes and slot readers that still need it.
    holds: u32,
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

/// Everything that init prepared.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) program: Program,
    pub(super) items: Vec<BoundItem>,
    pub(super) pushes: Vec<BoundPush>,
    pub(super) copies: Vec<CopyOp>,
    pub(super) puts: Vec<PutOp>,
    pub(super) table: CopyTable,
    pub(super) spans: Vec<Span>,
    pub(super) peers: Vec<Peer>,
    pub(super) hops: Vec<Hop>,
    pub(super) segment: Arc<SharedMemory>,
    pub(super) segment_span: u32,
    pub(super) segment_regions: Vec<Option<RegionId>>,
    pub(super) slots_offset: u64,
    pub(super) slot_bytes: u64,
    pub(super) send_slots: Range<u32>,
}

/// A transfer that can run.
#[derive(Debug)]
pub(super) struct Execution {
    bound: Bound,
    id: u32,
    epoch: u32,
    active: bool,
    items: Vec<ItemState>,
    pushes: Vec<PushState>,
    free_send_slots: Vec<u32>,
    arrived: VecDeque<u32>,
    own_cursor: usize,
    /// Slot items whose readers are counted.
    read_slots: Vec<u32>,
    items_left: usize,
    pushes_left: usize,
    scratch: RangeScratch,
}

impl Execution {
    pub(super) fn new(bound: Bound, id: u32) -> Self {
        let items = bound.program.items.len();
        let pushes = bound.program.pushes.len();
        Self {
            id,
            epoch: 0,
            active: false,
            items: vec![ItemState { phase: ItemPhase::Waiting, slot: None, holds: 0 }; items],
            pushes: vec![PushState { phase: PushPhase::Waiting, send_slot: None, completed: false }; pushes],
            free_send_slots: Vec::with_capacity(bound.send_slots.len()),
            arrived: VecDeque::with_capacity(items),
            own_cursor: 0,
            read_slots: Vec::with_capacity(items),
            items_left: 0,
            pushes_left: 0,
            scratch: RangeScratch::default(),
            bound,
        }
    }

    pub(super) fn is_active(&self) -> bool {
        self.active
    }

    /// Begins a start: everything that is held is available, everyone else may be told.
    pub(super) fn start(&mut self) -> Result<(), ExecuteError> {
        self.epoch = self.epoch.wrapping_add(1).max(1);
        self.active = true;
        self.items_left = 0;
        self.pushes_left = self.pushes.len();
        for (item, state) in self.bound.program.items.iter().zip(&mut self.items) {
            let held = item.incoming == Incoming::Held;
            let slot_readers = u32::from(item.storage == Storage::Slot && item.readers > 0);
            state.phase = if held { ItemPhase::Available } else { ItemPhase::Waiting };
            state.slot = None;
            state.holds = item.pushes.len() as u32 + slot_readers;
            self.items_left += usize::from(!held);
        }
        self.pushes.fill(PushState { phase: PushPhase::Waiting, send_slot: None, completed: false });
        self.free_send_slots.clear();
        self.free_send_slots.extend(self.bound.send_slots.clone().rev());
        self.arrived.clear();
        self.read_slots.clear();
        self.own_cursor = 0;
        for hop in &mut self.bound.hops {
            hop.reset();
        }
        for peer in &mut self.bound.peers {
            (peer.pull_cursor, peer.arrival_cursor, peer.push_cursor) = (0, 0, 0);
        }
        // Release: pairs with the Acquire load in `source_started` of readers; the caller wrote its tensors before.
        self.word(BoardLayout::STARTED)?.store(u64::from(self.epoch), Ordering::Release);
        Ok(())
    }

    /// Takes every step that can be taken now; true when something moved.
    pub(super) fn progress(&mut self, links: &mut Links) -> Result<bool, ExecuteError> {
        let mut moved = self.grant(links)?;
        moved |= self.unpack()?;
        moved |= self.copy_own()?;
        moved |= self.pull()?;
        moved |= self.push(links)?;
        moved |= self.release_read_slots()?;
        if self.items_left == 0 && self.pushes_left == 0 && self.read_slots.is_empty() && self.readers_done()? {
            self.active = false;
            moved = true;
        }
        Ok(moved)
    }

    /// A peer's signal: the chunk is in its slot or its tensors.
    pub(super) fn signalled(&mut self, peer: Rank, signal: Signal) -> Result<(), ExecuteError> {
        let protocol = |what: String| ExecuteError::Protocol { peer, what };
        let number = self.bound.peers.iter().position(|known| known.world == peer);
        let Some(number) = number else { return Err(protocol("a signal for a transfer it is not in".into())) };
        let known = &mut self.bound.peers[number];
        let item = known.arrivals.get(signal.index.wrapping_sub(known.signal_base) as usize).copied();
        let Some(item) = item else { return Err(protocol(format!("signal {} of no chunk", signal.index))) };
        if !self.active || signal.epoch != self.epoch as u8 {
            return Err(protocol(format!("a signal of epoch {} in epoch {}", signal.epoch, self.epoch as u8)));
        }
        if self.items[item as usize].phase != ItemPhase::Granted {
            return Err(protocol(format!("chunk {} without a grant", signal.index)));
        }
        known.arrival_cursor += 1;
        let need = self.need(item);
        self.bound.hops[self.bound.program.items[item as usize].hop as usize].arrived(need);
        self.arrived.push_back(item);
        Ok(())
    }

    /// A put's source bytes are free.
    pub(super) fn completed(&mut self, push: u32) -> Result<(), ExecuteError> {
        if let Some(state) = self.pushes.get_mut(push as usize) {
            state.completed = true;
            if state.phase == PushPhase::Sent {
                self.finish_push(push);
            }
        }
        Ok(())
    }

    fn need(&self, item: u32) -> Need {
        let direct = self.bound.items[item as usize].direct;
        match self.bound.program.items[item as usize].incoming {
            Incoming::Push { from } => {
                let peer = self.peer_number(from);
                if direct { Need::DirectFrom(peer) } else { Need::SlotFrom(peer) }
            }
            _ => Need::Slot,
        }
    }

    fn peer_number(&self, rank: Rank) -> u32 {
        self.bound.peers.binary_search_by_key(&rank, |peer| peer.rank).unwrap_or(0) as u32
    }

    fn word(&self, word: u32) -> Result<&AtomicU64, ExecuteError> {
        Ok(&self.bound.segment.words(u64::from(word) * 8, 1)?[0])
    }

    fn grant(&mut self, links: &mut Links) -> Result<bool, ExecuteError> {
        let mut moved = false;
        for number in 0..self.bound.hops.len() {
            while let Some(item) = self.bound.hops[number].next() {
                let need = self.need(item);
                if !self.bound.hops[number].can_grant(need) || !self.tell_grant(links, number, item, need)? {
                    break;
                }
                let slot = self.bound.hops[number].grant(need);
                self.items[item as usize].slot = slot;
                self.items[item as usize].phase = ItemPhase::Granted;
                moved = true;
            }
        }
        Ok(moved)
    }

    /// Writes the grant to the sender's board; false when the link is busy.
    fn tell_grant(
        &mut self,
        links: &mut Links,
        hop: usize,
        item: u32,
        need: Need,
    ) -> Result<bool, ExecuteError> {
        let (peer, low) = match need {
            Need::Slot => return Ok(true),
            Need::DirectFrom(peer) => (peer, DIRECT),
            Need::SlotFrom(peer) => (peer, self.bound.hops[hop].next_slot().map_or(DIRECT, |slot| slot + 1)),
        };
        let peer = &self.bound.peers[peer as usize];
        let (Some(link), Some(region)) = (peer.link, peer.region) else { return Ok(false) };
        let position = peer.arrivals.binary_search(&item).unwrap_or(0) as u64;
        let place = RemotePlace { region, offset: (u64::from(peer.grant_base) + position) * 8 };
        let posted = links.get(link).put_word(peer.world, board::word(self.epoch, low), place)?;
        Ok(posted == Posted::Queued)
    }

    fn unpack(&mut self) -> Result<bool, ExecuteError> {
        let mut moved = false;
        while let Some(item) = self.arrived.pop_front() {
            self.run_copies(item, None)?;
            self.available(item)?;
            moved = true;
        }
        Ok(moved)
    }

    fn copy_own(&mut self) -> Result<bool, ExecuteError> {
        let Some(&item) = self.bound.program.own_copies.get(self.own_cursor) else { return Ok(false) };
        self.own_cursor += 1;
        self.run_copies(item, None)?;
        self.available(item)?;
        Ok(true)
    }

    /// Reads at most one chunk from every peer.
    fn pull(&mut self) -> Result<bool, ExecuteError> {
        let mut moved = false;
        for number in 0..self.bound.peers.len() {
            let peer = &self.bound.peers[number];
            let Some(&item) = peer.pulls.get(peer.pull_cursor) else { continue };
            let is_slot = self.bound.program.items[item as usize].storage == Storage::Slot;
            if is_slot && self.items[item as usize].phase != ItemPhase::Granted {
                continue;
            }
            let Some(peer_slot) = self.readable(number)? else { continue };
            self.run_copies(item, peer_slot)?;
            self.bound.peers[number].pull_cursor += 1;
            self.note_read(number)?;
            self.available(item)?;
            moved = true;
        }
        Ok(moved)
    }

    /// Whether the next chunk to read from a peer is there: `Some(its slot there)`.
    fn readable(&self, number: usize) -> Result<Option<Option<u32>>, ExecuteError> {
        let peer = &self.bound.peers[number];
        let Some(segment) = &peer.segment else { return Ok(None) };
        let word = peer.pull_words[peer.pull_cursor];
        if word == NO_WORD {
            // Acquire: pairs with the Release store of the peer's start; its tensors are complete from then on.
            let started = segment.words(u64::from(BoardLayout::STARTED) * 8, 1)?[0].load(Ordering::Acquire);
            return Ok((started == u64::from(self.epoch)).then_some(None));
        }
        // Acquire: pairs with the Release store in `available`; the chunk's bytes were written before it.
        let value = segment.words(u64::from(word) * 8, 1)?[0].load(Ordering::Acquire);
        Ok(board::low(value, self.epoch).map(|low| (low != DIRECT).then(|| low.wrapping_sub(1))))
    }

    /// Tells a peer that a chunk of it, and when it was the last one all of it, has been read.
    fn note_read(&self, number: usize) -> Result<(), ExecuteError> {
        let peer = &self.bound.peers[number];
        let Some(segment) = &peer.segment else { return Ok(()) };
        let release = peer.pull_releases[peer.pull_cursor - 1];
        if release != NO_WORD {
            // Release: pairs with the Acquire load in `release_read_slots`; the slot is refilled only after it.
            segment.words(u64::from(release) * 8, 1)?[0].fetch_add(1, Ordering::Release);
        }
        if peer.pull_cursor == peer.pulls.len() {
            // Release: pairs with the Acquire load in `readers_done`; the tensor may change only after it.
            segment.words(u64::from(peer.done_word) * 8, 1)?[0].store(u64::from(self.epoch), Ordering::Release);
        }
        Ok(())
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
            if in_slot {
                self.read_slots.push(item);
            }
        }
        if holds == 0 {
            self.release_slot(item);
        }
        Ok(())
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

    fn push(&mut self, links: &mut Links) -> Result<bool, ExecuteError> {
        let mut moved = false;
        for number in 0..self.bound.peers.len() {
            let peer = &self.bound.peers[number];
            let (cursor, count) = (peer.push_cursor, peer.pushes.len());
            let mut first_open = true;
            for position in cursor..count.min(cursor + LOOKAHEAD) {
                let push = self.bound.peers[number].pushes[position];
                moved |= self.advance_push(links, number, push)?;
                if matches!(self.pushes[push as usize].phase, PushPhase::Sent | PushPhase::Done) {
                    if first_open {
                        self.bound.peers[number].push_cursor = position + 1;
                    }
                } else {
                    first_open = false;
                    if !matches!(self.pushes[push as usize].phase, PushPhase::Waiting) {
                        break;
                    }
                }
            }
        }
        Ok(moved)
    }

    /// Takes one push as far as it goes: wait for item and grant, pack, put, signal.
    fn advance_push(&mut self, links: &mut Links, peer: usize, push: u32) -> Result<bool, ExecuteError> {
        let bound_push = &self.bound.pushes[push as usize];
        let (item, grant_word) = (bound_push.item, bound_push.grant_word);
        let before = self.pushes[push as usize].phase;
        if matches!(before, PushPhase::Sent | PushPhase::Done) {
            return Ok(false);
        }
        // Acquire: pairs with the Release store of the link's receiving end; the granted place is free from then.
        let grant = board::low(self.word(grant_word)?.load(Ordering::Acquire), self.epoch);
        let Some(grant) = grant else { return Ok(false) };
        if before == PushPhase::Waiting {
            if self.items[item as usize].phase != ItemPhase::Available || !self.pack(push)? {
                return Ok(false);
            }
            self.pushes[push as usize].phase = PushPhase::Posting { next: self.bound.pushes[push as usize].puts.start };
        }
        self.post(links, peer, push, grant)?;
        let after = self.pushes[push as usize].phase;
        if after == PushPhase::Sent && self.pushes[push as usize].completed {
            self.finish_push(push);
        }
        Ok(after != before)
    }

    /// Packs a push that has short runs; false when no send slot is free.
    fn pack(&mut self, push: u32) -> Result<bool, ExecuteError> {
        let pack = self.bound.pushes[push as usize].pack.clone();
        if pack.is_empty() {
            return Ok(true);
        }
        let Some(slot) = self.free_send_slots.pop() else { return Ok(false) };
        self.pushes[push as usize].send_slot = Some(slot);
        for op in pack {
            self.run_copy(op, None, None, Some(slot))?;
        }
        Ok(true)
    }

    fn post(&mut self, links: &mut Links, peer: usize, push: u32, grant: u32) -> Result<(), ExecuteError> {
        let peer = &self.bound.peers[peer];
        let Some(link_number) = peer.link else { return Ok(()) };
        let link = links.get(link_number);
        let bound = &self.bound.pushes[push as usize];
        let state = &mut self.pushes[push as usize];
        let slot = self.items[bound.item as usize].slot;
        while let PushPhase::Posting { next } = state.phase {
            if next == bound.puts.end {
                state.phase = PushPhase::Signalling;
                break;
            }
            let put = self.bound.puts[next as usize];
            let slot_offset = |slot: Option<u32>| {
                self.bound.slots_offset + u64::from(slot.unwrap_or(0)) * self.bound.slot_bytes + put.local_offset
            };
            let own_region = self.bound.segment_regions[link_number].unwrap_or(RegionId(u32::MAX));
            let (region, offset) = match put.local {
                LocalRef::Region(region) => (region, put.local_offset),
                LocalRef::Slot => (own_region, slot_offset(slot)),
                LocalRef::SendSlot => (own_region, slot_offset(state.send_slot)),
            };
            let local = LocalSlice { region, offset, bytes: put.bytes };
            let remote = match (put.remote, peer.region) {
                (RemoteRef::Region(region), _) => RemotePlace { region, offset: put.remote_offset },
                (RemoteRef::Slot, Some(region)) => {
                    let slot = u64::from(grant.wrapping_sub(1)) * peer.slot_bytes;
                    RemotePlace { region, offset: peer.slots_offset + slot + put.remote_offset }
                }
                (RemoteRef::Slot, None) => return Ok(()),
            };
            let last = next + 1 == bound.puts.end;
            let ticket = if last { Ticket(u64::from(self.id) << 32 | u64::from(push)) } else { Ticket::SILENT };
            if link.put(peer.world, local, remote, ticket)? == Posted::Busy {
                return Ok(());
            }
            state.phase = PushPhase::Posting { next: next + 1 };
        }
        let signal = Signal { epoch: self.epoch as u8, index: bound.signal_index };
        if state.phase == PushPhase::Signalling && link.signal(peer.world, signal)? == Posted::Queued {
            state.phase = PushPhase::Sent;
        }
        Ok(())
    }

    fn finish_push(&mut self, push: u32) {
        let state = &mut self.pushes[push as usize];
        state.phase = PushPhase::Done;
        if let Some(slot) = state.send_slot.take() {
            self.free_send_slots.push(slot);
        }
        self.pushes_left -= 1;
        self.drop_hold(self.bound.pushes[push as usize].item);
    }

    fn run_copies(&mut self, item: u32, peer_slot: Option<u32>) -> Result<(), ExecuteError> {
        let slot = self.items[item as usize].slot;
        for op in self.bound.items[item as usize].copies.clone() {
            self.run_copy(op, slot, peer_slot, None)?;
        }
        Ok(())
    }

    fn run_copy(
        &mut self,
        op: u32,
        slot: Option<u32>,
        peer_slot: Option<u32>,
        send_slot: Option<u32>,
    ) -> Result<(), ExecuteError> {
        let op = &self.bound.copies[op as usize];
        let boxes = op.boxes.start as usize..op.boxes.end as usize;
        let (to, to_base) = self.resolve(op.destination, slot, peer_slot, send_slot);
        let table = &self.bound.table;
        if let Place::Process { peer, address } = op.source {
            let process = self.bound.peers[peer as usize].process;
            table.read_process(boxes, &process, address, &self.bound.spans[to], to_base, &mut self.scratch)?;
        } else {
            let (from, from_base) = self.resolve(op.source, slot, peer_slot, send_slot);
            table.copy(boxes, &self.bound.spans[from], from_base, &self.bound.spans[to], to_base)?;
        }
        Ok(())
    }

    /// Span and base offset of a place.
    fn resolve(
        &self,
        place: Place,
        slot: Option<u32>,
        peer_slot: Option<u32>,
        send_slot: Option<u32>,
    ) -> (usize, u64) {
        let own = |slot: Option<u32>| {
            let slot = u64::from(slot.unwrap_or(0));
            (self.bound.segment_span as usize, self.bound.slots_offset + slot * self.bound.slot_bytes)
        };
        match place {
            Place::Span(span) => (span as usize, 0),
            Place::Slot => own(slot),
            Place::SendSlot => own(send_slot),
            Place::PeerSlot(peer) => {
                let peer = &self.bound.peers[peer as usize];
                let slot = u64::from(peer_slot.unwrap_or(0));
                (peer.segment_span.unwrap_or(0) as usize, peer.slots_offset + slot * peer.slot_bytes)
            }
            Place::Process { .. } => (0, 0),
        }
    }

    /// What is outstanding, for a deadline's message.
    pub(super) fn waiting_for(&self) -> String {
        let mut parts = Vec::new();
        for peer in &self.bound.peers {
            let who = format!("rank {} on host {}", peer.rank, peer.host);
            if peer.pull_cursor < peer.pulls.len() {
                parts.push(format!("{who}: {} of {} chunks read", peer.pull_cursor, peer.pulls.len()));
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
        if parts.is_empty() { "nothing is outstanding".into() } else { parts.join("; ") }
    }
}
