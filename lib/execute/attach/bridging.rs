//! Copies from and to devices. In: copies of an item, as they were collected. Out: those of the processor, and those of the
//! bridge, one for each device. Guarantee: the processor never touches memory of a device; what is copied at one time
//! between a device and one place of staging is one copy of the bridge, however many tensors it is about.

use super::super::ExecuteError;
use super::super::Side;
use super::super::bind::{CopyOp, End, Place, UNCHANGED, own_ends};
use super::super::execution::Stage;
use super::Attach;
use crate::base::Rank;
use crate::memory::Span;
use crate::memory::device::{BridgeBoxes, Shore};
use std::collections::BTreeMap;

impl Attach<'_> {
    /// Everything that was added from copy number `first` on, to be made together.
    pub(super) fn stage(&mut self, first: u32) -> Result<Stage, ExecuteError> {
        let copies = self.copies.finish(first);
        let Some(bridge) = &mut self.bridge else { return Ok(Stage { copies, bridged: 0..0 }) };
        let spans = &self.spans;
        let list = &mut self.copies.list;
        let taken: Vec<CopyOp> = list.extract_if(first as usize.., |op| device_of(spans, op).is_some()).collect();
        let mut by_device: BTreeMap<u32, (Option<Place>, Vec<BridgeBoxes<'_>>)> = BTreeMap::new();
        for op in &taken {
            let shore = |place: Place| match place {
                Place::Span(span) => Some(Shore::Fixed(&spans[span as usize])),
                Place::Slot => Some(Shore::Staging(self.prepared.slots.bytes)),
                Place::PeerSlot(peer) => Some(Shore::Staging(self.peer_slot_bytes[peer as usize])),
                Place::SendSlot | Place::SumSlot(_) | Place::Process { .. } => None,
            };
            let (Some(device), Some(source), Some(destination)) =
                (device_of(spans, op), shore(op.source), shore(op.destination))
            else {
                let what = "a way between a device and memory that devices do not reach".into();
                return Err(ExecuteError::Protocol { peer: Rank::default(), what });
            };
            let (staging, boxes) = by_device.entry(device).or_default();
            *staging = [op.source, op.destination].into_iter().find(|place| !matches!(place, Place::Span(_)));
            boxes.push(BridgeBoxes { boxes: op.boxes.start as usize..op.boxes.end as usize, source, destination });
        }
        let first_bridged = self.staging.len() as u32;
        for (device, (staging, boxes)) in by_device {
            bridge.add(device, &self.copies.table, &boxes)?;
            self.staging.push(staging);
        }
        let copies = copies.start..self.copies.next();
        Ok(Stage { copies, bridged: first_bridged..self.staging.len() as u32 })
    }

    /// Copies of an item from its slot into this rank's tensors.
    pub(super) fn unpack_copies(&mut self, number: u32) -> Result<Stage, ExecuteError> {
        let (plan, local, prepared) = (self.plan, self.local, self.prepared);
        let first = self.copies.next();
        let mut packed = 0;
        for piece in prepared.program.item_pieces(number) {
            let tensor = piece.cell.tensor;
            let place = self.own_place(Side::Destination, tensor);
            let (Some(ends), Some(place)) = (own_ends(plan, local, Side::Destination, piece), place) else {
                return Err(self.missing(Rank::default(), tensor));
            };
            let dtype = prepared.program.dtype(plan, number, tensor);
            for end in ends {
                let slot = (End::Packed { offset: packed, dtype }, Place::Slot);
                self.copies.add(plan, piece, &slot, &(end, place), UNCHANGED)?;
            }
            packed += (piece.end - piece.start) * dtype.bytes();
        }
        self.stage(first)
    }
}

/// The device that a copy goes from or to.
fn device_of(spans: &[Span], op: &CopyOp) -> Option<u32> {
    [op.source, op.destination].into_iter().find_map(|place| match place {
        Place::Span(span) => spans[span as usize].device(),
        _ => None,
    })
}
