// What host and kernels share: layouts in memory, equal to lib/memory/device/params.rs (sizes are asserted on both sides).
// In: nothing. Out: plain structures. Guarantee: fixed sizes, natural alignment, little endian; addresses are 64 bits.
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;

// No gate, no report.
static const u32 NONE = 0xffffffffu;

// Words of a board, 32 bits each: the start that was closed last, the start that failed, blocks that have moved
// everything, starts whose end the host was told; then one word for each gate.
static const u32 BOARD_EPOCH = 0;
static const u32 BOARD_FAILED = 1;
static const u32 BOARD_EXITS = 2;
static const u32 BOARD_TOLD = 3;

// Parts of a start that a launch does.
static const u32 PHASE_OPEN = 1;   // tell readers that this rank's tensors may be read
static const u32 PHASE_AWAIT = 2;  // wait until all tensors that this rank reads may be read
static const u32 PHASE_MOVE = 4;   // move units
static const u32 PHASE_CLOSE = 8;  // tell that reading is over, wait until nobody reads here

// Rows of `run` bytes, `rows` of them in a plane; steps in bytes. `width` divides addresses, steps and run: 16, 8, 4, 2
// or 1.
struct Piece {
  u64 source;
  u64 destination;
  u64 source_row;
  u64 destination_row;
  u64 source_plane;
  u64 destination_plane;
  u32 run;
  u32 width;
  u32 rows;
  u32 unused;
};

// Rows first..first+rows of a piece, counted through its planes: what a warp moves at a time, in this order on every
// rank. It is moved once word `gate` of the board has the epoch; the last unit of `report` tells others.
struct Unit {
  u32 piece;
  u32 first;
  u32 rows;
  u32 gate;
  u32 report;
};

// Units that others wait for: `units` of them count up in word `counter`, then the epoch goes to `count` addresses from
// `first` on in the table of targets.
struct Report {
  u32 counter;
  u32 units;
  u32 first;
  u32 count;
};

// Why a kernel gave up, in memory of the host.
struct Verdict {
  u32 state;  // 0: nothing, 1: being written, 2: complete
  u32 phase;  // PHASE_AWAIT, PHASE_MOVE or PHASE_CLOSE
  u32 word;   // of the board that did not come
  u32 epoch;  // that was expected
  u32 found;
  u32 block;
  u32 aborted;  // 1: told to give up by the host, 0: the limit passed
  u32 unused;
};

// A start.
struct Start {
  const Piece *pieces;
  const Unit *units;
  const Report *reports;
  const u64 *targets;
  u32 *board;
  Verdict *verdict;
  const u32 *abort;  // in memory of the host; not 0: give up
  u64 limit;         // longest wait, nanoseconds
  u32 unit_count;
  u32 phases;
  u32 open_first;  // targets told at opening
  u32 open_count;
  u32 close_first;  // targets told at closing
  u32 close_count;
  u32 await_first;  // words of the board awaited before moving
  u32 await_count;
  u32 leave_first;  // words of the board awaited before leaving
  u32 leave_count;
  u64 source_base;  // added to all source addresses
  u64 destination_base;
  u32 *finished;  // in memory of the host: number of the last start that succeeded, of the last that failed
  u32 tells;      // 1: its end is told there
  u32 unused;
};

static const u32 MAX_RANK = 8;

// A box of elements for digests and contents: extents, steps in bytes and in places, innermost last.
struct Box {
  u64 address;
  u64 place;  // of the first element
  u64 elements;
  u64 extent[MAX_RANK];
  u64 stride[MAX_RANK];
  u64 step[MAX_RANK];
  u32 rank;
  u32 element;  // bytes: 1, 2, 4 or 8
};

// One end of a test of ordered writes between two devices.
struct OrderedWrites {
  u32 *payload;      // reader's memory
  u32 *flag;         // reader's memory
  u32 *ack;          // writer's memory
  u64 *wrong;        // reader's memory: words that were not what they should be
  Verdict *verdict;  // memory of the host
  const u32 *abort;  // memory of the host
  u64 limit;
  u32 words;
  u32 rounds;
  u32 first;  // epoch of the first round, not 0
  u32 writes;  // 1: this end writes, 0: it reads
};

static_assert(sizeof(Piece) == 64, "Piece");
static_assert(sizeof(Unit) == 20, "Unit");
static_assert(sizeof(Report) == 16, "Report");
static_assert(sizeof(Verdict) == 32, "Verdict");
static_assert(sizeof(Start) == 136, "Start");
static_assert(sizeof(Box) == 224, "Box");
static_assert(sizeof(OrderedWrites) == 72, "OrderedWrites");
