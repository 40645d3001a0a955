// Data and flags on their way, a warp's share at a time. In: a call, a turn, a bundle. Out: bundles of peers. Guarantee: a
// bundle is taken when all of it has come; all lanes of a warp call these together, and learn the same.
//
// As lines (LL128 of NCCL): 120 bytes and a flag in 128 bytes that eight lanes store with one instruction and load with
// another. NVLink and the memory behind it keep them together; other links need not. A barrier of the warp does not bring
// lanes together that run apart, which then store and load apart: they are asked, and go a longer way where flags come last
// and are looked at first. As words: two flags in 16 bytes.
#pragma once
#include "channel.cuh"
#include "pieces.cuh"

static const u32 ALL_LANES = 0xffffffffu;

// A lane's pieces of a bundle. The lanes that have a line's flag have no second one.
struct Bundle {
  uint4 first;
  uint4 second;
};

__device__ __forceinline__ u32 lane() { return threadIdx.x % 32; }

__device__ __forceinline__ bool has_flags() { return threadIdx.x % 8 == 7; }

// Where the lane's pieces stand in a bundle.
__device__ __forceinline__ u32 first_piece() { return lane(); }

__device__ __forceinline__ u32 second_piece() { return 32 + lane() - lane() / 8; }

// Bundles of a warp: `first`, `first + step` and so on below `bundles`.
struct Bundles {
  u32 first;
  u32 step;
  u32 bundles;
};

__device__ __forceinline__ Bundles bundles_of(u64 bytes) {
  u32 bundles = (u32)((bytes + 16 * BUNDLE_PIECES - 1) / (16 * BUNDLE_PIECES)), warps = blockDim.x / 32;
  return {blockIdx.x * warps + threadIdx.x / 32, gridDim.x * warps, bundles == 0 ? 1 : bundles};
}

struct Lines {
  // Where a bundle from `source` stands in the memory of `rank`.
  static __device__ __forceinline__ u64 place(const Call &call, const Turn &turn, u32 rank, u32 source, u32 bundle) {
    u32 slot = turn.parity * (call.channel.ranks - 1) + (source < rank ? source : source - 1);
    return call.channel.base[rank] + call.channel.lines + slot * call.channel.line_bytes + (u64)bundle * BUNDLE_BYTES;
  }

  static __device__ __forceinline__ void send(u64 place, const Bundle &own, u32 flag) {
    uint4 low = own.first, high = own.second;
    if (has_flags()) {
      low = make_uint4(own.first.x, own.first.y, flag, flag);
      high = make_uint4(own.first.z, own.first.w, flag, flag);
    }
    __syncwarp();
    if (__activemask() == ALL_LANES) {
      store(place, low, high);
    } else {
      store_apart(place, low, high);
    }
  }

  // Looks at a bundle; returns 0, or where a flag is that has not come.
  static __device__ __forceinline__ u64 look(u64 place, u32 flag, Bundle &theirs) {
    // The lane with the flag loads with the others, or it would say nothing of what they have.
    __syncwarp();
    if (__activemask() == ALL_LANES) {
      load(place, theirs);
      return has_flags() ? take_flags(place, flag, theirs) : 0;
    }
    // A copy, since what has an address is kept in memory.
    Bundle found;
    u64 missing = look_apart(place, flag, found);
    theirs = found;
    return missing;
  }

  // From a flag to the other one beside it.
  static const u32 TO_OTHER = 4;

 private:
  static __device__ __forceinline__ void store(u64 place, const uint4 &low, const uint4 &high) {
    store_volatile_128(place + lane() * 16, low);
    store_volatile_128(place + BUNDLE_BYTES / 2 + lane() * 16, high);
  }

  // Calls, so that their registers are their own.
  static __device__ __noinline__ void store_apart(u64 place, uint4 low, uint4 high) {
    if (!has_flags()) store(place, low, high);
    fence_acquire_release_system();
    __syncwarp();
    fence_acquire_release_system();
    if (has_flags()) store(place, low, high);
  }

