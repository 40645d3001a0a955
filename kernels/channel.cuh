// Turns of a channel: flags, waits that end, agreement, cleaning. In: a call (collective.h). Out: the turn's flag and
// parity, data words of peers. Guarantee: a wait ends when its word has the flag of this call, when the limit has passed,
// when the host says so, when another rank has given up, or when the awaited peer's header shows another call; the first
// that gives up on a rank tells the host where and why, and poisons the channel on all ranks.
#pragma once
#include "collective.h"
#include "ptx.cuh"

// Polls of a wait before it looks at anything else.
static const u32 LOOK = 256;
// Time from the start of a long wait to the first look at host and peer, and longest time between two, nanoseconds: looks
// of thousands of threads take their time, so that ranks that were apart for a moment would stay apart if these were short.
static const u64 FIRST_LOOK = 500000;
static const u64 LONGEST_PAUSE = 10000000;

struct Turn {
  u64 sequence;
  u32 flag;
  u32 parity;
  u32 poison;  // known to the first thread of a block
  bool sound;  // nothing that this thread knows of went wrong
};

__device__ __forceinline__ u64 own_base(const Call &call) { return call.channel.base[call.channel.rank]; }

__device__ __forceinline__ u64 header_of(const Call &call, u32 rank, u64 sequence) {
  return call.channel.base[rank] + AT_HEADERS + sequence % HEADERS * sizeof(Header);
}

__device__ __forceinline__ void write_header(const Call &call, u64 sequence) {
  u64 at = header_of(call, call.channel.rank, sequence);
  u32 low = (u32)sequence;
  const Header &header = call.header;
  store_volatile_128(at, make_uint4(low, header.what, (u32)header.bytes, (u32)(header.bytes >> 32)));
  store_volatile_128(at + 16, make_uint4(low, (u32)(sequence >> 32), header.shape, header.detail));
}

// Header in place `sequence % HEADERS` of a rank.
__device__ Header read_header(const Call &call, u32 rank, u64 sequence) {
  u64 at = header_of(call, rank, sequence);
  uint4 first = load_volatile_128(at), second = load_volatile_128(at + 16);
  Header header;
  header.sequence_low = first.x;
  header.what = first.y;
  header.bytes = (u64)first.w << 32 | first.z;
  header.sequence_again = second.x;
  header.sequence_high = second.y;
  header.shape = second.z;
  header.detail = second.w;
  return header;
}

__device__ u64 sequence_of(const Header &header) { return (u64)header.sequence_high << 32 | header.sequence_low; }

// Whether it is whole and of call `sequence`.
__device__ bool is_of(const Header &header, u64 sequence) {
  return header.sequence_low == header.sequence_again && sequence_of(header) == sequence;
}

__device__ bool is_other_call(const Header &header, const Header &mine) {
  return header.what != mine.what || header.bytes != mine.bytes || header.shape != mine.shape ||
         header.detail != mine.detail;
}

// What a rank says of call `sequence`, or of its last one before.
__device__ Header latest_header(const Call &call, u32 rank, u64 sequence) {
  Header latest = read_header(call, rank, sequence);
  for (u64 back = 1; back < HEADERS && !is_of(latest, sequence); ++back) {
    Header header = read_header(call, rank, sequence - back);
    if (sequence_of(header) > sequence_of(latest)) latest = header;
  }
  return latest;
}

struct Wait {
  u32 peer;
  u32 wait;
  u32 expected;
};

__device__ __noinline__ void tell_host(const Call &call, u64 sequence, const Wait &wait, u32 reason, u32 found) {
  CollectiveVerdict *verdict = call.channel.verdict;
  if (compare_exchange_relaxed_system_32(&verdict->state, 0, 1) != 0) return;
  verdict->reason = reason;
  verdict->peer = wait.peer;
  verdict->block = blockIdx.x;
  verdict->wait = wait.wait;
  verdict->expected = wait.expected;
  verdict->found = found;
  verdict->sequence = sequence;
  verdict->mine = call.header;
  verdict->mine.sequence_low = verdict->mine.sequence_again = (u32)sequence;
  verdict->mine.sequence_high = (u32)(sequence >> 32);
  verdict->theirs = latest_header(call, wait.peer, sequence);
  store_release_system_32(&verdict->state, 2);
}

