// All-reduce of large buffers by pushing chunks: each rank sends chunks of every shard to the shard's owner, who reduces
// them and writes the result to all outputs, while the next chunks are on their way. In: a call with registered outputs.
// Out: all ranks' outputs. Guarantee: reduction in the order of ranks, from rank 0's value on; a place in staging is
// written again only after its owner has taken what was there; an output is written only after its rank has come to the
// call; input and output may be the same.
//
// Peers' links carry writes alone, which two GPUs exchange faster than reads: no request has to go the other way. Half of a
// block's threads send, the other half reduce, so that the links are busy while the others wait for what they have written
// to be seen.
#pragma once
#include "pull.cuh"
#include "words.cuh"

// A half of a block.
struct Half {
  u32 thread;
  u32 threads;
  bool sends;

  __device__ __forceinline__ bool all(bool value) const { return barrier_and(sends ? 1 : 2, threads, value); }
};

__device__ __forceinline__ Half half_of_block() {
  u32 threads = blockDim.x / 2;
  bool sends = threadIdx.x < threads;
  return {sends ? threadIdx.x : threadIdx.x - threads, threads, sends};
}

// How a shard is cut: chunk `number` of a block has `pieces` pieces from (number * blocks + block) * pieces on.
struct Pipe {
  u64 shard;   // bytes of a shard, whole pieces
  u32 pieces;  // of a chunk
  u32 rounds;  // chunks of a block
  u32 places;  // chunks of a block that staging holds of each source
};

__device__ __forceinline__ Pipe pipe_of(const Call &call) {
  u32 pieces = blockDim.x / 2 * UNROLL, ranks = call.channel.ranks;
  u64 shard = ((call.bytes + 15) / 16 + ranks - 1) / ranks;
  u64 row = (u64)pieces * gridDim.x;
  u64 places = call.channel.staging_bytes / (row * 16 * ranks);
  return {shard * 16, pieces, (u32)((shard + row - 1) / row), (u32)(places < 16 ? places : 16)};
}

// Place of a chunk of `source` in the staging of `rank`.
__device__ __forceinline__ u64 place_of(const Call &call, const Turn &turn, const Pipe &pipe, u32 rank, u32 source,
                                        u32 number) {
  u64 row = number % pipe.places * call.channel.ranks + source;
  return staging_of(call, turn, rank) + (row * gridDim.x + blockIdx.x) * pipe.pieces * 16;
}

// Where the thread's pieces of a chunk are in a shard: `first`, `first + half.threads` and so on.
__device__ __forceinline__ u32 first_piece(const Pipe &pipe, const Half &half, u32 number) {
  return (number * gridDim.x + blockIdx.x) * pipe.pieces + half.thread;
}

// Counts of chunks that go between this block and the same block of the thread's peer.
struct Counts {
  u64 sent;
  u64 awaited;
};

__device__ __forceinline__ Counts counts_of(const Call &call, const Turn &turn, const Gate &gate, u32 phase) {
  u64 at = phase_of(gate, turn, phase) + gate.phase_bytes / MAX_BLOCKS * blockIdx.x;
  return {gate.sent + at + 4 * call.channel.rank, gate.awaited + at + 4 * gate.peer};
}

// Tells peers how many chunks the block has sent or taken; behind a barrier, all that the block wrote before it is seen.
__device__ __forceinline__ void send_count(const Turn &turn, const Gate &gate, const Counts &counts, u32 count) {
  if (!gate.is_busy) return;
  fence_acquire_release_system();
  store_volatile_64(counts.sent, joined(turn.flag, count));
}

__device__ __forceinline__ bool await_count(const Call &call, const Turn &turn, const Gate &gate, const Counts &counts,
                                            u32 kind, u32 count) {
  if (!gate.is_busy) return true;
  Wait wait = {gate.peer, kind, turn.flag, count};
  bool came = wait_for_count(call, turn.sequence, wait, counts.awaited);
  fence_acquire_release_system();
  return came;
}

// Sends chunk `number` of each peer's shard to it.
template <bool WHOLE>
__device__ __forceinline__ void send_chunk(const Call &call, const Turn &turn, const Pipe &pipe, const Half &half,
                                           u32 number) {
  u32 first = first_piece(pipe, half, number);
#pragma unroll 1
  for (u32 step = 1; step < call.channel.ranks; ++step) {
    u32 peer = turned(call, step);
    Range range = range_of(call.bytes, pipe.shard, peer);
    Pieces all = {range.begin, range.bytes, (u32)((range.bytes + 15) / 16), half.threads};
    uint4 words[UNROLL];
    load_pieces<WHOLE, UNROLL>(call.input, all, first, words);
    u64 place = place_of(call, turn, pipe, peer, call.channel.rank, number);
#pragma unroll
    for (u32 at = 0; at < UNROLL; ++at) {
      if (first + at * half.threads < all.pieces) store_weak_128(place + (at * half.threads + half.thread) * 16, words[at]);
    }
  }
}

