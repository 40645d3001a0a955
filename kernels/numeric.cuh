// Element types and operations. In: 8 bytes of elements. Out: accumulators, and 8 bytes again. Guarantee: narrow floats
// are accumulated in binary32 and rounded once, to nearest, ties to even; fp8 saturates at its largest finite value; a NaN
// stays a NaN; integers wrap, those of 8 bits only when they are packed.
#pragma once
#include "collective.h"

// Accumulators of 8 bytes of elements: `Number`, and how many.
template <u32 ELEMENT_TYPE>
struct Numeric;

template <>
struct Numeric<ELEMENT_F32> {
  typedef float Number;
  static const u32 COUNT = 2;
  static __device__ __forceinline__ void unpack(uint2 word, float *values) {
    values[0] = __uint_as_float(word.x);
    values[1] = __uint_as_float(word.y);
  }
  static __device__ __forceinline__ uint2 pack(const float *values) {
    return make_uint2(__float_as_uint(values[0]), __float_as_uint(values[1]));
  }
};

// A pair of binary16, the first in the lower half.
__device__ __forceinline__ void unpack_f16(u32 word, float *values) {
  asm("{ .reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
      : "=f"(values[0]), "=f"(values[1])
      : "r"(word));
}

__device__ __forceinline__ u32 pack_f16(const float *values) {
  u32 word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(values[1]), "f"(values[0]));
  return word;
}

template <>
struct Numeric<ELEMENT_F16> {
  typedef float Number;
  static const u32 COUNT = 4;
  static __device__ __forceinline__ void unpack(uint2 word, float *values) {
    unpack_f16(word.x, values);
    unpack_f16(word.y, values + 2);
  }
  static __device__ __forceinline__ uint2 pack(const float *values) {
    return make_uint2(pack_f16(values), pack_f16(values + 2));
  }
};

__device__ __forceinline__ void unpack_bf16(u32 word, float *values) {
  values[0] = __uint_as_float(word << 16);
  values[1] = __uint_as_float(word & 0xffff0000u);
}

__device__ __forceinline__ u32 pack_bf16(const float *values) {
  u32 word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(values[1]), "f"(values[0]));
  return word;
}

template <>
struct Numeric<ELEMENT_BF16> {
  typedef float Number;
  static const u32 COUNT = 4;
  static __device__ __forceinline__ void unpack(uint2 word, float *values) {
    unpack_bf16(word.x, values);
    unpack_bf16(word.y, values + 2);
  }
  static __device__ __forceinline__ uint2 pack(const float *values) {
    return make_uint2(pack_bf16(values), pack_bf16(values + 2));
  }
};

template <>
struct Numeric<ELEMENT_F64> {
  typedef double Number;
  static const u32 COUNT = 1;
  static __device__ __forceinline__ void unpack(uint2 word, double *values) {
    values[0] = __hiloint2double((int)word.y, (int)word.x);
  }
  static __device__ __forceinline__ uint2 pack(const double *values) {
    return make_uint2((u32)__double2loint(values[0]), (u32)__double2hiint(values[0]));
  }
};

template <>
struct Numeric<ELEMENT_I32> {
  typedef int Number;
  static const u32 COUNT = 2;
  static __device__ __forceinline__ void unpack(uint2 word, int *values) {
    values[0] = (int)word.x;
    values[1] = (int)word.y;
  }
  static __device__ __forceinline__ uint2 pack(const int *values) {
    return make_uint2((u32)values[0], (u32)values[1]);
  }
};

template <>
struct Numeric<ELEMENT_I64> {
  typedef long long Number;
  static const u32 COUNT = 1;
  static __device__ __forceinline__ void unpack(uint2 word, long long *values) {
    values[0] = (long long)((u64)word.y << 32 | word.x);
  }
  static __device__ __forceinline__ uint2 pack(const long long *values) {
    return make_uint2((u32)values[0], (u32)((u64)values[0] >> 32));
  }
};

