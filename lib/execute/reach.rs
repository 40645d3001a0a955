//! How ranks reach each other's memory. In: what all ranks stated about theirs. Out: the kind of every edge of a flow.
//! Guarantee: pure; both ends of an edge decide alike, since they decide from the same facts.

use super::program::Storage;
use crate::base::Rank;
use crate::layout::{Interval, Layout};
use crate::plan::Plan;
use crate::route::{LocalFlow, Neighbour, Piece};
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
    /// Per rank: some of its tensors are on a GPU, so that it alone copies from and to them, by way of staging.
    pub(super) device: Vec<bool>,
    /// Per rank: its tensors are in several places, so that also its own copies go by way of staging.
    pub(super) mixed: Vec<bool>,
    /// Whether ranks of a domain map each other's segments at all.
    pub(super) mapped: bool,
    /// Largest chunk of a message link.
    pub(super) chunk_bytes: u64,
    /// How many parts of what comes GPUs pass on one after the other; 0 where they pass nothing on.
    pub(super) parts: u32,
}

impl Reach {
    /// Of ranks whose tensors lie in shared segments of one host each domain.
    pub(super) fn of_shared_memory(ranks: usize, chunk_bytes: u64) -> Self {
        Self {
            readable: vec![true; ranks],
            shared: vec![true; ranks],
            cores: u32::MAX,
            device: vec![false; ranks],
            mixed: vec![false; ranks],
            mapped: true,
            chunk_bytes,
            parts: 0,
        }
    }

    /// Whether `child` reads from where `parent` stores a chunk, rather than being sent it.
    pub(super) fn pulls(&self, topology: &Topology, parent: Rank, stored: Storage, child: Rank) -> bool {
        topology.domain(parent) == topology.domain(child)
            && self.mapped
            && (stored == Storage::Slot || (self.readable[parent.index()] && !self.device[child.index()]))
    }

    /// Whether a parent copies a flow into the tensors of its child: the parent is the root, and the child passes it to
    /// nobody.
    fn feeds(&self, topology: &Topology, parent: &Neighbour, child: &Neighbour) -> bool {
        parent.is_root
            && !parent.adds
            && !parent.landed
            && child.wants
            && child.is_leaf
            && self.mapped
            && self.shared[child.rank.index()]
            && !self.device[parent.rank.index()]
            && topology.domain(parent.rank) == topology.domain(child.rank)
    }

    /// Whether chunks of a flow are sent over a link or lie in slots anywhere, which limits their size.
    pub(super) fn is_staged(&self, topology: &Topology, flow: &LocalFlow, packs: bool) -> bool {
        packs
            || flow.sums.is_some()
            || self.mixed[flow.path.root().index()]
            || !flow.path.all_edges(|parent, child| {
                let stored = self.storage(parent, packs);
                let mapped =
                    self.feeds(topology, parent, child) || self.pulls(topology, parent.rank, stored, child.rank);
                mapped && self.storage(child, packs) != Storage::Slot
            })
    }

    /// Whether the root of a flow packs it into slots, from which its receivers unpack: nobody maps the other's
    /// tensors, and reading another process's memory run by run is not possible or costs more than a second copy; or one
    /// of the two has them on a GPU.
    pub(super) fn packs(&self, plan: &Plan, topology: &Topology, flow: &LocalFlow) -> bool {
        let root = flow.path.root();
        // Of the whole tree, which is long where there are many domains, only the edges of the root count.
        let is_onto_device =
            |child: Rank| self.mapped && self.device[child.index()] && topology.domain(child) == topology.domain(root);
        if flow.path.first_receiver().is_some()
            && flow.sums.is_none()
            && (self.device[root.index()] || flow.path.receivers_of_root().any(is_onto_device))
        {
            return true;
        }
        let local = |parent: &Neighbour, child: &Neighbour| {
            parent.is_root
                && child.wants
                && topology.domain(child.rank) == topology.domain(root)
                && !self.shared[child.rank.index()]
        };
        self.mapped
            && flow.sums.is_none()
            && flow.path.first_receiver().is_some()
            && !self.shared[root.index()]
            && flow.path.all_edges(local)
            && (!self.readable[root.index()] || has_short_runs(plan, flow))
    }

    /// Where a rank keeps the chunks of a flow; `packs` says that the root packs them.
    pub(super) fn storage(&self, rank: &Neighbour, packs: bool) -> Storage {
        match (rank.is_root, rank.wants) {
            (true, _) if rank.landed => Storage::Landed,
            (true, _) if packs => Storage::Slot,
            (true, _) => Storage::Source,
            // Whoever passes on what it has on a GPU passes on what came, so that it need not come back from there.
            (false, true) if self.device[rank.rank.index()] && !rank.is_leaf => Storage::Slot,
            (false, true) => Storage::Destination,
            (false, false) => Storage::Slot,
        }
    }

    /// Whether `rank` copies any flow into the tensors of others.
    pub(super) fn is_feeder(&self, topology: &Topology, flows: &[LocalFlow], rank: Rank) -> bool {
        let sides = Sides { topology, reach: self, rank };
        flows.iter().any(|flow| flow.place.children.iter().any(|child| sides.feeds(flow, child)))
    }
}

/// A rank between its parent and its children.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sides<'a> {
    pub(super) topology: &'a Topology,
    pub(super) reach: &'a Reach,
    pub(super) rank: Rank,
}

impl Sides<'_> {
    fn own(&self, flow: &LocalFlow) -> Neighbour {
        let (is_root, is_leaf) = (flow.path.root() == self.rank, flow.place.children.is_empty());
        let (adds, landed) = (is_root && flow.sums.is_some(), is_root && flow.path.has_landed());
        Neighbour { rank: self.rank, is_root, adds, landed, wants: flow.place.wants, is_leaf }
    }

    /// Whether this rank copies into the tensors of a child.
    pub(super) fn feeds(&self, flow: &LocalFlow, child: &Neighbour) -> bool {
        self.reach.feeds(self.topology, &self.own(flow), child)
    }

    /// Whether its parent copies into this rank's tensors.
    pub(super) fn is_fed(&self, flow: &LocalFlow) -> bool {
        let parent = flow.place.parent.as_ref();
        parent.is_some_and(|parent| self.reach.feeds(self.topology, parent, &self.own(flow)))
    }

    /// Where this rank keeps its chunks; `packs` says that the root packs them, or adds them up in slots.
    pub(super) fn stored(&self, flow: &LocalFlow, packs: bool) -> Storage {
        self.reach.storage(&self.own(flow), packs)
    }
}

/// Whether what is contiguous both at the root and at its first receiver is short on average. Their tensors are taken
/// as contiguous: views are known to their own rank only. One run alone is read at once, however short.
fn has_short_runs(plan: &Plan, flow: &LocalFlow) -> bool {
    let root = flow.path.root();
    let Some(receiver) = flow.path.first_receiver() else { return false };
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
    use crate::route::{RouteOptions, route_for};
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
        let flows = route_for(&plan, &topology, RouteOptions::default(), Rank(0));
        let flow = flows.iter().find(|flow| !flow.place.children.is_empty()).unwrap();
        let reach = Reach { shared: vec![false; 2], ..Reach::of_shared_memory(2, 1 << 20) };
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
