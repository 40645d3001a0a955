// All-reduce and reduce-scatter by reading peers' buffers. In: a call. Out: this rank's output, or all ranks'. Guarantee:
// reduction in the order of ranks, from rank 0's value on; nothing of a peer is read before it has come to the call;
// registered buffers are free when the kernel ends, staging is not written again before the call after the next.
#pragma once
#include "channel.cuh"
#include "numeric.cuh"
#include "pieces.cuh"
#include "staging.cuh"

// Pieces of 16 bytes of one source that a thread has under way: as many as it has registers for.
static const u32 UNROLL = Numeric<ELEMENT>::COUNT < 8 ? 4 : 2;
static const u32 HALF = Numeric<ELEMENT>::COUNT;

// Reduces pieces piece, piece + step, ..., UNROLL of them below `pieces`, of `bytes` bytes at `offset` of all sources.
__device__ __forceinline__ void reduce_pieces(const Call &call, const u64 *sources, u64 offset, u64 bytes, u64 piece,
                                              u64 step, u64 pieces, uint4 *result) {
  typedef Numeric<ELEMENT> Type;
  Type::Number sums[UNROLL][2 * HALF];
  u32 ranks = call.channel.ranks;
  uint4 next[UNROLL];
#pragma unroll
  for (u32 number = 0; number < UNROLL; ++number) {
    next[number] = make_uint4(0, 0, 0, 0);
    if (piece + number * step < pieces) next[number] = load_16(sources[0] + offset, bytes, piece + number * step);
  }
  for (u32 source = 0; source < ranks; ++source) {
    uint4 words[UNROLL];
#pragma unroll
    for (u32 number = 0; number < UNROLL; ++number) {
      words[number] = next[number];
      bool is_there = source + 1 < ranks && piece + number * step < pieces;
      if (is_there) next[number] = load_16(sources[source + 1] + offset, bytes, piece + number * step);
    }
#pragma unroll
    for (u32 number = 0; number < UNROLL; ++number) {
      Type::Number values[2 * HALF];
      Type::unpack(make_uint2(words[number].x, words[number].y), values);
      Type::unpack(make_uint2(words[number].z, words[number].w), values + HALF);
      if (source == 0) {
#pragma unroll
        for (u32 element = 0; element < 2 * HALF; ++element) sums[number][element] = values[element];
      } else {
        combine<2 * HALF>(call.operation, sums[number], values);
      }
    }
  }
#pragma unroll
  for (u32 number = 0; number < UNROLL; ++number) {
    conclude<2 * HALF>(call.operation, sums[number], ranks);
    uint2 low = Type::pack(sums[number]), high = Type::pack(sums[number] + HALF);
    result[number] = make_uint4(low.x, low.y, high.x, high.y);
  }
}

// Reduces `bytes` bytes at `offset` of all sources into the output. Where peers read the buffer that is written, nothing
// is before all of them have read, which takes a grid that has it all under way at once.
__device__ __forceinline__ bool pull_range(const Call &call, const Turn &turn, const u64 *sources, u64 offset, u64 bytes,
                                           bool writes_input) {
  u64 pieces = (bytes + 15) / 16;
  u64 step = (u64)gridDim.x * blockDim.x;
  u64 piece = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  uint4 result[UNROLL];
  bool met = false;
  do {
    reduce_pieces(call, sources, offset, bytes, piece, step, pieces, result);
    if (writes_input && !met) {
      if (!meet(call, turn, 2, false)) return false;
      met = true;
    }
#pragma unroll
    for (u32 number = 0; number < UNROLL; ++number) {
      store_16(call.output, bytes, piece + number * step, result[number]);
    }
    piece += step * UNROLL;
  } while (piece < pieces);
  return writes_input || !(call.parts & PART_LEAVE) || meet(call, turn, 2, false);
}

