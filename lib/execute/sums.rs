//! This rank's share of adding up. In: the sums of a flow. Out: items for terms, and for sums that go on to the root.
//! Guarantee: pure; terms of a sum are items that follow one another in the order in which they are added, and both ends of
//! an edge make its item at the same point of their order.

use super::program::{Form, Incoming, Item, Program, Storage};
use super::reach::Sides;
use crate::base::Rank;
use crate::plan::Plan;
use crate::route::{DomainSum, Sums};
use std::ops::Range;

/// Hop of a sum that goes on to the root; its terms arrive on the hop before it, the root gets it on the one behind.
const DOMAIN_SUM: u32 = 1;

/// A chunk of a flow, and the rank that this is about.
struct Chunk<'a> {
    plan: &'a Plan,
    sides: &'a Sides<'a>,
    pieces: &'a Range<u32>,
}

impl Program {
    /// Adds what this rank does with a chunk before its root can send it; the root's terms.
    pub(super) fn add_sums(&mut self, plan: &Plan, sides: &Sides<'_>, sums: &Sums, pieces: &Range<u32>) -> Range<u32> {
        let chunk = &Chunk { plan, sides, pieces };
        let root = sums.domains[0].reducer;
        for (number, domain) in sums.domains.iter().enumerate() {
            let to = if number > 0 && domain.is_one_term() { root } else { domain.reducer };
            if to != chunk.sides.rank && domain.terms.contains(&chunk.sides.rank) {
                self.add_sent(chunk, Incoming::Held, Form::Term, to);
            }
            if number > 0 && !domain.is_one_term() && domain.reducer == chunk.sides.rank {
                self.add_domain_sum(chunk, domain, root);
            }
        }
        if root != chunk.sides.rank {
            return 0..0;
        }
        let first = self.items.len() as u32;
        let others = sums.domains[1..].iter();
        let count = sums.domains[0].terms.len() + others.len();
        let sum = first + count as u32;
        for &rank in &sums.domains[0].terms {
            self.add_term(chunk, (rank, Form::Term, Storage::Source), 0, sum);
        }
        for domain in others {
            let (form, stored) =
                if domain.is_one_term() { (Form::Term, Storage::Source) } else { (Form::Sum, Storage::Slot) };
            self.add_term(chunk, (domain.reducer, form, stored), DOMAIN_SUM + 1, sum);
        }
        first..sum
    }

    /// A sum of this rank's domain on its way to the root.
    fn add_domain_sum(&mut self, chunk: &Chunk<'_>, domain: &DomainSum, root: Rank) {
        let first = self.items.len() as u32;
        let sum = first + domain.terms.len() as u32;
        for &rank in &domain.terms {
            self.add_term(chunk, (rank, Form::Term, Storage::Source), DOMAIN_SUM - 1, sum);
        }
        self.add_sent(chunk, Incoming::Sum, Form::Sum, root);
        let item = &mut self.items[sum as usize];
        (item.terms, item.hop) = (first..sum, DOMAIN_SUM);
    }

    /// An item that this rank has, or makes in a slot, for one other rank.
    fn add_sent(&mut self, chunk: &Chunk<'_>, incoming: Incoming, form: Form, to: Rank) {
        let stored = if incoming == Incoming::Sum { Storage::Slot } else { Storage::Source };
        let (item, first_push) = (self.items.len() as u32, self.pushes.len() as u32);
        let readers = self.send(chunk.sides, item, stored, to, false);
        let pushes = first_push..self.pushes.len() as u32;
        let bytes = self.packed_bytes(chunk, form);
        self.items.push(Item { pushes, readers, ..Item::new(chunk.pieces.clone(), form, bytes, stored, incoming) });
    }

    /// A term: this rank's own, or what `from` stores.
    fn add_term(&mut self, chunk: &Chunk<'_>, (from, form, stored): (Rank, Form, Storage), hop: u32, sum: u32) {
        let item = self.items.len() as u32;
        let incoming =
            if from == chunk.sides.rank { Incoming::OwnCopy } else { self.receive(chunk.sides, item, stored, from) };
        let bytes = self.packed_bytes(chunk, form);
        self.items.push(Item {
            hop,
            sum: Some(sum),
            ..Item::new(chunk.pieces.clone(), form, bytes, Storage::Sum, incoming)
        });
    }

    fn packed_bytes(&self, chunk: &Chunk<'_>, form: Form) -> u64 {
        form.bytes(chunk.plan, &self.pieces[chunk.pieces.start as usize..chunk.pieces.end as usize])
    }
}
