#include "shape.h"

#include <stdlib.h>
#include <string.h>

// Between tensors of an arena.
enum { GAP = 64 };

int destinations(const struct shape *shape) { return shape->parts * shape->replicas; }

static struct box part_of(const struct shape *shape, int dim, int count, int index) {
  struct box box;
  for (int k = 0; k < 3; k++) {
    box.first[k] = 0;
    box.extent[k] = shape->global[k];
  }
  box.extent[dim] = shape->global[dim] / count;
  box.first[dim] = index * box.extent[dim];
  return box;
}

struct box source_box(const struct shape *shape, int index) {
  return part_of(shape, shape->source_dim, shape->sources, index);
}

struct box destination_box(const struct shape *shape, int index) {
  return part_of(shape, shape->destination_dim, shape->parts, index % shape->parts);
}

bool intersect(const struct box *one, const struct box *other, struct box *common) {
  for (int k = 0; k < 3; k++) {
    long first = one->first[k] > other->first[k] ? one->first[k] : other->first[k];
    long end = one->first[k] + one->extent[k], other_end = other->first[k] + other->extent[k];
    if (other_end < end) end = other_end;
    if (end <= first) return false;
    common->first[k] = first;
    common->extent[k] = end - first;
  }
  return true;
}

// Fisher and Yates' shuffle with a fixed generator of random numbers.
static long *shuffled(long count, uint64_t state) {
  long *order = malloc(count * sizeof *order);
  if (!order) abort();
  for (long i = 0; i < count; i++) order[i] = i;
  for (long i = count - 1; i > 0; i--) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    long j = (long)((state >> 33) % (uint64_t)(i + 1));
    long swapped = order[i];
    order[i] = order[j];
    order[j] = swapped;
  }
  return order;
}

struct arena arena_of(const struct shape *shape, struct box box, int side) {
  struct arena arena = {.box = box};
  arena.shard = box.extent[0] * box.extent[1] * box.extent[2] * shape->element;
  long step = arena.shard + (shape->tensors > 1 ? GAP : 0);
  arena.offset = shuffled(shape->tensors, 5 + side);
  for (long t = 0; t < shape->tensors; t++) arena.offset[t] *= step;
  arena.bytes = step * shape->tensors;
  return arena;
}

struct runs runs_between(const struct shape *shape, const struct box *from, const struct box *to, const struct box *common) {
  long element = shape->element;
  long from_step[3] = {from->extent[1] * from->extent[2] * element, from->extent[2] * element, element};
  long to_step[3] = {to->extent[1] * to->extent[2] * element, to->extent[2] * element, element};
  struct runs runs = {.bytes = common->extent[2] * element};
  for (int k = 0; k < 3; k++) {
    runs.source += (common->first[k] - from->first[k]) * from_step[k];
    runs.destination += (common->first[k] - to->first[k]) * to_step[k];
  }
  for (int k = 0; k < 2; k++) {
    runs.count[k] = common->extent[k];
    runs.source_step[k] = from_step[k];
    runs.destination_step[k] = to_step[k];
  }
  // What is contiguous on both sides is one run.
  if (from_step[1] == runs.bytes && to_step[1] == runs.bytes) {
    runs.bytes *= runs.count[1];
    runs.count[1] = 1;
  }
  if (runs.count[1] == 1 && from_step[0] == runs.bytes && to_step[0] == runs.bytes) {
    runs.bytes *= runs.count[0];
    runs.count[0] = 1;
  }
  return runs;
}

void copy_runs(char *to, const char *from, const struct runs *runs) {
  to += runs->destination;
  from += runs->source;
  for (long i = 0; i < runs->count[0]; i++)
    for (long j = 0; j < runs->count[1]; j++)
      memcpy(to + i * runs->destination_step[0] + j * runs->destination_step[1],
             from + i * runs->source_step[0] + j * runs->source_step[1], runs->bytes);
}

static inline uint32_t value(uint32_t index, uint32_t seed) {
  uint32_t mixed = index * 0x9E3779B1u + seed;
  return mixed ^ mixed >> 15;
}

// Number, over all tensors, of the first element of a stored row; rows of a shard follow each other in memory.
static uint32_t first_of_row(const struct shape *shape, const struct box *box, long tensor, long row) {
  long i = box->first[0] + row / box->extent[1], j = box->first[1] + row % box->extent[1];
  long outer = (tensor * shape->global[0] + i) * shape->global[1] + j;
  return (uint32_t)(outer * shape->global[2] + box->first[2]);
}

void fill(const struct shape *shape, const struct arena *arena, char *memory, uint32_t seed) {
  long rows = arena->box.extent[0] * arena->box.extent[1], elements = arena->box.extent[2];
  for (long t = 0; t < shape->tensors; t++)
    for (long row = 0; row < rows; row++) {
      char *place = memory + arena->offset[t] + row * elements * shape->element;
      uint32_t first = first_of_row(shape, &arena->box, t, row);
      if (shape->element == 4) {
        uint32_t *words = (uint32_t *)place;
        for (long k = 0; k < elements; k++) words[k] = value(first + (uint32_t)k, seed);
      } else {
        uint16_t *words = (uint16_t *)place;
        for (long k = 0; k < elements; k++) words[k] = (uint16_t)value(first + (uint32_t)k, seed);
      }
    }
}

long count_wrong(const struct shape *shape, const struct arena *arena, const char *memory, uint32_t seed) {
  long rows = arena->box.extent[0] * arena->box.extent[1], elements = arena->box.extent[2], wrong = 0;
  for (long t = 0; t < shape->tensors; t++)
    for (long row = 0; row < rows; row++) {
      const char *place = memory + arena->offset[t] + row * elements * shape->element;
      uint32_t first = first_of_row(shape, &arena->box, t, row), wrong_in_row = 0;
      if (shape->element == 4) {
        const uint32_t *words = (const uint32_t *)place;
        for (long k = 0; k < elements; k++) wrong_in_row += words[k] != value(first + (uint32_t)k, seed);
      } else {
        const uint16_t *words = (const uint16_t *)place;
        for (long k = 0; k < elements; k++) wrong_in_row += words[k] != (uint16_t)value(first + (uint32_t)k, seed);
      }
      wrong += wrong_in_row;
    }
  return wrong;
}
