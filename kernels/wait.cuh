// Waits that end. In: a word, the epoch that somebody will store in it. Out: whether it came.
// Guarantee: a wait ends when the word has the epoch, when its limit has passed, when the host says so or when another
// wait of this start has given up; the first that gives up tells the host where and why. Words count up, so that a
// word that is ahead has the epoch too.
#pragma once
#include "ptx.cuh"

// Polls between two looks at clock and host.
static const u32 LOOK = 256;
// Pause between two polls after the first looks, nanoseconds.
static const u32 PAUSE = 200;

__device__ __forceinline__ bool has_come(u32 found, u32 epoch) { return (int)(found - epoch) >= 0; }

// Tells the host; only the first one of a start does.
__device__ __noinline__ void give_up(Verdict *verdict, u32 phase, u32 word, u32 epoch, u32 found, bool aborted) {
  if (compare_exchange_relaxed_system_32(&verdict->state, 0, 1) != 0) return;
  verdict->phase = phase;
  verdict->word = word;
  verdict->epoch = epoch;
  verdict->found = found;
  verdict->block = blockIdx.x;
  verdict->aborted = aborted;
  store_release_system_32(&verdict->state, 2);
}

// One thread waits for word `word` of `words`.
__device__ __noinline__ bool wait_for(const u32 *words, u32 word, u32 epoch, u32 phase, u64 limit, const u32 *abort,
                                      u32 *failed, Verdict *verdict) {
  u64 begun = 0;
  for (u32 polls = 1;; ++polls) {
    u32 found = load_acquire_system_32(words + word);
    if (has_come(found, epoch)) return true;
    if (polls % LOOK != 0) continue;
    u64 now = nanoseconds();
    if (begun == 0) begun = now;
    bool aborted = load_relaxed_system_32(abort) != 0;
    bool given_up = failed != nullptr && load_relaxed_device_32(failed) == epoch;
    if (given_up || aborted || now - begun > limit) {
      if (failed != nullptr) store_relaxed_device_32(failed, epoch);
      if (!given_up) give_up(verdict, phase, word, epoch, found, aborted);
      return false;
    }
    sleep_nanoseconds(PAUSE);
  }
}
