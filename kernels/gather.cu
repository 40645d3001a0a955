// All-gather and broadcast, which move bytes. In: calls. Out: the output of each rank. Guarantee: every bit pattern
// arrives as it was sent; every rank sends each peer at least one word or flag; the input may be the rank's own place in
// the output (all-gather) or the output (broadcast).
#include "staging.cuh"
#include "words.cuh"

__device__ __forceinline__ u64 first_of_thread() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }

__device__ __forceinline__ u64 step_of_threads() { return (u64)gridDim.x * blockDim.x; }

// Pieces of one source that a thread has under way.
static const u32 SPAN = 4;

// Sends words of the input to all peers.
__device__ __forceinline__ void send_all(const Call &call, const Turn &turn, const Share &share) {
  for (u64 word = share.first; word < share.words; word += share.step) {
    send_to_all(call, turn, word, load_8(call.input, call.bytes, word));
  }
}

// Puts the rank's own share into its output.
__device__ __forceinline__ void keep_own(u64 input, u64 output, u64 bytes) {
  if (input == output) return;
  for (u64 word = first_of_thread(); word * 8 < bytes; word += step_of_threads()) {
    store_8(output, bytes, word, load_8(input, bytes, word));
  }
}

extern "C" __global__ void __launch_bounds__(512) gather_push(const __grid_constant__ Call call) {
  enter_stream(call);
  u32 ranks = call.channel.ranks, rank = call.channel.rank;
  Share share = share_of(call.bytes);
  Turn turn = begin(call);
  if (turn.sound) send_all(call, turn, share);
  if (turn.sound) keep_own(call.input, call.output + rank * call.stride, call.bytes);
  for (u32 step = 1; step < ranks && turn.sound; ++step) {
    u32 source = turned(call, step);
    turn.sound = take_words(call, turn, share, source, 0, call.output + source * call.stride, call.bytes);
  }
  finish(call, turn);
}

// The others' acknowledgements are words of no bytes, to all: none is more than one call ahead of any other.
extern "C" __global__ void __launch_bounds__(512) broadcast_push(const __grid_constant__ Call call) {
  enter_stream(call);
  u32 ranks = call.channel.ranks, rank = call.channel.rank;
  bool is_root = rank == call.root;
  Share share = share_of(call.bytes);
  Turn turn = begin(call);
  if (turn.sound && is_root) {
    send_all(call, turn, share);
    keep_own(call.input, call.output, call.bytes);
  }
  for (u32 peer = first_of_thread(); peer < ranks && turn.sound; peer += step_of_threads()) {
    if (peer == rank) continue;
    if (!is_root) send_word(slot_of(call, turn, peer, rank), 0, make_uint2(0, 0), turn.flag);
    if (peer == call.root) continue;
    Awaited<1> awaited = {{slot_of(call, turn, rank, peer)}, {peer}};
    turn.sound = receive(call, turn, awaited);
  }
  if (turn.sound && !is_root) turn.sound = take_words(call, turn, share, call.root, 0, call.output, call.bytes);
  finish(call, turn);
}

// Copies `bytes` bytes at a peer's address.
__device__ __forceinline__ void copy_from(u64 source, u64 output, u64 bytes) {
  u64 pieces = (bytes + 15) / 16, step = step_of_threads();
  for (u64 piece = first_of_thread(); piece < pieces; piece += step * SPAN) {
    uint4 found[SPAN];
#pragma unroll
    for (u32 number = 0; number < SPAN; ++number) found[number] = load_16(source, bytes, piece + number * step);
#pragma unroll
    for (u32 number = 0; number < SPAN; ++number) store_16(output, bytes, piece + number * step, found[number]);
  }
}

extern "C" __global__ void __launch_bounds__(512) gather_pull(const __grid_constant__ Call call) {
  __shared__ u64 sources[MAX_RANKS];
  enter_stream(call);
  u32 ranks = call.channel.ranks, rank = call.channel.rank;
  Turn turn = begin_pull(call);
  find_sources(call, turn, sources);
  Shares all = {1, call.bytes, call.bytes, call.bytes};
  if (turn.sound) turn.sound = open_inputs(call, turn, all);
  if (turn.sound) {
    u64 own = call.output + rank * call.stride;
    if (call.input != own) copy_from(call.input, own, call.bytes);
    for (u32 step = 1; step < ranks; ++step) {
      u32 source = turned(call, step);
      copy_from(sources[source], call.output + source * call.stride, call.bytes);
    }
    if (call.parts & PART_LEAVE) turn.sound = meet(call, turn, 2, false);
  }
  finish_pull(call, turn);
}

extern "C" __global__ void __launch_bounds__(512) broadcast_pull(const __grid_constant__ Call call) {
  __shared__ u64 sources[MAX_RANKS];
  enter_stream(call);
  Turn turn = begin_pull(call);
  find_sources(call, turn, sources);
  bool is_root = call.channel.rank == call.root;
  Shares all = {is_root, call.bytes, call.bytes, call.bytes};
  if (turn.sound) turn.sound = open_inputs(call, turn, all);
  if (turn.sound) {
    u64 source = is_root ? call.input : sources[call.root];
    if (source != call.output) copy_from(source, call.output, call.bytes);
    if (call.parts & PART_LEAVE) turn.sound = meet(call, turn, 2, false);
  }
  finish_pull(call, turn);
}
