// Moves strided pieces between tensors and staging, from a table. In: a start (params.h). Out: moved bytes, flags.
// Guarantee: nothing is read before its owner has opened this epoch and has the bytes; a launch ends within its limit,
// whoever fails; ranks move units in one order, so that the first unfinished unit of that order can always go on, given
// that all blocks of a launch are resident.
#include "wait.cuh"

static const u32 THREADS = 512;
// Resident blocks of a multiprocessor, which bounds the registers.
static const u32 BLOCKS = 1;
static const u32 WARP = 32;
static const u32 UNROLL = 8;
// Blocks count what they add when they are through; one that gave up adds this more.
static const u32 GAVE_UP = 1u << 16;

template <typename Word>
__device__ __forceinline__ Word load_once(const Word *address) {
  return *address;
}

template <>
__device__ __forceinline__ uint4 load_once(const uint4 *address) {
  return load_weak_once_128(address);
}

// One side of a unit: where its first plane begins, and its steps.
struct Side {
  u64 start;
  u64 row;
  u64 plane;
};

// Offset of word `at` of a unit on one side.
__device__ __forceinline__ u64 offset_of(const Side &side, u32 row, u32 plane, u32 column) {
  return plane * side.plane + row * side.row + column;
}

// One warp moves rows first..first+rows of `run` bytes, `in_plane` of them in a plane: loads of UNROLL words are under
// way before the first is stored. A call, so that the widths share the kernel's registers.
template <typename Word>
__device__ __noinline__ void move_rows(Side source, Side destination, u32 run, u32 first, u32 rows, u32 in_plane) {
  const u32 width = sizeof(Word);
  u32 in_row = run / width;
  u32 count = in_row * rows;
  bool one_plane = first + rows <= in_plane;
  for (u32 base = threadIdx.x % WARP; base < count; base += WARP * UNROLL) {
    Word words[UNROLL];
#pragma unroll
    for (u32 step = 0; step < UNROLL; ++step) {
      u32 at = base + step * WARP;
      u32 row = rows == 1 ? 0 : at / in_row;
      u32 column = (at - row * in_row) * width;
      u32 plane = one_plane ? 0 : (first + row) / in_plane;
      if (at < count) {
        words[step] = load_once((const Word *)(source.start + offset_of(source, first + row - plane * in_plane, plane, column)));
      }
    }
#pragma unroll
    for (u32 step = 0; step < UNROLL; ++step) {
      u32 at = base + step * WARP;
      u32 row = rows == 1 ? 0 : at / in_row;
      u32 column = (at - row * in_row) * width;
      u32 plane = one_plane ? 0 : (first + row) / in_plane;
      if (at < count) {
        *(Word *)(destination.start + offset_of(destination, first + row - plane * in_plane, plane, column)) = words[step];
      }
    }
  }
}

// Unit `number`, if there is one.
__device__ __forceinline__ Unit read_unit(const Start &start, u32 number) {
  if (number >= start.unit_count) return Unit{0, 0, 0, NONE, NONE};
  return start.units[number];
}

// The piece of a unit that there is.
__device__ __forceinline__ Piece read_piece(const Start &start, const Unit &unit) {
  return unit.rows == 0 ? Piece{} : start.pieces[unit.piece];
}

__device__ __forceinline__ void move_unit(const Start &start, const Unit &unit, const Piece &piece) {
  u32 plane = unit.first / piece.rows;
  u32 first = unit.first - plane * piece.rows;
  Side source = {start.source_base + piece.source + plane * piece.source_plane, piece.source_row, piece.source_plane};
  Side destination = {start.destination_base + piece.destination + plane * piece.destination_plane,
                      piece.destination_row, piece.destination_plane};
  switch (piece.width) {
    case 16:
      return move_rows<uint4>(source, destination, piece.run, first, unit.rows, piece.rows);
    case 8:
      return move_rows<u64>(source, destination, piece.run, first, unit.rows, piece.rows);
    case 4:
      return move_rows<u32>(source, destination, piece.run, first, unit.rows, piece.rows);
    case 2:
      return move_rows<unsigned short>(source, destination, piece.run, first, unit.rows, piece.rows);
    default:
      return move_rows<unsigned char>(source, destination, piece.run, first, unit.rows, piece.rows);
  }
}

// A unit that others wait for is done; the last one of its report tells them.
__device__ void report_unit(const Start &start, u32 number, u32 epoch) {
  Report report = start.reports[number];
  fence_acquire_release_system();
  u32 before = add_acquire_release_device_32(start.board + report.counter, 1);
  if (before + 1 != report.units) return;
  store_relaxed_device_32(start.board + report.counter, 0);
  fence_acquire_release_system();
  for (u32 target = 0; target < report.count; ++target) {
    store_release_system_32((u32 *)start.targets[report.first + target], epoch);
  }
}

// A warp waits for word `gate`, unless it waited for it just before.
__device__ __forceinline__ bool pass_gate(const Start &start, u32 gate, u32 epoch, u32 lane) {
  bool open = true;
  if (lane == 0) {
    open = wait_for(start.board, gate, epoch, PHASE_MOVE, start.limit, start.abort, start.board + BOARD_FAILED,
                    start.verdict);
  }
  return __shfl_sync(0xffffffffu, open, 0);
}

