// Where peers' data is read: in registered buffers or in staging. In: a call, a turn. Out: addresses, data that may be
// read. Guarantee: a block stages exactly what the same block of a peer reads, so that blocks meet one by one.
#pragma once
#include "channel.cuh"
#include "pieces.cuh"

// Equal parts of an input, of which peers read one each, or all.
struct Shares {
  u32 count;
  u64 bytes;   // of a share
  u64 stride;  // from the start of a share to that of the next in the input
  u64 total;  // of the input
};

// Without parts the host has ordered the ranks: the channel is not touched.
__device__ __forceinline__ bool is_ordered(const Call &call) { return (call.parts & ~PART_EARLY) == 0; }

__device__ __forceinline__ Turn begin_pull(const Call &call) {
  if (is_ordered(call)) return {0, 0, 0, true};
  return begin(call);
}

__device__ __forceinline__ void finish_pull(const Call &call, const Turn &turn) {
  if (!is_ordered(call)) finish(call, turn);
}

__device__ __forceinline__ u64 staging_of(const Call &call, const Turn &turn, u32 rank) {
  return call.channel.base[rank] + call.channel.staging + turn.parity * call.channel.staging_bytes;
}

// Address of each rank's input. The next barrier of the block makes them visible to all its threads.
__device__ __forceinline__ void find_sources(const Call &call, const Turn &turn, u64 *sources) {
  for (u32 rank = threadIdx.x; rank < call.channel.ranks; rank += blockDim.x) {
    sources[rank] = call.inputs == nullptr ? staging_of(call, turn, rank) : call.inputs[rank] + call.input_offset;
  }
}

// Address where each rank's reduced data goes: its output, or `behind` bytes into its staging; this rank's own output
// in any case.
__device__ __forceinline__ void find_targets(const Call &call, const Turn &turn, u64 behind, u64 *targets) {
  for (u32 rank = threadIdx.x; rank < call.channel.ranks; rank += blockDim.x) {
    u64 target = call.inputs == nullptr ? staging_of(call, turn, rank) + behind
                                        : call.outputs[rank] + call.output_offset;
    targets[rank] = rank == call.channel.rank ? call.output : target;
  }
}

// Shares begin at pieces of 16 bytes in staging, one after the other in a registered buffer.
__device__ __forceinline__ u64 share_offset(const Call &call, const Shares &shares, u32 share) {
  return share * (call.inputs == nullptr ? (shares.bytes + 15) / 16 * 16 : shares.stride);
}

__device__ __forceinline__ void stage(const Call &call, const Turn &turn, const Shares &shares) {
  u64 staging = staging_of(call, turn, call.channel.rank);
  u64 step = (u64)gridDim.x * blockDim.x;
  for (u32 share = 0; share < shares.count; ++share) {
    u64 begin = share * shares.stride;
    if (begin >= shares.total) break;
    u64 bytes = shares.total - begin < shares.bytes ? shares.total - begin : shares.bytes;
    u64 target = staging + share_offset(call, shares, share);
    for (u64 piece = (u64)blockIdx.x * blockDim.x + threadIdx.x; piece < (bytes + 15) / 16; piece += step) {
      store_16(target, bytes, piece, load_16(call.input + begin, bytes, piece));
    }
  }
}

// Once this returns, peers' inputs may be read.
__device__ __forceinline__ bool open_inputs(const Call &call, const Turn &turn, const Shares &shares) {
  bool staged = call.parts & PART_STAGE;
  if (staged) stage(call, turn, shares);
  if (call.parts & PART_ENTER) return meet(call, turn, 0, staged);
  __syncthreads();
  return true;
}
