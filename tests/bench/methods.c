#define _GNU_SOURCE
#include "methods.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_PAGE = 2 << 20 };

static void give_up(const char *what) {
  fprintf(stderr, "crossmesh-bench-peers: %s\n", what);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

// Memory in huge pages where the kernel has them; the warm-up touches it.
static char *private_memory(size_t bytes) {
  size_t whole = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE + HUGE_PAGE;
  char *mapped = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) give_up("no memory");
  madvise(mapped, whole, MADV_HUGEPAGE);
  char *aligned = (char *)(((uintptr_t)mapped + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
  return aligned;
}

static int rank_of_source(int source) { return source; }
static int rank_of_destination(const struct job *job, int destination) { return job->shape.sources + destination; }

void job_init(struct job *job) {
  const struct shape *shape = &job->shape;
  int rank;
  MPI_Comm_rank(job->comm, &rank);
  MPI_Comm_size(job->comm, &job->ranks);
  job->source = rank < shape->sources ? rank : -1;
  job->destination = job->source < 0 ? rank - shape->sources : -1;
  bool is_source = job->source >= 0;
  struct box own = is_source ? source_box(shape, job->source) : destination_box(shape, job->destination);
  job->arena = arena_of(shape, own, is_source ? 0 : 1);
  job->memory = private_memory(job->arena.bytes);
  int peers = is_source ? destinations(shape) : shape->sources;
  for (int peer = 0; peer < peers; peer++) {
    struct box other = is_source ? destination_box(shape, peer) : source_box(shape, peer);
    job->meets[peer] = intersect(&own, &other, &job->common[peer]);
  }
}

void sleeping_barrier(MPI_Comm comm) {
  MPI_Request request;
  int done = 0;
  MPI_Ibarrier(comm, &request);
  for (;;) {
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done) return;
    usleep(20);
  }
}

// The arena of a source, as a destination sees it.
static struct arena arena_of_source(const struct job *job, int source) {
  return arena_of(&job->shape, source_box(&job->shape, source), 0);
}

// One run-copy for each tensor that a source and this destination share.
static void take(const struct job *job, int source, const struct arena *from, const char *memory) {
  struct runs runs = runs_between(&job->shape, &from->box, &job->arena.box, &job->common[source]);
  for (long t = 0; t < job->shape.tensors; t++)
    copy_runs(job->memory + job->arena.offset[t], memory + from->offset[t], &runs);
}

// --- MPI_Alltoallw: one subarray type for each peer, over all tensors

static struct {
  int send_count[MOST_RANKS], receive_count[MOST_RANKS], zero[MOST_RANKS];
  MPI_Datatype send_type[MOST_RANKS], receive_type[MOST_RANKS];
} alltoallw;

static MPI_Datatype element_type(const struct shape *shape) { return shape->element == 4 ? MPI_FLOAT : MPI_UINT16_T; }

static MPI_Datatype type_of(const struct job *job, const struct box *common) {
  int sizes[3], subsizes[3], starts[3];
  for (int k = 0; k < 3; k++) {
    sizes[k] = (int)job->arena.box.extent[k];
    subsizes[k] = (int)common->extent[k];
    starts[k] = (int)(common->first[k] - job->arena.box.first[k]);
  }
  MPI_Datatype one, all;
  MPI_Type_create_subarray(3, sizes, subsizes, starts, MPI_ORDER_C, element_type(&job->shape), &one);
  if (job->shape.tensors == 1) {
    all = one;
  } else {
    MPI_Aint *places = malloc(job->shape.tensors * sizeof *places);
    if (!places) give_up("no memory");
    for (long t = 0; t < job->shape.tensors; t++) places[t] = job->arena.offset[t];
    MPI_Type_create_hindexed_block((int)job->shape.tensors, 1, places, one, &all);
    free(places);
  }
  MPI_Type_commit(&all);
  return all;
}

static void alltoallw_prepare(struct job *job) {
  for (int rank = 0; rank < job->ranks; rank++)
    alltoallw.send_type[rank] = alltoallw.receive_type[rank] = element_type(&job->shape);
  bool is_source = job->source >= 0;
  int peers = is_source ? destinations(&job->shape) : job->shape.sources;
  for (int peer = 0; peer < peers; peer++) {
    if (!job->meets[peer]) continue;
    int rank = is_source ? rank_of_destination(job, peer) : rank_of_source(peer);
    (is_source ? alltoallw.send_count : alltoallw.receive_count)[rank] = 1;
    (is_source ? alltoallw.send_type : alltoallw.receive_type)[rank] = type_of(job, &job->common[peer]);
  }
}

static void alltoallw_run(struct job *job) {
  MPI_Alltoallw(job->memory, alltoallw.send_count, alltoallw.zero, alltoallw.send_type, job->memory,
                alltoallw.receive_count, alltoallw.zero, alltoallw.receive_type, job->comm);
}

// --- pull: sources live in a shared window, destinations copy out of it

static struct {
  MPI_Win window;
  char *own, *of_source[MOST_RANKS];
  struct arena arena[MOST_RANKS];
} pull;

static void pull_prepare(struct job *job) {
  MPI_Info info;
  MPI_Info_create(&info);
  MPI_Info_set(info, "alloc_shared_noncontig", "true");
  MPI_Win_allocate_shared(job->source >= 0 ? job->arena.bytes : 0, 1, info, job->comm, &pull.own, &pull.window);
  MPI_Info_free(&info);
  for (int source = 0; source < job->shape.sources; source++) {
    MPI_Aint bytes;
    int unit;
    MPI_Win_shared_query(pull.window, rank_of_source(source), &bytes, &unit, &pull.of_source[source]);
    pull.arena[source] = arena_of_source(job, source);
  }
  MPI_Win_lock_all(MPI_MODE_NOCHECK, pull.window);
}

static char *pull_memory(struct job *job) { return job->source >= 0 ? pull.own : job->memory; }

static void pull_run(struct job *job) {
  int sources = job->shape.sources;
  MPI_Win_sync(pull.window);
  sleeping_barrier(job->comm);
  MPI_Win_sync(pull.window);
  // Each destination begins at another source.
  for (int turn = 0; turn < sources && job->destination >= 0; turn++) {
    int source = (turn + job->destination) % sources;
    if (job->meets[source]) take(job, source, &pull.arena[source], pull.of_source[source]);
  }
  sleeping_barrier(job->comm);
}

// --- allgather: every rank gets every source, destinations cut out what they need

static struct {
  char *all;
  int count[MOST_RANKS], place[MOST_RANKS];
  MPI_Datatype of_source;
  struct arena arena[MOST_RANKS];
} allgather;

static void allgather_prepare(struct job *job) {
  // All sources are equally large.
  long bytes = arena_of_source(job, 0).bytes;
  for (int source = 0; source < job->shape.sources; source++) {
    allgather.arena[source] = arena_of_source(job, source);
    allgather.count[rank_of_source(source)] = 1;
    allgather.place[rank_of_source(source)] = source;
  }
  MPI_Type_contiguous((int)(bytes / job->shape.element), element_type(&job->shape), &allgather.of_source);
  MPI_Type_commit(&allgather.of_source);
  allgather.all = private_memory(bytes * job->shape.sources);
}

static void allgather_run(struct job *job) {
  MPI_Allgatherv(job->memory, job->source >= 0 ? 1 : 0, allgather.of_source, allgather.all, allgather.count,
                 allgather.place, allgather.of_source, job->comm);
  for (int source = 0; source < job->shape.sources && job->destination >= 0; source++)
    if (job->meets[source])
      take(job, source, &allgather.arena[source], allgather.all + source * allgather.arena[source].bytes);
}

const struct method METHODS[] = {
    {"alltoallw", alltoallw_prepare, alltoallw_run, NULL},
    {"pull", pull_prepare, pull_run, pull_memory},
    {"allgather", allgather_prepare, allgather_run, NULL},
    {"stream", stream_prepare, stream_run, stream_memory},
};
const int METHOD_COUNT = sizeof METHODS / sizeof METHODS[0];
