//! This rank's share of the flows. In: the flows that pass it, how ranks reach each other, chunk size. Out: items (a
//! chunk of a flow at this rank) with where each comes from and goes to. Guarantee: pure; the k-th item that rank a
//! pushes to (or is pulled from by) rank b is the k-th that b expects from a, since all ranks order the flows that they
//! share alike, and items by (chunk index, flow).

use super::reach::{Reach, Sides};
use crate::base::Rank;
use crate::layout::Dtype;
use crate::plan::{CellId, Plan, TensorSpec};
use crate::route::{Gather, LocalFlow, Piece, part_of};
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
    /// In its destination tensors from the start: an earlier transfer brought it there.
    Landed,
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
    /// Number of steps before it: from the root, or in adding up.
    pub(super) hop: u32,
    /// Pushes to children.
    pub(super) pushes: Range<u32>,
    /// Children that pull it.
    pub(super) readers: u32,
    /// Whether this rank's destination tensors take it from its slot, as others do.
    pub(super) unpacks: bool,
    /// Whether values count that become infinite in its own copies.
    pub(super) counted: bool,
    /// Items that it is the sum of.
    pub(super) terms: Range<u32>,
    /// The sum that it is a term of.
    pub(super) sum: Option<u32>,
    /// The first part of what comes that needs it, where GPUs pass that on.
    pub(super) part: u32,
}

impl Item {
    /// An item that nobody is sent.
    pub(super) fn new(pieces: Range<u32>, form: Form, bytes: u64, storage: Storage, incoming: Incoming) -> Self {
        Self {
            pieces,
            form,
            bytes,
            storage,
            wants: false,
            incoming,
            hop: 0,
            pushes: 0..0,
            readers: 0,
            unpacks: false,
            counted: false,
            terms: 0..0,
            sum: None,
            part: 0,
        }
    }
}

/// An item on its way to a child over a message link.
#[derive(Debug, Clone, Copy)]
pub(super) struct Push {
    pub(super) item: u32,
    /// Whether values count that become infinite while it is packed.
    pub(super) counted: bool,
}

/// This rank's share.
#[derive(Debug, Clone, Default)]
pub(super) struct Program {
    pub(super) items: Vec<Item>,
    pub(super) pieces: Vec<Piece>,
    pub(super) pushes: Vec<Push>,
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
    /// Largest number of edges from a root to this rank.
    pub(super) hops: u32,
}

/// What a rank has to do, in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramSummary {
    /// Chunks of flows at this rank.
    pub chunks: usize,
    /// Element ranges of cells that they consist of.
    pub pieces: usize,
    /// Chunks that it sends over message links.
    pub pushes: usize,
    /// Most edges between a root and this rank.
    pub hops: u32,
}

/// Compiles the share of `rank` as it is where all memory is shared within a domain, with chunks of `chunk_bytes`; needs
/// no other rank.
pub fn program_summary(
    plan: &Plan,
    flows: &[LocalFlow],
    topology: &Topology,
    rank: Rank,
    chunk_bytes: u64,
) -> ProgramSummary {
    let reach = Reach::of_shared_memory(topology.size(), chunk_bytes);
    let program = compile(plan, flows, topology, &reach, (rank, true));
    ProgramSummary {
        chunks: program.items.len(),
        pieces: program.pieces.len(),
        pushes: program.pushes.len(),
        hops: program.hops,
    }
}

/// A flow that this rank takes part in.
struct Share<'a> {
    flow: &'a LocalFlow,
    chunk: u64,
    chunks: u64,
    /// Whether the root packs.
    packs: bool,
    gather: Gather<'a>,
}

/// Compiles the share of `rank`.
pub(super) fn compile(
    plan: &Plan,
    flows: &[LocalFlow],
    topology: &Topology,
    reach: &Reach,
    (rank, helped): (Rank, bool),
) -> Program {
    let hops = flows.iter().map(|flow| flow.place.hop).max().unwrap_or(0);
    let mut program = Program { hops, helped, ..Program::default() };
    let sides = Sides { topology, reach, rank };
    let shares: Vec<Share<'_>> = flows
        .iter()
        .map(|flow| {
            let packs = reach.packs(plan, topology, flow);
            let chunk = if reach.is_staged(topology, flow, packs) {
                reach.chunk_bytes / largest_ratio(plan, flow)
            } else {
                MAPPED_CHUNK
            };
            let gather = Gather::of_pieces(plan, &flow.pieces);
            Share { flow, chunk, chunks: flow.bytes.div_ceil(chunk), packs, gather }
        })
        .collect();
    let mut turn = 0;
    let mut open: Vec<&Share<'_>> = shares.iter().collect();
    while !open.is_empty() {
        open.retain(|share| turn < share.chunks);
        for share in &open {
            program.add(plan, &sides, share, turn);
        }
        turn += 1;
    }
    program
}

/// How much larger than on the tree a flow's elements are where they are added up.
fn largest_ratio(plan: &Plan, flow: &LocalFlow) -> u64 {
    let ratio = |piece: &Piece| {
        let tensor = &plan.manifest().tensors()[piece.cell.tensor as usize];
        tensor.held_dtype().bytes().div_ceil(tensor.wire_dtype().bytes())
    };
    if flow.sums.is_none() { 1 } else { flow.pieces.iter().map(ratio).max().unwrap_or(1) }
}

