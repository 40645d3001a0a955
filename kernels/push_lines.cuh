// All-reduce by pushing lines. In: a call. Out: this rank's output. Guarantee: as by pushing words: every rank reduces in the
// order of ranks, from rank 0's value on; every rank sends each peer at least one bundle, also of an empty buffer; input and
// output may be the same.
#pragma once
#include "reduce_bundle.cuh"

template <bool WHOLE>
__device__ __forceinline__ Bundle load_bundle(u64 buffer, u64 bytes, u32 bundle) {
  u32 pieces = (u32)((bytes + 15) / 16), first = bundle * BUNDLE_PIECES + first_piece();
  u32 second = bundle * BUNDLE_PIECES + second_piece();
  Bundle own = {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
  if (first < pieces) own.first = load_own_16<WHOLE>(buffer, bytes, first);
  if (second < pieces && !has_flags()) own.second = load_own_16<WHOLE>(buffer, bytes, second);
  return own;
}

template <bool WHOLE>
__device__ __forceinline__ void store_bundle(u64 buffer, u64 bytes, u32 bundle, const uint4 *result) {
  u32 pieces = (u32)((bytes + 15) / 16), first = bundle * BUNDLE_PIECES + first_piece();
  u32 second = bundle * BUNDLE_PIECES + second_piece();
  if (first < pieces) store_16<WHOLE>(buffer, bytes, first, result[0]);
  if (second < pieces && !has_flags()) store_16<WHOLE>(buffer, bytes, second, result[1]);
}

// Two ranks, aligned pieces. A warp sends a bundle before it waits for the one before.
extern "C" __global__ void __launch_bounds__(512, 1) reduce_push_lines_pair(const __grid_constant__ Call call) {
  enter_stream(call);
  Bundles all = bundles_of(call.bytes);
  u32 bundle = all.first;
  Bundle own = load_bundle<true>(call.input, call.bytes, bundle);
  Turn turn = begin(call);
  if (bundle < all.bundles && turn.sound) send_bundle<Lines>(call, turn, bundle, own);
  announce(call, turn);
  if (!__all_sync(ALL_LANES, turn.sound)) return;
  while (bundle < all.bundles) {
    u32 next = bundle + all.step;
    Bundle following = load_bundle<true>(call.input, call.bytes, next);
    if (next < all.bundles) send_bundle<Lines>(call, turn, next, following);
    uint4 result[2];
    if (!reduce_pair<Lines>(call, turn, bundle, own, result)) return;
    all_have_started(call);
    store_bundle<true>(call.output, call.bytes, bundle, result);
    own = following;
    bundle = next;
  }
}

// The same for any number of ranks, size and alignment.
extern "C" __global__ void __launch_bounds__(512, 1) reduce_push_lines(const __grid_constant__ Call call) {
  enter_stream(call);
  Bundles all = bundles_of(call.bytes);
  auto own = [&](u32 bundle) { return load_bundle<false>(call.input, call.bytes, bundle); };
  Turn turn = begin(call);
  if (all.first < all.bundles && turn.sound) send_bundle<Lines>(call, turn, all.first, own(all.first));
  announce(call, turn);
  if (!__all_sync(ALL_LANES, turn.sound)) return;
  for (u32 bundle = all.first; bundle < all.bundles; bundle += all.step) {
    u32 next = bundle + all.step;
    if (next < all.bundles) send_bundle<Lines>(call, turn, next, own(next));
    uint4 result[2];
    if (!reduce_bundle<Lines, AT_ONCE>(call, turn, bundle, [&] { return own(bundle); }, result)) return;
    all_have_started(call);
    store_bundle<false>(call.output, call.bytes, bundle, result);
  }
}
