//! What ranks tell each other about a transfer's memory, once, at init. In: program, board, local tensors. Out:
//! one [`Invitation`] per peer. Guarantee: a peer learns only about memory that the program makes it touch, and
//! only inside the authenticated control mesh.

use super::ExecuteError;
use crate::base::Rank;
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
    /// Segment with the board.
    pub(super) segment: Option<SegmentId>,
    /// Segment with the slots; the same unless transfers share it.
    pub(super) slots: Option<SegmentId>,
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
    /// The segment with the board, registered with the link between the two.
    pub(super) region: Option<RemoteRegion>,
    /// The segment with the slots, likewise.
    pub(super) slots_region: Option<RemoteRegion>,
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

impl Invitation {
    /// Whether it is about what the reader's own program says: so many chunks that it reads there and puts there.
    pub(super) fn check(&self, peer: Rank, reads: usize, puts: usize) -> Result<(), ExecuteError> {
        let told = [self.available_words.len(), self.release_words.len(), self.direct.len()];
        let numbered = u32::try_from(puts).ok().and_then(|puts| self.signal_base.checked_add(puts));
        if told == [reads, reads, puts] && numbered.is_some() {
            return Ok(());
        }
        let what =
            format!("an invitation with {told:?} words and chunks, where {:?} are expected", [reads, reads, puts]);
        Err(ExecuteError::Protocol { peer, what })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_to_something_else_is_refused() {
        let fits = Invitation {
            available_words: vec![0; 2],
            release_words: vec![0; 2],
            direct: vec![true; 3],
            ..Invitation::default()
        };
        assert!(fits.check(Rank(7), 2, 3).is_ok());
        for (reads, puts) in [(1, 3), (2, 2), (0, 0)] {
            let error = fits.check(Rank(7), reads, puts).unwrap_err().to_string();
            assert!(error.contains("rank 7"), "{error}");
        }
        let wraps = Invitation { signal_base: u32::MAX - 1, ..fits };
        assert!(wraps.check(Rank(7), 2, 3).is_err());
    }
}
