// All-reduce round a ring, twice: partial results, then results. In: a call. Out: this rank's output. Guarantee: all ranks
// have the same bits; partial results are carried as accumulators; a chunk is reduced in the order of the ring from its
// own rank on; input and output may be the same. A slot holds (ranks - 1) * (1 + PARTIAL_WORDS) words for each word of a
// chunk.
#pragma once
#include "sums.cuh"

// A partial result is carried as these elements.
template <typename Accumulator>
struct Carried;
template <>
struct Carried<float> : Numeric<ELEMENT_F32> {};
template <>
struct Carried<double> : Numeric<ELEMENT_F64> {};
template <>
struct Carried<int> : Numeric<ELEMENT_I32> {};
template <>
struct Carried<long long> : Numeric<ELEMENT_I64> {};
template <>
struct Carried<u32> {
  static const u32 COUNT = 2;
  static __device__ __forceinline__ void unpack(uint2 word, u32 *values) {
    values[0] = word.x;
    values[1] = word.y;
  }
  static __device__ __forceinline__ uint2 pack(const u32 *values) { return make_uint2(values[0], values[1]); }
};

typedef Carried<Number> Partial;

// Words that carry the partial results of 8 bytes of elements.
static const u32 PARTIAL_WORDS = Type::COUNT / Partial::COUNT;

__device__ __forceinline__ void send_partial(u64 slot, u32 word, const Number *sums, u32 flag) {
#pragma unroll
  for (u32 part = 0; part < PARTIAL_WORDS; ++part) {
    send_word(slot, word * PARTIAL_WORDS + part, Partial::pack(sums + part * Partial::COUNT), flag);
  }
}

__device__ __forceinline__ bool receive_partial(const Call &call, const Turn &turn, u32 left, u64 slot, u32 word,
                                                Number *sums) {
  Awaited<PARTIAL_WORDS> awaited;
#pragma unroll
  for (u32 part = 0; part < PARTIAL_WORDS; ++part) {
    awaited.places[part] = slot + ((u64)word * PARTIAL_WORDS + part) * 16;
    awaited.peers[part] = left;
  }
  if (!receive(call, turn, awaited)) return false;
#pragma unroll
  for (u32 part = 0; part < PARTIAL_WORDS; ++part) {
    const uint4 &found = awaited.words[part];
    Partial::unpack(make_uint2(found.x, found.z), sums + part * Partial::COUNT);
  }
  return true;
}

struct Ring {
  u32 left;
  u32 right;
  u32 words;     // of a chunk
  u64 incoming;  // slot of the left neighbour's words here
  u64 outgoing;  // slot of this rank's words at the right neighbour
};

// Place of the words of a step: partial results of steps 0..ranks - 1, then results of as many.
__device__ __forceinline__ u64 partials_at(const Ring &ring, u32 step) { return (u64)step * ring.words * PARTIAL_WORDS * 16; }

__device__ __forceinline__ u64 results_at(const Ring &ring, u32 ranks, u32 step) {
  return ((u64)(ranks - 1) * PARTIAL_WORDS + step) * ring.words * 16;
}

// The first round; this rank ends with chunk rank + 1.
__device__ __forceinline__ bool reduce_round(const Call &call, const Turn &turn, const Share &share, const Ring &ring) {
  u32 ranks = call.channel.ranks, rank = call.channel.rank;
  for (u32 step = 0; step < ranks; ++step) {
    Range chunk = range_of(call.bytes, (u64)ring.words * 8, (rank + ranks - step) % ranks);
    for (u32 word = share.first; word < ring.words; word += share.step) {
      Number sums[Type::COUNT], own[Type::COUNT];
      Type::unpack(load_8(call.input + chunk.begin, chunk.bytes, word), own);
      if (step == 0 && ranks > 1) {
        send_partial(ring.outgoing, word, own, turn.flag);
        continue;
      }
      if (step == 0) {
#pragma unroll
        for (u32 element = 0; element < Type::COUNT; ++element) sums[element] = own[element];
      } else {
        u64 slot = ring.incoming + partials_at(ring, step - 1);
        if (!receive_partial(call, turn, ring.left, slot, word, sums)) return false;
        combine<Type::COUNT>(call.operation, sums, own);
      }
      if (step < ranks - 1) {
        send_partial(ring.outgoing + partials_at(ring, step), word, sums, turn.flag);
        continue;
      }
      conclude<Type::COUNT>(call.operation, sums, ranks);
      uint2 result = Type::pack(sums);
      send_word(ring.outgoing + results_at(ring, ranks, 0), word, result, turn.flag);
      store_8(call.output + chunk.begin, chunk.bytes, word, result);
    }
  }
  return true;
}

__device__ __forceinline__ void gather_round(const Call &call, const Turn &turn, const Share &share, const Ring &ring) {
  u32 ranks = call.channel.ranks, rank = call.channel.rank;
  for (u32 step = 1; step < ranks; ++step) {
    Range chunk = range_of(call.bytes, (u64)ring.words * 8, (rank + 1 + ranks - step) % ranks);
    u64 slot = ring.incoming + results_at(ring, ranks, step - 1);
    for (u32 word = share.first; word < ring.words; word += share.step) {
      Awaited<1> awaited = {{slot + (u64)word * 16}, {ring.left}};
      if (!receive(call, turn, awaited)) return;
      uint2 result = make_uint2(awaited.words[0].x, awaited.words[0].z);
      if (step < ranks - 1) send_word(ring.outgoing + results_at(ring, ranks, step), word, result, turn.flag);
      store_8(call.output + chunk.begin, chunk.bytes, word, result);
    }
  }
}

extern "C" __global__ void __launch_bounds__(512, 1) reduce_ring(const __grid_constant__ Call call) {
  enter_stream(call);
  u32 ranks = call.channel.ranks, rank = call.channel.rank;
  Share share = share_of(((call.bytes + 7) / 8 + ranks - 1) / ranks * 8);
  Turn turn = begin(call);
  announce(call, turn);
  Ring ring;
  ring.left = (rank + ranks - 1) % ranks;
  ring.right = (rank + 1) % ranks;
  ring.words = share.words;
  ring.incoming = slot_of(call, turn, rank, ring.left);
  ring.outgoing = slot_of(call, turn, ring.right, rank);
  if (!turn.sound || !reduce_round(call, turn, share, ring)) return;
  all_have_started(call);
  gather_round(call, turn, share, ring);
}