// Reduces chunk `number` of this rank's shard and writes it to all outputs.
template <bool WHOLE>
__device__ __forceinline__ void reduce_chunk(const Call &call, const Turn &turn, const Pipe &pipe, const Half &half,
                                             const u64 *targets, u32 number) {
  u32 first = first_piece(pipe, half, number), rank = call.channel.rank;
  Range range = range_of(call.bytes, pipe.shard, rank);
  Pieces all = {range.begin, range.bytes, (u32)((range.bytes + 15) / 16), half.threads};
  Sums<UNROLL> sums;
#pragma unroll 1
  for (u32 source = 0; source < call.channel.ranks; ++source) {
    uint4 words[UNROLL];
    if (source == rank) {
      load_pieces<WHOLE, UNROLL>(call.input, all, first, words);
    } else {
      u64 place = place_of(call, turn, pipe, rank, source, number);
#pragma unroll
      for (u32 at = 0; at < UNROLL; ++at) words[at] = load_volatile_128(place + (at * half.threads + half.thread) * 16);
    }
    sums.take(call.operation, source == 0, words);
  }
  uint4 result[UNROLL];
  sums.conclude_into(call.operation, call.channel.ranks, result);
#pragma unroll 1
  for (u32 step = 0; step < call.channel.ranks; ++step) {
    store_pieces<WHOLE, UNROLL>(targets[turned(call, step)] + range.begin, all, first, result);
  }
}

template <bool WHOLE>
__device__ __forceinline__ void send_chunks(const Call &call, const Turn &turn, const Gate &gate, const Half &half) {
  Pipe pipe = pipe_of(call);
  Counts sent = counts_of(call, turn, gate, PHASE_SENT), taken = counts_of(call, turn, gate, PHASE_TAKEN);
  for (u32 round = 0; round < pipe.rounds; ++round) {
    if (round >= pipe.places) {
      bool came = await_count(call, turn, gate, taken, WAIT_TAKEN, round - pipe.places + 1);
      if (!half.all(came)) return;
    }
    send_chunk<WHOLE>(call, turn, pipe, half, round);
    half.all(true);
    send_count(turn, gate, sent, round + 1);
  }
}

template <bool WHOLE>
__device__ __forceinline__ void reduce_chunks(const Call &call, const Turn &turn, const Gate &gate, const Half &half,
                                              const u64 *targets) {
  Pipe pipe = pipe_of(call);
  Counts sent = counts_of(call, turn, gate, PHASE_SENT), taken = counts_of(call, turn, gate, PHASE_TAKEN);
  for (u32 round = 0; round < pipe.rounds; ++round) {
    bool came = await_count(call, turn, gate, sent, WAIT_SENT, round + 1);
    if (!half.all(came)) return;
    reduce_chunk<WHOLE>(call, turn, pipe, half, targets, round);
    half.all(true);
    send_count(turn, gate, taken, round + 1);
  }
}

template <bool WHOLE>
__device__ __forceinline__ void run_half(const Call &call, const Turn &turn, const Gate &gate, const Half &half,
                                         const u64 *targets) {
  if (half.sends) {
    send_chunks<WHOLE>(call, turn, gate, half);
  } else {
    reduce_chunks<WHOLE>(call, turn, gate, half, targets);
  }
}

// A call, so that its registers are its own.
__device__ __noinline__ void run_ragged_half(const Call &call, Turn turn, Gate gate, Half half, const u64 *targets) {
  run_half<false>(call, turn, gate, half, targets);
}

// Halves of blocks have at least as many threads as there are ranks.
extern "C" __global__ void __launch_bounds__(512, 1) reduce_pipe(const __grid_constant__ Call call) {
  __shared__ u64 targets[MAX_RANKS];
  Half half = half_of_block();
  Gate gate = gate_of(call, half.thread);
  enter_stream(call);
  Turn turn = begin(call);
  for (u32 rank = threadIdx.x; rank < call.channel.ranks; rank += blockDim.x) {
    targets[rank] = call.outputs[rank] + call.output_offset;
  }
  announce(call, turn);
  if (!__syncthreads_and(turn.sound)) return;
  if (are_whole(call, targets, 0, call.bytes, call.input)) {
    run_half<true>(call, turn, gate, half, targets);
  } else {
    run_ragged_half(call, turn, gate, half, targets);
  }
  gate.is_busy = gate.is_busy && half.sends;
  leave(call, turn, gate, true);
}
