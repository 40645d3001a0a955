//! Tables of what this rank puts over a message link. In: program, exports. Out: packing copies and puts. Guarantee: a
//! put's two ends are contiguous, and inside a region or slot that both ends agreed on.

use super::super::bind::{End, Onto, Place, Run, own_end, pair, peer_end, runs};
use super::super::exchange::{ExportedMemory, Invitation};
use super::super::execution::{BoundPush, LocalRef, PutOp, RemoteRef};
use super::super::prepare::{in_slot, sending_side};
use super::super::program::Push;
use super::super::{ExecuteError, Group, Side};
use super::Attach;
use crate::base::Rank;

/// A run of a packed chunk in a slot.
const IN_SLOT: u32 = u32::MAX;

impl Attach<'_> {
    /// An item on its way to a peer: what is packed, and what is put where.
    pub(super) fn push(
        &mut self,
        group: &Group,
        peer: Rank,
        position: usize,
        push: u32,
        invitation: &Invitation,
    ) -> Result<BoundPush, ExecuteError> {
        let (plan, local, prepared) = (self.plan, self.local, self.prepared);
        let program = &prepared.program;
        let item = program.pushes[push as usize].item;
        let bytes = program.items[item as usize].bytes;
        let slot_run = vec![Run { packed: 0, tensor: IN_SLOT, offset: 0, bytes }];
        let side = sending_side(program, item);
        let first_copy = self.copies.next();
        let held_in_slot = in_slot(program, &prepared.direct, item);
        let local_runs = if held_in_slot {
            slot_run.clone()
        } else if prepared.packed[push as usize] {
            self.pack(push, side)?;
            slot_run.clone()
        } else {
            runs(program, plan, item, |piece| own_end(plan, local, side, piece))?
        };
        let remote_runs = match invitation.direct.get(position) {
            Some(true) => self.runs_at(peer, item)?,
            _ => slot_run,
        };
        let first_put = self.puts.len() as u32;
        let link = group.link_to(peer);
        let mut fault = None;
        let mut puts = Vec::new();
        pair(&local_runs, &remote_runs, |from, local_offset, to, remote_offset, bytes| {
            let local = match from.tensor {
                IN_SLOT if held_in_slot => Some(LocalRef::Slot),
                IN_SLOT => Some(LocalRef::SendSlot),
                tensor => self.region_of(side, tensor, link),
            };
            let remote = match to.tensor {
                IN_SLOT => Some(RemoteRef::Slot),
                tensor => self.region_at(peer, tensor),
            };
            match (local, remote) {
                (Some(local), Some(remote)) => puts.push(PutOp { local, local_offset, remote, remote_offset, bytes }),
                _ => fault = Some(to.tensor.min(from.tensor)),
            }
        });
        if let Some(tensor) = fault {
            return Err(self.missing(peer, tensor));
        }
        self.puts.append(&mut puts);
        Ok(BoundPush {
            item,
            pack: self.copies.finish(first_copy),
            puts: first_put..self.puts.len() as u32,
            grant_word: prepared.invitations[&peer].grant_base + position as u32,
            signal_index: invitation.signal_base + position as u32,
        })
    }

    /// Runs of an item in a peer's destination tensors.
    fn runs_at(&self, peer: Rank, item: u32) -> Result<Vec<Run>, ExecuteError> {
        let maps = &self.theirs.maps[&peer].destination;
        let exports = &self.theirs.direct;
        runs(&self.prepared.program, self.plan, item, |piece| {
            let export = exports.get(&(peer, piece.cell.tensor))?;
            peer_end(self.plan, Side::Destination, maps.get(&piece.cell.tensor)?, export, 0, piece)
        })
    }

    fn region_at(&self, peer: Rank, tensor: u32) -> Option<RemoteRef> {
        match self.theirs.direct.get(&(peer, tensor))?.memory {
            ExportedMemory::Region { region } => Some(RemoteRef::Region(region)),
            _ => None,
        }
    }

    fn region_of(&self, side: Side, tensor: u32, link: usize) -> Option<LocalRef> {
        let place = self.local.side(side)[tensor as usize].as_ref()?;
        let region = self.prepared.buffer_regions.get(&(place.buffer.as_ptr() as u64, link))?;
        Some(LocalRef::Region(*region))
    }

    /// Copies that pack what is pushed into a send slot.
    fn pack(&mut self, push: u32, side: Side) -> Result<(), ExecuteError> {
        let (plan, local, prepared) = (self.plan, self.local, self.prepared);
        let Push { item, counted } = prepared.program.pushes[push as usize];
        let mut packed = 0;
        for piece in prepared.program.item_pieces(item) {
            let tensor = piece.cell.tensor;
            let place = self.own_place(side, tensor);
            let (Some(source), Some(place)) = (own_end(plan, local, side, piece), place) else {
                return Err(self.missing(Rank::default(), tensor));
            };
            let dtype = prepared.program.dtype(plan, item, tensor);
            let slot = (End::Packed { offset: packed, dtype }, Place::SendSlot);
            self.copies.add(plan, piece, &(source, place), &slot, Onto::Replaced { counted })?;
            packed += (piece.end - piece.start) * dtype.bytes();
        }
        Ok(())
    }
}
