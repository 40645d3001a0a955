// All-gather and broadcast, which move bytes. In: calls. Out: the output of each rank. Guarantee: every bit pattern
// arrives as it was sent; every rank sends each peer at least one word or flag; the input may be the rank's own place in
// the output (all-gather) or the output (broadcast).
#include "staging.cuh"
#include "words.cuh"

// Sends words of the input to all peers.
__device__ __forceinline__ void send_all(const Call &call, const Turn &turn, const Share &share) {
  for (u32 word = share.first; word < share.words; word += share.step) {
    send_to_all(call, turn, word, load_8(call.input, call.bytes, word));
  }
}

// Puts the rank's own share into its output.
__device__ __forceinline__ void keep_own(u64 input, u64 output, u64 bytes) {
  if (input != output) copy_pieces(input, output, bytes);
}

extern "C" __global__ void __launch_bounds__(512, 1) gather_push(const __grid_constant__ Call call) {
  enter_stream(call);
  u32 ranks = call.channel.ranks, rank = call.channel.rank;
  Share share = share_of(call.bytes);
  Turn turn = begin(call);
  if (turn.sound) send_all(call, turn, share);
  announce(call, turn);
  keep_own(call.input, call.output + rank * call.stride, call.bytes);
  for (u32 step = 1; step < ranks && turn.sound; ++step) {
    u32 source = turned(call, step);
    turn.sound = take_words(call, turn, share, source, 0, call.output + source * call.stride, call.bytes);
  }
}

// The others' acknowledgements are words of no bytes, to all: none is more than one call ahead of any other.
extern "C" __global__ void __launch_bounds__(512, 1) broadcast_push(const __grid_constant__ Call call) {
  enter_stream(call);
  u32 ranks = call.channel.ranks, rank = call.channel.rank;
  bool is_root = rank == call.root;
  Share share = share_of(call.bytes);
  Turn turn = begin(call);
  if (turn.sound && is_root) send_all(call, turn, share);
  if (turn.sound && !is_root && share.first == 0) send_to_all(call, turn, 0, make_uint2(0, 0));
  announce(call, turn);
  if (is_root) keep_own(call.input, call.output, call.bytes);
  for (u32 peer = share.first; peer < ranks && turn.sound; peer += share.step) {
    if (peer == rank || peer == call.root) continue;
    Awaited<1> awaited = {{slot_of(call, turn, rank, peer)}, {peer}};
    turn.sound = receive(call, turn, awaited);
  }
  if (turn.sound && !is_root) turn.sound = take_words(call, turn, share, call.root, 0, call.output, call.bytes);
}

extern "C" __global__ void __launch_bounds__(512, 1) gather_pull(const __grid_constant__ Call call) {
  __shared__ u64 sources[MAX_RANKS];
  Gate gate = gate_of(call, threadIdx.x);
  enter_stream(call);
  Turn turn = begin_pull(call);
  Shares all = {1, call.bytes, call.bytes, call.bytes};
  if (!open_inputs(call, turn, gate, all, sources)) return;
  keep_own(call.input, call.output + call.channel.rank * call.stride, call.bytes);
  for (u32 step = 1; step < call.channel.ranks; ++step) {
    u32 source = turned(call, step);
    copy_pieces(sources[source], call.output + source * call.stride, call.bytes);
  }
  if (call.parts & PART_LEAVE) leave(call, turn, gate, false);
}

extern "C" __global__ void __launch_bounds__(512, 1) broadcast_pull(const __grid_constant__ Call call) {
  __shared__ u64 sources[MAX_RANKS];
  Gate gate = gate_of(call, threadIdx.x);
  enter_stream(call);
  Turn turn = begin_pull(call);
  bool is_root = call.channel.rank == call.root;
  Shares all = {is_root, call.bytes, call.bytes, call.bytes};
  if (!open_inputs(call, turn, gate, all, sources)) return;
  keep_own(is_root ? call.input : sources[call.root], call.output, call.bytes);
  if (call.parts & PART_LEAVE) leave(call, turn, gate, false);
}
