// Words of slots as they are: which of them a thread has, and taking them. In: a call, a turn. Out: bytes. Guarantee: an
// empty buffer is one word.
#pragma once
#include "channel.cuh"
#include "pieces.cuh"

// Where a thread's words are: `first`, `first + step` and so on below `words`.
struct Share {
  u64 first;
  u64 step;
  u64 words;
};

__device__ __forceinline__ Share share_of(u64 bytes) {
  u64 words = (bytes + 7) / 8;
  return {(u64)blockIdx.x * blockDim.x + threadIdx.x, (u64)gridDim.x * blockDim.x, words == 0 ? 1 : words};
}

template <u32 SPAN>
__device__ __forceinline__ void load_words(u64 buffer, u64 bytes, u64 word, const Share &share, uint2 *words) {
#pragma unroll
  for (u32 number = 0; number < SPAN; ++number) words[number] = load_8(buffer, bytes, word + number * share.step);
}

// Takes words of a source as they are, which stand `behind` words into its slot, to `bytes` bytes at an address.
__device__ __forceinline__ bool take_words(const Call &call, const Turn &turn, const Share &share, u32 source,
                                           u64 behind, u64 output, u64 bytes) {
  const u32 SPAN = 4;
  u64 slot = slot_of(call, turn, call.channel.rank, source) + behind * 16;
  for (u64 word = share.first; word < share.words; word += share.step * SPAN) {
    Awaited<SPAN> awaited;
#pragma unroll
    for (u32 at = 0; at < SPAN; ++at) {
      u64 place = word + at * share.step;
      awaited.places[at] = place < share.words ? slot + place * 16 : 0;
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
