//! Who may send now. In: the items that arrive at this rank on one hop, in the global order. Out: grants, in that
//! order. Guarantee: no deadlock.
//!
//! Every rank grants on every hop in one global order (chunk index, flow index), so the first chunk of that order
//! that is not finished has been granted wherever it goes, or is the next to be: everything before it is finished
//! and has given its slots back. Slots of different hops are kept apart, so that chunks waiting for a later hop
//! never hold up injection. A grant is also the ready token of its epoch: nothing is put anywhere without one.

/// Most senders with a grant at once: more only fill the switch's queues (incast).
const MOST_SENDERS: u32 = 8;
/// Most chunks granted straight into tensors at once; they need no slot.
const DIRECT_WINDOW: u32 = 16;

/// Grants of one hop.
#[derive(Debug, Default)]
pub(super) struct Hop {
    /// Items in global order.
    pub(super) items: Vec<u32>,
    cursor: usize,
    first_slot: u32,
    slots: u32,
    free: Vec<u32>,
    direct: u32,
    /// Outstanding grants per peer.
    outstanding: Vec<u32>,
    active: u32,
}

/// What an item needs before it may come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// A slot, filled by peer number.
    SlotFrom(u32),
    /// A slot, filled by this rank reading.
    Slot,
    /// Nothing but the word that the destination may be written, by peer number.
    DirectFrom(u32),
}

impl Hop {
    /// Fixes slot numbers and the number of peers; allocates everything that grants need.
    pub(super) fn prepare(&mut self, first_slot: u32, slots: u32, peers: usize) {
        self.first_slot = first_slot;
        self.slots = slots;
        self.free = Vec::with_capacity(slots as usize);
        self.outstanding = vec![0; peers];
        self.reset();
    }

    /// Begins a start.
    pub(super) fn reset(&mut self) {
        self.cursor = 0;
        self.direct = 0;
        self.active = 0;
        self.outstanding.fill(0);
        self.free.clear();
        self.free.extend((self.first_slot..self.first_slot + self.slots).rev());
    }

    /// The next item, while there is one.
    pub(super) fn next(&self) -> Option<u32> {
        self.items.get(self.cursor).copied()
    }

    /// Whether `need` can be met now.
    pub(super) fn can_grant(&self, need: Need) -> bool {
        let sender_fits = |peer: u32| self.outstanding[peer as usize] > 0 || self.active < MOST_SENDERS;
        match need {
            Need::Slot => !self.free.is_empty(),
            Need::SlotFrom(peer) => !self.free.is_empty() && sender_fits(peer),
            Need::DirectFrom(peer) => self.direct < DIRECT_WINDOW && sender_fits(peer),
        }
    }

    /// The slot that a grant would hand out.
    pub(super) fn next_slot(&self) -> Option<u32> {
        self.free.last().copied()
    }

    /// Grants the next item; the slot it got, if it needs one.
    pub(super) fn grant(&mut self, need: Need) -> Option<u32> {
        self.cursor += 1;
        if let Need::SlotFrom(peer) | Need::DirectFrom(peer) = need {
            self.active += u32::from(self.outstanding[peer as usize] == 0);
            self.outstanding[peer as usize] += 1;
        }
        match need {
            Need::Slot | Need::SlotFrom(_) => self.free.pop(),
            Need::DirectFrom(_) => {
                self.direct += 1;
                None
            }
        }
    }

    /// What was granted to `peer` has arrived.
    pub(super) fn arrived(&mut self, need: Need) {
        if let Need::SlotFrom(peer) | Need::DirectFrom(peer) = need {
            self.outstanding[peer as usize] -= 1;
            self.active -= u32::from(self.outstanding[peer as usize] == 0);
        }
        if let Need::DirectFrom(_) = need {
            self.direct -= 1;
        }
    }

    /// A slot is free again.
    pub(super) fn release(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Whether `slot` belongs to this hop.
    pub(super) fn owns(&self, slot: u32) -> bool {
        (self.first_slot..self.first_slot + self.slots).contains(&slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_are_in_order_and_bounded() {
        let mut hop = Hop { items: (0..40).collect(), ..Hop::default() };
        hop.prepare(3, 2, 12);
        assert_eq!(hop.grant(Need::SlotFrom(0)), Some(3));
        assert_eq!(hop.grant(Need::SlotFrom(1)), Some(4));
        assert!(!hop.can_grant(Need::SlotFrom(0)) && !hop.can_grant(Need::Slot));
        for peer in 2..8 {
            assert!(hop.can_grant(Need::DirectFrom(peer)));
            assert_eq!(hop.grant(Need::DirectFrom(peer)), None);
        }
        assert!(!hop.can_grant(Need::DirectFrom(8)), "a ninth sender waits");
        assert!(hop.can_grant(Need::DirectFrom(7)));
        hop.arrived(Need::SlotFrom(0));
        assert!(hop.can_grant(Need::DirectFrom(8)));
        hop.release(3);
        assert!(hop.owns(3) && !hop.owns(5) && hop.can_grant(Need::Slot));
        assert_eq!(hop.next(), Some(8));
        hop.reset();
        assert_eq!((hop.next(), hop.next_slot()), (Some(0), Some(3)));
    }
}
