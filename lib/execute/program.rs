//! This rank's share of the flows. In: flows, how ranks reach each other, chunk size. Out: items (a chunk of a
//! flow at this rank) with where each comes from and goes to. Guarantee: pure; the k-th item that rank a pushes to
//! (or is pulled from by) rank b is the k-th that b expects from a, since all ranks order items by
//! (chunk index, flow index).

use super::reach::{Reach, storage};
use super::sums::adds;
use crate::base::Rank;
use crate::layout::Dtype;
use crate::plan::{CellId, Plan, TensorSpec};
use crate::route::{Flow, Gather, Piece};
use crate::topology::Topology;
use std::collections::BTreeMap;
use std::ops::Range;

/// Chunk of flows that no message link carries and no slot holds: only the granularity of progress.
const MAPPED_CHUNK: u64 = 1 << 20;

/// Where a chunk's bytes stay at a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Storage {
    /// In its source tensors.
    Source,
    /// In its destination tensors.
    Destination,
    /// In a staging slot, packed.
    Slot,
    /// Nowhere: it is added to a sum.
    Sum,
}

/// What the elements of a packed chunk are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// What a source tensor holds.
    Term,
    /// Sums of terms.
    Sum,
    /// What travels on the tree.
    Wire,
}

impl Form {
    /// Type of a tensor's elements.
    pub(super) fn dtype(self, tensor: &TensorSpec) -> Dtype {
        match self {
            Self::Term => tensor.source.dtype(),
            Self::Sum => tensor.held_dtype(),
            Self::Wire => tensor.wire_dtype(),
        }
    }

    /// Bytes of packed pieces.
    pub(super) fn bytes(self, plan: &Plan, pieces: &[Piece]) -> u64 {
        let tensors = plan.manifest().tensors();
        let of = |piece: &Piece| (piece.end - piece.start) * self.dtype(&tensors[piece.cell.tensor as usize]).bytes();
        pieces.iter().map(of).sum()
    }
}

/// How a chunk reaches a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Incoming {
    /// It is there from the start.
    Held,
    /// This rank copies from its source tensors to its destination tensors.
    OwnCopy,
    /// This rank packs it from its source tensors into a slot.
    Pack,
    /// This rank reads it from where `from` stores it.
    Pull { from: Rank, stored: Storage },
    /// `from` puts it here.
    Push { from: Rank },
    /// `from` copies it from its source tensors into this rank's destination tensors.
    Fed { from: Rank },
    /// This rank adds up terms, which are items of its own, in their order.
    Sum,
}

/// A chunk of a flow at this rank.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) pieces: Range<u32>,
    /// What it is when packed, and the bytes of that.
    pub(super) form: Form,
    pub(super) bytes: u64,
    pub(super) storage: Storage,
    /// Whether this rank's destination tensors want it.
    pub(super) wants: bool,
    pub(super) incoming: Incoming,
    /// Number of edges from the root.
    pub(super) hop: u32,
    /// Pushes to children.
    pub(super) pushes: Range<u32>,
    /// Children that pull it.
    pub(super) readers: u32,
    /// Ranks that want it and get it by way of this item's own copies, this rank among them.
    pub(super) receivers: Range<u32>,
    /// Items that it is the sum of.
    pub(super) terms: Range<u32>,
    /// The sum that it is a term of.
    pub(super) sum: Option<u32>,
}

impl Item {
    /// An item that nobody is sent.
    pub(super) fn new(pieces: Range<u32>, form: Form, bytes: u64, storage: Storage, incoming: Incoming) -> Self {
        let none = 0..0;
        Self {
            pieces,
            form,
            bytes,
            storage,
            wants: false,
            incoming,
            hop: 0,
            pushes: none.clone(),
            readers: 0,
            receivers: none.clone(),
            terms: none,
            sum: None,
        }
    }
}

/// An item on its way to a child over a message link.
#[derive(Debug, Clone)]
pub(super) struct Push {
    pub(super) item: u32,
    /// Ranks that want it and get it by way of this child.
    pub(super) receivers: Range<u32>,
}

/// This rank's share.
#[derive(Debug, Clone, Default)]
pub(super) struct Program {
    pub(super) items: Vec<Item>,
    pub(super) pieces: Vec<Piece>,
    pub(super) pushes: Vec<Push>,
    receivers: Vec<Rank>,
    /// Items copied from own source to own destination.
    pub(super) own_copies: Vec<u32>,
    /// Items packed from own source tensors.
    pub(super) packs: Vec<u32>,
    /// Items this rank reads, by whom from.
    pub(super) pulls: BTreeMap<Rank, Vec<u32>>,
    /// Items others read here, by reader.
    pub(super) reads: BTreeMap<Rank, Vec<u32>>,
    /// Items that this rank copies into others' tensors, by receiver.
    pub(super) feeds: BTreeMap<Rank, Vec<u32>>,
    /// Items that others copy into this rank's tensors, by sender.
    pub(super) fed: BTreeMap<Rank, Vec<u32>>,
    /// Whether receivers copy along: there are fewer senders in this domain than cores.
    pub(super) helped: bool,
    /// Items put here, by sender.
    pub(super) arrivals: BTreeMap<Rank, Vec<u32>>,
    /// Pushes, by receiver.
    pub(super) sends: BTreeMap<Rank, Vec<u32>>,
    /// Largest number of edges of any flow of the whole job, over all ranks.
    pub(super) hops: u32,
}

