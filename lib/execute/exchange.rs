//! What ranks tell each other about a transfer's memory, once, at init. In: program, board, local tensors. Out:
//! one [`Invitation`] per peer. Guarantee: a peer learns only about memory that the program makes it touch, and
//! only inside the authenticated control mesh.

use crate::memory::SegmentId;
use crate::transport::RemoteRegion;
use serde::{Deserialize, Serialize};

/// Memory that a peer reads or puts into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ExportedMemory {
    /// Part of a shared segment.
    Shared { segment: SegmentId, offset: u64 },
    /// Private memory at an address of the exporting process.
    Private { address: u64 },
    /// A region registered with the link between the two.
    Region { region: RemoteRegion },
}

/// A local tensor as a peer needs to see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Export {
    pub(super) tensor: u32,
    pub(super) memory: ExportedMemory,
    /// Byte offset of the first element in that memory.
    pub(super) offset: u64,
    /// Byte strides.
    pub(super) strides: Vec<u64>,
}

/// What one rank tells one peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub(super) struct Invitation {
    /// Segment with board and slots.
    pub(super) segment: Option<SegmentId>,
    /// Where slots begin in it.
    pub(super) slots_offset: u64,
    /// Distance between slots.
    pub(super) slot_bytes: u64,
    /// Source tensors that the peer reads here.
    pub(super) source: Vec<Export>,
    /// Destination tensors that the peer reads here.
    pub(super) destination: Vec<Export>,
    /// Per item that the peer reads here, its availability word.
    pub(super) available_words: Vec<u32>,
    /// Per item that the peer reads here, the word counting readers that are done with its slot.
    pub(super) release_words: Vec<u32>,
    /// Word in which the peer notes that it has read everything.
    pub(super) done_word: u32,
    /// The same segment, registered with the link between the two.
    pub(super) region: Option<RemoteRegion>,
    /// First signal index of what the peer puts here.
    pub(super) signal_base: u32,
    /// Per chunk that the peer puts here, whether it goes straight into the tensors.
    pub(super) direct: Vec<bool>,
    /// Tensors that it goes straight into.
    pub(super) direct_tensors: Vec<Export>,
    /// Source tensors that the peer copies from along with this rank.
    pub(super) fed_source: Vec<Export>,
    /// Destination tensors that the peer copies into.
    pub(super) fed_destination: Vec<Export>,
    /// First of the words, on this rank's board, about what this rank copies into the peer's tensors.
    pub(super) feed_word: u32,
    /// First grant word, on this rank's board, for what this rank puts to the peer.
    pub(super) grant_base: u32,
}