extern "C" __global__ void __launch_bounds__(512) reduce_pull(const __grid_constant__ Call call) {
  __shared__ u64 sources[MAX_RANKS];
  enter_stream(call);
  Turn turn = begin_pull(call);
  find_sources(call, turn, sources);
  Shares all = {1, call.bytes, call.bytes, call.bytes};
  if (turn.sound) turn.sound = open_inputs(call, turn, all);
  bool writes_input = (call.parts & PART_LEAVE) && call.output == call.input;
  if (turn.sound) pull_range(call, turn, sources, 0, call.bytes, writes_input);
  finish_pull(call, turn);
}

extern "C" __global__ void __launch_bounds__(512) scatter_pull(const __grid_constant__ Call call) {
  __shared__ u64 sources[MAX_RANKS];
  enter_stream(call);
  Turn turn = begin_pull(call);
  find_sources(call, turn, sources);
  u64 total = call.stride * (call.channel.ranks - 1) + call.bytes;
  Shares shares = {call.channel.ranks, call.bytes, call.stride, total};
  if (turn.sound) turn.sound = open_inputs(call, turn, shares);
  u64 offset = share_offset(call, shares, call.channel.rank);
  if (turn.sound) pull_range(call, turn, sources, offset, call.bytes, false);
  finish_pull(call, turn);
}

// Takes the other shards from where their owners left them in this rank's staging.
__device__ __forceinline__ void take_shards(const Call &call, u64 results, u64 shard) {
  u64 step = (u64)gridDim.x * blockDim.x;
  for (u32 owner = 0; owner < call.channel.ranks; ++owner) {
    u64 begin = owner * shard;
    if (owner == call.channel.rank || begin >= call.bytes) continue;
    u64 bytes = call.bytes - begin < shard ? call.bytes - begin : shard;
    for (u64 piece = (u64)blockIdx.x * blockDim.x + threadIdx.x; piece < (bytes + 15) / 16; piece += step) {
      store_16(call.output + begin, bytes, piece, load_16(results + begin, bytes, piece));
    }
  }
}

// Each rank reduces one shard of whole pieces and writes it to all: to their outputs, or behind the input in staging.
extern "C" __global__ void __launch_bounds__(512) reduce_two_shot(const __grid_constant__ Call call) {
  __shared__ u64 sources[MAX_RANKS], targets[MAX_RANKS];
  enter_stream(call);
  Turn turn = begin_pull(call);
  find_sources(call, turn, sources);
  u32 ranks = call.channel.ranks, rank = call.channel.rank;
  u64 shard = ((call.bytes + 15) / 16 + ranks - 1) / ranks * 16;
  u64 begin = rank * shard < call.bytes ? rank * shard : call.bytes;
  u64 bytes = call.bytes - begin < shard ? call.bytes - begin : shard;
  bool staged = call.inputs == nullptr;
  find_targets(call, turn, shard * ranks, targets);
  Shares shares = {ranks, shard, shard, call.bytes};
  if (turn.sound) turn.sound = open_inputs(call, turn, shares);
  u64 step = (u64)gridDim.x * blockDim.x, pieces = (bytes + 15) / 16;
  for (u64 piece = (u64)blockIdx.x * blockDim.x + threadIdx.x; piece < pieces && turn.sound; piece += step * UNROLL) {
    uint4 result[UNROLL];
    reduce_pieces(call, sources, begin, bytes, piece, step, pieces, result);
    for (u32 turned = 0; turned < ranks; ++turned) {
      u32 target = rank + turned < ranks ? rank + turned : rank + turned - ranks;
#pragma unroll
      for (u32 number = 0; number < UNROLL; ++number) {
        store_16(targets[target] + begin, bytes, piece + number * step, result[number]);
      }
    }
  }
  if (turn.sound && (staged || (call.parts & PART_LEAVE))) turn.sound = meet(call, turn, staged ? 1 : 2, true);
  if (turn.sound && staged) take_shards(call, staging_of(call, turn, rank) + shard * ranks, shard);
  finish_pull(call, turn);
}