/// What edges of this rank follow from.
pub(super) struct Edges<'a> {
    pub(super) plan: &'a Plan,
    pub(super) topology: &'a Topology,
    pub(super) reach: &'a Reach,
    pub(super) rank: Rank,
}

/// A chunk of a flow.
struct Chunk {
    pieces: Range<u32>,
    /// On the tree.
    bytes: u64,
    /// Items that the root adds up.
    terms: Range<u32>,
}

/// A flow that this rank takes part in.
pub(super) struct Share<'a> {
    pub(super) flow: &'a Flow,
    /// This rank's node; `None` when it only adds to the sums.
    node: Option<usize>,
    chunk: u64,
    chunks: u64,
    /// Whether the root packs.
    packs: bool,
    gather: Gather<'a>,
    /// Per node, which ranks at or below it want the flow; empty ranges where nothing is cast.
    receivers: Vec<Range<u32>>,
}

/// How much larger than on the tree a flow's elements are where they are added up.
fn largest_ratio(plan: &Plan, flow: &Flow) -> u64 {
    let ratio = |piece: &Piece| {
        let tensor = &plan.manifest().tensors()[piece.cell.tensor as usize];
        tensor.held_dtype().bytes().div_ceil(tensor.wire_dtype().bytes())
    };
    if flow.sums.is_none() { 1 } else { flow.pieces.iter().map(ratio).max().unwrap_or(1) }
}

impl Share<'_> {
    /// Of those that want the flow, all but the root, and the root.
    fn root_receivers(&self) -> (Range<u32>, Range<u32>) {
        let Range { start, end } = self.receivers[0].clone();
        let border = if self.flow.nodes[0].wants { end.saturating_sub(1).max(start) } else { end };
        (start..border, border..end)
    }
}

/// Compiles the share of `rank`.
pub(super) fn compile(plan: &Plan, flows: &[Flow], topology: &Topology, reach: &Reach, rank: Rank) -> Program {
    let mut program = Program {
        hops: flows.iter().flat_map(|flow| (0..flow.nodes.len()).map(|node| flow.hop(node))).max().unwrap_or(0) as u32,
        helped: reach.helped(topology, flows, rank),
        ..Program::default()
    };
    let casts = plan.manifest().tensors().iter().any(TensorSpec::is_cast);
    let shares: Vec<Share<'_>> = flows
        .iter()
        .filter_map(|flow| {
            let node = flow.nodes.iter().position(|node| node.rank == rank);
            node.or_else(|| flow.sums.as_ref().filter(|sums| adds(sums, rank)).map(|_| 0))?;
            let packs = reach.packs(plan, topology, flow);
            let chunk = if reach.is_staged(plan, topology, flow) {
                reach.chunk_bytes / largest_ratio(plan, flow)
            } else {
                MAPPED_CHUNK
            };
            let receivers = if casts { program.receivers_by_node(flow) } else { vec![0..0; flow.nodes.len()] };
            Some(Share {
                flow,
                node,
                receivers,
                chunk,
                chunks: flow.bytes.div_ceil(chunk),
                packs,
                gather: Gather::of_flow(plan, flow),
            })
        })
        .collect();
    let mut turn = 0;
    let mut open: Vec<&Share<'_>> = shares.iter().collect();
    while !open.is_empty() {
        open.retain(|share| turn < share.chunks);
        for share in &open {
            program.add(plan, topology, reach, share, (turn, rank));
        }
        turn += 1;
    }
    program
}

impl Program {
    fn add(&mut self, plan: &Plan, topology: &Topology, reach: &Reach, share: &Share<'_>, (turn, rank): (u64, Rank)) {
        let (from, to) = (share.gather.border(turn * share.chunk), share.gather.border((turn + 1) * share.chunk));
        if from == to {
            return;
        }
        let first = self.pieces.len() as u32;
        self.pieces.extend(share.gather.pieces(from, to));
        let pieces = first..self.pieces.len() as u32;
        let edges = Edges { plan, topology, reach, rank };
        let terms = share.flow.sums.as_ref().map_or(0..0, |sums| self.add_sums(&edges, sums, &pieces));
        if let Some(number) = share.node {
            self.add_node(&edges, share, number, Chunk { pieces, bytes: to - from, terms });
        }
    }

