//! What host and kernels of the all-reduce family share, equal to `kernels/collective.h`. In: nothing. Out: plain
//! structures. Guarantee: their sizes are asserted on both sides.

/// Most ranks of a channel.
pub const MAX_RANKS: usize = 72;
/// Most blocks of a launch.
pub const MAX_BLOCKS: u32 = 256;

/// Headers that a rank keeps, call `s` in place `s % HEADERS`.
pub const HEADERS: u32 = 4;
/// Flags of a block for each peer and parity.
pub const PHASES: u32 = 3;
/// Low bits of a sequence that a flag carries; the fingerprint stands above them.
pub const EPOCH_BITS: u32 = 16;
/// Slots and flags are cleared when a sequence is a multiple of this.
pub const CLEAN_EVERY: u64 = 1 << 14;

/// Pieces of 16 bytes that a bundle carries: what a warp sends at once as lines.
pub const BUNDLE_PIECES: u64 = 60;
/// Bytes of a bundle as lines, flags among them.
pub const BUNDLE_BYTES: u64 = 1024;

/// Copy the input to staging, whence peers read it.
pub const PART_STAGE: u32 = 1;
/// Wait until all peers' data may be read.
pub const PART_ENTER: u32 = 2;
/// Wait until no peer reads here, and until peers' writes here can be seen.
pub const PART_LEAVE: u32 = 4;
/// Overlap with the start of what follows in the stream: not where ranks share a device.
pub const PART_EARLY: u32 = 8;
/// With [`PART_EARLY`]: what follows may start at once; otherwise when this launch waits for nobody's start any more.
pub const PART_FOLLOWED: u32 = 16;

/// Offset of the word that holds 1 + the rank that gave up.
pub const AT_POISON: u64 = 0;
/// Offset of the headers.
pub const AT_HEADERS: u64 = 512;
/// Offset of the 64-bit sequences, one for each block: calls that are done.
pub const AT_SEQUENCES: u64 = 1024;
/// Offset of the flags.
pub const AT_FLAGS: u64 = 8192;

/// Type of the elements that are reduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Element {
    /// IEEE 754 binary32.
    F32 = 0,
    /// IEEE 754 binary16.
    F16 = 1,
    /// The upper half of a binary32.
    Bf16 = 2,
    /// IEEE 754 binary64.
    F64 = 3,
    /// Signed, 32 bits.
    I32 = 4,
    /// Signed, 64 bits.
    I64 = 5,
    /// Unsigned, 8 bits.
    U8 = 6,
    /// 8-bit float, 4 exponent and 3 mantissa bits, no infinities.
    E4m3 = 7,
    /// 8-bit float, 5 exponent and 2 mantissa bits.
    E5m2 = 8,
}

impl Element {
    /// All of them.
    pub const ALL: [Self; 9] =
        [Self::F32, Self::F16, Self::Bf16, Self::F64, Self::I32, Self::I64, Self::U8, Self::E4m3, Self::E5m2];

    /// Bytes of an element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::U8 | Self::E4m3 | Self::E5m2 => 1,
        }
    }

    /// Bytes of a partial result as a ring carries it.
    pub const fn partial_bytes(self) -> u64 {
        match self {
            Self::F64 | Self::I64 => 8,
            _ => 4,
        }
    }
}

/// What is done with the elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Operation {
    /// Sum; integers wrap.
    Sum = 0,
    /// Product; integers wrap.
    Product = 1,
    /// Least; a NaN wins, -0 is less than +0.
    Minimum = 2,
    /// Greatest; a NaN wins, +0 is greater than -0.
    Maximum = 3,
    /// Sum divided by the number of ranks; integers are rounded toward zero.
    Average = 4,
}

