//! How ranks reach each other's memory. In: what all ranks stated about theirs. Out: the kind of every edge of a flow.
//! Guarantee: pure; both ends of an edge decide alike, since they decide from the same facts.

use super::program::Storage;
use crate::base::Rank;
use crate::layout::{Interval, Layout};
use crate::plan::Plan;
use crate::route::{Flow, Piece};
use crate::topology::Topology;

/// Runs that are shorter on average are packed rather than read from another process one by one: each range of
/// `process_vm_readv` costs about as much as copying 2 KiB.
const SHORT_RUN: u64 = 4 << 10;

/// How ranks reach each other's memory.
#[derive(Debug, Clone)]
pub(super) struct Reach {
    /// Per rank: ranks of its domain read its tensors directly.
    pub(super) readable: Vec<bool>,
    /// Per rank: all its tensors lie in shared segments, so that ranks of its domain may map and write them.
    pub(super) shared: Vec<bool>,
    /// Cores that the ranks of a node share; the least of any rank.
    pub(super) cores: u32,
    /// Whether ranks of a domain map each other's segments at all.
    pub(super) mapped: bool,
    /// Largest chunk of a message link.
    pub(super) chunk_bytes: u64,
}

impl Reach {
    /// Whether `child` reads from where `parent` stores a chunk, rather than being sent it.
    pub(super) fn pulls(&self, topology: &Topology, parent: Rank, stored: Storage, child: Rank) -> bool {
        topology.domain(parent) == topology.domain(child)
            && self.mapped
            && (stored == Storage::Slot || self.readable[parent.index()])
    }

    /// Whether the root of a flow copies it into the tensors of `child`, which passes it to nobody.
    pub(super) fn feeds(&self, topology: &Topology, flow: &Flow, child: usize) -> bool {
        let (root, node) = (flow.nodes[0].rank, flow.nodes[child]);
        node.parent == Some(0)
            && node.wants
            && flow.sums.is_none()
            && self.mapped
            && self.shared[node.rank.index()]
            && topology.domain(root) == topology.domain(node.rank)
            && flow.children(child).next().is_none()
    }

    /// Whether chunks of `flow` are sent over a link or lie in slots anywhere, which limits their size.
    pub(super) fn is_staged(&self, plan: &Plan, topology: &Topology, flow: &Flow) -> bool {
        let packs = self.packs(plan, topology, flow);
        flow.nodes.iter().enumerate().any(|(number, node)| {
            let sent = node.parent.is_some_and(|parent| {
                let stored = storage(flow, parent as usize, packs);
                let parent = flow.nodes[parent as usize].rank;
                !self.feeds(topology, flow, number) && !self.pulls(topology, parent, stored, node.rank)
            });
            sent || storage(flow, number, packs) == Storage::Slot
        })
    }

    /// Whether the root of a flow packs it into slots, from which its receivers unpack: nobody maps the other's
    /// tensors, and reading another process's memory run by run is not possible or costs more than a second copy.
    pub(super) fn packs(&self, plan: &Plan, topology: &Topology, flow: &Flow) -> bool {
        let root = flow.nodes[0].rank;
        let local = |node: &crate::route::Node| {
            node.parent == Some(0) && node.wants && topology.domain(node.rank) == topology.domain(root)
        };
        self.mapped
            && flow.sums.is_none()
            && flow.nodes.len() > 1
            && !self.shared[root.index()]
            && flow.nodes[1..].iter().all(|node| local(node) && !self.shared[node.rank.index()])
            && (!self.readable[root.index()] || has_short_runs(plan, flow))
    }

    /// Whether receivers in the domain of `rank` copy along with the senders.
    pub(super) fn helped(&self, topology: &Topology, flows: &[Flow], rank: Rank) -> bool {
        let mut senders: Vec<Rank> = flows
            .iter()
            .filter(|flow| topology.domain(flow.nodes[0].rank) == topology.domain(rank))
            .filter(|flow| (1..flow.nodes.len()).any(|child| self.feeds(topology, flow, child)))
            .map(|flow| flow.nodes[0].rank)
            .collect();
        senders.sort_unstable();
        senders.dedup();
        (senders.len() as u64) < u64::from(self.cores)
    }
}

