//! Sending chunks: pack, put, signal. In: available items and grants. Out: posted puts. Guarantee: a push is posted
//! once; its source is held until its last put has completed.

use super::super::ExecuteError;
use super::super::board;
use super::super::links::Links;
use super::bound::{LocalRef, RemoteRef};
use super::{Execution, ItemPhase, PushPhase};
use crate::memory::copy::Store;
use crate::transport::{LocalSlice, Posted, RegionId, RemotePlace, Signal, Ticket};
use std::sync::atomic::Ordering;

/// Pushes to one peer that are looked at beyond the first that cannot go yet.
const LOOKAHEAD: usize = 32;

impl Execution {
    /// A put's source bytes are free.
    pub(in crate::execute) fn completed(&mut self, push: u32) -> Result<(), ExecuteError> {
        if let Some(state) = self.pushes.get_mut(push as usize) {
            state.completed = true;
            if state.phase == PushPhase::Sent {
                self.finish_push(push);
            }
        }
        Ok(())
    }

    pub(super) fn push(&mut self, links: &mut Links) -> Result<bool, ExecuteError> {
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
            self.run_copy(op, None, None, Some(slot), Store::Cached)?;
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
            let own_region = self.bound.slot_regions[link_number].unwrap_or(RegionId(u32::MAX));
            let (region, offset) = match put.local {
                LocalRef::Region(region) => (region, put.local_offset),
                LocalRef::Slot => (own_region, slot_offset(slot)),
                LocalRef::SendSlot => (own_region, slot_offset(state.send_slot)),
            };
            let local = LocalSlice { region, offset, bytes: put.bytes };
            let remote = match (put.remote, peer.slots_region) {
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

    pub(super) fn finish_push(&mut self, push: u32) {
        let state = &mut self.pushes[push as usize];
        state.phase = PushPhase::Done;
        if let Some(slot) = state.send_slot.take() {
            self.free_send_slots.push(slot);
        }
        self.pushes_left -= 1;
        self.drop_hold(self.bound.pushes[push as usize].item);
    }
}