/// What a rank says of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Header {
    /// Low half of the sequence, filled in by the kernel.
    pub sequence_low: u32,
    /// Kind, algorithm, element, operation: a byte each, the kind lowest.
    pub what: u32,
    /// Bytes, as [`Call::bytes`].
    pub bytes: u64,
    /// The low half again.
    pub sequence_again: u32,
    /// High half of the sequence, filled in by the kernel.
    pub sequence_high: u32,
    /// Blocks in the lower half, threads of a block in the upper.
    pub shape: u32,
    /// Root and whatever else ranks must agree on.
    pub detail: u32,
}

impl Header {
    /// Sequence of the call.
    pub const fn sequence(&self) -> u64 {
        (self.sequence_high as u64) << 32 | self.sequence_low as u64
    }

    /// 1..=65535, from all that ranks must agree on: what every flag of the call carries.
    pub const fn fingerprint(&self) -> u32 {
        let words = [self.what, self.bytes as u32, (self.bytes >> 32) as u32, self.shape, self.detail];
        let (mut hash, mut index) = (0u64, 0);
        while index < words.len() {
            hash = (hash ^ words[index] as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash ^= hash >> 29;
            index += 1;
        }
        (hash % 0xffff) as u32 + 1
    }
}

/// Why a kernel gave up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct CollectiveVerdict {
    /// 2: complete.
    pub state: u32,
    /// One of the [`reason`]s.
    pub reason: u32,
    /// Peer that was awaited; [`reason::POISON`]: that gave up.
    pub peer: u32,
    /// Block that waited.
    pub block: u32,
    /// One of the [`wait`]s.
    pub wait: u32,
    /// Flag that was expected.
    pub expected: u32,
    /// Flag that was there.
    pub found: u32,
    /// Nothing: it aligns what follows.
    pub unused: u32,
    /// Sequence of the call.
    pub sequence: u64,
    /// This rank's header.
    pub mine: Header,
    /// The peer's header of the same sequence if there is one, else its last.
    pub theirs: Header,
}

/// Why a kernel gave up.
pub mod reason {
    /// The limit has passed.
    pub const LIMIT: u32 = 1;
    /// The peer makes another call.
    pub const MISMATCH: u32 = 2;
    /// The host said so.
    pub const ABORT: u32 = 3;
    /// Another rank gave up before.
    pub const POISON: u32 = 4;
}

/// Where a wait was.
pub mod wait {
    /// For data.
    pub const WORD: u32 = 0;
    /// For peers' inputs.
    pub const ENTER: u32 = 1;
    /// For peers' shards.
    pub const MIDDLE: u32 = 2;
    /// For peers to be done.
    pub const LEAVE: u32 = 3;
    /// For peers to have cleared their slots.
    pub const CLEAN: u32 = 4;
    /// There was none: the channel was poisoned before.
    pub const START: u32 = 5;
}

/// One rank's view of a channel.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Channel {
    /// Memory of each rank, as this device sees it: [`bytes`](ChannelLayout::bytes) bytes, zero at first.
    pub base: [u64; MAX_RANKS],
    /// Address of the verdict, in pinned memory of the host.
    pub verdict: u64,
    /// Address of the word that tells a kernel to give up, in pinned memory of the host.
    pub abort: u64,
    /// Longest wait, nanoseconds.
    pub limit: u64,
    /// Offset of the slots.
    pub slots: u64,
    /// Words of a slot, 16 bytes each, which carry 8 bytes.
    pub slot_words: u64,
    /// Offset of the slots of lines, one for each peer.
    pub lines: u64,
    /// Bytes of a slot of lines, a multiple of [`BUNDLE_BYTES`].
    pub line_bytes: u64,
    /// Offset of staging.
    pub staging: u64,
    /// Bytes of staging of one parity, a multiple of 16.
    pub staging_bytes: u64,
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub ranks: u32,
}