// The first unit of a warp: neighbouring units go to different multiprocessors.
__device__ __forceinline__ u32 first_unit() { return threadIdx.x / WARP * gridDim.x + blockIdx.x; }

// Moves this warp's units; `unit` is the first.
__device__ bool move_units(const Start &start, Unit unit, Piece piece, u32 epoch) {
  u32 lane = threadIdx.x % WARP;
  u32 warps = gridDim.x * (THREADS / WARP);
  // What this block has awaited needs no look.
  u32 awaited = start.phases & PHASE_AWAIT ? start.await_count : 0;
  u32 passed = NONE;
  for (u32 number = first_unit(); number < start.unit_count;) {
    u32 report = unit.report;
    if (unit.gate != passed && unit.gate - start.await_first >= awaited) {
      if (unit.gate != NONE && !pass_gate(start, unit.gate, epoch, lane)) return false;
      passed = unit.gate;
    }
    move_unit(start, unit, piece);
    number += warps;
    unit = read_unit(start, number);
    piece = read_piece(start, unit);
    if (report != NONE) {
      __syncwarp();
      if (lane == 0) report_unit(start, report, epoch);
    }
  }
  return true;
}

// Tells peers. A release store orders all that this thread saw before it: what earlier launches and, behind a barrier, other
// threads did.
__device__ void tell(const Start &start, u32 first, u32 count, u32 epoch) {
  for (u32 target = threadIdx.x; target < count; target += THREADS) {
    store_release_system_32((u32 *)start.targets[first + target], epoch);
  }
}

// A block waits for words of the board; whether all came.
__device__ bool wait_for_all(const Start &start, u32 first, u32 count, u32 epoch, u32 phase) {
  bool came = true;
  for (u32 word = threadIdx.x; word < count && came; word += THREADS) {
    came = wait_for(start.board, first + word, epoch, phase, start.limit, start.abort, start.board + BOARD_FAILED,
                    start.verdict);
  }
  return __syncthreads_and(came);
}

// Whether the host wants what waits for nobody; whatever waits looks there by itself.
__device__ bool is_wanted(const Start &start, u32 epoch) {
  bool aborted = threadIdx.x == 0 && start.abort != nullptr && load_relaxed_system_32(start.abort) != 0;
  if (aborted) {
    store_relaxed_device_32(start.board + BOARD_FAILED, epoch);
    give_up(start.verdict, PHASE_MOVE, NONE, epoch, 0, true);
  }
  return !__syncthreads_or(aborted);
}

// Counts this block; whether it is the last, and then whether none gave up. The barrier orders a block's threads before its
// count, the counts order the blocks before the last, whose stores release all of it.
__device__ bool is_last(const Start &start, bool &sound) {
  __shared__ u32 before;
  sound = __syncthreads_and(sound);
  u32 count = sound ? 1 : 1 + GAVE_UP;
  if (threadIdx.x == 0) before = add_acquire_release_device_32(start.board + BOARD_EXITS, count);
  __syncthreads();
  sound = before + count < GAVE_UP;
  return before % GAVE_UP + 1 == gridDim.x;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) pack(const __grid_constant__ Start start) {
  u32 closed = load_relaxed_device_32(start.board + BOARD_EPOCH);
  // 0 is what fresh words hold.
  u32 epoch = closed + 1 == 0 ? 1 : closed + 1;
  if (blockIdx.x == 0 && (start.phases & PHASE_OPEN)) tell(start, start.open_first, start.open_count, epoch);
  // What this warp moves first is read while it waits.
  Unit unit = read_unit(start, first_unit());
  bool sound = load_relaxed_device_32(start.board + BOARD_FAILED) != epoch;
  u32 told = load_relaxed_device_32(start.board + BOARD_TOLD) + start.tells;
  Piece piece = read_piece(start, unit);
  if (sound && start.unit_count != 0 && start.await_count == 0) sound = is_wanted(start, epoch);
  if (sound && (start.phases & PHASE_AWAIT)) {
    sound = wait_for_all(start, start.await_first, start.await_count, epoch, PHASE_AWAIT);
  }
  if (sound && (start.phases & PHASE_MOVE)) sound = move_units(start, unit, piece, epoch);
  if (!(start.phases & PHASE_CLOSE) || !is_last(start, sound)) return;
  // Everything that this rank reads has been read. A start that failed is not closed: every later one fails at once.
  if (sound) tell(start, start.close_first, start.close_count, epoch);
  if (threadIdx.x == 0) {
    store_relaxed_device_32(start.board + BOARD_EXITS, 0);
    store_relaxed_device_32(start.board + BOARD_TOLD, told);
    if (sound) store_relaxed_device_32(start.board + BOARD_EPOCH, epoch);
  }
  sound = sound && wait_for_all(start, start.leave_first, start.leave_count, epoch, PHASE_CLOSE);
  if (threadIdx.x != 0) return;
  if (!sound) store_relaxed_device_32(start.board + BOARD_EPOCH, closed);
  // Before the launch is over and its mark has been passed.
  if (start.tells) store_release_system_32(start.finished + (sound ? 0 : 1), told);
}
