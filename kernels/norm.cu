// All-reduce by pushing, residual addition and RMSNorm in one launch, for f16 or bf16 (macro ELEMENT). In: rows of equal
// length. Out: sum + residual, and its normed rows, which may be fp8 e4m3. Guarantee: values are rounded where three
// kernels in a row would round them: the sum, the sum with the residual, the normed row; a block does whole rows and has
// threads by their length alone, so that a row's result does not depend on how many there are.
#include "reduce_bundle.cuh"

typedef Numeric<ELEMENT> Type;

// By lines, and by words, which take more registers.
static const u32 MOST_THREADS = 576;
static const u32 MOST_THREADS_OF_WORDS = 512;

struct Rows {
  u32 bytes;    // of a row
  u32 pieces;   // of 16 bytes, the last of which may be half a one
  u32 bundles;  // of a row
  u32 warps;    // of the block
  u32 warp;     // the thread's, which has the bundles warp, warp + warps and so on
};

__device__ __forceinline__ Rows rows_of(const NormCall &norm) {
  u32 bytes = norm.hidden * (8 / Type::COUNT), pieces = (bytes + 15) / 16;
  return {bytes, pieces, (pieces + BUNDLE_PIECES - 1) / BUNDLE_PIECES, blockDim.x / 32, threadIdx.x / 32};
}

// WHOLE: rows are made of aligned pieces; else of aligned words.
template <bool WHOLE>
__device__ __forceinline__ uint4 load_piece(u64 row, const Rows &rows, u32 piece) {
  u64 at = row + piece * 16;
  if (WHOLE) return load_weak_128(at);
  uint2 low = load_weak_64(at), high = make_uint2(0, 0);
  if (piece * 16 + 16 <= rows.bytes) high = load_weak_64(at + 8);
  return make_uint4(low.x, low.y, high.x, high.y);
}

template <bool WHOLE>
__device__ __forceinline__ void store_piece(u64 row, const Rows &rows, u32 piece, const uint4 &value) {
  u64 at = row + piece * 16;
  if (WHOLE) return store_weak_128(at, value);
  store_weak_64(at, make_uint2(value.x, value.y));
  if (piece * 16 + 16 <= rows.bytes) store_weak_64(at + 8, make_uint2(value.z, value.w));
}

