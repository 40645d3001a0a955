// What host and kernels of the all-reduce family share: layouts in memory, equal to lib/memory/device/collective/params.rs
// (sizes are asserted on both sides). In: nothing. Out: plain structures. Guarantee: fixed sizes, natural alignment, little
// endian; addresses are 64 bits.
#pragma once
#include "params.h"

static const u32 MAX_RANKS = 72;
static const u32 MAX_BLOCKS = 256;

// Memory of a channel, one allocation a rank, mapped by all ranks, zero at first. Offsets in bytes.
static const u64 AT_POISON = 0;      // u32: 1 + rank that gave up, written by that rank
static const u64 AT_CLEANED = 128;   // u32 for each rank: barriers of cleaning that it has come to
static const u64 AT_HEADERS = 512;   // HEADERS headers, call s in place s % HEADERS: written by the owner, read by peers
static const u64 AT_GRID = 640;      // GridBarrier, the owner's alone
static const u64 AT_SEQUENCES = 1024;  // u64 for each block: calls that are done, the owner's alone
static const u64 AT_FLAGS = 8192;    // u32 [2 parities][PHASES][MAX_BLOCKS][ranks, rounded up to 8]
static const u32 HEADERS = 4;
static const u32 PHASES = 3;

// A flag is fingerprint << EPOCH_BITS | epoch, the epoch being the low bits of the call's sequence: never 0. A rank that
// comes to a call whose sequence is a multiple of CLEAN_EVERY first clears its slots and flags together with all others,
// so that no flag of an earlier round of epochs is left.
static const u32 EPOCH_BITS = 16;
static const u32 CLEAN_EVERY = 1u << 14;

// A bundle is what a warp sends at once: so many pieces of 16 bytes in lines of 128 bytes, of which the last 8 are flags.
static const u32 BUNDLE_PIECES = 60;
static const u32 BUNDLE_BYTES = 1024;

// Parts of a pull or a two-shot that a launch does; none: the host has ordered the ranks and nothing is waited for.
static const u32 PART_STAGE = 1;  // copy the input to staging, whence peers read it
static const u32 PART_ENTER = 2;  // wait until all peers' data may be read
static const u32 PART_LEAVE = 4;  // wait until no peer reads here, and until peers' writes here can be seen
// What follows in the stream may start before the end, and this before the end of what stands before it: not where ranks
// share a device, since what starts early takes the place that the other rank's blocks need.
static const u32 PART_EARLY = 8;
// With it: what follows may start at once. Without: once this launch waits for no rank's start any more; else what follows,
// which only waits, may keep a launch of another channel out that a peer waits for, and the other way round there.
static const u32 PART_FOLLOWED = 16;

// Where a wait was, for verdicts.
static const u32 WAIT_WORD = 0;    // a data word with its flag
static const u32 WAIT_ENTER = 1;   // flag of phase 0
static const u32 WAIT_MIDDLE = 2;  // flag of phase 1
static const u32 WAIT_LEAVE = 3;   // flag of phase 2
static const u32 WAIT_CLEAN = 4;   // cleaning
static const u32 WAIT_START = 5;   // nothing was waited for: the channel was poisoned before

// Why a call gave up.
static const u32 REASON_LIMIT = 1;     // the limit has passed
static const u32 REASON_MISMATCH = 2;  // the peer makes another call
static const u32 REASON_ABORT = 3;     // the host said so
static const u32 REASON_POISON = 4;    // another rank gave up before

static const u32 OPERATION_SUM = 0;
static const u32 OPERATION_PRODUCT = 1;
static const u32 OPERATION_MINIMUM = 2;
static const u32 OPERATION_MAXIMUM = 3;
static const u32 OPERATION_AVERAGE = 4;

static const u32 ELEMENT_F32 = 0;
static const u32 ELEMENT_F16 = 1;
static const u32 ELEMENT_BF16 = 2;
static const u32 ELEMENT_F64 = 3;
static const u32 ELEMENT_I32 = 4;
static const u32 ELEMENT_I64 = 5;
static const u32 ELEMENT_U8 = 6;
static const u32 ELEMENT_E4M3 = 7;
static const u32 ELEMENT_E5M2 = 8;

// What a rank says of a call: two words of 16 bytes, each with the low half of the sequence, so that one that was torn
// is noticed.
struct Header {
  u32 sequence_low;
  u32 what;  // kind | algorithm << 8 | element << 16 | operation << 24
  u64 bytes;
  u32 sequence_again;
  u32 sequence_high;
  u32 shape;   // blocks | threads << 16
  u32 detail;  // root and whatever else ranks must agree on
};

// Blocks of one launch wait for each other.
struct GridBarrier {
  u32 arrived;
  u32 generation;
};

// Why a kernel gave up, in memory of the host.
struct CollectiveVerdict {
  u32 state;  // 0: nothing, 1: being written, 2: complete
  u32 reason;
  u32 peer;  // awaited; REASON_POISON: that gave up
  u32 block;
  u32 wait;
  u32 expected;
  u32 found;
  u32 unused;
  u64 sequence;
  Header mine;
  Header theirs;  // of the same sequence if there is one, else the peer's last
};

// One rank's view of a channel.
struct Channel {
  u64 base[MAX_RANKS];  // memory of each rank, as this device sees it
  CollectiveVerdict *verdict;
  const u32 *abort;   // in memory of the host; not 0: give up
  u64 limit;          // longest wait, nanoseconds
  u64 slots;          // offset of [2 parities][ranks] slots
  u64 slot_words;     // words of a slot, 16 bytes each, which carry 8 bytes
  u64 lines;          // offset of [2 parities][ranks - 1] slots of lines, one for each peer in the order of ranks
  u64 line_bytes;     // of a slot of lines, a multiple of BUNDLE_BYTES
  u64 staging;        // offset of [2 parities] of staging
  u64 staging_bytes;  // of one parity, a multiple of 16
  u32 rank;
  u32 ranks;
};

// A call: one launch. Bytes and counts are those of the whole collective's share as each kernel says.
struct Call {
  Channel channel;
  u64 input;
  u64 output;
  u64 bytes;          // all-reduce, broadcast: of the buffer; all-gather: of one rank's share; reduce-scatter: likewise
  u64 stride;         // all-gather, reduce-scatter: from the start of a share to that of the next
  const u64 *inputs;   // registered: address of each rank's input; null: staging is used
  const u64 *outputs;  // registered: address of each rank's output
  u64 input_offset;    // added to each of `inputs`
  u64 output_offset;   // added to each of `outputs`
  Header header;       // its sequence is filled in by the kernel
  u32 fingerprint;     // 1..65535
  u32 operation;
  u32 root;
  u32 parts;
};

// All-reduce of `tokens` rows, then residual addition and RMSNorm.
struct NormCall {
  Call call;             // its output: the normed rows
  u64 residual;          // added to the sum
  u64 residual_output;   // sum + residual, rounded to the element; may be `residual`
  u64 weight;            // `hidden` elements
  u64 scale;             // fp8 output: address of the f32 that normed values are divided by; else 0
  u32 tokens;
  u32 hidden;            // elements of a row, a multiple of 8 bytes
  float epsilon;
  u32 unused;
};

static_assert(sizeof(Header) == 32, "Header");
static_assert(sizeof(CollectiveVerdict) == 104, "CollectiveVerdict");
static_assert(sizeof(Channel) == 656, "Channel");
static_assert(sizeof(Call) == 768, "Call");
static_assert(sizeof(NormCall) == 816, "NormCall");