/// A call: one launch.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Call {
    /// The channel.
    pub channel: Channel,
    /// Address of this rank's input.
    pub input: u64,
    /// Address of this rank's output; may be the input.
    pub output: u64,
    /// All-reduce and broadcast: bytes of the buffer. All-gather and reduce-scatter: bytes of one rank's share.
    pub bytes: u64,
    /// All-gather and reduce-scatter: bytes from the start of a share to that of the next, in the output or the input.
    pub stride: u64,
    /// Device address of the addresses of all ranks' inputs, or 0: staging is used.
    pub inputs: u64,
    /// Device address of the addresses of all ranks' outputs, or 0.
    pub outputs: u64,
    /// Added to each of the inputs.
    pub input_offset: u64,
    /// Added to each of the outputs.
    pub output_offset: u64,
    /// What ranks must agree on.
    pub header: Header,
    /// Of the header.
    pub fingerprint: u32,
    /// An [`Operation`].
    pub operation: u32,
    /// Rank that broadcasts.
    pub root: u32,
    /// Parts that are done; pull and two-shot without any but [`PART_EARLY`] and [`PART_FOLLOWED`]: the host has ordered the ranks and nothing is
    /// waited for.
    pub parts: u32,
}

/// All-reduce of rows, then residual addition and RMSNorm.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct NormCall {
    /// The all-reduce; its output are the normed rows.
    pub call: Call,
    /// Address of what is added to the sum.
    pub residual: u64,
    /// Address of sum + residual, rounded to the element; may be the residual.
    pub residual_output: u64,
    /// Address of `hidden` weights.
    pub weight: u64,
    /// Address of the f32 that normed values are divided by before they become e4m3, or 0: they stay as they are.
    pub scale: u64,
    /// Rows.
    pub tokens: u32,
    /// Elements of a row, a multiple of 4.
    pub hidden: u32,
    /// Added to the mean of squares.
    pub epsilon: f32,
    /// Nothing: it ends the structure.
    pub unused: u32,
}

impl NormCall {
    /// Nothing but the all-reduce.
    pub const fn new(call: Call) -> Self {
        let (residual, residual_output, weight, scale) = (0, 0, 0, 0);
        Self { call, residual, residual_output, weight, scale, tokens: 0, hidden: 0, epsilon: 0.0, unused: 0 }
    }
}

/// Where things are in a channel's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelLayout {
    /// Offset of the slots.
    pub slots: u64,
    /// Words of a slot.
    pub slot_words: u64,
    /// Offset of the slots of lines.
    pub lines: u64,
    /// Bytes of a slot of lines.
    pub line_bytes: u64,
    /// Offset of staging.
    pub staging: u64,
    /// Bytes of staging of one parity.
    pub staging_bytes: u64,
    /// Bytes in all.
    pub bytes: u64,
}

impl ChannelLayout {
    /// For `ranks` ranks: slots of `slot_words` words, slots of `bundles` bundles of lines, and two times `staging_bytes` bytes,
    /// rounded up to 128.
    pub const fn new(ranks: u32, slot_words: u64, bundles: u64, staging_bytes: u64) -> Self {
        let parities = 2;
        let flags = parities * PHASES as u64 * MAX_BLOCKS as u64 * ranks.next_multiple_of(8) as u64 * 4;
        let slots = AT_FLAGS + flags;
        let slot_words = slot_words.next_multiple_of(8);
        let lines = slots + parities * ranks as u64 * slot_words * 16;
        let line_bytes = bundles * BUNDLE_BYTES;
        let staging = lines + parities * (ranks as u64).saturating_sub(1) * line_bytes;
        let staging_bytes = staging_bytes.next_multiple_of(128);
        let bytes = staging + parities * staging_bytes;
        Self { slots, slot_words, lines, line_bytes, staging, staging_bytes, bytes }
    }

    /// Bundles that fit a slot of lines.
    pub const fn bundles(&self) -> u64 {
        self.line_bytes / BUNDLE_BYTES
    }
}

const _: () = assert!(size_of::<Header>() == 32);
const _: () = assert!(size_of::<CollectiveVerdict>() == 104);
const _: () = assert!(size_of::<Channel>() == 656);
const _: () = assert!(size_of::<Call>() == 768);
const _: () = assert!(size_of::<NormCall>() == 816);
