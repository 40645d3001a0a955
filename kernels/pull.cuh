// All-reduce and reduce-scatter by reading peers' buffers. In: a call. Out: this rank's output, or all ranks'. Guarantee:
// reduction in the order of ranks, from rank 0's value on; nothing of a peer is read before it has come to the call;
// registered buffers are free when the kernel ends, staging is not written again before the call after the next.
#pragma once
#include "accumulate.cuh"
#include "staging.cuh"

// Pieces of 16 bytes of one source that a thread has under way: as many as it has registers for.
static const u32 UNROLL = Numeric<ELEMENT>::COUNT < 8 ? 4 : 2;
// The same where results go to all ranks.
static const u32 SPREAD = Numeric<ELEMENT>::COUNT < 8 ? 4 : 1;
// Any number.
static const u32 KEY = 0x9e3779b9u;

// Pieces of a thread: piece, piece + step, ..., SPAN of them below `pieces`, of `bytes` bytes at `offset`.
struct Pieces {
  u64 offset;
  u64 bytes;
  u32 pieces;
  u32 step;
};

__device__ __forceinline__ Pieces pieces_of(u64 offset, u64 bytes) {
  return {offset, bytes, (u32)((bytes + 15) / 16), gridDim.x * blockDim.x};
}

template <bool WHOLE, u32 SPAN>
__device__ __forceinline__ void load_pieces(u64 source, const Pieces &all, u32 piece, uint4 *words) {
#pragma unroll
  for (u32 number = 0; number < SPAN; ++number) {
    u32 at = piece + number * all.step;
    words[number] = make_uint4(0, 0, 0, 0);
    if (at < all.pieces) words[number] = load_16<WHOLE>(source + all.offset, all.bytes, at);
  }
}

template <bool WHOLE, u32 SPAN>
__device__ __forceinline__ void store_pieces(u64 target, const Pieces &all, u32 piece, const uint4 *words) {
#pragma unroll
  for (u32 number = 0; number < SPAN; ++number) {
    u32 at = piece + number * all.step;
    if (at < all.pieces) store_16<WHOLE>(target, all.bytes, at, words[number]);
  }
}

// Reduces a thread's pieces of all sources; those of the next source are under way meanwhile.
template <bool WHOLE, u32 SPAN>
__device__ __forceinline__ void reduce_pieces(const Call &call, const u64 *sources, const Pieces &all, u32 piece,
                                              uint4 *result) {
  Sums<SPAN> sums;
  u32 ranks = call.channel.ranks;
  uint4 next[SPAN];
  load_pieces<WHOLE, SPAN>(sources[0], all, piece, next);
#pragma unroll 1
  for (u32 source = 0; source < ranks; ++source) {
    uint4 words[SPAN];
#pragma unroll
    for (u32 number = 0; number < SPAN; ++number) words[number] = next[number];
    if (source + 1 < ranks) load_pieces<WHOLE, SPAN>(sources[source + 1], all, piece, next);
    sums.take(call.operation, source == 0, words);
  }
  sums.conclude_into(call.operation, ranks, result);
}

// A barrier of the block that no thread comes to before its results are there, so that all that they follow from has been
// read: it takes a condition that nothing but their values decides.
template <u32 SPAN>
__device__ __forceinline__ void all_have_read(const uint4 *result) {
  u32 mixed = 0;
#pragma unroll
  for (u32 number = 0; number < SPAN; ++number) {
    mixed ^= result[number].x ^ result[number].y ^ result[number].z ^ result[number].w;
  }
  __syncthreads_or(mixed == KEY);
}

// Reduces `all` of all sources into the output.
template <bool WHOLE, u32 SPAN>
__device__ __forceinline__ void pull_range(const Call &call, const u64 *sources, const Pieces &all) {
  u32 first = blockIdx.x * blockDim.x + threadIdx.x;
  for (u32 piece = first; piece < all.pieces; piece += all.step * SPAN) {
    uint4 result[SPAN];
    reduce_pieces<WHOLE, SPAN>(call, sources, all, piece, result);
    store_pieces<WHOLE, SPAN>(call.output, all, piece, result);
  }
}

// A call, so that its registers are its own; with copies, since what has an address is kept in memory.
__device__ __noinline__ void pull_ragged(const Call &call, const u64 *sources, Pieces all) {
  pull_range<false, 1>(call, sources, all);
}

// The same into the buffer that peers read: nothing is written before all of them have read, so the grid has it all under
// way at once.
template <bool WHOLE>
__device__ __noinline__ void pull_over(const Call &call, Turn turn, Gate gate, const u64 *sources, Pieces all) {
  u32 first = blockIdx.x * blockDim.x + threadIdx.x;
  uint4 result[UNROLL];
  if (WHOLE) {
    reduce_pieces<true, UNROLL>(call, sources, all, first, result);
  } else {
#pragma unroll
    for (u32 number = 0; number < UNROLL; ++number) {
      reduce_pieces<false, 1>(call, sources, all, first + number * all.step, result + number);
    }
  }
  all_have_read<UNROLL>(result);
  if (meet(call, turn, gate, 2, false)) store_pieces<WHOLE, UNROLL>(call.output, all, first, result);
}