  static __device__ __noinline__ u64 look_apart(u64 place, u32 flag, Bundle &theirs) {
    u64 missing = 0;
    if (has_flags()) {
      load(place, theirs);
      missing = take_flags(place, flag, theirs);
    }
    if (__any_sync(ALL_LANES, missing != 0)) return missing;
    fence_acquire_release_system();
    if (!has_flags()) load(place, theirs);
    return 0;
  }

  static __device__ __forceinline__ void load(u64 place, Bundle &theirs) {
    theirs.first = load_volatile_128(place + lane() * 16);
    theirs.second = load_volatile_128(place + BUNDLE_BYTES / 2 + lane() * 16);
  }

  // Leaves the data of a lane that has flags; returns 0, or where a flag is that has not come.
  static __device__ __forceinline__ u64 take_flags(u64 place, u32 flag, Bundle &theirs) {
    uint4 low = theirs.first, high = theirs.second;
    theirs.first = make_uint4(low.x, low.y, high.x, high.y);
    theirs.second = make_uint4(0, 0, 0, 0);
    if (low.z != flag || low.w != flag) return place + lane() * 16 + 8;
    return high.z != flag || high.w != flag ? place + BUNDLE_BYTES / 2 + lane() * 16 + 8 : 0;
  }
};

struct Words {
  static __device__ __forceinline__ u64 place(const Call &call, const Turn &turn, u32 rank, u32 source, u32 bundle) {
    return slot_of(call, turn, rank, source) + (u64)bundle * (BUNDLE_PIECES * 32);
  }

  static __device__ __forceinline__ void send(u64 place, const Bundle &own, u32 flag) {
    send_piece(place + first_piece() * 32, own.first, flag);
    if (!has_flags()) send_piece(place + second_piece() * 32, own.second, flag);
  }

  static __device__ __forceinline__ u64 look(u64 place, u32 flag, Bundle &theirs) {
    theirs.second = make_uint4(0, 0, 0, 0);
    u64 missing = look_at_piece(place + first_piece() * 32, flag, theirs.first);
    if (has_flags() || missing != 0) return missing;
    return look_at_piece(place + second_piece() * 32, flag, theirs.second);
  }

  static const u32 TO_OTHER = 8;

 private:
  static __device__ __forceinline__ void send_piece(u64 at, const uint4 &piece, u32 flag) {
    send_word(at, 0, make_uint2(piece.x, piece.y), flag);
    send_word(at, 1, make_uint2(piece.z, piece.w), flag);
  }

  static __device__ __forceinline__ u64 look_at_piece(u64 at, u32 flag, uint4 &piece) {
    uint4 low = load_volatile_128(at), high = load_volatile_128(at + 16);
    piece = make_uint4(low.x, low.z, high.x, high.z);
    if (!has_flag(low, flag)) return at + 4;
    return has_flag(high, flag) ? 0 : at + 20;
  }
};

// Sends a bundle to all peers.
template <typename Wire>
__device__ __forceinline__ void send_bundle(const Call &call, const Turn &turn, u32 bundle, const Bundle &own) {
#pragma unroll 1
  for (u32 step = 1; step < call.channel.ranks; ++step) {
    Wire::send(Wire::place(call, turn, turned(call, step), call.channel.rank, bundle), own, turn.flag);
  }
}

// Waits for a bundle of a peer.
template <typename Wire>
__device__ __forceinline__ bool receive_bundle(const Call &call, const Turn &turn, u32 peer, u64 place, Bundle &theirs) {
  for (u32 polls = 0;; ++polls) {
    u64 missing = Wire::look(place, turn.flag, theirs);
    if (__all_sync(ALL_LANES, missing == 0)) return true;
    if (polls < LOOK) continue;
    Wait wait = {peer, WAIT_WORD, turn.flag};
    bool came = missing == 0 || wait_long(call, turn.sequence, wait, missing, missing + Wire::TO_OTHER);
    if (!__all_sync(ALL_LANES, came)) return false;
  }
}
