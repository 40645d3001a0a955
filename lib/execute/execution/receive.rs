//! Getting chunks: grants, arrivals, reads. In: the state of items and peers' boards. Out: available items.
//! Guarantee: nothing arrives without a grant of this epoch.

use super::super::ExecuteError;
use super::super::board::{self, BoardLayout, DIRECT, NO_WORD};
use super::super::hop::Need;
use super::super::links::Links;
use super::super::program::{Incoming, Storage};
use super::{Execution, ItemPhase};
use crate::base::Rank;
use crate::transport::{Posted, RemotePlace, Signal};
use std::sync::atomic::Ordering;

impl Execution {
    /// A peer's signal: the chunk is in its slot or its tensors.
    pub(in crate::execute) fn signalled(&mut self, peer: Rank, signal: Signal) -> Result<(), ExecuteError> {
        let protocol = |what: String| ExecuteError::Protocol { peer, what };
        let number = self.by_world.binary_search_by_key(&peer, |&(world, _)| world).map(|at| self.by_world[at].1);
        let Ok(number) = number else { return Err(protocol("a signal for a transfer it is not in".into())) };
        let known = &mut self.bound.peers[number as usize];
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
        if self.is_turn(item) {
            self.arrived.push_back(item);
        } else {
            self.items[item as usize].phase = ItemPhase::Arrived;
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

    pub(super) fn grant(&mut self, links: &mut Links) -> Result<bool, ExecuteError> {
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
                if self.bound.program.items[item as usize].incoming == Incoming::Sum {
                    self.offer(item);
                }
                moved = true;
            }
        }
        Ok(moved)
    }

    /// Writes the grant to the sender's board; false when the link is busy.
    fn tell_grant(&mut self, links: &mut Links, hop: usize, item: u32, need: Need) -> Result<bool, ExecuteError> {
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

    pub(super) fn unpack(&mut self) -> Result<bool, ExecuteError> {
        let mut moved = false;
        while let Some(item) = self.arrived.pop_front() {
            self.run_copies(item, None)?;
            self.available(item)?;
            moved = true;
        }
        Ok(moved)
    }

    pub(super) fn copy_own(&mut self) -> Result<bool, ExecuteError> {
        let Some(&item) = self.bound.program.own_copies.get(self.own_cursor) else { return Ok(false) };
        self.own_cursor += 1;
        self.run_copies(item, None)?;
        self.available(item)?;
        Ok(true)
    }

    /// Packs the next chunk that has a slot.
    pub(super) fn pack_own(&mut self) -> Result<bool, ExecuteError> {
        let Some(&item) = self.bound.program.packs.get(self.pack_cursor) else { return Ok(false) };
        if self.items[item as usize].phase != ItemPhase::Granted {
            return Ok(false);
        }
        self.pack_cursor += 1;
        self.run_copies(item, None)?;
        self.available(item)?;
        Ok(true)
    }

    /// Reads at most one chunk from every peer.
    pub(super) fn pull(&mut self) -> Result<bool, ExecuteError> {
        let mut moved = false;
        for number in 0..self.bound.peers.len() {
            let peer = &self.bound.peers[number];
            let Some(&item) = peer.pulls.get(peer.pull_cursor) else { continue };
            let is_slot = self.bound.program.items[item as usize].storage == Storage::Slot;
            if (is_slot && self.items[item as usize].phase != ItemPhase::Granted) || !self.is_turn(item) {
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
    fn note_read(&mut self, number: usize) -> Result<(), ExecuteError> {
        let peer = &self.bound.peers[number];
        let Some(segment) = &peer.segment else { return Ok(()) };
        let release = peer.pull_releases[peer.pull_cursor - 1];
        if release != NO_WORD {
            // Release: pairs with the Acquire load in `release_read_slots`; the slot is refilled only after it.
            segment.words(u64::from(release) * 8, 1)?[0].fetch_add(1, Ordering::Release);
            self.told = true;
        }
        if peer.pull_cursor == peer.pulls.len() {
            // Release: pairs with the Acquire load in `readers_done`; the tensor may change only after it.
            segment.words(u64::from(peer.done_word) * 8, 1)?[0].store(u64::from(self.epoch), Ordering::Release);
            self.told = true;
        }
        Ok(())
    }
}
