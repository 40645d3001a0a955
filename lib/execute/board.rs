//! Flag words of one transfer at one rank, in memory that its peers see. In: counts. Out: word numbers.
//! Guarantee: every word has one writer (or is only added to), and carries the epoch of the start it belongs to.
//!
//! Pairing of orders: a writer stores with Release after the bytes the flag speaks of; a reader loads with Acquire
//! before it touches them. Words put over a message link are stored with Release by the receiving end of the link.

/// Low half of a grant or availability word for a chunk that needs no slot.
pub(super) const DIRECT: u32 = u32::MAX;
/// Words about what a rank copies into one peer's tensors: claims, then chunks done.
pub(super) const FEED_WORDS: usize = 2;
/// No word.
pub(super) const NO_WORD: u32 = u32::MAX;

/// A grant or availability: epoch in the high half, slot + 1 (or [`DIRECT`]) in the low half.
pub(super) fn word(epoch: u32, low: u32) -> u64 {
    u64::from(epoch) << 32 | u64::from(low)
}

/// The low half of `word` when it belongs to `epoch`.
pub(super) fn low(word: u64, epoch: u32) -> Option<u32> {
    ((word >> 32) as u32 == epoch).then_some(word as u32)
}

/// Where the words of a transfer stand.
#[derive(Debug, Clone, Default)]
pub(super) struct BoardLayout {
    /// Number of words.
    pub(super) words: u32,
}

impl BoardLayout {
    /// Word 0: epoch of the last start.
    pub(super) const STARTED: u32 = 0;

    pub(super) fn new() -> Self {
        Self { words: 1 }
    }

    /// Reserves `count` words.
    pub(super) fn reserve(&mut self, count: usize) -> u32 {
        let first = self.words;
        self.words += count as u32;
        first
    }
}
