// What crossmesh is compared with: methods that an MPI user would write by hand, run one at a time on command.
//
//   mpirun ... crossmesh-bench-peers METHODS G0 G1 G2 ELEMENT TENSORS SOURCE_DIM SOURCES DESTINATION_DIM PARTS REPLICAS
//
// In: a shape; on rank 0's standard input lines "METHOD SEED". Out: "ready", then for each line "METHOD SECONDS SPREAD WRONG":
// from the first rank's start to the last rank's end, from the first start to the last, and wrong elements.
// Guarantee: sources hold new values and destinations are poisoned before each run; every element is compared after it; a
// rank that waits for a command sleeps in the kernel. Ends with its standard input.
#define _GNU_SOURCE
#include "methods.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// Commands of rank 0, in memory that all ranks share.
struct post {
  pthread_barrier_t barrier;
  int method;  // negative: the end
  uint32_t seed;
};

enum { POISON = 0xa5, END = -1, ARGUMENTS = 12 };
// From the agreement on a start to the start; as on the crossmesh side.
static const double LEAD = 0.005;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + 1e-9 * time.tv_nsec;
}

// All ranks sleep until one moment.
static void start_together(MPI_Comm comm) {
  sleeping_barrier(comm);
  double mine = now(), start;
  MPI_Allreduce(&mine, &start, 1, MPI_DOUBLE, MPI_MAX, comm);
  start += LEAD;
  struct timespec until = {.tv_sec = (time_t)start, .tv_nsec = (long)((start - (time_t)start) * 1e9)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0) {
  }
}

static void run_once(struct job *job, const struct method *method, uint32_t seed) {
  char *memory = method->memory ? method->memory(job) : job->memory;
  if (job->source >= 0)
    fill(&job->shape, &job->arena, memory, seed);
  else
    memset(memory, POISON, job->arena.bytes);
  start_together(job->comm);
  double began = now();
  method->run(job);
  double ended = now();
  // A rank that is done sleeps: the others get its core.
  sleeping_barrier(job->comm);
  long wrong = job->destination >= 0 ? count_wrong(&job->shape, &job->arena, memory, seed) : 0;
  // The greatest of (-began, began, ended) is (-first start, last start, last end).
  double mine[3] = {-began, began, ended}, most[3];
  long all_wrong = 0;
  sleeping_barrier(job->comm);
  MPI_Reduce(mine, most, 3, MPI_DOUBLE, MPI_MAX, 0, job->comm);
  MPI_Reduce(&wrong, &all_wrong, 1, MPI_LONG, MPI_SUM, 0, job->comm);
  if (job->source == 0) {
    printf("%s %.9f %.9f %ld\n", method->name, most[2] + most[0], most[1] + most[0], all_wrong);
    fflush(stdout);
  }
}

static struct post *shared_post(MPI_Comm comm, int rank, int ranks) {
  MPI_Win window;
  struct post *post;
  MPI_Aint bytes;
  int unit;
  MPI_Win_allocate_shared(rank == 0 ? sizeof *post : 0, 1, MPI_INFO_NULL, comm, &post, &window);
  MPI_Win_shared_query(window, 0, &bytes, &unit, &post);
  if (rank == 0) {
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&post->barrier, &attributes, ranks);
  }
  MPI_Barrier(comm);
  return post;
}

static int find(const char *name) {
  for (int m = 0; m < METHOD_COUNT; m++)
    if (strcmp(METHODS[m].name, name) == 0) return m;
  fprintf(stderr, "crossmesh-bench-peers: no method %s\n", name);
  return END;
}

// The next command; only rank 0 reads, the others sleep until it has.
static bool next(struct post *post, int rank) {
  if (rank == 0) {
    char line[128], name[64];
    post->method = END;
    if (fgets(line, sizeof line, stdin) && sscanf(line, "%63s %u", name, &post->seed) == 2) post->method = find(name);
  }
  pthread_barrier_wait(&post->barrier);
  bool more = post->method >= 0;
  // Nobody reads the post any more when rank 0 writes it again.
  pthread_barrier_wait(&post->barrier);
  return more;
}

static struct shape read_shape(char **words) {
  long number[10];
  for (int k = 0; k < 10; k++) number[k] = atol(words[k]);
  return (struct shape){
      .global = {number[0], number[1], number[2]},
      .element = number[3],
      .tensors = number[4],
      .source_dim = (int)number[5],
      .sources = (int)number[6],
      .destination_dim = (int)number[7],
      .parts = (int)number[8],
      .replicas = (int)number[9],
  };
}

static void refuse(const char *why) {
  fprintf(stderr, "crossmesh-bench-peers: %s\n", why);
  MPI_Abort(MPI_COMM_WORLD, 2);
}

int main(int count, char **words) {
  MPI_Init(&count, &words);
  if (count != ARGUMENTS) refuse("wants METHODS and ten numbers; crossmesh bench reshard starts it");
  struct job job = {.comm = MPI_COMM_WORLD, .shape = read_shape(words + 2)};
  const struct shape *shape = &job.shape;
  int rank, ranks;
  MPI_Comm_rank(job.comm, &rank);
  MPI_Comm_size(job.comm, &ranks);
  if (shape->parts < 1 || shape->replicas < 1 || shape->sources < 1 || ranks > MOST_RANKS) refuse("no such job");
  if (ranks != shape->sources + destinations(shape)) refuse("the job has not as many ranks as the shape");
  if (shape->element != 2 && shape->element != 4) refuse("elements have 2 or 4 bytes");
  job_init(&job);
  for (char *name = strtok(words[1], ","); name; name = strtok(NULL, ",")) {
    int method = find(name);
    if (method < 0) refuse("unknown method");
    METHODS[method].prepare(&job);
  }
  struct post *post = shared_post(job.comm, rank, ranks);
  if (rank == 0) {
    puts("ready");
    fflush(stdout);
  }
  while (next(post, rank)) run_once(&job, &METHODS[post->method], post->seed);
  MPI_Finalize();
  return 0;
}
