// All-reduce and reduce-scatter by pushing, and the two rounds of pushing. In: a call. Out: this rank's output. Guarantee:
// every rank reduces in the order of ranks, from rank 0's value on; every rank sends each peer at least one word, also of
// an empty buffer, so that none is more than one call ahead; input and output may be the same.
#pragma once
#include "sums.cuh"

// Two ranks and at most one word for each thread. Whatever does not depend on other kernels' work is computed before they
// are waited for.
extern "C" __global__ void __launch_bounds__(512, 1) reduce_push_pair(const __grid_constant__ Call call) {
  u32 rank = call.channel.rank, peer = 1 - rank;
  Share share = share_of(call.bytes);
  u32 word = share.first;
  bool is_busy = word < share.words;
  u64 parity_bytes = 2 * 16 * call.channel.slot_words, at = call.channel.slots + 16 * (u64)word;
  u64 sent = call.channel.base[peer] + at + rank * (parity_bytes / 2);
  u64 awaited = call.channel.base[rank] + at + peer * (parity_bytes / 2);
  compute_now(sent);
  compute_now(awaited);
  enter_stream(call);
  uint2 own = is_busy ? load_8(call.input, call.bytes, word) : make_uint2(0, 0);
  Turn turn = begin(call);
  if (turn.parity != 0) sent += parity_bytes, awaited += parity_bytes;
  if (is_busy && turn.sound) send_word(sent, 0, own, turn.flag);
  announce(call, turn);
  if (!is_busy || !turn.sound) return;
  Awaited<1> theirs = {{awaited}, {peer}};
  if (!receive(call, turn, theirs)) return;
  all_have_started(call);
  uint2 other = make_uint2(theirs.words[0].x, theirs.words[0].z);
  Number sums[Type::COUNT], values[Type::COUNT];
  Type::unpack(rank == 0 ? own : other, sums);
  Type::unpack(rank == 0 ? other : own, values);
  combine<Type::COUNT>(call.operation, sums, values);
  conclude<Type::COUNT>(call.operation, sums, 2);
  store_8(call.output, call.bytes, word, Type::pack(sums));
}

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
  for (u32 word = share.first; word < share.words && turn.sound; word += share.step * SPAN) {
    if (!once) load_words<SPAN>(call.input, call.bytes, word, share, own);
    for (u32 step = 1; step < call.channel.ranks; ++step) {
      u64 slot = slot_of(call, turn, turned(call, step), call.channel.rank);
#pragma unroll
      for (u32 number = 0; number < SPAN; ++number) {
        u32 place = word + number * share.step;
        if (place < share.words) send_word(slot, place, own[number], turn.flag);
      }
    }
  }
  announce(call, turn);
  for (u32 word = share.first; word < share.words && turn.sound; word += share.step * SPAN) {
    if (!once) load_words<SPAN>(call.input, call.bytes, word, share, own);
    uint2 result[SPAN];
    if (!reduce_words<SPAN, SOURCES>(call, turn, word, share, own, result)) return;
    all_have_started(call);
#pragma unroll
    for (u32 number = 0; number < SPAN; ++number) {
      store_8(call.output, call.bytes, word + number * share.step, result[number]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(512, 1) reduce_push(const __grid_constant__ Call call) {
  enter_stream(call);
  Share share = share_of(call.bytes);
  if (share.words <= share.step) return push_all<1, SOURCES_AT_ONCE>(call, share);
  push_all<WORDS, 1>(call, share);
}

// Sends each peer its share of the input: `size` bytes every `stride`, `bytes` in all to the end of the last.
__device__ __forceinline__ void scatter_words(const Call &call, const Turn &turn, const Share &share, u64 bytes, u64 stride,
                                              u64 size) {
  for (u32 step = 1; step < call.channel.ranks && turn.sound; ++step) {
    u32 peer = turned(call, step);
    Range range = range_of(bytes, stride, peer);
    if (range.bytes > size) range.bytes = size;
    u64 slot = slot_of(call, turn, peer, call.channel.rank);
    for (u32 word = share.first; word < share.words; word += share.step) {
      send_word(slot, word, load_8(call.input + range.begin, range.bytes, word), turn.flag);
    }
  }
}

extern "C" __global__ void __launch_bounds__(512, 1) scatter_push(const __grid_constant__ Call call) {
  enter_stream(call);
  Share share = share_of(call.bytes);
  u64 mine = call.input + call.channel.rank * call.stride;
  Turn turn = begin(call);
  u64 total = call.stride * (call.channel.ranks - 1) + call.bytes;
  scatter_words(call, turn, share, total, call.stride, call.bytes);
  announce(call, turn);
  for (u32 word = share.first; word < share.words && turn.sound; word += share.step) {
    uint2 own = load_8(mine, call.bytes, word), result;
    if (!reduce_words<1, SOURCES_AT_ONCE>(call, turn, word, share, &own, &result)) return;
    all_have_started(call);
    store_8(call.output, call.bytes, word, result);
  }
}

// Each rank reduces one shard of whole words and sends it on, behind the words of the first round.
extern "C" __global__ void __launch_bounds__(512, 1) reduce_two_push(const __grid_constant__ Call call) {
  enter_stream(call);
  u32 ranks = call.channel.ranks;
  Share share = share_of(((call.bytes + 7) / 8 + ranks - 1) / ranks * 8);
  u64 size = (u64)share.words * 8;
  Range mine = range_of(call.bytes, size, call.channel.rank);
  Turn turn = begin(call);
  scatter_words(call, turn, share, call.bytes, size, size);
  announce(call, turn);
  for (u32 word = share.first; word < share.words && turn.sound; word += share.step) {
    uint2 own = load_8(call.input + mine.begin, mine.bytes, word), result;
    turn.sound = reduce_words<1, SOURCES_AT_ONCE>(call, turn, word, share, &own, &result);
    if (!turn.sound) return;
    all_have_started(call);
    send_to_all(call, turn, share.words + word, result);
    store_8(call.output + mine.begin, mine.bytes, word, result);
  }
  for (u32 step = 1; step < ranks && turn.sound; ++step) {
    u32 source = turned(call, step);
    Range range = range_of(call.bytes, size, source);
    turn.sound = take_words(call, turn, share, source, share.words, call.output + range.begin, range.bytes);
  }
}