template <>
struct Numeric<ELEMENT_U8> {
  typedef u32 Number;
  static const u32 COUNT = 8;
  static __device__ __forceinline__ void unpack(uint2 word, u32 *values) {
#pragma unroll
    for (u32 byte = 0; byte < 4; ++byte) {
      values[byte] = word.x >> 8 * byte & 0xff;
      values[4 + byte] = word.y >> 8 * byte & 0xff;
    }
  }
  static __device__ __forceinline__ uint2 pack(const u32 *values) {
    uint2 word = make_uint2(0, 0);
#pragma unroll
    for (u32 byte = 0; byte < 4; ++byte) {
      word.x |= (values[byte] & 0xff) << 8 * byte;
      word.y |= (values[4 + byte] & 0xff) << 8 * byte;
    }
    return word;
  }
};

// The two fp8 formats: mantissa bits, exponent bias, largest finite value and its bits.
struct E4m3 {
  enum : u32 { MANTISSA = 3, BIAS = 7, LARGEST = 0x7e };
  static __device__ __forceinline__ float largest() { return 448.0f; }
};

struct E5m2 {
  enum : u32 { MANTISSA = 2, BIAS = 15, LARGEST = 0x7b };
  static __device__ __forceinline__ float largest() { return 57344.0f; }
};

// What the conversion instructions of newer devices do, for those that have none.
template <typename Format>
__device__ __forceinline__ u32 narrow(float value) {
  u32 bits = __float_as_uint(value);
  u32 sign = bits >> 24 & 0x80;
  u32 magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7f;
  float size = __uint_as_float(magnitude);
  if (size >= Format::largest()) return sign | Format::LARGEST;
  u32 smallest_normal = (127 - Format::BIAS + 1) << 23;
  if (magnitude < smallest_normal) {
    float unit = __uint_as_float((127 + Format::BIAS - 1 + Format::MANTISSA) << 23);
    return sign | __float2uint_rn(size * unit);
  }
  u32 dropped = 23 - Format::MANTISSA;
  u32 rounded = magnitude + ((1u << (dropped - 1)) - 1) + (magnitude >> dropped & 1);
  u32 narrowed = (rounded >> dropped) - ((127 - Format::BIAS) << Format::MANTISSA);
  return sign | (narrowed < Format::LARGEST ? narrowed : (u32)Format::LARGEST);
}

// Four fp8 numbers.
template <typename Format>
__device__ __forceinline__ u32 pack_fp8(const float *values) {
#if __CUDA_ARCH__ >= 890
  unsigned short low, high;
  if (Format::MANTISSA == 3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(values[1]), "f"(values[0]));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(values[3]), "f"(values[2]));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(low) : "f"(values[1]), "f"(values[0]));
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(high) : "f"(values[3]), "f"(values[2]));
  }
  return (u32)high << 16 | low;
#else
  u32 word = 0;
#pragma unroll
  for (u32 byte = 0; byte < 4; ++byte) word |= narrow<Format>(values[byte]) << 8 * byte;
  return word;
#endif
}

// Two binary16 out of two fp8 numbers in the upper bytes of each half: e5m2 is the upper byte of a binary16; of e4m3 the
// exponent's bias is 8 less, and all ones is its only NaN.
__device__ __forceinline__ void unpack_e5m2(u32 word, float *values) {
  unpack_f16((word & 0xff) << 8 | (word & 0xff00) << 16, values);
  unpack_f16((word >> 16 & 0xff) << 8 | (word & 0xff000000), values + 2);
}

__device__ __forceinline__ void unpack_e4m3_pair(u32 word, float *values) {
  u32 spread = (word & 0xff) | (word & 0xff00) << 8;
  unpack_f16((spread & 0x00800080) << 8 | (spread & 0x007f007f) << 7, values);
#pragma unroll
  for (u32 half = 0; half < 2; ++half) {
    bool is_nan = (spread >> 16 * half & 0x7f) == 0x7f;
    values[half] = is_nan ? __uint_as_float(0x7fffffff) : values[half] * 256.0f;
  }
}

__device__ __forceinline__ void unpack_e4m3(u32 word, float *values) {
  unpack_e4m3_pair(word & 0xffff, values);
  unpack_e4m3_pair(word >> 16, values + 2);
}