/// Where a node of a flow keeps its chunks; `packs` says that the root packs them. A root that adds up does so in a slot.
pub(super) fn storage(flow: &Flow, node: usize, packs: bool) -> Storage {
    match (node, flow.nodes[node].wants) {
        (0, _) if packs || flow.sums.is_some() => Storage::Slot,
        (0, _) => Storage::Source,
        (_, true) => Storage::Destination,
        (_, false) => Storage::Slot,
    }
}

/// Whether what is contiguous both at the root and at its first receiver is short on average. Their tensors are taken
/// as contiguous: views are known to their own rank only. One run alone is read at once, however short.
fn has_short_runs(plan: &Plan, flow: &Flow) -> bool {
    let (root, receiver) = (flow.nodes[0].rank, flow.nodes[1].rank);
    let mut runs = 0;
    for piece in &flow.pieces {
        let tensor = &plan.manifest().tensors()[piece.cell.tensor as usize];
        let intervals = &plan.cell(piece.cell).intervals;
        let run = run(&tensor.source, root, intervals).min(run(&tensor.destination, receiver, intervals)).max(1);
        runs += elements(piece).div_ceil(run);
    }
    runs > 1 && flow.bytes / runs < SHORT_RUN
}

fn elements(piece: &Piece) -> u64 {
    piece.end - piece.start
}

/// Elements of a box that are contiguous in the local tensor of `rank`.
fn run(layout: &Layout, rank: Rank, intervals: &[Interval]) -> u64 {
    let Some(maps) = layout.axis_maps(rank) else { return 1 };
    let mut run = 1;
    for (&interval, map) in intervals.iter().zip(&maps).rev() {
        if map.locate(interval).is_some_and(|place| place.step > 1) {
            break;
        }
        run *= interval.len();
        if interval.len() != map.extent() {
            break;
        }
    }
    run
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Dtype, Mesh, Placement, Split};
    use crate::plan::Manifest;
    use crate::route::{RouteOptions, route};
    use crate::topology::RankFacts;
    use std::sync::Arc;

    /// Whether the one flow of `tensors` tensors of `rows` times 8 bytes packs, when the receiver wants columns from
    /// `0` to `columns`.
    fn packs(tensors: usize, rows: u64, columns: u64) -> bool {
        let facts = RankFacts {
            host: "h".into(),
            host_token: "h".into(),
            domain: None,
            domain_count: None,
            starts_side: false,
        };
        let topology = Topology::from_facts(&vec![facts; 2]).unwrap();
        let layout = |rank, placement| {
            let mesh = Arc::new(Mesh::contiguous(vec![1], Rank(rank)).unwrap());
            Arc::new(Layout::new(vec![rows, 8], Dtype::U8, mesh, vec![placement]).unwrap())
        };
        let mut manifest = Manifest::new();
        for number in 0..tensors {
            let wanted = Arc::new(Mesh::new(vec![2], vec![Rank(1), Rank(0)]).unwrap());
            let sizes = Placement::Shard { dim: 1, split: Split::Sizes(vec![columns, 8 - columns]) };
            let destination = Arc::new(Layout::new(vec![rows, 8], Dtype::U8, wanted, vec![sizes]).unwrap());
            manifest.push(format!("t{number}"), layout(0, Placement::Replicate), destination).unwrap();
        }
        let plan = Plan::compile(Arc::new(manifest), 2).unwrap();
        let routed = route(&plan, &topology, RouteOptions::default());
        let flow = routed.flows.iter().find(|flow| flow.nodes.len() == 2).unwrap();
        let reach =
            Reach { readable: vec![true; 2], shared: vec![false; 2], cores: 2, mapped: true, chunk_bytes: 1 << 20 };
        reach.packs(&plan, &topology, flow)
    }

    #[test]
    fn many_short_runs_are_packed() {
        assert!(!packs(1, 1, 8) && !packs(1, 1, 1), "one run, however short");
        assert!(!packs(1, 4096, 8), "one long run");
        assert!(packs(1, 4096, 3), "a run for each row");
        assert!(packs(100, 1, 8), "a run for each tensor");
        assert!(!packs(4, 512, 8), "runs of 4 KiB");
    }
}
