//! This rank's share of the flows. In: the flows that pass it, how ranks reach each other, chunk size. Out: items (a
//! chunk of a flow at this rank) with where each comes from and goes to. Guarantee: pure; the k-th item that rank a
//! pushes to (or is pulled from by) rank b is the k-th that b expects from a, since all ranks order the flows that they
//! share alike, and items by (chunk index, flow).

use super::reach::{Reach, Sides};
use crate::base::Rank;
use crate::plan::{CellId, Plan};
use crate::route::{Gather, LocalFlow, Piece};
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
}

/// A chunk of a flow at this rank.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) pieces: Range<u32>,
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
    /// Whether this rank's destination tensors take it from its slot, as others do.
    pub(super) unpacks: bool,
}

/// An item on its way to a child over a message link.
#[derive(Debug, Clone, Copy)]
pub(super) struct Push {
    pub(super) item: u32,
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
            let chunk = if reach.is_staged(topology, flow, packs) { reach.chunk_bytes } else { MAPPED_CHUNK };
            let gather = Gather::of_pieces(plan, &flow.pieces);
            Share { flow, chunk, chunks: flow.bytes.div_ceil(chunk), packs, gather }
        })
        .collect();
    let mut turn = 0;
    let mut open: Vec<&Share<'_>> = shares.iter().collect();
    while !open.is_empty() {
        open.retain(|share| turn < share.chunks);
        for share in &open {
            program.add(&sides, share, turn);
        }
        turn += 1;
    }
    program
}

impl Program {
    fn add(&mut self, sides: &Sides<'_>, share: &Share<'_>, turn: u64) {
        let (from, to) = (share.gather.border(turn * share.chunk), share.gather.border((turn + 1) * share.chunk));
        if from == to {
            return;
        }
        let first = self.pieces.len() as u32;
        self.pieces.extend(share.gather.pieces(from, to));
        let pieces = first..self.pieces.len() as u32;
        let place = &share.flow.place;
        let bytes = to - from;
        if place.parent.is_none() && place.wants {
            let unpacks = sides.reach.mixed[sides.rank.index()];
            let (storage, incoming, list) = match unpacks {
                true => (Storage::Slot, Incoming::Pack, &mut self.packs),
                false => (Storage::Destination, Incoming::OwnCopy, &mut self.own_copies),
            };
            list.push(self.items.len() as u32);
            self.items.push(Item {
                pieces: pieces.clone(),
                bytes,
                storage,
                wants: true,
                incoming,
                hop: 0,
                pushes: 0..0,
                readers: 0,
                unpacks,
            });
        }
        if place.parent.is_none() && place.children.is_empty() {
            return;
        }
        let item = self.items.len() as u32;
        let incoming = self.incoming(sides, share, item);
        let stored = sides.stored(place, share.packs);
        let first_push = self.pushes.len() as u32;
        let mut readers = 0;
        for child in &place.children {
            if sides.feeds(place, child) {
                self.feeds.entry(child.rank).or_default().push(item);
            } else if sides.reach.pulls(sides.topology, sides.rank, stored, child.rank) {
                self.reads.entry(child.rank).or_default().push(item);
                readers += 1;
            } else {
                self.sends.entry(child.rank).or_default().push(self.pushes.len() as u32);
                self.pushes.push(Push { item });
            }
        }
        self.items.push(Item {
            pieces,
            bytes,
            storage: stored,
            wants: place.wants,
            incoming,
            hop: place.hop,
            pushes: first_push..self.pushes.len() as u32,
            readers,
            unpacks: place.parent.is_some() && place.wants && stored == Storage::Slot,
        });
    }

    fn incoming(&mut self, sides: &Sides<'_>, share: &Share<'_>, item: u32) -> Incoming {
        let Some(parent) = share.flow.place.parent else {
            if share.packs {
                self.packs.push(item);
                return Incoming::Pack;
            }
            return Incoming::Held;
        };
        let from = parent.rank;
        let stored = sides.reach.storage(&parent, share.packs);
        if sides.is_fed(&share.flow.place) {
            self.fed.entry(from).or_default().push(item);
            Incoming::Fed { from }
        } else if sides.reach.pulls(sides.topology, from, stored, sides.rank) {
            self.pulls.entry(from).or_default().push(item);
            Incoming::Pull { from, stored }
        } else {
            self.arrivals.entry(from).or_default().push(item);
            Incoming::Push { from }
        }
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
