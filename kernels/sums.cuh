// Words of slots that are reduced. In: a call, a turn. Out: reduced words. Guarantee: in the order of ranks, from rank 0's
// value on.
#pragma once
#include "numeric.cuh"
#include "words.cuh"

typedef Numeric<ELEMENT> Type;
typedef Type::Number Number;

// Sources whose words a thread has under way where it has one word of each: as many as it has registers for.
static const u32 SOURCES_AT_ONCE = Type::COUNT < 8 ? 8 : 4;

// Reduces words word, word + step, ..., SPAN of them, of all sources from their slots, `own` being this rank's. SOURCES
// words of each are under way at a time.
template <u32 SPAN, u32 SOURCES>
__device__ __forceinline__ bool reduce_words(const Call &call, const Turn &turn, u32 word, const Share &share,
                                             const uint2 *own, uint2 *result) {
  u32 ranks = call.channel.ranks, rank = call.channel.rank;
  Number sums[SPAN][Type::COUNT];
  for (u32 base = 0; base < ranks; base += SOURCES) {
    Awaited<SOURCES * SPAN> awaited;
#pragma unroll
    for (u32 at = 0; at < SOURCES * SPAN; ++at) {
      u32 source = base + at / SPAN;
      u32 place = word + at % SPAN * share.step;
      bool is_awaited = source < ranks && source != rank && place < share.words;
      awaited.places[at] = is_awaited ? slot_of(call, turn, rank, source) + (u64)place * 16 : 0;
      awaited.peers[at] = source;
      awaited.words[at] = make_uint4(own[at % SPAN].x, turn.flag, own[at % SPAN].y, turn.flag);
    }
    if (!receive(call, turn, awaited)) return false;
#pragma unroll
    for (u32 at = 0; at < SOURCES * SPAN; ++at) {
      if (base + at / SPAN >= ranks) break;
      Number values[Type::COUNT], *sum = sums[at % SPAN];
      Type::unpack(make_uint2(awaited.words[at].x, awaited.words[at].z), values);
      if (base + at / SPAN == 0) {
#pragma unroll
        for (u32 element = 0; element < Type::COUNT; ++element) sum[element] = values[element];
      } else {
        combine<Type::COUNT>(call.operation, sum, values);
      }
    }
  }
#pragma unroll
  for (u32 number = 0; number < SPAN; ++number) {
    conclude<Type::COUNT>(call.operation, sums[number], ranks);
    result[number] = Type::pack(sums[number]);
  }
  return true;
}