// Another rank gave up, or another thread of this one did.
__device__ __noinline__ void give_up_poisoned(const Call &call, u64 sequence, Wait wait, u32 poison) {
  if (poison == 1 + call.channel.rank) return;
  wait.peer = poison - 1 < call.channel.ranks ? poison - 1 : wait.peer;
  tell_host(call, sequence, wait, REASON_POISON, poison);
}

__device__ __noinline__ void give_up(const Call &call, u64 sequence, const Wait &wait, u32 reason, u32 found) {
  tell_host(call, sequence, wait, reason, found);
  for (u32 rank = 0; rank < call.channel.ranks; ++rank) {
    store_volatile_32(call.channel.base[rank] + AT_POISON, 1 + call.channel.rank);
  }
}

// Why a wait that goes on for long must end; 0: it need not.
__device__ u32 look(const Call &call, u64 sequence, u32 peer, u64 waited) {
  if (load_relaxed_system_32(call.channel.abort) != 0) return REASON_ABORT;
  Header header = read_header(call, peer, sequence);
  if (is_of(header, sequence) && is_other_call(header, call.header)) return REASON_MISMATCH;
  return waited > call.channel.limit ? REASON_LIMIT : 0;
}

// Waits until two words, which may be the same, have the expected value; whether they came.
__device__ __noinline__ bool wait_long(const Call &call, u64 sequence, Wait wait, u64 first, u64 second) {
  u64 begun = nanoseconds();
  u64 next = begun + FIRST_LOOK;
  for (;;) {
    u32 found = load_volatile_32(first);
    u32 other = load_volatile_32(second);
    if (found == wait.expected && other == wait.expected) return true;
    u32 poison = load_volatile_32(own_base(call) + AT_POISON);
    if (poison != 0) {
      give_up_poisoned(call, sequence, wait, poison);
      return false;
    }
    u64 now = nanoseconds();
    if (now < next) continue;
    u64 pause = now - begun;
    next = now + (pause < LONGEST_PAUSE ? pause : LONGEST_PAUSE);
    // One thread of a warp looks for all.
    if (threadIdx.x % 32 != __ffs(__activemask()) - 1) continue;
    u32 reason = look(call, sequence, wait.peer, now - begun);
    if (reason != 0) {
      give_up(call, sequence, wait, reason, found == wait.expected ? other : found);
      return false;
    }
  }
}

// One thread waits for a word of 32 bits.
__device__ __forceinline__ bool wait_for_value(const Call &call, u64 sequence, Wait wait, u64 address) {
  for (u32 polls = 0; polls < LOOK; ++polls) {
    if (load_volatile_32(address) == wait.expected) return true;
  }
  return wait_long(call, sequence, wait, address, address);
}

// All blocks of the launch wait for each other; one thread of each calls this.
__device__ bool wait_for_grid(const Call &call, u64 sequence) {
  GridBarrier *barrier = (GridBarrier *)(own_base(call) + AT_GRID);
  u32 generation = load_relaxed_device_32(&barrier->generation);
  if (add_acquire_release_device_32(&barrier->arrived, 1) + 1 == gridDim.x) {
    store_relaxed_device_32(&barrier->arrived, 0);
    fence_acquire_release_system();
    store_relaxed_device_32(&barrier->generation, generation + 1);
    return true;
  }
  Wait wait = {call.channel.rank, WAIT_CLEAN, generation + 1};
  bool came = wait_for_value(call, sequence, wait, (u64)&barrier->generation);
  fence_acquire_release_system();
  return came;
}

