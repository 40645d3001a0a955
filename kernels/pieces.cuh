// Pieces of 8 and 16 bytes of buffers of any size and alignment. In: addresses, bytes that are left. Out: pieces, zero
// beyond the end. Guarantee: no byte outside a buffer is touched; a piece that is aligned and whole is one access.
#pragma once
#include "ptx.cuh"

// Bytes of a piece, one by one.
__device__ __noinline__ u64 load_ragged(u64 address, u64 left) {
  u64 value = 0;
  for (u32 byte = 0; byte < 8 && byte < left; ++byte) {
    value |= (u64)*(const volatile unsigned char *)(address + byte) << 8 * byte;
  }
  return value;
}

__device__ __noinline__ void store_ragged(u64 address, u64 value, u64 left) {
  for (u32 byte = 0; byte < 8 && byte < left; ++byte) *(unsigned char *)(address + byte) = value >> 8 * byte;
}

__device__ __forceinline__ uint2 halves(u64 value) { return make_uint2((u32)value, (u32)(value >> 32)); }

__device__ __forceinline__ u64 joined(u32 low, u32 high) { return (u64)high << 32 | low; }

// Piece `number` of 8 bytes of a buffer of this device, which a peer has not written during this kernel.
__device__ __forceinline__ uint2 load_8(u64 buffer, u64 bytes, u32 number) {
  u64 at = (u64)number * 8;
  if (at + 8 <= bytes && buffer % 8 == 0) return load_weak_64(buffer + at);
  return halves(at < bytes ? load_ragged(buffer + at, bytes - at) : 0);
}

__device__ __forceinline__ void store_8(u64 buffer, u64 bytes, u32 number, uint2 value) {
  u64 at = (u64)number * 8;
  if (at + 8 <= bytes && buffer % 8 == 0) {
    store_weak_64(buffer + at, value);
  } else if (at < bytes) {
    store_ragged(buffer + at, joined(value.x, value.y), bytes - at);
  }
}

// Piece `number` of 16 bytes of a buffer, which may be a peer's. WHOLE: the buffer is known to be made of aligned pieces.
template <bool WHOLE>
__device__ __forceinline__ uint4 load_16(u64 buffer, u64 bytes, u32 number) {
  u64 at = (u64)number * 16;
  if (WHOLE || (at + 16 <= bytes && buffer % 16 == 0)) return load_volatile_128(buffer + at);
  uint2 low = halves(at < bytes ? load_ragged(buffer + at, bytes - at) : 0);
  uint2 high = halves(at + 8 < bytes ? load_ragged(buffer + at + 8, bytes - at - 8) : 0);
  return make_uint4(low.x, low.y, high.x, high.y);
}

// The same of a buffer of this device, which a peer has not written during this kernel.
template <bool WHOLE>
__device__ __forceinline__ uint4 load_own_16(u64 buffer, u64 bytes, u32 number) {
  if (WHOLE) return load_weak_once_128((const uint4 *)(buffer + (u64)number * 16));
  return load_16<false>(buffer, bytes, number);
}

template <bool WHOLE>
__device__ __forceinline__ void store_16(u64 buffer, u64 bytes, u32 number, uint4 value) {
  u64 at = (u64)number * 16;
  if (WHOLE || (at + 16 <= bytes && buffer % 16 == 0)) {
    store_weak_128(buffer + at, value);
  } else if (at < bytes) {
    store_ragged(buffer + at, joined(value.x, value.y), bytes - at);
    if (at + 8 < bytes) store_ragged(buffer + at + 8, joined(value.z, value.w), bytes - at - 8);
  }
}
