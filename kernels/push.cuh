// All-reduce and reduce-scatter by pushing, and the two rounds of pushing. In: a call. Out: this rank's output. Guarantee:
// every rank reduces in the order of ranks, from rank 0's value on; every rank sends each peer at least one word, also of
// an empty buffer, so that none is more than one call ahead; input and output may be the same.
#pragma once
#include "sums.cuh"

// Words of one source that a thread has under way where it has several: as many as it has registers for.
static const u32 WORDS = Type::COUNT < 4 ? 4 : 2;

// Sends words of the input to all peers, then reduces what came from them. With one turn of the loops, which the first
// words are for, the input is read once.
template <u32 SPAN, u32 SOURCES>
__device__ __forceinline__ void push_all(const Call &call, const Share &share) {
  uint2 own[SPAN];
  load_words<SPAN>(call.input, call.bytes, share.first, share, own);
  Turn turn = begin(call);
  bool once = share.words <= share.step * SPAN;
  for (u64 word = share.first; word < share.words && turn.sound; word += share.step * SPAN) {
    if (!once) load_words<SPAN>(call.input, call.bytes, word, share, own);
    for (u32 step = 1; step < call.channel.ranks; ++step) {
      u64 slot = slot_of(call, turn, turned(call, step), call.channel.rank);
#pragma unroll
      for (u32 number = 0; number < SPAN; ++number) {
        u64 place = word + number * share.step;
        if (place < share.words) send_word(slot, place, own[number], turn.flag);
      }
    }
  }
  for (u64 word = share.first; word < share.words && turn.sound; word += share.step * SPAN) {
    if (!once) load_words<SPAN>(call.input, call.bytes, word, share, own);
    uint2 result[SPAN];
    turn.sound = reduce_words<SPAN, SOURCES>(call, turn, word, share, own, result);
#pragma unroll
    for (u32 number = 0; number < SPAN; ++number) {
      u64 place = word + number * share.step;
      if (turn.sound) store_8(call.output, call.bytes, place, result[number]);
    }
  }
  finish(call, turn);
}

extern "C" __global__ void __launch_bounds__(512) reduce_push(const __grid_constant__ Call call) {
  enter_stream(call);
  Share share = share_of(call.bytes);
  if (share.words <= share.step) {
    if (call.channel.ranks == 2) return push_all<1, 2>(call, share);
    return push_all<1, 8>(call, share);
  }
  push_all<WORDS, 1>(call, share);
}

// Sends each peer its share of the input: shares of `share_bytes` bytes, one every `stride`, `bytes` from the first to the
// end of the last.
__device__ __forceinline__ void scatter_words(const Call &call, const Turn &turn, const Share &share, u64 bytes,
                                              u64 stride, u64 share_bytes) {
  for (u32 step = 1; step < call.channel.ranks && turn.sound; ++step) {
    u32 peer = turned(call, step);
    u64 begin = peer * stride < bytes ? peer * stride : bytes;
    u64 length = bytes - begin < share_bytes ? bytes - begin : share_bytes;
    u64 slot = slot_of(call, turn, peer, call.channel.rank);
    for (u64 word = share.first; word < share.words; word += share.step) {
      send_word(slot, word, load_8(call.input + begin, length, word), turn.flag);
    }
  }
}

extern "C" __global__ void __launch_bounds__(512) scatter_push(const __grid_constant__ Call call) {
  enter_stream(call);
  Share share = share_of(call.bytes);
  u64 mine = call.input + call.channel.rank * call.stride;
  Turn turn = begin(call);
  u64 total = call.stride * (call.channel.ranks - 1) + call.bytes;
  scatter_words(call, turn, share, total, call.stride, call.bytes);
  for (u64 word = share.first; word < share.words && turn.sound; word += share.step) {
    uint2 own = load_8(mine, call.bytes, word), result;
    turn.sound = reduce_words<1, 8>(call, turn, word, share, &own, &result);
    if (turn.sound) store_8(call.output, call.bytes, word, result);
  }
  finish(call, turn);
}

// Each rank reduces one shard of whole words.
extern "C" __global__ void __launch_bounds__(512) reduce_two_push(const __grid_constant__ Call call) {
  enter_stream(call);
  u32 ranks = call.channel.ranks, rank = call.channel.rank;
  Share share = share_of(((call.bytes + 7) / 8 + ranks - 1) / ranks * 8);
  u64 shard = share.words * 8;
  u64 begins = rank * shard < call.bytes ? rank * shard : call.bytes;
  u64 length = call.bytes - begins < shard ? call.bytes - begins : shard;
  Turn turn = begin(call);
  scatter_words(call, turn, share, call.bytes, shard, shard);
  for (u64 word = share.first; word < share.words && turn.sound; word += share.step) {
    uint2 own = load_8(call.input + begins, length, word), result;
    turn.sound = reduce_words<1, 8>(call, turn, word, share, &own, &result);
    if (!turn.sound) break;
    send_to_all(call, turn, share.words + word, result);
    store_8(call.output + begins, length, word, result);
  }
  for (u32 step = 1; step < ranks && turn.sound; ++step) {
    u32 source = turned(call, step);
    u64 begin = source * shard < call.bytes ? source * shard : call.bytes;
    u64 bytes = call.bytes - begin < shard ? call.bytes - begin : shard;
    turn.sound = take_words(call, turn, share, source, share.words, call.output + begin, bytes);
  }
  finish(call, turn);
}
