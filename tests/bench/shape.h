// Where a tensor lies on source and destination ranks, and what its elements are.
//
// In: a shape in numbers. Out: boxes, runs of bytes, values. Guarantee: the same boxes, places and values as the crossmesh
// side of the bench has, so that both move the same bytes between the same places.
#ifndef CROSSMESH_BENCH_SHAPE_H
#define CROSSMESH_BENCH_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

// A part of the global tensor.
struct box {
  long first[3], extent[3];
};

// One or many equal tensors; sources cut one dimension, destinations cut one and may repeat every part.
struct shape {
  long global[3];
  long element, tensors;
  int source_dim, sources;
  int destination_dim, parts, replicas;
};

// A rank's memory of one side: where each tensor begins.
struct arena {
  struct box box;
  long *offset;
  long shard, bytes;
};

// Equally long runs of bytes, two loops deep, from a stored box to another.
struct runs {
  long source, destination, bytes;
  long count[2], source_step[2], destination_step[2];
};

int destinations(const struct shape *shape);
struct box source_box(const struct shape *shape, int index);
struct box destination_box(const struct shape *shape, int index);
bool intersect(const struct box *one, const struct box *other, struct box *common);
// Tensors lie in a random order, the same in every run; side is 0 for sources, 1 for destinations.
struct arena arena_of(const struct shape *shape, struct box box, int side);
struct runs runs_between(const struct shape *shape, const struct box *from, const struct box *to, const struct box *common);
void copy_runs(char *to, const char *from, const struct runs *runs);
void fill(const struct shape *shape, const struct arena *arena, char *memory, uint32_t seed);
long count_wrong(const struct shape *shape, const struct arena *arena, const char *memory, uint32_t seed);

#endif
