// stream: what the memory of this machine allows. Sources and destinations lie in shared memory in huge pages; each source
// goes through its part once, in order, and writes every run to its destination with non-temporal stores.
//
// In: a job. Out: moved bytes. Guarantee: no bookkeeping between the copies; it relies on cuts that are the same for all
// destinations, as the shapes of the bench have them.
#define _GNU_SOURCE
#include "methods.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

enum { HUGE = 2 << 20, BLOCK = 16 << 10, LINE = 64 };
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static struct {
  char *of_rank[MOST_RANKS];
  int peers;
  int rank_of_peer[MOST_RANKS];
  struct arena arena[MOST_RANKS];
  struct runs runs[MOST_RANKS];
} stream;

static void give_up(const char *what) {
  fprintf(stderr, "crossmesh-bench-peers: stream: %s\n", what);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static long whole(long bytes) { return (bytes + HUGE - 1) / HUGE * HUGE; }

static char *map(int file, long bytes) {
  char *range = mmap(NULL, bytes + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) give_up("no address space");
  char *aligned = (char *)(((uintptr_t)range + HUGE - 1) / HUGE * HUGE);
  if (mmap(aligned, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) give_up("no memory");
  return aligned;
}

// Memory of every rank, mapped by all.
static void share(const struct job *job, int rank) {
  long mine[3] = {getpid(), memfd_create("crossmesh-bench-stream", MFD_CLOEXEC), whole(job->arena.bytes)};
  if (mine[1] < 0 || ftruncate((int)mine[1], mine[2]) != 0) give_up("no shared memory");
  char *own = map((int)mine[1], mine[2]);
  for (long at = 0; at < mine[2]; at += HUGE) own[at] = 0;
  // Where the kernel cannot, ordinary pages remain.
  madvise(own, mine[2], MADV_COLLAPSE);
  long(*all)[3] = malloc(job->ranks * sizeof *all);
  if (!all) give_up("no memory");
  MPI_Allgather(mine, 3, MPI_LONG, all, 3, MPI_LONG, job->comm);
  for (int peer = 0; peer < job->ranks; peer++) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/fd/%ld", all[peer][0], all[peer][1]);
    int file = peer == rank ? (int)mine[1] : open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) give_up("a peer's memory cannot be opened");
    stream.of_rank[peer] = peer == rank ? own : map(file, all[peer][2]);
  }
  // Nobody closes its descriptor before all have opened it.
  MPI_Barrier(job->comm);
  free(all);
}

void stream_prepare(struct job *job) {
  int rank;
  MPI_Comm_rank(job->comm, &rank);
  share(job, rank);
  for (int peer = 0; peer < destinations(&job->shape) && job->source >= 0; peer++) {
    if (!job->meets[peer]) continue;
    struct box box = destination_box(&job->shape, peer);
    int number = stream.peers++;
    stream.rank_of_peer[number] = job->shape.sources + peer;
    stream.arena[number] = arena_of(&job->shape, box, 1);
    stream.runs[number] = runs_between(&job->shape, &job->arena.box, &box, &job->common[peer]);
  }
}

char *stream_memory(struct job *job) {
  return stream.of_rank[job->source >= 0 ? job->source : job->shape.sources + job->destination];
}

#ifdef __x86_64__
__attribute__((target("avx512f"))) static void lines_512(char *to, const char *from, long bytes) {
  for (long at = 0; at < bytes; at += LINE) _mm512_stream_si512((void *)(to + at), _mm512_loadu_si512(from + at));
}

__attribute__((target("avx2"))) static void lines_256(char *to, const char *from, long bytes) {
  for (long at = 0; at < bytes; at += LINE / 2)
    _mm256_stream_si256((void *)(to + at), _mm256_loadu_si256((const void *)(from + at)));
}
#endif

static void copy(char *to, const char *from, long bytes) {
#ifdef __x86_64__
  if (((uintptr_t)to | bytes) % LINE == 0 && __builtin_cpu_supports("avx512f")) return lines_512(to, from, bytes);
  if (((uintptr_t)to | bytes) % LINE == 0 && __builtin_cpu_supports("avx2")) return lines_256(to, from, bytes);
#endif
  memcpy(to, from, bytes);
}

// One run to every destination, in blocks that stay in the cache until all have them.
static void run_to_all(const char *from, long tensor, long i, long j) {
  long bytes = stream.runs[0].bytes;
  for (long at = 0; at < bytes; at += BLOCK)
    for (int peer = 0; peer < stream.peers; peer++) {
      const struct runs *runs = &stream.runs[peer];
      char *to = stream.of_rank[stream.rank_of_peer[peer]] + stream.arena[peer].offset[tensor] + runs->destination +
                 i * runs->destination_step[0] + j * runs->destination_step[1];
      const char *first = from + runs->source + i * runs->source_step[0] + j * runs->source_step[1];
      copy(to + at, first + at, at + BLOCK < bytes ? BLOCK : bytes - at);
    }
}

void stream_run(struct job *job) {
  sleeping_barrier(job->comm);
  if (stream.peers > 0) {
    const struct runs *runs = &stream.runs[0];
    for (long t = 0; t < job->shape.tensors; t++)
      for (long i = 0; i < runs->count[0]; i++)
        for (long j = 0; j < runs->count[1]; j++)
          run_to_all(stream.of_rank[job->source] + job->arena.offset[t], t, i, j);
  }
#ifdef __x86_64__
  _mm_sfence();
#endif
  sleeping_barrier(job->comm);
}
