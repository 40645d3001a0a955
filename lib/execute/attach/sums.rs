//! Tables of what happens to a sum once its terms are added. In: program, own tensors. Out: copies inside its slot and from
//! there. Guarantee: elements take the form in which they travel in place, since that is never larger; each is rounded
//! once, and counted when it becomes infinite.

use super::super::bind::{End, Onto, Place, own_ends};
use super::super::program::Form;
use super::super::{ExecuteError, Side};
use super::Attach;
use crate::base::Rank;

impl Attach<'_> {
    /// Copies of a complete sum.
    pub(super) fn sum_copies(&mut self, number: u32) -> Result<(), ExecuteError> {
        let (plan, prepared) = (self.plan, self.prepared);
        let item = &prepared.program.items[number as usize];
        let tensors = plan.manifest().tensors();
        let (mut summed, mut packed) = (0, 0);
        for piece in prepared.program.item_pieces(number) {
            let tensor = &tensors[piece.cell.tensor as usize];
            let (from, to) = (Form::Sum.dtype(tensor), item.form.dtype(tensor));
            if (summed, from) != (packed, to) {
                let ends =
                    [(summed, from), (packed, to)].map(|(offset, dtype)| (End::Packed { offset, dtype }, Place::Slot));
                self.copies.add(plan, piece, &ends[0], &ends[1], Onto::Replaced { counted: true })?;
            }
            summed += (piece.end - piece.start) * from.bytes();
            packed += (piece.end - piece.start) * to.bytes();
        }
        if item.wants { self.unpack_sum(number) } else { Ok(()) }
    }

    /// Copies of a sum into this rank's own tensors.
    fn unpack_sum(&mut self, number: u32) -> Result<(), ExecuteError> {
        let (plan, local, prepared) = (self.plan, self.local, self.prepared);
        let mut packed = 0;
        for piece in prepared.program.item_pieces(number) {
            let tensor = piece.cell.tensor;
            let dtype = prepared.program.dtype(plan, number, tensor);
            let place = self.own_place(Side::Destination, tensor);
            let (Some(ends), Some(place)) = (own_ends(plan, local, Side::Destination, piece), place) else {
                return Err(self.missing(Rank::default(), tensor));
            };
            let slot = (End::Packed { offset: packed, dtype }, Place::Slot);
            for end in ends {
                self.copies.add(plan, piece, &slot, &(end, place), Onto::Replaced { counted: false })?;
            }
            packed += (piece.end - piece.start) * dtype.bytes();
        }
        Ok(())
    }
}