template <bool WHOLE>
__device__ __forceinline__ Bundle load_part(u64 row, const Rows &rows, u32 bundle) {
  u32 first = bundle * BUNDLE_PIECES + first_piece(), second = bundle * BUNDLE_PIECES + second_piece();
  Bundle part = {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
  if (first < rows.pieces) part.first = load_piece<WHOLE>(row, rows, first);
  if (second < rows.pieces && !has_flags()) part.second = load_piece<WHOLE>(row, rows, second);
  return part;
}

template <bool WHOLE>
__device__ __forceinline__ void store_part(u64 row, const Rows &rows, u32 bundle, const Bundle &part) {
  u32 first = bundle * BUNDLE_PIECES + first_piece(), second = bundle * BUNDLE_PIECES + second_piece();
  if (first < rows.pieces) store_piece<WHOLE>(row, rows, first, part.first);
  if (second < rows.pieces && !has_flags()) store_piece<WHOLE>(row, rows, second, part.second);
}

__device__ __forceinline__ float squares(const uint4 &piece) {
  float values[2 * Type::COUNT], total = 0;
  Type::unpack(make_uint2(piece.x, piece.y), values);
  Type::unpack(make_uint2(piece.z, piece.w), values + Type::COUNT);
#pragma unroll
  for (u32 at = 0; at < 2 * Type::COUNT; ++at) total = __fmaf_rn(values[at], values[at], total);
  return total;
}

__device__ __forceinline__ uint4 add_residual(const uint4 &sum, const uint4 &residual) {
  Sums<1> sums;
  uint4 result;
  sums.take(OPERATION_SUM, true, &sum);
  sums.take(OPERATION_SUM, false, &residual);
  sums.conclude_into(OPERATION_SUM, 1, &result);
  return result;
}

__device__ __forceinline__ float sum_of_warp(float value) {
#pragma unroll
  for (u32 step = 16; step > 0; step /= 2) value = add(value, __shfl_xor_sync(ALL_LANES, value, step));
  return value;
}

__device__ __forceinline__ uint2 normed(uint2 value, uint2 weight, float factor, float *values) {
  float weights[Type::COUNT];
  Type::unpack(value, values);
  Type::unpack(weight, weights);
#pragma unroll
  for (u32 at = 0; at < Type::COUNT; ++at) values[at] = multiply(multiply(values[at], factor), weights[at]);
  return Type::pack(values);
}

// Four normed values as fp8.
__device__ __forceinline__ u32 scaled(const NormCall &norm, float *values) {
  float scale = *(const float *)norm.scale;
#pragma unroll
  for (u32 at = 0; at < Type::COUNT; ++at) values[at] = __fdiv_rn(values[at], scale);
  return pack_fp8<E4m3>(values);
}

template <bool WHOLE>
__device__ __forceinline__ void store_normed(const NormCall &norm, const Rows &rows, u32 row, u32 piece, const uint4 &value,
                                             const uint4 &weight, float factor) {
  if (piece >= rows.pieces) return;
  float low[Type::COUNT], high[Type::COUNT];
  uint2 first = normed(make_uint2(value.x, value.y), make_uint2(weight.x, weight.y), factor, low);
  uint2 second = normed(make_uint2(value.z, value.w), make_uint2(weight.z, weight.w), factor, high);
  if (norm.scale == 0) {
    u64 to = norm.call.output + (u64)row * rows.bytes;
    return store_piece<WHOLE>(to, rows, piece, make_uint4(first.x, first.y, second.x, second.y));
  }
  u32 *to = (u32 *)(norm.call.output + (u64)row * norm.hidden) + 2 * piece;
  to[0] = scaled(norm, low);
  if (WHOLE || piece * 16 + 16 <= rows.bytes) to[1] = scaled(norm, high);
}

template <bool WHOLE>
__device__ __forceinline__ void store_normed_part(const NormCall &norm, const Rows &rows, u32 row, u32 bundle,
                                                  const Bundle &part, const Bundle &weight, float factor) {
  u32 first = bundle * BUNDLE_PIECES + first_piece(), second = bundle * BUNDLE_PIECES + second_piece();
  store_normed<WHOLE>(norm, rows, row, first, part.first, weight.first, factor);
  if (!has_flags()) store_normed<WHOLE>(norm, rows, row, second, part.second, weight.second, factor);
}

// Sum with the residual of a bundle of a row, which goes to its output; adds its squares to `total`.
template <bool WHOLE>
__device__ __forceinline__ Bundle take_sum(const NormCall &norm, const Rows &rows, u32 row, u32 bundle, const uint4 *sums,
                                           const Bundle &residual, float &total) {
  Bundle part = {add_residual(sums[0], residual.first), add_residual(sums[1], residual.second)};
  total = add(total, add(squares(part.first), squares(part.second)));
  store_part<WHOLE>(norm.residual_output + (u64)row * rows.bytes, rows, bundle, part);
  return part;
}

// What a row's values are multiplied by, from the sums of squares of its threads; false: something did not come.
__device__ __forceinline__ bool find_factor(const NormCall &norm, const Rows &rows, u32 row, bool came, float total,
                                            float &factor) {
  // In turn, so that one barrier of a row suffices.
  __shared__ float partial[2][MOST_THREADS / 32];
  float *sums = partial[row / gridDim.x % 2];
  total = sum_of_warp(total);
  if (lane() == 0) sums[rows.warp] = total;
  if (!__syncthreads_and(came)) return false;
  total = sum_of_warp(lane() < rows.warps ? sums[lane()] : 0.0f);
  factor = __frsqrt_rn(add(__fdiv_rn(total, (float)norm.hidden), norm.epsilon));
  return true;
}

// Two ranks, rows of aligned pieces, at most a bundle for each warp. A block does rows blockIdx.x, blockIdx.x + gridDim.x and
// so on.
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1) reduce_norm_pair(const __grid_constant__ NormCall norm) {
  const Call &call = norm.call;
  enter_stream(call);
  Rows rows = rows_of(norm);
  u32 bundle = rows.warp;
  bool is_busy = bundle < rows.bundles;
  auto load = [&](u64 buffer, u32 row) { return load_part<true>(buffer + (u64)row * rows.bytes, rows, bundle); };
  Bundle own = load(call.input, blockIdx.x);
  Turn turn = begin(call);
  for (u32 row = blockIdx.x; row < norm.tokens && turn.sound && is_busy; row += gridDim.x) {
    send_bundle<Lines>(call, turn, row * rows.bundles + bundle, row == blockIdx.x ? own : load(call.input, row));
  }
  Bundle residual = load(norm.residual, blockIdx.x);
  announce(call, turn);
  for (u32 row = blockIdx.x; row < norm.tokens; row += gridDim.x) {
    if (row != blockIdx.x) own = load(call.input, row), residual = load(norm.residual, row);
    uint4 sums[2];
    float total = 0, factor;
    bool came = __all_sync(ALL_LANES, turn.sound);
    Bundle part = own;
    if (is_busy && came) {
      came = reduce_pair<Lines>(call, turn, row * rows.bundles + bundle, own, sums);
      if (came) part = take_sum<true>(norm, rows, row, bundle, sums, residual, total);
    }
    Bundle weight = load(norm.weight, 0);
    if (!find_factor(norm, rows, row, came, total, factor)) return;
    all_have_started(call);
    store_normed_part<true>(norm, rows, row, bundle, part, weight, factor);
  }
}

