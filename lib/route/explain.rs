//! One rank's part of a route. In: flows, topology, a rank. Out: [`Explanation`]: what it gets, gives and passes on, by
//! peer. Guarantee: its sums are those of [`Traffic`](super::Traffic).

use super::{Flow, Sums};
use crate::base::Rank;
use crate::topology::Topology;
use std::collections::BTreeMap;

/// Bytes and flows between a rank and a peer, one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exchanged {
    /// Bytes.
    pub bytes: u64,
    /// Flows that bring them.
    pub flows: usize,
}

/// What a rank does.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Explanation {
    /// Flows that begin at its source tensors, and their bytes.
    pub injects: Exchanged,
    /// Flows that enter its domain here.
    pub leads: Exchanged,
    /// Flows that it passes on to another domain, having received them.
    pub forwards: Exchanged,
    /// Copied from its own source tensors to its own destination tensors.
    pub own: Exchanged,
    /// Received although its tensors do not want them.
    pub relays: Exchanged,
    /// Sent to other domains.
    pub sent: BTreeMap<Rank, Exchanged>,
    /// Received from other domains.
    pub received: BTreeMap<Rank, Exchanged>,
    /// Read here by ranks of its domain.
    pub read_by: BTreeMap<Rank, Exchanged>,
    /// Read from ranks of its domain.
    pub read_from: BTreeMap<Rank, Exchanged>,
}

impl Exchanged {
    fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.flows += 1;
    }
}

/// Explains `rank`.
pub fn explain(flows: &[Flow], topology: &Topology, rank: Rank) -> Explanation {
    let mut explanation = Explanation::default();
    for flow in flows {
        for (from, to, bytes) in flow.sums.iter().flat_map(Sums::edges) {
            let near = topology.domain(from) == topology.domain(to);
            if from == rank {
                let list = if near { &mut explanation.read_by } else { &mut explanation.sent };
                list.entry(to).or_default().add(bytes);
            } else if to == rank {
                let list = if near { &mut explanation.read_from } else { &mut explanation.received };
                list.entry(from).or_default().add(bytes);
            }
        }
        if let Some(number) = flow.nodes.iter().position(|node| node.rank == rank) {
            explanation.add(flow, number, topology);
        }
    }
    explanation
}

impl Explanation {
    fn add(&mut self, flow: &Flow, number: usize, topology: &Topology) {
        let node = flow.nodes[number];
        let near = |other: Rank| topology.domain(other) == topology.domain(node.rank);
        let mut away = 0;
        for (_, child) in flow.children(number) {
            let list = if near(child.rank) { &mut self.read_by } else { &mut self.sent };
            list.entry(child.rank).or_default().add(flow.bytes);
            away += usize::from(!near(child.rank));
        }
        let Some(parent) = node.parent else {
            if node.wants {
                self.own.add(flow.bytes);
            }
            if flow.nodes.len() > 1 {
                self.injects.add(flow.bytes);
            }
            return;
        };
        let parent = flow.nodes[parent as usize].rank;
        let list = if near(parent) { &mut self.read_from } else { &mut self.received };
        list.entry(parent).or_default().add(flow.bytes);
        if !near(parent) {
            self.leads.add(flow.bytes);
        }
        if away > 0 {
            self.forwards.add(flow.bytes);
        }
        if !node.wants {
            self.relays.add(flow.bytes);
        }
    }
}
