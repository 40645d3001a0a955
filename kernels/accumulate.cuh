// Pieces of 16 bytes that are reduced. In: pieces of one rank after the other. Out: reduced pieces. Guarantee: taken in the
// order in which they are given, the first as it is.
#pragma once
#include "numeric.cuh"

// Accumulators of SPAN pieces.
template <u32 SPAN>
struct Sums {
  typedef Numeric<ELEMENT> Type;
  static const u32 HALF = Type::COUNT;
  Type::Number sums[SPAN][2 * HALF];

  // Takes pieces of the next rank; the first rank's are where it begins.
  __device__ __forceinline__ void take(u32 operation, bool is_first, const uint4 *words) {
#pragma unroll
    for (u32 number = 0; number < SPAN; ++number) {
      Type::Number values[2 * HALF];
      Type::unpack(make_uint2(words[number].x, words[number].y), values);
      Type::unpack(make_uint2(words[number].z, words[number].w), values + HALF);
      if (is_first) {
#pragma unroll
        for (u32 element = 0; element < 2 * HALF; ++element) sums[number][element] = values[element];
      } else {
        combine<2 * HALF>(operation, sums[number], values);
      }
    }
  }

  __device__ __forceinline__ void conclude_into(u32 operation, u32 ranks, uint4 *result) {
#pragma unroll
    for (u32 number = 0; number < SPAN; ++number) {
      conclude<2 * HALF>(operation, sums[number], ranks);
      uint2 low = Type::pack(sums[number]), high = Type::pack(sums[number] + HALF);
      result[number] = make_uint4(low.x, low.y, high.x, high.y);
    }
  }
};