// Clears the rank's flags and slots, then waits until all ranks have done so. Every word that peers sent in earlier calls
// has been waited for, so that nothing is on its way here.
__device__ __noinline__ bool clean(const Call &call, u64 sequence) {
  u64 base = own_base(call);
  u64 threads = (u64)gridDim.x * blockDim.x;
  u64 number = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  for (u64 at = AT_FLAGS + number * 16; at < call.channel.staging; at += threads * 16) {
    store_volatile_128(base + at, make_uint4(0, 0, 0, 0));
  }
  fence_acquire_release_system();
  __syncthreads();
  bool came = threadIdx.x != 0 || wait_for_grid(call, sequence);
  u32 round = (u32)(sequence / CLEAN_EVERY);
  if (blockIdx.x == 0) {
    __syncthreads();
    for (u32 peer = threadIdx.x; peer < call.channel.ranks && came; peer += blockDim.x) {
      if (peer == call.channel.rank) continue;
      fence_acquire_release_system();
      store_volatile_32(call.channel.base[peer] + AT_CLEANED + 4 * call.channel.rank, round);
      Wait wait = {peer, WAIT_CLEAN, round};
      came = wait_for_value(call, sequence, wait, base + AT_CLEANED + 4 * peer);
      fence_acquire_release_system();
    }
    came = __syncthreads_and(came);
  }
  if (threadIdx.x == 0) came = wait_for_grid(call, sequence) && came;
  return __syncthreads_and(came);
}

// What stands before this call in the stream has ended, once this returns.
__device__ __forceinline__ void enter_stream(const Call &call) {
  // Read here, so that the last line of the parameters is there once the wait is over.
  u32 parts = call.parts;
  compute_now(parts);
  wait_for_prerequisites();
  if (parts & PART_FOLLOWED) launch_dependents();
}

// The block has heard of this call from each peer's block of the same number, so that those it waits for are resident.
__device__ __forceinline__ void all_have_started(const Call &call) {
  if (call.parts & PART_EARLY) launch_dependents();
}

// Takes the block's turn: from now on it may send.
__device__ __forceinline__ Turn begin(const Call &call) {
  u64 base = own_base(call);
  Turn turn;
  turn.sequence = load_volatile_64(base + AT_SEQUENCES + 8 * blockIdx.x) + 1;
  turn.poison = threadIdx.x == 0 ? load_volatile_32(base + AT_POISON) : 0;
  turn.flag = call.fingerprint << EPOCH_BITS | ((u32)turn.sequence & ((1u << EPOCH_BITS) - 1));
  turn.parity = (u32)turn.sequence & 1;
  turn.sound = true;
  if (turn.sequence % CLEAN_EVERY == 0) {
    write_header(call, turn.sequence);
    turn.sound = clean(call, turn.sequence);
  }
  return turn;
}

// What is due in a turn and need not be before the first word is sent: the header, a look at the poison, and the count of
// calls, which blocks that this launch has not got have from those that it has. All threads of the block call it before
// they wait for anything.
__device__ __forceinline__ void announce(const Call &call, Turn &turn) {
  if (blockIdx.x == 0 && threadIdx.x == 0) write_header(call, turn.sequence);
  bool poisoned = __syncthreads_or(turn.poison != 0);
  u64 *sequences = (u64 *)(own_base(call) + AT_SEQUENCES);
  for (u32 block = blockIdx.x + gridDim.x * threadIdx.x; block < MAX_BLOCKS; block += gridDim.x * blockDim.x) {
    sequences[block] = turn.sequence;
  }
  if (!poisoned) return;
  turn.sound = false;
  if (turn.poison == 0) return;
  Wait wait = {call.channel.rank, WAIT_START, turn.flag};
  give_up_poisoned(call, turn.sequence, wait, turn.poison);
}

// Slot of data from `source` in the memory of `rank`.
__device__ __forceinline__ u64 slot_of(const Call &call, const Turn &turn, u32 rank, u32 source) {
  u32 slot = turn.parity * call.channel.ranks + source;
  return call.channel.base[rank] + call.channel.slots + slot * call.channel.slot_words * 16;
}

__device__ __forceinline__ void send_word(u64 slot, u32 word, uint2 payload, u32 flag) {
  store_volatile_128(slot + (u64)word * 16, make_uint4(payload.x, flag, payload.y, flag));
}

// The rank `step` after this one: ranks send to different peers at a time.
__device__ __forceinline__ u32 turned(const Call &call, u32 step) {
  u32 rank = call.channel.rank + step;
  return rank < call.channel.ranks ? rank : rank - call.channel.ranks;
}

// Sends a word to all peers.
__device__ __forceinline__ void send_to_all(const Call &call, const Turn &turn, u32 word, uint2 payload) {
  for (u32 step = 1; step < call.channel.ranks; ++step) {
    send_word(slot_of(call, turn, turned(call, step), call.channel.rank), word, payload, turn.flag);
  }
}

