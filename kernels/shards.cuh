// All-reduce of large buffers by writes alone: every rank writes each shard of its input to the staging of the shard's
// owner, who reduces it and writes the result to all outputs. In: a call with registered outputs; staging takes a shard,
// rounded up to pieces, of each peer. Out: all ranks' outputs. Guarantee: reduction in the order of ranks, from rank 0's value on;
// an output is written only after its rank has read what stood there; input and output may be the same.
//
// Two GPUs exchange writes faster than reads, whose requests have to go the other way.
#pragma once
#include "pull.cuh"
#include "words.cuh"

// Where a shard from `source` lies in the staging of `rank`.
__device__ __forceinline__ u64 shard_place(const Call &call, const Turn &turn, u32 rank, u32 source, u64 shard) {
  return staging_of(call, turn, rank) + (source < rank ? source : source - 1) * shard;
}

// Writes each peer's shard of the input to its staging.
template <bool WHOLE>
__device__ __forceinline__ void send_shards(const Call &call, const Turn &turn, u64 shard) {
  u32 rank = call.channel.rank, first = blockIdx.x * blockDim.x + threadIdx.x;
#pragma unroll 1
  for (u32 step = 1; step < call.channel.ranks; ++step) {
    u32 peer = turned(call, step);
    Range range = range_of(call.bytes, shard, peer);
    Pieces all = pieces_of(range.begin, range.bytes);
    u64 target = shard_place(call, turn, peer, rank, shard);
    for (u32 piece = first; piece < all.pieces; piece += all.step * UNROLL) {
      uint4 words[UNROLL];
      load_pieces<WHOLE, UNROLL>(call.input, all, piece, words);
#pragma unroll
      for (u32 number = 0; number < UNROLL; ++number) {
        u32 at = piece + number * all.step;
        if (at < all.pieces) store_weak_128(target + (u64)at * 16, words[number]);
      }
    }
  }
}

// A call, so that its registers are its own.
__device__ __noinline__ void send_ragged_shards(const Call &call, Turn turn, u64 shard) {
  send_shards<false>(call, turn, shard);
}

extern "C" __global__ void __launch_bounds__(512, 1) reduce_push_shards(const __grid_constant__ Call call) {
  __shared__ u64 sources[MAX_RANKS], targets[MAX_RANKS];
  Gate gate = gate_of(call, threadIdx.x);
  enter_stream(call);
  Turn turn = begin(call);
  u32 ranks = call.channel.ranks, rank = call.channel.rank;
  u64 shard = ((call.bytes + 15) / 16 + ranks - 1) / ranks * 16;
  Range mine = range_of(call.bytes, shard, rank);
  Pieces all = pieces_of(mine.begin, mine.bytes);
  // Sources are where a whole buffer would begin of which the shard is a part.
  for (u32 source = threadIdx.x; source < ranks; source += blockDim.x) {
    sources[source] = source == rank ? call.input : shard_place(call, turn, rank, source, shard) - mine.begin;
    targets[source] = source == rank ? call.output : call.outputs[source] + call.output_offset;
  }
  announce(call, turn);
  if (!__syncthreads_and(turn.sound)) return;
  bool whole = are_whole(call, targets, 0, call.bytes, call.input);
  if (whole) {
    send_shards<true>(call, turn, shard);
  } else {
    send_ragged_shards(call, turn, shard);
  }
  if (!meet(call, turn, gate, 0, true)) return;
  all_have_started(call);
  if (whole) {
    spread_shard<true, SPREAD>(call, sources, targets, all);
  } else {
    spread_ragged(call, sources, targets, all);
  }
  leave(call, turn, gate, true);
}
