// Words of slots as they are: which of them a thread has, and taking them. In: a call, a turn. Out: bytes. Guarantee: an
// empty buffer is one word.
#pragma once
#include "channel.cuh"
#include "pieces.cuh"

// Where a thread's words are: `first`, `first + step` and so on below `words`. A slot has fewer than 2^32.
struct Share {
  u32 first;
  u32 step;
  u32 words;
};

__device__ __forceinline__ Share share_of(u64 bytes) {
  u32 words = (u32)((bytes + 7) / 8);
  return {blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x, words == 0 ? 1 : words};
}

// A part of a buffer.
struct Range {
  u64 begin;
  u64 bytes;
};

// Part `number` of `bytes` bytes cut into parts of `size`; the last ones may be short or empty.
__device__ __forceinline__ Range range_of(u64 bytes, u64 size, u32 number) {
  u64 begin = number * size < bytes ? number * size : bytes;
  return {begin, bytes - begin < size ? bytes - begin : size};
}

template <u32 SPAN>
__device__ __forceinline__ void load_words(u64 buffer, u64 bytes, u32 word, const Share &share, uint2 *words) {
#pragma unroll
  for (u32 number = 0; number < SPAN; ++number) words[number] = load_8(buffer, bytes, word + number * share.step);
}

// Takes words of a source as they are, which stand `behind` words into its slot, to `bytes` bytes at an address.
__device__ __forceinline__ bool take_words(const Call &call, const Turn &turn, const Share &share, u32 source,
                                           u32 behind, u64 output, u64 bytes) {
  const u32 SPAN = 4;
  u64 slot = slot_of(call, turn, call.channel.rank, source) + (u64)behind * 16;
  for (u32 word = share.first; word < share.words; word += share.step * SPAN) {
    Awaited<SPAN> awaited;
#pragma unroll
    for (u32 at = 0; at < SPAN; ++at) {
      u32 place = word + at * share.step;
      awaited.places[at] = place < share.words ? slot + (u64)place * 16 : 0;
      awaited.peers[at] = source;
      awaited.words[at] = make_uint4(0, 0, 0, 0);
    }
    if (!receive(call, turn, awaited)) return false;
#pragma unroll
    for (u32 at = 0; at < SPAN; ++at) {
      store_8(output, bytes, word + at * share.step, make_uint2(awaited.words[at].x, awaited.words[at].z));
    }
  }
  return true;
}