__device__ __forceinline__ bool has_flag(const uint4 &word, u32 flag) { return word.y == flag && word.w == flag; }

// Words of peers that a thread waits for together.
template <u32 COUNT>
struct Awaited {
  u64 places[COUNT];  // 0: not awaited
  u32 peers[COUNT];
  uint4 words[COUNT];
};

// Waits until all have come.
template <u32 COUNT>
__device__ __forceinline__ bool receive(const Call &call, const Turn &turn, Awaited<COUNT> &awaited) {
  for (u32 polls = 0;; ++polls) {
    u64 missing = 0;
    u32 peer = 0;
#pragma unroll
    for (u32 at = 0; at < COUNT; ++at) {
      if (awaited.places[at] != 0) awaited.words[at] = load_volatile_128(awaited.places[at]);
    }
#pragma unroll
    for (u32 at = 0; at < COUNT; ++at) {
      if (awaited.places[at] == 0 || has_flag(awaited.words[at], turn.flag)) continue;
      missing = awaited.places[at];
      peer = awaited.peers[at];
    }
    if (missing == 0) return true;
    if (polls < LOOK) continue;
    Wait wait = {peer, WAIT_WORD, turn.flag};
    if (!wait_long(call, turn.sequence, wait, missing + 4, missing + 12)) return false;
  }
}

// Flags between this block and the same block of a peer, in phase 0 and parity 0: one thread speaks with one peer.
struct Gate {
  u64 sent;
  u64 awaited;
  u64 phase_bytes;
  u32 peer;
  bool is_busy;
};

// That of the peer whose number the thread has: blocks have at least as many threads as there are ranks.
__device__ __forceinline__ Gate gate_of(const Call &call, u32 peer) {
  u32 rank = call.channel.rank;
  Gate gate;
  gate.peer = peer;
  gate.is_busy = peer < call.channel.ranks && peer != rank;
  u32 row = (call.channel.ranks + 7) / 8 * 8 * 4;
  u64 at = AT_FLAGS + blockIdx.x * row;
  gate.sent = gate.is_busy ? call.channel.base[peer] + at + 4 * rank : 0;
  gate.awaited = call.channel.base[rank] + at + 4 * peer;
  gate.phase_bytes = MAX_BLOCKS * row;
  compute_now(gate.sent);
  compute_now(gate.awaited);
  return gate;
}

__device__ __forceinline__ u64 phase_of(const Gate &gate, const Turn &turn, u32 phase) {
  return (turn.parity * PHASES + phase) * gate.phase_bytes;
}

// Tells peers that this block has come to a phase. With `publish`, what this thread wrote before, and what others of its
// block wrote before a barrier, is seen by them; without, only what stood before the kernels is.
__device__ __forceinline__ void send_flags(const Turn &turn, const Gate &gate, u32 phase, bool publish) {
  if (!gate.is_busy) return;
  if (publish) fence_acquire_release_system();
  store_volatile_32(gate.sent + phase_of(gate, turn, phase), turn.flag);
}

// The thread waits for its peer.
__device__ __forceinline__ bool await_flag(const Call &call, const Turn &turn, const Gate &gate, u32 phase, bool publish) {
  if (!gate.is_busy) return true;
  Wait wait = {gate.peer, WAIT_ENTER + phase, turn.flag};
  bool came = wait_for_value(call, turn.sequence, wait, gate.awaited + phase_of(gate, turn, phase));
  if (publish) fence_acquire_release_system();
  return came;
}

// The block waits for all peers; whether all came.
__device__ __forceinline__ bool meet(const Call &call, const Turn &turn, const Gate &gate, u32 phase, bool publish) {
  __syncthreads();
  send_flags(turn, gate, phase, publish);
  return __syncthreads_and(await_flag(call, turn, gate, phase, publish));
}

// The last meeting of a kernel.
__device__ __forceinline__ void leave(const Call &call, const Turn &turn, const Gate &gate, bool publish) {
  __syncthreads();
  send_flags(turn, gate, 2, publish);
  await_flag(call, turn, gate, 2, publish);
}
