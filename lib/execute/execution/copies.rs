//! Running the copies of items and packs. In: tables, slots. Out: copied bytes. Guarantee: no allocation.

use super::super::ExecuteError;
use super::super::bind::Place;
use super::Execution;
use crate::memory::copy::{Store, fence};

impl Execution {
    /// Writes the padding of this rank's destinations.
    pub(super) fn write_padding(&mut self) -> Result<(), ExecuteError> {
        self.bound.padding.clone().try_for_each(|op| self.run_copy(op, None, None, None, Store::Cached))
    }

    pub(super) fn run_copies(&mut self, item: u32, peer_slot: Option<u32>) -> Result<(), ExecuteError> {
        let slot = self.items[item as usize].slot;
        let store = self.bound.items[item as usize].store;
        for op in self.bound.items[item as usize].copies.clone() {
            self.run_copy(op, slot, peer_slot, None, store)?;
        }
        if store == Store::Streaming {
            fence();
        }
        Ok(())
    }

    pub(super) fn run_copy(
        &mut self,
        op: u32,
        slot: Option<u32>,
        peer_slot: Option<u32>,
        send_slot: Option<u32>,
        store: Store,
    ) -> Result<(), ExecuteError> {
        let op = &self.bound.copies[op as usize];
        let boxes = op.boxes.start as usize..op.boxes.end as usize;
        let (to, to_base) = self.resolve(op.destination, slot, peer_slot, send_slot);
        let table = &self.bound.table;
        self.saturated += if let Place::Process { peer, address } = op.source {
            let process = self.bound.peers[peer as usize].process;
            table.read_process(boxes, &process, address, &self.bound.spans[to], to_base, &mut self.scratch)?
        } else {
            let (from, from_base) = self.resolve(op.source, slot, peer_slot, send_slot);
            let (source, destination) = (&self.bound.spans[from], &self.bound.spans[to]);
            if let Some(bridge) = &self.bound.bridge
                && (source.device().is_some() || destination.device().is_some())
            {
                return Ok(bridge.copy(table, boxes, (source, from_base), (destination, to_base))?);
            }
            table.copy(boxes, source, from_base, destination, to_base, store)?
        };
        Ok(())
    }

    /// Span and base offset of a place.
    fn resolve(&self, place: Place, slot: Option<u32>, peer_slot: Option<u32>, send_slot: Option<u32>) -> (usize, u64) {
        let own = |slot: Option<u32>| {
            let slot = u64::from(slot.unwrap_or(0));
            (self.bound.slots_span as usize, self.bound.slots_offset + slot * self.bound.slot_bytes)
        };
        match place {
            Place::Span(span) => (span as usize, 0),
            Place::Slot => own(slot),
            Place::SendSlot => own(send_slot),
            Place::SumSlot(sum) => own(self.items[sum as usize].slot),
            Place::PeerSlot(peer) => {
                let peer = &self.bound.peers[peer as usize];
                let slot = u64::from(peer_slot.unwrap_or(0));
                (peer.slots_span.unwrap_or(0) as usize, peer.slots_offset + slot * peer.slot_bytes)
            }
            Place::Process { .. } => (0, 0),
        }
    }
}
