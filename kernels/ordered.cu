// Whether writes of one device reach another in order: payload, then flag. In: one end each (params.h). Out: the number
// of words that were wrong when their flag had come. Guarantee: ends within its limit; every round has other contents,
// so that a word of the round before is noticed.
#include "wait.cuh"

__device__ __forceinline__ u32 payload_word(u32 epoch, u32 word) { return epoch * 0x9e3779b9u + word; }

__device__ bool write_round(const OrderedWrites &test, u32 epoch) {
  for (u32 word = threadIdx.x; word < test.words; word += blockDim.x) test.payload[word] = payload_word(epoch, word);
  __syncthreads();
  bool came = true;
  if (threadIdx.x == 0) {
    store_release_system_32(test.flag, epoch);
    came = wait_for(test.ack, 0, epoch, PHASE_CLOSE, test.limit, test.abort, nullptr, test.verdict);
  }
  return __syncthreads_and(came);
}

__device__ bool read_round(const OrderedWrites &test, u32 epoch) {
  bool came = true;
  if (threadIdx.x == 0) {
    came = wait_for(test.flag, 0, epoch, PHASE_AWAIT, test.limit, test.abort, nullptr, test.verdict);
  }
  if (!__syncthreads_and(came)) return false;
  u32 wrong = 0;
  for (u32 word = threadIdx.x; word < test.words; word += blockDim.x) {
    wrong += load_relaxed_system_32(test.payload + word) != payload_word(epoch, word);
  }
  if (wrong != 0) atomicAdd(test.wrong, (u64)wrong);
  __syncthreads();
  if (threadIdx.x == 0) store_release_system_32(test.ack, epoch);
  return true;
}

extern "C" __global__ void __launch_bounds__(256) ordered_writes(const __grid_constant__ OrderedWrites test) {
  for (u32 round = 0; round < test.rounds; ++round) {
    u32 epoch = test.first + round;
    if (!(test.writes ? write_round(test, epoch) : read_round(test, epoch))) return;
  }
}