/// A chunk of a flow.
struct Chunk {
    pieces: Range<u32>,
    /// On the tree.
    bytes: u64,
    /// Items that the root adds up.
    terms: Range<u32>,
    /// Lowest rank that wants it: values that become infinite count on the way there.
    lowest: Option<Rank>,
    part: u32,
}

impl Program {
    fn add(&mut self, plan: &Plan, sides: &Sides<'_>, share: &Share<'_>, turn: u64) {
        let (from, to) = (share.gather.border(turn * share.chunk), share.gather.border((turn + 1) * share.chunk));
        if from == to {
            return;
        }
        let first = self.pieces.len() as u32;
        self.pieces.extend(share.gather.pieces(from, to));
        let pieces = first..self.pieces.len() as u32;
        let terms = share.flow.sums.as_ref().map_or(0..0, |sums| self.add_sums(plan, sides, sums, &pieces));
        let cell = self.pieces[first as usize].cell;
        let class = &plan.classes()[plan.cell(cell).class.0 as usize];
        // All pieces of a flow are of one class.
        let lowest = class.wanters.first().copied();
        if share.flow.path.root() == sides.rank || share.flow.place.parent.is_some() {
            let part = part_of(&share.gather, from, sides.reach.parts);
            self.add_node(sides, share, Chunk { pieces, bytes: to - from, terms, lowest, part });
        }
    }

    /// What this rank does on the tree.
    fn add_node(&mut self, sides: &Sides<'_>, share: &Share<'_>, chunk: Chunk) {
        let (path, place) = (&share.flow.path, &share.flow.place);
        let Chunk { pieces, bytes, terms, lowest, part } = chunk;
        let holds = place.parent.is_none() && share.flow.sums.is_none();
        if holds && place.wants {
            let unpacks = sides.reach.mixed[sides.rank.index()];
            let (own, stored, list) = match unpacks {
                true => (Incoming::Pack, Storage::Slot, &mut self.packs),
                false => (Incoming::OwnCopy, Storage::Destination, &mut self.own_copies),
            };
            list.push(self.items.len() as u32);
            let counted = lowest == Some(sides.rank);
            let item = Item::new(pieces.clone(), Form::Wire, bytes, stored, own);
            self.items.push(Item { wants: true, counted, unpacks, ..item });
        }
        if holds && place.children.is_empty() {
            return;
        }
        let reaches = |child: Rank| lowest.is_some_and(|lowest| path.reaches(sides.topology, child, lowest));
        let item = self.items.len() as u32;
        let incoming = self.incoming(sides, share, item);
        let stored = sides.stored(share.flow, share.packs || share.flow.sums.is_some());
        let first_push = self.pushes.len() as u32;
        let mut readers = 0;
        for child in &place.children {
            if sides.feeds(share.flow, child) {
                self.feeds.entry(child.rank).or_default().push(item);
            } else {
                readers += self.send(sides, item, stored, child.rank, holds && reaches(child.rank));
            }
        }
        let counted = match place.parent {
            None => lowest.is_some_and(|lowest| path.delivers(sides.topology, lowest)),
            Some(parent) => parent.is_root && reaches(sides.rank),
        };
        self.items.push(Item {
            wants: place.wants,
            hop: place.hop,
            pushes: first_push..self.pushes.len() as u32,
            readers,
            unpacks: place.parent.is_some() && place.wants && stored == Storage::Slot,
            counted,
            terms,
            part,
            ..Item::new(pieces, Form::Wire, bytes, stored, incoming)
        });
    }

    /// Lets `to` read an item where it is stored here, or sends it there; the readers that this adds.
    pub(super) fn send(&mut self, sides: &Sides<'_>, item: u32, stored: Storage, to: Rank, counted: bool) -> u32 {
        if sides.reach.pulls(sides.topology, sides.rank, stored, to) {
            self.reads.entry(to).or_default().push(item);
            return 1;
        }
        self.sends.entry(to).or_default().push(self.pushes.len() as u32);
        self.pushes.push(Push { item, counted });
        0
    }

    /// How an item comes from where `from` stores it.
    pub(super) fn receive(&mut self, sides: &Sides<'_>, item: u32, stored: Storage, from: Rank) -> Incoming {
        if sides.reach.pulls(sides.topology, from, stored, sides.rank) {
            self.pulls.entry(from).or_default().push(item);
            Incoming::Pull { from, stored }
        } else {
            self.arrivals.entry(from).or_default().push(item);
            Incoming::Push { from }
        }
    }

    fn incoming(&mut self, sides: &Sides<'_>, share: &Share<'_>, item: u32) -> Incoming {
        let Some(parent) = share.flow.place.parent else {
            if share.flow.sums.is_some() {
                return Incoming::Sum;
            }
            if share.packs {
                self.packs.push(item);
                return Incoming::Pack;
            }
            return Incoming::Held;
        };
        let from = parent.rank;
        if sides.is_fed(share.flow) {
            self.fed.entry(from).or_default().push(item);
            return Incoming::Fed { from };
        }
        let stored = sides.reach.storage(&parent, share.packs || parent.adds);
        self.receive(sides, item, stored, from)
    }

    /// Whether this rank has to do with mapped peers and with message links.
    pub(super) fn is_over_both(&self) -> bool {
        let mapped = [&self.pulls, &self.reads, &self.feeds, &self.fed];
        mapped.iter().any(|peers| !peers.is_empty()) && !(self.arrivals.is_empty() && self.sends.is_empty())
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

#[cfg(test)]
#[path = "program_tests.rs"]
mod tests;