template <>
struct Numeric<ELEMENT_E4M3> {
  typedef float Number;
  static const u32 COUNT = 8;
  static __device__ __forceinline__ void unpack(uint2 word, float *values) {
    unpack_e4m3(word.x, values);
    unpack_e4m3(word.y, values + 4);
  }
  static __device__ __forceinline__ uint2 pack(const float *values) {
    return make_uint2(pack_fp8<E4m3>(values), pack_fp8<E4m3>(values + 4));
  }
};

template <>
struct Numeric<ELEMENT_E5M2> {
  typedef float Number;
  static const u32 COUNT = 8;
  static __device__ __forceinline__ void unpack(uint2 word, float *values) {
    unpack_e5m2(word.x, values);
    unpack_e5m2(word.y, values + 4);
  }
  static __device__ __forceinline__ uint2 pack(const float *values) {
    return make_uint2(pack_fp8<E5m2>(values), pack_fp8<E5m2>(values + 4));
  }
};

__device__ __forceinline__ float add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ double add(double a, double b) { return __dadd_rn(a, b); }
__device__ __forceinline__ int add(int a, int b) { return (int)((u32)a + (u32)b); }
__device__ __forceinline__ long long add(long long a, long long b) { return (long long)((u64)a + (u64)b); }
__device__ __forceinline__ u32 add(u32 a, u32 b) { return a + b; }

__device__ __forceinline__ float multiply(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double multiply(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ int multiply(int a, int b) { return (int)((u32)a * (u32)b); }
__device__ __forceinline__ long long multiply(long long a, long long b) { return (long long)((u64)a * (u64)b); }
__device__ __forceinline__ u32 multiply(u32 a, u32 b) { return a * b; }

__device__ __forceinline__ float least(float a, float b) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
__device__ __forceinline__ float greatest(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
__device__ __forceinline__ double least(double a, double b) { return a != a || b != b ? a + b : fmin(a, b); }
__device__ __forceinline__ double greatest(double a, double b) { return a != a || b != b ? a + b : fmax(a, b); }
template <typename Integer>
__device__ __forceinline__ Integer least(Integer a, Integer b) {
  return b < a ? b : a;
}
template <typename Integer>
__device__ __forceinline__ Integer greatest(Integer a, Integer b) {
  return a < b ? b : a;
}

__device__ __forceinline__ float divide(float sum, u32 ranks) { return __fdiv_rn(sum, (float)ranks); }
__device__ __forceinline__ double divide(double sum, u32 ranks) { return __ddiv_rn(sum, (double)ranks); }
__device__ __forceinline__ int divide(int sum, u32 ranks) { return sum / (int)ranks; }
__device__ __forceinline__ long long divide(long long sum, u32 ranks) { return sum / (long long)ranks; }
__device__ __forceinline__ u32 divide(u32 sum, u32 ranks) { return sum / ranks; }

// Takes `values` into `sums`, the operation being the same for all threads.
template <u32 COUNT, typename Number>
__device__ __forceinline__ void combine(u32 operation, Number *sums, const Number *values) {
  if (operation == OPERATION_SUM || operation == OPERATION_AVERAGE) {
#pragma unroll
    for (u32 at = 0; at < COUNT; ++at) sums[at] = add(sums[at], values[at]);
  } else if (operation == OPERATION_PRODUCT) {
#pragma unroll
    for (u32 at = 0; at < COUNT; ++at) sums[at] = multiply(sums[at], values[at]);
  } else if (operation == OPERATION_MINIMUM) {
#pragma unroll
    for (u32 at = 0; at < COUNT; ++at) sums[at] = least(sums[at], values[at]);
  } else {
#pragma unroll
    for (u32 at = 0; at < COUNT; ++at) sums[at] = greatest(sums[at], values[at]);
  }
}

template <u32 COUNT, typename Number>
__device__ __forceinline__ void conclude(u32 operation, Number *sums, u32 ranks) {
  if (operation != OPERATION_AVERAGE) return;
#pragma unroll
  for (u32 at = 0; at < COUNT; ++at) sums[at] = divide(sums[at], ranks);
}