// Reduces `bytes` bytes at `offset` of all sources into the output, which peers may read where it `overwrites` the input,
// then waits until no peer reads here.
__device__ __forceinline__ void pull(const Call &call, const Turn &turn, const Gate &gate, const u64 *sources, u64 offset,
                                     u64 bytes, bool overwrites) {
  Pieces all = pieces_of(offset, bytes);
  bool leaves = call.parts & PART_LEAVE, whole = are_whole(call, sources, offset, bytes, call.output);
  if (leaves && overwrites && whole) return pull_over<true>(call, turn, gate, sources, all);
  if (leaves && overwrites) return pull_over<false>(call, turn, gate, sources, all);
  if (!whole) {
    pull_ragged(call, sources, all);
  } else if (all.pieces <= all.step) {
    pull_range<true, 1>(call, sources, all);
  } else {
    pull_range<true, UNROLL>(call, sources, all);
  }
  if (leaves) leave(call, turn, gate, false);
}

extern "C" __global__ void __launch_bounds__(512, 1) reduce_pull(const __grid_constant__ Call call) {
  __shared__ u64 sources[MAX_RANKS];
  Gate gate = gate_of(call, threadIdx.x);
  enter_stream(call);
  Turn turn = begin_pull(call);
  Shares all = {1, call.bytes, call.bytes, call.bytes};
  if (!open_inputs(call, turn, gate, all, sources)) return;
  pull(call, turn, gate, sources, 0, call.bytes, call.output == call.input);
}

extern "C" __global__ void __launch_bounds__(512, 1) scatter_pull(const __grid_constant__ Call call) {
  __shared__ u64 sources[MAX_RANKS];
  Gate gate = gate_of(call, threadIdx.x);
  enter_stream(call);
  Turn turn = begin_pull(call);
  u64 total = call.stride * (call.channel.ranks - 1) + call.bytes;
  Shares shares = {call.channel.ranks, call.bytes, call.stride, total};
  u64 offset = share_offset(call, shares, call.channel.rank);
  if (!open_inputs(call, turn, gate, shares, sources)) return;
  pull(call, turn, gate, sources, offset, call.bytes, false);
}

// Reduces this rank's shard and writes it to all.
template <bool WHOLE, u32 SPAN>
__device__ __forceinline__ void spread_shard(const Call &call, const u64 *sources, const u64 *targets, const Pieces &all) {
  u32 first = blockIdx.x * blockDim.x + threadIdx.x;
  for (u32 piece = first; piece < all.pieces; piece += all.step * SPAN) {
    uint4 result[SPAN];
    reduce_pieces<WHOLE, SPAN>(call, sources, all, piece, result);
#pragma unroll 1
    for (u32 step = 0; step < call.channel.ranks; ++step) {
      store_pieces<WHOLE, SPAN>(targets[turned(call, step)] + all.offset, all, piece, result);
    }
  }
}

// A call for the same reason.
__device__ __noinline__ void spread_ragged(const Call &call, const u64 *sources, const u64 *targets, Pieces all) {
  spread_shard<false, 1>(call, sources, targets, all);
}

// Takes the other shards from where their owners left them in this rank's staging.
__device__ __forceinline__ void take_shards(const Call &call, u64 results, u64 shard) {
  for (u32 step = 1; step < call.channel.ranks; ++step) {
    u64 begin = turned(call, step) * shard;
    if (begin >= call.bytes) continue;
    u64 bytes = call.bytes - begin < shard ? call.bytes - begin : shard;
    copy_pieces(results + begin, call.output + begin, bytes);
  }
}

// Each rank reduces one shard of whole pieces and writes it to all: to their outputs, or behind the input in staging.
extern "C" __global__ void __launch_bounds__(512, 1) reduce_two_shot(const __grid_constant__ Call call) {
  __shared__ u64 sources[MAX_RANKS], targets[MAX_RANKS];
  Gate gate = gate_of(call, threadIdx.x);
  enter_stream(call);
  Turn turn = begin_pull(call);
  u32 ranks = call.channel.ranks, rank = call.channel.rank;
  u64 shard = ((call.bytes + 15) / 16 + ranks - 1) / ranks * 16;
  u64 begin = rank * shard < call.bytes ? rank * shard : call.bytes;
  u64 bytes = call.bytes - begin < shard ? call.bytes - begin : shard;
  bool staged = call.inputs == nullptr;
  find_targets(call, turn, shard * ranks, targets);
  Shares shares = {ranks, shard, shard, call.bytes};
  if (!open_inputs(call, turn, gate, shares, sources)) return;
  Pieces all = pieces_of(begin, bytes);
  bool whole = are_whole(call, sources, begin, bytes, call.output);
  for (u32 target = 0; target < ranks; ++target) whole = whole && targets[target] % 16 == 0;
  if (whole) {
    spread_shard<true, SPREAD>(call, sources, targets, all);
  } else {
    spread_ragged(call, sources, targets, all);
  }
  if (call.parts & PART_LEAVE) leave(call, turn, gate, true);
  if (!staged || !meet(call, turn, gate, 1, true)) return;
  take_shards(call, staging_of(call, turn, rank) + shard * ranks, shard);
}