// Any number of ranks, any rows.
template <typename Wire>
__device__ __forceinline__ void norm_rows(const NormCall &norm) {
  const Call &call = norm.call;
  Rows rows = rows_of(norm);
  auto load = [&](u64 buffer, u32 row, u32 bundle) {
    return load_part<false>(buffer + (u64)row * rows.bytes, rows, bundle);
  };
  Turn turn = begin(call);
  for (u32 row = blockIdx.x; row < norm.tokens && turn.sound; row += gridDim.x) {
    for (u32 bundle = rows.warp; bundle < rows.bundles; bundle += rows.warps) {
      send_bundle<Wire>(call, turn, row * rows.bundles + bundle, load(call.input, row, bundle));
    }
  }
  announce(call, turn);
  for (u32 row = blockIdx.x; row < norm.tokens; row += gridDim.x) {
    float total = 0, factor;
    bool came = __all_sync(ALL_LANES, turn.sound);
    for (u32 bundle = rows.warp; bundle < rows.bundles && came; bundle += rows.warps) {
      uint4 sums[2];
      came = reduce_bundle<Wire, 1>(call, turn, row * rows.bundles + bundle, [&] { return load(call.input, row, bundle); },
                                 sums);
      if (came) take_sum<false>(norm, rows, row, bundle, sums, load(norm.residual, row, bundle), total);
    }
    if (!find_factor(norm, rows, row, came, total, factor)) return;
    all_have_started(call);
    for (u32 bundle = rows.warp; bundle < rows.bundles; bundle += rows.warps) {
      store_normed_part<false>(norm, rows, row, bundle, load(norm.residual_output, row, bundle),
                               load(norm.weight, 0, bundle), factor);
    }
  }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1) reduce_norm(const __grid_constant__ NormCall norm) {
  enter_stream(norm.call);
  norm_rows<Lines>(norm);
}

// Over links that do not keep lines together.
extern "C" __global__ void __launch_bounds__(MOST_THREADS_OF_WORDS, 1) reduce_norm_words(const __grid_constant__ NormCall norm) {
  enter_stream(norm.call);
  norm_rows<Words>(norm);
}
