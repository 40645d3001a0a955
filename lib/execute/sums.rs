//! This rank's share of adding up. In: the sums of a flow. Out: items for terms, and for sums that go on to the root.
//! Guarantee: pure; terms of a sum are items that follow one another in the order in which they are added, and both ends of
//! an edge make its item at the same point of their order.

use super::program::{Edges, Form, Incoming, Item, Program, Storage};
use crate::base::Rank;
use crate::route::{DomainSum, Sums};
use std::ops::Range;

/// Hop of a sum that goes on to the root; its terms arrive on the hop before it, the root gets it on the one behind.
const DOMAIN_SUM: u32 = 1;

/// Whether `rank` has a term of these sums.
pub(super) fn adds(sums: &Sums, rank: Rank) -> bool {
    sums.domains.iter().any(|domain| domain.terms.contains(&rank))
}

impl Program {
    /// Adds what this rank does with a chunk before its root can send it; the root's terms.
    pub(super) fn add_sums(&mut self, edges: &Edges<'_>, sums: &Sums, pieces: &Range<u32>) -> Range<u32> {
        let root = sums.domains[0].reducer;
        for (number, domain) in sums.domains.iter().enumerate() {
            let to = if number > 0 && domain.is_one_term() { root } else { domain.reducer };
            if to != edges.rank && domain.terms.contains(&edges.rank) {
                self.add_sent(edges, pieces, Incoming::Held, Form::Term, to);
            }
            if number > 0 && !domain.is_one_term() && domain.reducer == edges.rank {
                self.add_domain_sum(edges, pieces, domain, root);
            }
        }
        if root != edges.rank {
            return 0..0;
        }
        let first = self.items.len() as u32;
        let others = sums.domains[1..].iter();
        let count = sums.domains[0].terms.len() + others.len();
        let sum = first + count as u32;
        for &rank in &sums.domains[0].terms {
            self.add_term(edges, pieces, (rank, Form::Term, Storage::Source), 0, sum);
        }
        for domain in others {
            let (form, stored) =
                if domain.is_one_term() { (Form::Term, Storage::Source) } else { (Form::Sum, Storage::Slot) };
            self.add_term(edges, pieces, (domain.reducer, form, stored), DOMAIN_SUM + 1, sum);
        }
        first..sum
    }

    /// A sum of this rank's domain on its way to the root.
    fn add_domain_sum(&mut self, edges: &Edges<'_>, pieces: &Range<u32>, domain: &DomainSum, root: Rank) {
        let first = self.items.len() as u32;
        let sum = first + domain.terms.len() as u32;
        for &rank in &domain.terms {
            self.add_term(edges, pieces, (rank, Form::Term, Storage::Source), DOMAIN_SUM - 1, sum);
        }
        self.add_sent(edges, pieces, Incoming::Sum, Form::Sum, root);
        let item = &mut self.items[sum as usize];
        (item.terms, item.hop) = (first..sum, DOMAIN_SUM);
    }

    /// An item that this rank has, or makes in a slot, for one other rank.
    fn add_sent(&mut self, edges: &Edges<'_>, pieces: &Range<u32>, incoming: Incoming, form: Form, to: Rank) {
        let stored = if incoming == Incoming::Sum { Storage::Slot } else { Storage::Source };
        let (item, first_push) = (self.items.len() as u32, self.pushes.len() as u32);
        let readers = self.send(edges, item, stored, to, 0..0);
        let pushes = first_push..self.pushes.len() as u32;
        let bytes = self.packed_bytes(edges, pieces, form);
        self.items.push(Item { pushes, readers, ..Item::new(pieces.clone(), form, bytes, stored, incoming) });
    }

    /// A term: this rank's own, or what `from` stores.
    fn add_term(
        &mut self,
        edges: &Edges<'_>,
        pieces: &Range<u32>,
        (from, form, stored): (Rank, Form, Storage),
        hop: u32,
        sum: u32,
    ) {
        let item = self.items.len() as u32;
        let incoming = if from == edges.rank { Incoming::OwnCopy } else { self.receive(edges, item, stored, from) };
        let bytes = self.packed_bytes(edges, pieces, form);
        self.items.push(Item { hop, sum: Some(sum), ..Item::new(pieces.clone(), form, bytes, Storage::Sum, incoming) });
    }

    fn packed_bytes(&self, edges: &Edges<'_>, pieces: &Range<u32>, form: Form) -> u64 {
        form.bytes(edges.plan, &self.pieces[pieces.start as usize..pieces.end as usize])
    }
}
