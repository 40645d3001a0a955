// Kernels of the driver that stands in, by the processor: `pack` and `ordered_writes`, of which params.h has the structures.
// In: a start, its tables, boards of other processes. Out: moved bytes, flags, verdicts. Guarantee: as the kernels'; one warp
// does all units in their order, and a wait ends within its limit.
#pragma once
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef unsigned long long u64;
typedef unsigned u32;

struct piece {
  u64 source, destination, source_row, destination_row, source_plane, destination_plane;
  u32 run, width, rows, unused;
};
struct unit {
  u32 piece, first, rows, gate, report;
};
struct report {
  u32 counter, units, first, count;
};
struct verdict {
  u32 state, phase, word, epoch, found, block, aborted, unused;
};
struct start {
  struct piece *pieces;
  struct unit *units;
  struct report *reports;
  u64 *targets;
  u32 *board;
  struct verdict *verdict;
  u32 *abort;
  u64 limit;
  u32 unit_count, phases, open_first, open_count, close_first, close_count;
  u32 await_first, await_count, leave_first, leave_count;
  u64 source_base, destination_base;
  u32 *finished;
  u32 tells, unused;
};
struct ordered {
  u32 *payload, *flag, *ack;
  u64 *wrong;
  struct verdict *verdict;
  u32 *abort;
  u64 limit;
  u32 words, rounds, first, writes;
};
enum { PHASE_OPEN = 1, PHASE_AWAIT = 2, PHASE_MOVE = 4, PHASE_CLOSE = 8, BOARD_EPOCH = 0, BOARD_FAILED = 1, BOARD_TOLD = 3 };
#define NONE 0xffffffffu

static u64 now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (u64)time.tv_sec * 1000000000 + time.tv_nsec;
}
static u32 load(u32 *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static void store(u32 *word, u32 value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

static int wait_for(u32 *words, u32 word, u32 epoch, u32 phase, u64 limit, u32 *abort, struct verdict *verdict) {
  u64 begun = now();
  for (;;) {
    u32 found = load(words + word);
    if ((int)(found - epoch) >= 0) return 1;
    if (load(abort) || now() - begun > limit) {
      *verdict = (struct verdict){1, phase, word, epoch, found, 0, load(abort), 0};
      store(&verdict->state, 2);
      return 0;
    }
    sched_yield();
  }
}
static void tell(const struct start *start, u32 first, u32 count, u32 epoch) {
  for (u32 target = first; target < first + count; ++target) store((u32 *)start->targets[target], epoch);
}
static int wait_for_all(const struct start *start, u32 first, u32 count, u32 epoch, u32 phase) {
  for (u32 word = first; word < first + count; ++word)
    if (!wait_for(start->board, word, epoch, phase, start->limit, start->abort, start->verdict)) return 0;
  return 1;
}
static void move_unit(const struct start *start, struct unit unit) {
  struct piece piece = start->pieces[unit.piece];
  for (u32 at = unit.first; at < unit.first + unit.rows; ++at) {
    u64 plane = at / piece.rows, row = at % piece.rows;
    u64 to = start->destination_base + piece.destination + plane * piece.destination_plane + row * piece.destination_row;
    u64 from = start->source_base + piece.source + plane * piece.source_plane + row * piece.source_row;
    if ((to | from | piece.run) % piece.width) abort();
    memmove((void *)to, (void *)from, piece.run);
  }
}
static int move_units(const struct start *start, u32 epoch) {
  for (u32 number = 0; number < start->unit_count; ++number) {
    struct unit unit = start->units[number];
    if (unit.gate != NONE &&
        !wait_for(start->board, unit.gate, epoch, PHASE_MOVE, start->limit, start->abort, start->verdict))
      return 0;
    move_unit(start, unit);
    if (unit.report == NONE) continue;
    struct report report = start->reports[unit.report];
    if (++start->board[report.counter] != report.units) continue;
    start->board[report.counter] = 0;
    tell(start, report.first, report.count, epoch);
  }
  return 1;
}
static void run_pack(const struct start *start) {
  u32 epoch = start->board[BOARD_EPOCH] + 1;
  if (epoch == 0) epoch = 1;
  if (start->phases & PHASE_OPEN) tell(start, start->open_first, start->open_count, epoch);
  int sound = start->board[BOARD_FAILED] != epoch;
  // What waits for nobody asks whether the host wants it.
  if (start->unit_count && !start->await_count && start->abort && load(start->abort)) {
    *start->verdict = (struct verdict){1, PHASE_MOVE, NONE, epoch, 0, 0, 1, 0};
    store(&start->verdict->state, 2);
    sound = 0;
  }
  if (sound && start->phases & PHASE_AWAIT)
    sound = wait_for_all(start, start->await_first, start->await_count, epoch, PHASE_AWAIT);
  if (sound && start->phases & PHASE_MOVE) sound = move_units(start, epoch);
  if (sound && start->phases & PHASE_CLOSE) {
    tell(start, start->close_first, start->close_count, epoch);
    sound = wait_for_all(start, start->leave_first, start->leave_count, epoch, PHASE_CLOSE);
    if (sound) start->board[BOARD_EPOCH] = epoch;
  }
  if (!sound) start->board[BOARD_FAILED] = epoch;
  if (start->tells && start->phases & PHASE_CLOSE) store(start->finished + !sound, ++start->board[BOARD_TOLD]);
}
static int links_are_broken(void) {
  const char *state = getenv("STAND_IN_LINKS");
  return state && strcmp(state, "broken") == 0;
}
static void run_ordered(const struct ordered *test) {
  for (u32 epoch = test->first; epoch < test->first + test->rounds; ++epoch) {
    if (test->writes) {
      // On a broken link the last word would come after the flag, too late for the reader.
      u32 words = test->words - (u32)links_are_broken();
      for (u32 word = 0; word < words; ++word) test->payload[word] = epoch * 0x9e3779b9u + word;
      store(test->flag, epoch);
      if (!wait_for(test->ack, 0, epoch, PHASE_CLOSE, test->limit, test->abort, test->verdict)) return;
      continue;
    }
    if (!wait_for(test->flag, 0, epoch, PHASE_AWAIT, test->limit, test->abort, test->verdict)) return;
    for (u32 word = 0; word < test->words; ++word) *test->wrong += test->payload[word] != epoch * 0x9e3779b9u + word;
    store(test->ack, epoch);
  }
}
