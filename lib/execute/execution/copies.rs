//! Running the copies of items and packs. In: tables, slots. Out: copied bytes. Guarantee: no allocation; what a device copies
//! is looked at until it has landed, and nothing waits for it.

use super::super::ExecuteError;
use super::super::bind::Place;
use super::bound::Stage;
use super::{Execution, Read};
use crate::memory::copy::{Store, fence};

/// What a copy of a device was for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Landing {
    /// An item came, read from a peer or not.
    Brought { item: u32, read: Option<Read> },
    /// An item is in this rank's tensors.
    Unpacked { item: u32 },
    /// Padding was written.
    Padded,
}

impl Execution {
    /// Writes the padding of this rank's destinations.
    pub(super) fn write_padding(&mut self) -> Result<(), ExecuteError> {
        let Stage { copies, bridged } = self.bound.padding.clone();
        copies.into_iter().try_for_each(|op| self.run_copy(op, None, None, None, Store::Cached))?;
        self.cross(bridged, None, None, Landing::Padded)
    }

    /// Whether an item can be brought in now: devices have room for its copies.
    pub(super) fn can_bring(&self, item: u32) -> bool {
        self.has_room(&self.bound.items[item as usize].stage)
    }

    /// Brings an item in, and says so once its bytes are there.
    pub(super) fn bring(&mut self, item: u32, read: Option<Read>) -> Result<(), ExecuteError> {
        let peer_slot = read.and_then(|read| read.slot);
        self.run_copies(item, peer_slot)?;
        let bridged = self.bound.items[item as usize].stage.bridged.clone();
        if bridged.is_empty() {
            return self.brought(item, read);
        }
        let slot = self.items[item as usize].slot;
        self.cross(bridged, slot, peer_slot, Landing::Brought { item, read })
    }

    fn brought(&mut self, item: u32, read: Option<Read>) -> Result<(), ExecuteError> {
        if let Some(read) = read {
            self.note_read(read)?;
        }
        self.available(item)
    }

    /// Takes items from their slots into this rank's tensors.
    pub(super) fn unpack_slots(&mut self) -> Result<bool, ExecuteError> {
        let mut moved = false;
        while let Some(&item) = self.unpacking.front() {
            let stage = self.bound.items[item as usize].unpack.clone();
            if !self.has_room(&stage) {
                break;
            }
            self.unpacking.pop_front();
            let slot = self.items[item as usize].slot;
            stage.copies.into_iter().try_for_each(|op| self.run_copy(op, slot, None, None, Store::Cached))?;
            if stage.bridged.is_empty() {
                self.unpacked(item);
            } else {
                self.cross(stage.bridged, slot, None, Landing::Unpacked { item })?;
            }
            moved = true;
        }
        Ok(moved)
    }

    fn unpacked(&mut self, item: u32) {
        self.items_left -= 1;
        self.came(item);
        self.drop_hold(item);
    }

    /// Whether devices have room for the copies of a stage, each on a lane of its own.
    fn has_room(&self, stage: &Stage) -> bool {
        let mut numbers = stage.bridged.clone();
        self.bound.bridge.as_ref().is_none_or(|bridge| numbers.all(|number| bridge.has_room(number)))
    }

    /// Starts copies of devices, for which there is room.
    fn cross(
        &mut self,
        bridged: std::ops::Range<u32>,
        slot: Option<u32>,
        peer_slot: Option<u32>,
        landing: Landing,
    ) -> Result<(), ExecuteError> {
        if let Landing::Brought { item, .. } | Landing::Unpacked { item } = landing {
            self.items[item as usize].under_way = bridged.len() as u32;
        }
        for number in bridged {
            let place = self.bound.staging[number as usize];
            let staging = place.map(|place| self.resolve(place, slot, peer_slot, None));
            let Some(bridge) = &mut self.bound.bridge else { return Ok(()) };
            let lane = bridge.start(number, staging.map(|(span, base)| (&self.bound.spans[span], base)))?;
            self.flights[lane].push_back(landing);
        }
        Ok(())
    }

    /// Looks after copies of devices.
    pub(super) fn land(&mut self) -> Result<bool, ExecuteError> {
        let mut moved = false;
        for lane in 0..self.flights.len() {
            while self.bound.bridge.as_mut().map_or(Ok(false), |bridge| bridge.landed(lane))? {
                if let Some(landing) = self.flights[lane].pop_front() {
                    self.landed(landing)?;
                }
                moved = true;
            }
        }
        Ok(moved)
    }

    fn landed(&mut self, landing: Landing) -> Result<(), ExecuteError> {
        if let Landing::Brought { item, .. } | Landing::Unpacked { item } = landing {
            let under_way = &mut self.items[item as usize].under_way;
            *under_way -= 1;
            if *under_way > 0 {
                return Ok(());
            }
        }
        match landing {
            Landing::Brought { item, read } => self.brought(item, read),
            Landing::Unpacked { item } => {
                self.unpacked(item);
                Ok(())
            }
            Landing::Padded => Ok(()),
        }
    }

    /// Runs the processor's copies of an item.
    pub(super) fn run_copies(&mut self, item: u32, peer_slot: Option<u32>) -> Result<(), ExecuteError> {
        let slot = self.items[item as usize].slot;
        let store = self.bound.items[item as usize].store;
        for op in self.bound.items[item as usize].stage.copies.clone() {
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
            table.copy(boxes, &self.bound.spans[from], from_base, &self.bound.spans[to], to_base, store)?
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
