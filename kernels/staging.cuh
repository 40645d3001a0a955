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
  u64 total;   // of the input, to the end of the last share
};

// Without parts the host has ordered the ranks: the channel is not touched.
__device__ __forceinline__ bool is_ordered(const Call &call) { return (call.parts & ~(PART_EARLY | PART_FOLLOWED)) == 0; }

__device__ __forceinline__ Turn begin_pull(const Call &call) {
  if (is_ordered(call)) return {0, 0, 0, 0, true};
  return begin(call);
}

__device__ __forceinline__ u64 staging_of(const Call &call, const Turn &turn, u32 rank) {
  return call.channel.base[rank] + call.channel.staging + turn.parity * call.channel.staging_bytes;
}

// Address where each rank's reduced data goes: its output, or `behind` bytes into its staging; this rank's own output
// in any case. The next barrier of the block makes them visible to all its threads.
__device__ __forceinline__ void find_targets(const Call &call, const Turn &turn, u64 behind, u64 *targets) {
  for (u32 rank = threadIdx.x; rank < call.channel.ranks; rank += blockDim.x) {
    u64 target = call.inputs == nullptr ? staging_of(call, turn, rank) + behind
                                        : call.outputs[rank] + call.output_offset;
    targets[rank] = rank == call.channel.rank ? call.output : target;
  }
}

// Shares begin at pieces of 16 bytes in staging, as in the input in a registered buffer.
__device__ __forceinline__ u64 share_offset(const Call &call, const Shares &shares, u32 share) {
  return share * (call.inputs == nullptr ? (shares.bytes + 15) / 16 * 16 : shares.stride);
}

// Whether `bytes` bytes at `offset` of all sources, and of the output, are aligned pieces of 16 bytes.
__device__ __forceinline__ bool are_whole(const Call &call, const u64 *sources, u64 offset, u64 bytes, u64 output) {
  u64 parts = bytes | output;
  for (u32 source = 0; source < call.channel.ranks; ++source) parts |= sources[source] + offset;
  return parts % 16 == 0;
}

// Copies `bytes` bytes, four pieces of a thread at a time.
template <bool WHOLE>
__device__ __forceinline__ void copy_some(u64 source, u64 target, u64 bytes) {
  u32 pieces = (u32)((bytes + 15) / 16), step = gridDim.x * blockDim.x;
  for (u32 piece = blockIdx.x * blockDim.x + threadIdx.x; piece < pieces; piece += 4 * step) {
    uint4 words[4];
#pragma unroll
    for (u32 number = 0; number < 4; ++number) {
      if (piece + number * step < pieces) words[number] = load_16<WHOLE>(source, bytes, piece + number * step);
    }
#pragma unroll
    for (u32 number = 0; number < 4; ++number) {
      if (piece + number * step < pieces) store_16<WHOLE>(target, bytes, piece + number * step, words[number]);
    }
  }
}

__device__ __forceinline__ void copy_pieces(u64 source, u64 target, u64 bytes) {
  if ((source | target | bytes) % 16 == 0) {
    copy_some<true>(source, target, bytes);
  } else {
    copy_some<false>(source, target, bytes);
  }
}

__device__ __forceinline__ void stage(const Call &call, const Turn &turn, const Shares &shares) {
  u64 staging = staging_of(call, turn, call.channel.rank);
  for (u32 share = 0; share < shares.count; ++share) {
    u64 begin = share * shares.stride;
    if (begin >= shares.total) break;
    u64 bytes = shares.total - begin < shares.bytes ? shares.total - begin : shares.bytes;
    copy_pieces(call.input + begin, staging + share_offset(call, shares, share), bytes);
  }
}

// Finds the address of each rank's input. Once this has returned true, they may be read.
__device__ __forceinline__ bool open_inputs(const Call &call, Turn &turn, const Gate &gate, const Shares &shares,
                                            u64 *sources) {
  bool staged = call.parts & PART_STAGE, enters = call.parts & PART_ENTER;
  if (staged) {
    if (turn.sound) stage(call, turn, shares);
    __syncthreads();
  }
  if (enters && turn.sound) send_flags(turn, gate, 0, staged);
  for (u32 rank = threadIdx.x; rank < call.channel.ranks; rank += blockDim.x) {
    sources[rank] = call.inputs == nullptr ? staging_of(call, turn, rank) : call.inputs[rank] + call.input_offset;
  }
  if (is_ordered(call)) {
    __syncthreads();
    return true;
  }
  announce(call, turn);
  if (enters && turn.sound) turn.sound = await_flag(call, turn, gate, 0, staged);
  if (!__syncthreads_and(turn.sound)) return false;
  all_have_started(call);
  return true;
}
