// Ways to move a tensor between two layouts that an MPI user would write by hand.
//
// In: a shape, a communicator of its sources followed by its destinations. Out: memory of this rank, a method by name.
// Guarantee: everything that can be prepared once (memory, types, windows) is prepared before the first run.
#ifndef CROSSMESH_BENCH_METHODS_H
#define CROSSMESH_BENCH_METHODS_H

#include "shape.h"

#include <mpi.h>

enum { MOST_RANKS = 64 };

// This rank's part of the job; a rank is a source or a destination.
struct job {
  MPI_Comm comm;
  struct shape shape;
  int ranks, source, destination;  // source, destination: this rank's index on that side, or -1
  struct arena arena;              // of this rank's side
  char *memory;                    // private
  struct box common[MOST_RANKS];   // with each peer of the other side
  bool meets[MOST_RANKS];
};

struct method {
  const char *name;
  // Makes what the method needs, then runs it.
  void (*prepare)(struct job *job);
  void (*run)(struct job *job);
  // Where this rank's tensors lie; the private memory when NULL.
  char *(*memory)(struct job *job);
};

extern const struct method METHODS[];
extern const int METHOD_COUNT;

void job_init(struct job *job);
// A barrier whose waiting ranks sleep and still let MPI progress, so that they leave their core to those that copy.
void sleeping_barrier(MPI_Comm comm);

// stream.c
void stream_prepare(struct job *job);
void stream_run(struct job *job);
char *stream_memory(struct job *job);

#endif