    /// What this rank does as node `number` of the tree.
    fn add_node(&mut self, edges: &Edges<'_>, share: &Share<'_>, number: usize, chunk: Chunk) {
        let (topology, reach) = (edges.topology, edges.reach);
        let (flow, node) = (share.flow, share.flow.nodes[number]);
        let Chunk { pieces, bytes, terms } = chunk;
        let holds = node.parent.is_none() && flow.sums.is_none();
        if holds && node.wants {
            let (own, stored) = (Incoming::OwnCopy, Storage::Destination);
            self.own_copies.push(self.items.len() as u32);
            let item = Item::new(pieces.clone(), Form::Wire, bytes, stored, own);
            self.items.push(Item { wants: true, receivers: share.root_receivers().1, ..item });
        }
        if holds && flow.nodes.len() == 1 {
            return;
        }
        let item = self.items.len() as u32;
        let incoming = self.incoming(edges, share, number, item);
        let stored = storage(flow, number, share.packs);
        let first_push = self.pushes.len() as u32;
        let mut readers = 0;
        for (number, child) in flow.children(number) {
            if reach.feeds(topology, flow, number) {
                self.feeds.entry(child.rank).or_default().push(item);
            } else {
                readers += self.send(edges, item, stored, child.rank, share.receivers[number].clone());
            }
        }
        self.items.push(Item {
            wants: node.wants,
            hop: flow.hop(number) as u32,
            pushes: first_push..self.pushes.len() as u32,
            readers,
            receivers: if number == 0 { share.root_receivers().0 } else { share.receivers[number].clone() },
            terms,
            ..Item::new(pieces, Form::Wire, bytes, stored, incoming)
        });
    }

    /// Lets `to` read an item where it is stored here, or sends it there; the readers that this adds.
    pub(super) fn send(
        &mut self,
        edges: &Edges<'_>,
        item: u32,
        stored: Storage,
        to: Rank,
        receivers: Range<u32>,
    ) -> u32 {
        if edges.reach.pulls(edges.topology, edges.rank, stored, to) {
            self.reads.entry(to).or_default().push(item);
            return 1;
        }
        self.sends.entry(to).or_default().push(self.pushes.len() as u32);
        self.pushes.push(Push { item, receivers });
        0
    }

    /// How an item comes from where `from` stores it.
    pub(super) fn receive(&mut self, edges: &Edges<'_>, item: u32, stored: Storage, from: Rank) -> Incoming {
        if edges.reach.pulls(edges.topology, from, stored, edges.rank) {
            self.pulls.entry(from).or_default().push(item);
            Incoming::Pull { from, stored }
        } else {
            self.arrivals.entry(from).or_default().push(item);
            Incoming::Push { from }
        }
    }

    fn incoming(&mut self, edges: &Edges<'_>, share: &Share<'_>, number: usize, item: u32) -> Incoming {
        let node = share.flow.nodes[number];
        if node.parent.is_none() && share.flow.sums.is_some() {
            return Incoming::Sum;
        }
        let Some(parent) = node.parent else {
            if share.packs {
                self.packs.push(item);
                return Incoming::Pack;
            }
            return Incoming::Held;
        };
        let from = share.flow.nodes[parent as usize].rank;
        if edges.reach.feeds(edges.topology, share.flow, number) {
            self.fed.entry(from).or_default().push(item);
            return Incoming::Fed { from };
        }
        self.receive(edges, item, storage(share.flow, parent as usize, share.packs), from)
    }

    /// Notes which ranks at or below each node want a flow; the root itself stands behind all others.
    fn receivers_by_node(&mut self, flow: &Flow) -> Vec<Range<u32>> {
        let mut below: Vec<Vec<Rank>> = vec![Vec::new(); flow.nodes.len()];
        for (number, node) in flow.nodes.iter().enumerate().rev() {
            below[number].extend(node.wants.then_some(node.rank));
            if let Some(parent) = node.parent {
                let ranks = below[number].clone();
                below[parent as usize].extend(ranks);
            }
        }
        let note = |ranks: Vec<Rank>| {
            let first = self.receivers.len() as u32;
            self.receivers.extend(ranks);
            first..self.receivers.len() as u32
        };
        below.into_iter().map(note).collect()
    }

    /// Ranks of a range.
    pub(super) fn receivers(&self, range: &Range<u32>) -> &[Rank] {
        &self.receivers[range.start as usize..range.end as usize]
    }

    /// Type of a packed item's elements of a tensor.
    pub(super) fn dtype(&self, plan: &Plan, item: u32, tensor: u32) -> Dtype {
        self.items[item as usize].form.dtype(&plan.manifest().tensors()[tensor as usize])
    }

    /// Tensors of `items`, ascending.
    pub(super) fn tensors_of(&self, items: &[u32]) -> Vec<u32> {
        let pieces = items.iter().flat_map(|&item| {
            let range = &self.items[item as usize].pieces;
            &self.pieces[range.start as usize..range.end as usize]
        });
        let mut tensors: Vec<u32> = pieces.map(|Piece { cell: CellId { tensor, .. }, .. }| *tensor).collect();
        tensors.sort_unstable();
        tensors.dedup();
        tensors
    }

    /// Pieces of an item.
    pub(super) fn item_pieces(&self, item: u32) -> &[Piece] {
        let range = &self.items[item as usize].pieces;
        &self.pieces[range.start as usize..range.end as usize]
    }
}
