// All-reduce by the switch: multimem loads that reduce and stores that reach all, for f32, f16 or bf16 (macro ELEMENT).
// In: a call whose `input` and `output` are multicast addresses of registered buffers. Out: all ranks' outputs. Guarantee:
// all ranks have the same bits, one rank having stored each; the order of the sum is the switch's; only sums and averages
// of f32, only sums of the others; whole pieces of 16 bytes.
#include "numeric.cuh"
#include "staging.cuh"

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ uint4 load_reduced(u64 address) {
  uint4 value;
#if ELEMENT == 0
  asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0, %1, %2, %3}, [%4];"
#elif ELEMENT == 1
  asm volatile("multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.f16x2 {%0, %1, %2, %3}, [%4];"
#else
  asm volatile("multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.bf16x2 {%0, %1, %2, %3}, [%4];"
#endif
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address)
               : "memory");
  return value;
}

// The words are stored as numbers of 32 bits, which changes no bit.
__device__ __forceinline__ void store_to_all(u64 address, uint4 value) {
  asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

// Piece `number`, divided where an average is asked for.
__device__ __forceinline__ uint4 reduced_piece(const Call &call, u64 number) {
  typedef Numeric<ELEMENT> Type;
  uint4 value = load_reduced(call.input + number * 16);
  if (call.operation != OPERATION_AVERAGE) return value;
  Type::Number sums[2 * Type::COUNT];
  Type::unpack(make_uint2(value.x, value.y), sums);
  Type::unpack(make_uint2(value.z, value.w), sums + Type::COUNT);
  conclude<2 * Type::COUNT>(call.operation, sums, call.channel.ranks);
  uint2 low = Type::pack(sums), high = Type::pack(sums + Type::COUNT);
  return make_uint4(low.x, low.y, high.x, high.y);
}

static const u32 UNROLL = 4;

__device__ __forceinline__ void reduce_shard(const Call &call) {
  u64 pieces = call.bytes / 16, shard = (pieces + call.channel.ranks - 1) / call.channel.ranks;
  u64 begin = call.channel.rank * shard, end = begin + shard < pieces ? begin + shard : pieces;
  u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 piece = begin + (u64)blockIdx.x * blockDim.x + threadIdx.x; piece < end; piece += step * UNROLL) {
    uint4 values[UNROLL];
#pragma unroll
    for (u32 number = 0; number < UNROLL; ++number) {
      if (piece + number * step < end) values[number] = reduced_piece(call, piece + number * step);
    }
#pragma unroll
    for (u32 number = 0; number < UNROLL; ++number) {
      if (piece + number * step < end) store_to_all(call.output + (piece + number * step) * 16, values[number]);
    }
  }
}
#else
// Devices before Hopper have no multicast.
__device__ __forceinline__ void reduce_shard(const Call &) { __trap(); }
#endif

extern "C" __global__ void __launch_bounds__(512, 1) reduce_multicast(const __grid_constant__ Call call) {
  Gate gate = gate_of(call, threadIdx.x);
  enter_stream(call);
  Turn turn = begin(call);
  announce(call, turn);
  if (!__syncthreads_and(turn.sound) || !meet(call, turn, gate, 0, false)) return;
  reduce_shard(call);
  leave(call, turn, gate, true);
}
