//! The order of flows. In: flows. Out: the same flows in start order. Guarantee: each flow's place follows from the flow
//! itself and the lists of ranks on the two sides, so ranks order the flows that they share alike without knowing the
//! others; it is total. Flows inside a rank stand first, then those between ranks of the same rail; a root visits its
//! receivers around the circle from its own position on, so in an exchange between all no receiver is everyone's first.

use super::{Flow, LocalFlow, Piece};
use crate::base::Rank;
use crate::plan::Plan;
use crate::topology::Topology;
use std::cmp::Ordering;

/// What a flow's place follows from.
pub(super) struct Order<'a> {
    plan: &'a Plan,
    /// Ranks of each side, ascending.
    roots: Vec<Rank>,
    receivers: Vec<Rank>,
    /// Of each rank.
    rails: Vec<u32>,
}

/// Everything but the first element that travels: whether it leaves its rail, steps around the circle, root, receiver.
type Key = (u8, usize, Rank, Rank);

impl<'a> Order<'a> {
    pub(super) fn new(plan: &'a Plan, topology: &Topology) -> Self {
        Self {
            plan,
            roots: plan.manifest().side_ranks(|tensor| &tensor.source),
            receivers: plan.manifest().side_ranks(|tensor| &tensor.destination),
            rails: rails(topology),
        }
    }

    /// Sorts whole flows.
    pub(super) fn arrange(&self, flows: &mut Vec<Flow>) {
        let key = |flow: &Flow| self.key(flow.nodes[0].rank, flow.nodes.get(1).map(|node| node.rank));
        self.sort(flows, key, |flow| flow.pieces[0]);
    }

    /// Sorts what one rank sees of flows.
    pub(super) fn arrange_local(&self, flows: &mut Vec<LocalFlow>) {
        let key = |flow: &LocalFlow| self.key(flow.path.root(), flow.path.first_receiver());
        self.sort(flows, key, |flow| flow.pieces[0]);
    }

    fn sort<F>(&self, flows: &mut Vec<F>, key: impl Fn(&F) -> Key, first: impl Fn(&F) -> Piece) {
        let mut keyed: Vec<(Key, F)> = flows.drain(..).map(|flow| (key(&flow), flow)).collect();
        keyed.sort_by(|(left_key, left), (right_key, right)| {
            left_key.cmp(right_key).then_with(|| self.compare(first(left), first(right)))
        });
        flows.extend(keyed.into_iter().map(|(_, flow)| flow));
    }

    /// By the global place of the first element: no rank gets it by two flows.
    fn compare(&self, left: Piece, right: Piece) -> Ordering {
        let lo = |piece: Piece| self.plan.cell(piece.cell).intervals.iter().map(|interval| interval.lo);
        let tensors = left.cell.tensor.cmp(&right.cell.tensor);
        tensors.then_with(|| lo(left).cmp(lo(right))).then(left.start.cmp(&right.start))
    }

    fn key(&self, root: Rank, receiver: Option<Rank>) -> Key {
        let Some(receiver) = receiver else { return (0, 0, root, root) };
        let count = self.receivers.len().max(1);
        let steps = (position(&self.receivers, receiver) + count - position(&self.roots, root) % count) % count;
        let leaves_rail = self.rails[root.index()] != self.rails[receiver.index()];
        (1 + u8::from(leaves_rail), steps, root, receiver)
    }
}

/// Position of a rank in a list; of one that is not listed, where it would stand.
fn position(ranks: &[Rank], rank: Rank) -> usize {
    ranks.partition_point(|&listed| listed < rank)
}

/// Per rank the rail of its network card; where cards are not known, its number among the ranks of its node.
fn rails(topology: &Topology) -> Vec<u32> {
    let mut next = std::collections::HashMap::new();
    let rail = |rank: Rank| {
        let count = next.entry(topology.node(rank)).or_insert(0);
        *count += 1;
        topology.rail(rank).unwrap_or(*count - 1)
    };
    (0..topology.size() as u32).map(Rank).map(rail).collect()
}
