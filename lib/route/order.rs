//! The order of flows. In: flows. Out: the same flows in start order. Guarantee: flows fall into rounds; in one
//! round no rank is the root of two flows and no rank is the first receiver of two, and a flow stands in the first
//! round that has room for it. So a root shares its first receiver with another root only when all its receivers
//! are already somebody's first. Equal on all ranks.

use super::Flow;
use crate::base::Rank;

/// Sorts flows by round, then root. Flows without a receiver stay inside their rank and stand first.
pub(super) fn arrange(flows: &mut Vec<Flow>) {
    let roots = distinct(flows.iter().map(root));
    let receivers = distinct(flows.iter().filter_map(first_receiver));
    // Colouring diagonal by diagonal fills the rounds of an all-to-all exchange completely.
    let mut edges: Vec<(usize, usize, usize, usize)> = Vec::with_capacity(flows.len());
    for (index, flow) in flows.iter().enumerate() {
        let Some(receiver) = first_receiver(flow) else { continue };
        let (root, receiver) = (position(&roots, root(flow)), position(&receivers, receiver));
        let diagonal = (receiver + receivers.len() - root % receivers.len()) % receivers.len();
        edges.push((diagonal, root, receiver, index));
    }
    edges.sort_unstable();
    let mut sending = vec![Rounds::default(); roots.len()];
    let mut receiving = vec![Rounds::default(); receivers.len()];
    let mut round_of = vec![0usize; flows.len()];
    for (_, root, receiver, index) in edges {
        let round = Rounds::first_free(&sending[root], &receiving[receiver]);
        sending[root].take(round);
        receiving[receiver].take(round);
        round_of[index] = round + 1;
    }
    let mut keyed: Vec<_> =
        flows.drain(..).enumerate().map(|(index, flow)| ((round_of[index], root(&flow), index), flow)).collect();
    keyed.sort_unstable_by_key(|&(key, _)| key);
    flows.extend(keyed.into_iter().map(|(_, flow)| flow));
}

fn root(flow: &Flow) -> Rank {
    flow.nodes[0].rank
}

fn first_receiver(flow: &Flow) -> Option<Rank> {
    flow.nodes.get(1).map(|node| node.rank)
}

fn distinct(ranks: impl Iterator<Item = Rank>) -> Vec<Rank> {
    let mut ranks: Vec<Rank> = ranks.collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

/// Position of a rank that is known to be listed.
fn position(ranks: &[Rank], rank: Rank) -> usize {
    ranks.partition_point(|&listed| listed < rank)
}

/// Rounds in which a rank is busy, one bit each.
#[derive(Clone, Default)]
struct Rounds(Vec<u64>);

impl Rounds {
    fn first_free(first: &Rounds, second: &Rounds) -> usize {
        let word = |rounds: &Rounds, index: usize| rounds.0.get(index).copied().unwrap_or(0);
        let mut index = 0;
        loop {
            let free = !(word(first, index) | word(second, index));
            if free != 0 {
                return index * 64 + free.trailing_zeros() as usize;
            }
            index += 1;
        }
    }

    fn take(&mut self, round: usize) {
        if self.0.len() <= round / 64 {
            self.0.resize(round / 64 + 1, 0);
        }
        self.0[round / 64] |= 1 << (round % 64);
    }
}
