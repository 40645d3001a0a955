//! What host and kernels share, equal to `kernels/params.h`. In: nothing. Out: plain structures. Guarantee: their sizes are
//! asserted on both sides; a field that moves on one side only does not compile.

/// No gate, no report.
pub const NONE: u32 = u32::MAX;
/// Words at the start of a board: epoch, failed epoch, blocks that left, starts whose end was told.
pub const BOARD_WORDS: u32 = 4;

/// Tell readers that this rank's tensors may be read.
pub const PHASE_OPEN: u32 = 1;
/// Wait until all tensors that this rank reads may be read.
pub const PHASE_AWAIT: u32 = 2;
/// Move units.
pub const PHASE_MOVE: u32 = 4;
/// Tell that reading is over, wait until nobody reads here.
pub const PHASE_CLOSE: u32 = 8;

/// Rows of `run` bytes in planes; steps in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Piece {
    /// Address of the first byte.
    pub source: u64,
    /// Address of the first byte.
    pub destination: u64,
    /// Step of rows.
    pub source_row: u64,
    /// Step of rows.
    pub destination_row: u64,
    /// Step of planes.
    pub source_plane: u64,
    /// Step of planes.
    pub destination_plane: u64,
    /// Bytes of a row.
    pub run: u32,
    /// Bytes of an access, which divide addresses, steps and run.
    pub width: u32,
    /// Rows of a plane.
    pub rows: u32,
    pub(super) unused: u32,
}

/// Rows `first..first + rows` of a piece, counted through its planes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Unit {
    /// Piece.
    pub piece: u32,
    /// First row.
    pub first: u32,
    /// Number of rows.
    pub rows: u32,
    /// Word of the board that must have the epoch, or [`NONE`].
    pub gate: u32,
    /// Report that it counts for, or [`NONE`].
    pub report: u32,
}

/// Units that others wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Report {
    /// Word of the board that counts them.
    pub counter: u32,
    /// How many.
    pub units: u32,
    /// First target.
    pub first: u32,
    /// Number of targets.
    pub count: u32,
}

/// Why a kernel gave up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Verdict {
    /// 2: complete.
    pub state: u32,
    /// Part of the start.
    pub phase: u32,
    /// Word that did not come.
    pub word: u32,
    /// Epoch that was expected.
    pub epoch: u32,
    /// Epoch that was there.
    pub found: u32,
    /// Block that waited.
    pub block: u32,
    /// Whether the host told it to.
    pub aborted: u32,
    pub(super) unused: u32,
}

/// A start.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Start {
    /// Address of the pieces.
    pub pieces: u64,
    /// Address of the units.
    pub units: u64,
    /// Address of the reports.
    pub reports: u64,
    /// Address of the targets.
    pub targets: u64,
    /// Address of this rank's board.
    pub board: u64,
    /// Address of the verdict.
    pub verdict: u64,
    /// Address of the word that tells the kernel to give up.
    pub abort: u64,
    /// Longest wait, nanoseconds.
    pub limit: u64,
    /// Number of units.
    pub unit_count: u32,
    /// What to do.
    pub phases: u32,
    /// Targets told at opening.
    pub open_first: u32,
    /// How many.
    pub open_count: u32,
    /// Targets told at closing.
    pub close_first: u32,
    /// How many.
    pub close_count: u32,
    /// Words awaited before moving.
    pub await_first: u32,
    /// How many.
    pub await_count: u32,
    /// Words awaited before leaving.
    pub leave_first: u32,
    /// How many.
    pub leave_count: u32,
    /// Added to all source addresses.
    pub source_base: u64,
    /// Added to all destination addresses.
    pub destination_base: u64,
    /// Address of two words of the host: the number of the last start that succeeded, and of the last that failed.
    pub finished: u64,
    /// 1: the end is told there.
    pub tells: u32,
    pub(super) unused: u32,
}

/// Most dimensions of a box.
pub const MAX_RANK: usize = 8;

/// A box of elements, for digests and contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Box {
    /// Address of the first element.
    pub address: u64,
    /// Place of the first element.
    pub place: u64,
    /// Number of elements.
    pub elements: u64,
    /// Extents.
    pub extent: [u64; MAX_RANK],
    /// Steps in bytes.
    pub stride: [u64; MAX_RANK],
    /// Steps in places.
    pub step: [u64; MAX_RANK],
    /// Dimensions.
    pub rank: u32,
    /// Bytes of an element.
    pub element: u32,
}

/// One end of a test of ordered writes.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct OrderedWrites {
    /// Address of the payload, reader's memory.
    pub payload: u64,
    /// Address of the flag, reader's memory.
    pub flag: u64,
    /// Address of the answer, writer's memory.
    pub ack: u64,
    /// Address of the count of wrong words, reader's memory.
    pub wrong: u64,
    /// Address of the verdict.
    pub verdict: u64,
    /// Address of the word that tells the kernel to give up.
    pub abort: u64,
    /// Longest wait, nanoseconds.
    pub limit: u64,
    /// Words of payload.
    pub words: u32,
    /// Rounds.
    pub rounds: u32,
    /// Epoch of the first round.
    pub first: u32,
    /// 1 at the writing end.
    pub writes: u32,
}

const _: () = assert!(size_of::<Piece>() == 64);
const _: () = assert!(size_of::<Unit>() == 20);
const _: () = assert!(size_of::<Report>() == 16);
const _: () = assert!(size_of::<Verdict>() == 32);
const _: () = assert!(size_of::<Start>() == 136);
const _: () = assert!(size_of::<Box>() == 224);
const _: () = assert!(size_of::<OrderedWrites>() == 72);
