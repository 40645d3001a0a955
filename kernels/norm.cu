// All-reduce by pushing, residual addition and RMSNorm in one launch, for f16 or bf16 (macro ELEMENT). In: rows of equal
// length. Out: sum + residual, and its normed rows, which may be fp8 e4m3. Guarantee: values are rounded where three
// kernels in a row would round them: the sum, the sum with the residual, the normed row; a block does whole rows, so that
// a row's result does not depend on how many there are.
#include "sums.cuh"

static const u32 MOST_THREADS = 512;

// Sum over the block, for all its threads.
__device__ __forceinline__ float sum_of_block(float value) {
  __shared__ float partial[MOST_THREADS / 32];
#pragma unroll
  for (u32 step = 16; step > 0; step /= 2) value = add(value, __shfl_xor_sync(0xffffffffu, value, step));
  __syncthreads();
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0;
  for (u32 warp = 0; warp < blockDim.x / 32; ++warp) total = add(total, partial[warp]);
  return total;
}

// Words of a row that a thread has under way; of the first as many it keeps the results.
static const u32 SPAN = 3;

__device__ __forceinline__ float squares(uint2 word) {
  float values[Type::COUNT], total = 0;
  Type::unpack(word, values);
#pragma unroll
  for (u32 at = 0; at < Type::COUNT; ++at) total = __fmaf_rn(values[at], values[at], total);
  return total;
}

__device__ __forceinline__ uint2 add_residual(uint2 sum, uint2 residual) {
  float values[Type::COUNT], others[Type::COUNT];
  Type::unpack(sum, values);
  Type::unpack(residual, others);
  combine<Type::COUNT>(OPERATION_SUM, values, others);
  return Type::pack(values);
}

__device__ __forceinline__ void store_normed(const NormCall &norm, u32 word, u32 column, uint2 value, float factor) {
  float values[Type::COUNT], weights[Type::COUNT];
  Type::unpack(value, values);
  Type::unpack(((const uint2 *)norm.weight)[column], weights);
#pragma unroll
  for (u32 at = 0; at < Type::COUNT; ++at) values[at] = multiply(multiply(values[at], factor), weights[at]);
  if (norm.scale == 0) {
    ((uint2 *)norm.call.output)[word] = Type::pack(values);
    return;
  }
  float scale = *(const float *)norm.scale;
#pragma unroll
  for (u32 at = 0; at < Type::COUNT; ++at) values[at] = __fdiv_rn(values[at], scale);
  ((u32 *)norm.call.output)[word] = pack_fp8<E4m3>(values);
}

// Words word, word + step, ..., SPAN of them below the row's end: sums with the residual, which go to its output. Adds
// their squares to `total`.
__device__ __forceinline__ bool take_sums(const NormCall &norm, const Turn &turn, u32 word, const Share &row,
                                           uint2 *results, float *total) {
  uint2 own[SPAN], residual[SPAN], sums[SPAN];
#pragma unroll
  for (u32 number = 0; number < SPAN; ++number) {
    u32 place = word + number * row.step;
    own[number] = residual[number] = make_uint2(0, 0);
    if (place >= row.words) continue;
    own[number] = load_weak_64(norm.call.input + (u64)place * 8);
    residual[number] = load_weak_64(norm.residual + (u64)place * 8);
  }
  if (!reduce_words<SPAN, 1>(norm.call, turn, word, row, own, sums)) return false;
#pragma unroll
  for (u32 number = 0; number < SPAN; ++number) {
    u32 place = word + number * row.step;
    if (place >= row.words) continue;
    results[number] = add_residual(sums[number], residual[number]);
    ((uint2 *)norm.residual_output)[place] = results[number];
    *total = add(*total, squares(results[number]));
  }
  return true;
}

// Words `begin` to row.words are a row.
__device__ __forceinline__ bool norm_row(const NormCall &norm, const Turn &turn, u32 begin, const Share &row) {
  u32 first = begin + threadIdx.x, stride = row.step * SPAN;
  uint2 kept[SPAN], results[SPAN];
  float total = 0;
  bool came = first >= row.words || take_sums(norm, turn, first, row, kept, &total);
  for (u32 word = first + stride; word < row.words && came; word += stride) {
    came = take_sums(norm, turn, word, row, results, &total);
  }
  if (!__syncthreads_and(came)) return false;
  float mean = __fdiv_rn(sum_of_block(total), (float)norm.hidden);
  float factor = __frsqrt_rn(add(mean, norm.epsilon));
#pragma unroll
  for (u32 number = 0; number < SPAN; ++number) {
    u32 word = first + number * row.step;
    if (word < row.words) store_normed(norm, word, word - begin, kept[number], factor);
  }
  for (u32 word = first + stride; word < row.words; word += row.step) {
    store_normed(norm, word, word - begin, ((const uint2 *)norm.residual_output)[word], factor);
  }
  return true;
}

// Sends words `begin` to `end` of the input, several of a thread at a time.
__device__ __forceinline__ void send_row(const Call &call, const Turn &turn, u32 begin, u32 end) {
  const u32 AT_ONCE = 4;
  for (u32 word = begin + threadIdx.x; word < end; word += AT_ONCE * blockDim.x) {
    uint2 own[AT_ONCE];
#pragma unroll
    for (u32 number = 0; number < AT_ONCE; ++number) {
      u32 place = word + number * blockDim.x;
      own[number] = place < end ? load_weak_64(call.input + (u64)place * 8) : make_uint2(0, 0);
    }
#pragma unroll
    for (u32 number = 0; number < AT_ONCE; ++number) {
      u32 place = word + number * blockDim.x;
      if (place < end) send_to_all(call, turn, place, own[number]);
    }
  }
}

// Rows of a block: blockIdx.x, blockIdx.x + gridDim.x and so on.
extern "C" __global__ void __launch_bounds__(MOST_THREADS) reduce_norm(const __grid_constant__ NormCall norm) {
  const Call &call = norm.call;
  enter_stream(call);
  u32 words = norm.hidden / Type::COUNT;
  Turn turn = begin(call);
  for (u32 row = blockIdx.x; row < norm.tokens && turn.sound; row += gridDim.x) {
    send_row(call, turn, row * words, (row + 1) * words);
  }
  announce(call, turn);
  for (u32 row = blockIdx.x; row < norm.tokens && __syncthreads_and(turn.sound); row += gridDim.x) {
    Share share = {0, blockDim.x, (row + 1) * words};
    turn.sound = norm_row(norm, turn, row * words, share);
  }
}
