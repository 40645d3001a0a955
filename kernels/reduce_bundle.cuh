// Bundles that are reduced. In: a call, a turn, this rank's bundle. Out: the reduced one. Guarantee: in the order of ranks, from
// rank 0's value on; all lanes of a warp learn alike whether all ranks' bundles came.
#pragma once
#include "accumulate.cuh"
#include "bundles.cuh"

// Reduces a bundle of two ranks, one piece after the other.
template <typename Wire>
__device__ __forceinline__ bool reduce_pair(const Call &call, const Turn &turn, u32 bundle, const Bundle &own,
                                            uint4 *result) {
  u32 rank = call.channel.rank, peer = 1 - rank;
  Bundle theirs;
  if (!receive_bundle<Wire>(call, turn, peer, Wire::place(call, turn, rank, peer, bundle), theirs)) return false;
#pragma unroll
  for (u32 number = 0; number < 2; ++number) {
    const uint4 &mine = number == 0 ? own.first : own.second, &other = number == 0 ? theirs.first : theirs.second;
    Sums<1> sums;
    uint4 earlier = rank == 0 ? mine : other, later = rank == 0 ? other : mine;
    sums.take(call.operation, true, &earlier);
    sums.take(call.operation, false, &later);
    sums.conclude_into(call.operation, 2, result + number);
  }
  return true;
}

// Pieces of a bundle whose sums a lane has registers for.
static const u32 AT_ONCE = Numeric<ELEMENT>::COUNT < 8 ? 2 : 1;

// The same of any number of ranks, SPAN pieces at a time; `own` gives this one's, which would take registers while others are
// waited for.
template <typename Wire, u32 SPAN, typename Own>
__device__ __forceinline__ bool reduce_bundle(const Call &call, const Turn &turn, u32 bundle, const Own &own,
                                              uint4 *result) {
  u32 ranks = call.channel.ranks, rank = call.channel.rank;
#pragma unroll
  for (u32 piece = 0; piece < 2; piece += SPAN) {
    Sums<SPAN> sums;
#pragma unroll 1
    for (u32 source = 0; source < ranks; ++source) {
      Bundle term;
      if (source == rank) {
        term = own();
      } else if (!receive_bundle<Wire>(call, turn, source, Wire::place(call, turn, rank, source, bundle), term)) {
        return false;
      }
      uint4 words[2] = {term.first, term.second};
      sums.take(call.operation, source == 0, words + piece);
    }
    sums.conclude_into(call.operation, ranks, result + piece);
  }
  return true;
}
