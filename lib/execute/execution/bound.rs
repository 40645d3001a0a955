//! What init prepared for an execution. In: nothing. Out: plain tables. Guarantee: never changed while a transfer
//! runs, but for the cursors of its peers.

use super::super::bind::{CopyOp, Place};
use super::super::hop::Hop;
use super::super::passing::Step;
use super::super::program::Program;
use super::Feeds;
use crate::base::Rank;
use crate::memory::copy::{CopyTable, Store};
use crate::memory::device::{Bridge, StreamGate};
use crate::memory::{Bell, ProcessMemory, SharedMemory, Span};
use crate::transport::{RegionId, RemoteRegion};
use std::ops::Range;
use std::sync::Arc;

/// Local bytes of a put.
#[derive(Debug, Clone, Copy)]
pub(in crate::execute) enum LocalRef {
    Region(RegionId),
    Slot,
    SendSlot,
}

/// Remote place of a put.
#[derive(Debug, Clone, Copy)]
pub(in crate::execute) enum RemoteRef {
    Region(RemoteRegion),
    Slot,
}

/// One put.
#[derive(Debug, Clone, Copy)]
pub(in crate::execute) struct PutOp {
    pub(in crate::execute) local: LocalRef,
    pub(in crate::execute) local_offset: u64,
    pub(in crate::execute) remote: RemoteRef,
    pub(in crate::execute) remote_offset: u64,
    pub(in crate::execute) bytes: u64,
}

/// A push with its addresses.
#[derive(Debug, Clone, Default)]
pub(in crate::execute) struct BoundPush {
    pub(in crate::execute) item: u32,
    pub(in crate::execute) pack: Range<u32>,
    pub(in crate::execute) puts: Range<u32>,
    pub(in crate::execute) grant_word: u32,
    pub(in crate::execute) signal_index: u32,
}

/// Copies that are made together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::execute) struct Stage {
    /// By the processor.
    pub(in crate::execute) copies: Range<u32>,
    /// From and to devices, each on another one; numbers of the bridge.
    pub(in crate::execute) bridged: Range<u32>,
}

/// An item with its addresses.
#[derive(Debug, Clone, Default)]
pub(in crate::execute) struct BoundItem {
    /// Copies that bring it in: an own copy, a pull, or the unpacking of its slot.
    pub(in crate::execute) stage: Stage,
    /// Copies from its slot into this rank's tensors, while others take it from there.
    pub(in crate::execute) unpack: Stage,
    /// How its copies store.
    pub(in crate::execute) store: Store,
    /// Straight into the tensors.
    pub(in crate::execute) direct: bool,
    pub(in crate::execute) available_word: u32,
    pub(in crate::execute) release_word: u32,
}

/// A rank that this transfer deals with.
#[derive(Debug)]
pub(in crate::execute) struct Peer {
    pub(in crate::execute) rank: Rank,
    pub(in crate::execute) world: Rank,
    pub(in crate::execute) host: String,
    pub(in crate::execute) link: Option<usize>,
    /// What it is woken by, when mapped.
    pub(in crate::execute) bell: Option<Bell>,
    /// Its board and slots, when mapped.
    pub(in crate::execute) segment: Option<Arc<SharedMemory>>,
    /// Memory with its slots.
    pub(in crate::execute) slots_span: Option<u32>,
    pub(in crate::execute) slots_offset: u64,
    pub(in crate::execute) slot_bytes: u64,
    pub(in crate::execute) region: Option<RemoteRegion>,
    pub(in crate::execute) slots_region: Option<RemoteRegion>,
    pub(in crate::execute) process: ProcessMemory,
    /// Items read from it, with the words on its board.
    pub(in crate::execute) pulls: Vec<u32>,
    pub(in crate::execute) pull_words: Vec<u32>,
    pub(in crate::execute) pull_releases: Vec<u32>,
    pub(in crate::execute) done_word: u32,
    pub(in crate::execute) pull_cursor: usize,
    /// How many have been read.
    pub(in crate::execute) read: usize,
    /// Items it puts here, by signal index less `signal_base`.
    pub(in crate::execute) arrivals: Vec<u32>,
    pub(in crate::execute) arrival_cursor: usize,
    pub(in crate::execute) signal_base: u32,
    pub(in crate::execute) grant_base: u32,
    /// Pushes to it.
    pub(in crate::execute) pushes: Vec<u32>,
    pub(in crate::execute) push_cursor: usize,
    /// Word on this rank's board in which it notes that it has read everything; `NO_WORD` when it reads nothing.
    pub(in crate::execute) reader_word: u32,
}

/// Everything that init prepared.
#[derive(Debug)]
pub(in crate::execute) struct Bound {
    /// For tensors of this rank on devices.
    pub(in crate::execute) bridge: Option<Bridge>,
    /// Per number of the bridge, the staging of its copies.
    pub(in crate::execute) staging: Vec<Option<Place>>,
    /// For starts on streams, with a bridge.
    pub(in crate::execute) gate: Option<Arc<StreamGate>>,
    /// What its GPU does with others of its domain, step by step.
    pub(in crate::execute) steps: Vec<Step>,
    pub(in crate::execute) program: Program,
    pub(in crate::execute) items: Vec<BoundItem>,
    pub(in crate::execute) pushes: Vec<BoundPush>,
    pub(in crate::execute) copies: Vec<CopyOp>,
    pub(in crate::execute) puts: Vec<PutOp>,
    pub(in crate::execute) table: CopyTable,
    pub(in crate::execute) spans: Vec<Span>,
    pub(in crate::execute) peers: Vec<Peer>,
    pub(in crate::execute) hops: Vec<Hop>,
    pub(in crate::execute) feeds: Feeds,
    /// Copies of padding, at every start.
    pub(in crate::execute) padding: Stage,
    pub(in crate::execute) segment: Arc<SharedMemory>,
    /// Memory with this rank's slots, and its region on each link.
    pub(in crate::execute) slots_span: u32,
    pub(in crate::execute) slot_regions: Vec<Option<RegionId>>,
    pub(in crate::execute) slots_offset: u64,
    pub(in crate::execute) slot_bytes: u64,
    pub(in crate::execute) send_slots: Range<u32>,
}
