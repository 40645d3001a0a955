//! Adding up terms. In: terms that are here, sums that have a slot. Out: complete sums. Guarantee: the terms of a sum are
//! added one after another in their order, whenever they come, so the bits do not depend on timing.

use super::super::ExecuteError;
use super::super::program::Incoming;
use super::{Execution, ItemPhase};

impl Execution {
    /// Whether an item may be used now: a term only once its sum has a slot and all terms before it were added.
    pub(super) fn is_turn(&self, item: u32) -> bool {
        self.bound.program.items[item as usize].sum.is_none_or(|sum| {
            let sum = &self.items[sum as usize];
            sum.phase == ItemPhase::Granted && sum.next_term == item
        })
    }

    /// Queues the next term of a sum when it is here.
    pub(super) fn offer(&mut self, sum: u32) {
        let next = self.items[sum as usize].next_term;
        let own = self.bound.program.items[next as usize].incoming == Incoming::OwnCopy;
        if own || self.items[next as usize].phase == ItemPhase::Arrived {
            self.arrived.push_back(next);
        }
    }

    /// A term was added: the next one's turn, or the sum is complete.
    pub(super) fn added(&mut self, sum: u32) -> Result<(), ExecuteError> {
        self.items[sum as usize].next_term += 1;
        if self.items[sum as usize].next_term < self.bound.program.items[sum as usize].terms.end {
            self.offer(sum);
            return Ok(());
        }
        self.run_copies(sum, None)?;
        self.available(sum)
    }
}
