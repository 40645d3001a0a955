//! What of a topology a saved plan is held to. In: a topology. Out: a [`TopologyMark`], and the first difference of two.
//! Guarantee: equal marks exactly where nodes, domains, rails and card rates of all ranks are equal; names of hosts and
//! devices do not count.

use crate::base::Rank;
use crate::topology::Topology;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// A network card: its rail and its bytes per second.
type Card = (u32, u64);

/// Where ranks are and what their cards are, as far as flows follow from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TopologyMark {
    /// Per rank its node and its domain.
    places: Vec<(u32, u32)>,
    /// Per rank which of `kinds` its cards are.
    cards: Vec<u32>,
    /// Distinct lists of cards, in order of first appearance.
    kinds: Vec<Vec<Card>>,
}

/// What differs first: what it is, and both values.
pub(super) type Difference = (String, String, String);

impl TopologyMark {
    pub(super) fn new(topology: &Topology) -> Self {
        let ranks = || (0..topology.size() as u32).map(Rank);
        let mut kinds: Vec<Vec<Card>> = Vec::new();
        let mut numbers: HashMap<Vec<Card>, u32> = HashMap::new();
        let cards = ranks().map(|rank| {
            let cards = topology.nics(rank).iter().map(|nic| (nic.rail, nic.bytes_per_second));
            let cards: Vec<Card> = cards.collect();
            let next = kinds.len() as u32;
            let number = *numbers.entry(cards.clone()).or_insert(next);
            if number == next {
                kinds.push(cards);
            }
            number
        });
        let cards = cards.collect();
        Self { places: ranks().map(|rank| (topology.node(rank).0, topology.domain(rank).0)).collect(), cards, kinds }
    }

    pub(super) fn rank_count(&self) -> usize {
        self.places.len()
    }

    /// Whether any rank has a card that somebody told.
    pub(super) fn tells_cards(&self) -> bool {
        self.kinds.iter().any(|cards| !cards.is_empty())
    }

    /// Where the two part first: number of ranks, then rank by rank domain, node and, if asked for, cards.
    pub(super) fn difference(&self, here: &Self, with_cards: bool) -> Option<Difference> {
        if self.rank_count() != here.rank_count() {
            let [found, expected] = [self, here].map(|mark| mark.rank_count().to_string());
            return Some(("a number of ranks of".into(), found, expected));
        }
        (0..self.rank_count()).find_map(|rank| {
            let ((node, domain), (node_here, domain_here)) = (self.places[rank], here.places[rank]);
            let differing = |what: &str, found: String, expected: String| {
                (found != expected).then(|| (format!("rank {rank} {what}"), found, expected))
            };
            differing("in domain", domain.to_string(), domain_here.to_string())
                .or_else(|| differing("on node", node.to_string(), node_here.to_string()))
                .or_else(|| {
                    let cards = || differing("with network cards on", self.cards_text(rank), here.cards_text(rank));
                    with_cards.then(cards)?
                })
        })
    }

    fn cards_text(&self, rank: usize) -> String {
        let kind = self.cards.get(rank).and_then(|&kind| self.kinds.get(kind as usize));
        let text = |&(rail, rate): &Card| format!("rail {rail} of {rate} bytes/s");
        let cards: Vec<String> = kind.into_iter().flatten().map(text).collect();
        if cards.is_empty() { "none".into() } else { cards.join(", ") }
    }
}
