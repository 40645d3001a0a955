// Stands in for the CUDA driver on a machine without one: libcuda.so over memory of the host. In: calls of the driver
// interface, STAND_IN_DEVICES (2), STAND_IN_FABRIC (the folder through which fabric handles reach other hosts; without it
// there are none), STAND_IN_IMEX (`refused`: no allocation may have one; `split`: none is imported on another host),
// STAND_IN_LINKS (`broken`: flags overtake what was written before them; such GPUs have names of their own). Out: what the
// driver would answer. Guarantee: memory, mappings, descriptors, fabric handles and copies are real, across processes
// too. Work on streams is done at once, a launch of `pack` or `ordered_writes` included, so that ranks start in one order;
// on streams with priority it is done late, when their events have been asked for some times; on a stream that was let wait for a
// word, by a thread, in order. Other kernels are accepted and not run.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "stand_in_kernels.h"

enum { SUCCESS = 0, INVALID = 1, OUT_OF_MEMORY = 2, NOT_READY = 600, NOT_PERMITTED = 800, NOT_SUPPORTED = 801 };
enum { KIND_MALLOC = 1, KIND_POOL, KIND_VIRTUAL };
enum { GRANULARITY = 2 << 20, MOST = 4096 };

// Device memory of this process.
struct range {
  u64 base, bytes;
  int device, kind;
  struct handle *handle;
};
// A physical allocation: its descriptor, how it may be exported, how many hold it, its file where it has a fabric handle.
struct handle {
  int descriptor, device, exportable, references;
  u64 bytes;
  char fabric[64];
};
static struct range ranges[MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread u64 contexts[64];
static __thread int depth;

static int devices(void) {
  const char *text = getenv("STAND_IN_DEVICES");
  return text ? atoi(text) : 2;
}
static int current(void) { return depth > 0 ? (int)contexts[depth - 1] - 1 : 0; }

static struct range *find(u64 address) {
  for (int at = 0; at < MOST; ++at)
    if (ranges[at].base != 0 && address >= ranges[at].base && address < ranges[at].base + ranges[at].bytes)
      return &ranges[at];
  return NULL;
}
static int add(u64 base, u64 bytes, int device, int kind, struct handle *handle) {
  pthread_mutex_lock(&lock);
  int result = OUT_OF_MEMORY;
  for (int at = 0; at < MOST && result != SUCCESS; ++at)
    if (ranges[at].base == 0) {
      ranges[at] = (struct range){base, bytes, device, kind, handle};
      result = SUCCESS;
    }
  pthread_mutex_unlock(&lock);
  return result;
}
static int drop(u64 base) {
  pthread_mutex_lock(&lock);
  struct range *range = find(base);
  int result = range && range->base == base ? SUCCESS : INVALID;
  if (result == SUCCESS) range->base = 0;
  pthread_mutex_unlock(&lock);
  return result;
}

int cuInit(unsigned flags) { return flags; }
int cuDriverGetVersion(int *version) { return *version = 13000, SUCCESS; }
int cuDeviceGetCount(int *count) { return *count = devices(), SUCCESS; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, SUCCESS; }
int cuDeviceGetName(char *name, int size, int device) { return snprintf(name, size, "stand-in %d", device), SUCCESS; }
int cuDeviceGetPCIBusId(char *name, int size, int device) { return snprintf(name, size, "0000:%02X:00.0", device + 1), SUCCESS; }
int cuDeviceGetUuid_v2(char *uuid, int device) {
  memset(uuid, device + (links_are_broken() ? 101 : 1), 16);
  return gethostname(uuid, 12), SUCCESS;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  *value = attribute == 16 ? 4 : attribute == 75 ? 9 : attribute == 128 ? getenv("STAND_IN_FABRIC") != NULL : 0;
  return SUCCESS;
}
int cuDeviceCanAccessPeer(int *able, int device, int peer) { return (void)device, (void)peer, *able = 1, SUCCESS; }
int cuDeviceGetP2PAttribute(int *value, int attribute, int device, int peer) { return (void)attribute, *value = device != peer, SUCCESS; }
int cuDevicePrimaryCtxRetain(u64 *context, int device) { return *context = device + 1, SUCCESS; }
int cuDevicePrimaryCtxRelease_v2(int device) { return (void)device, SUCCESS; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { return (void)device, *flags = 0, *active = 1, SUCCESS; }
int cuCtxPushCurrent_v2(u64 context) { return contexts[depth++] = context, SUCCESS; }
int cuCtxPopCurrent_v2(u64 *context) { return *context = contexts[--depth], SUCCESS; }
int cuCtxSetCurrent(u64 context) { return depth = depth ? depth : 1, contexts[depth - 1] = context, SUCCESS; }
int cuCtxGetCurrent(u64 *context) { return *context = depth ? contexts[depth - 1] : 0, SUCCESS; }
int cuCtxEnablePeerAccess(u64 context, unsigned flags) { return (void)context, flags; }
int cuCtxSynchronize(void) { return SUCCESS; }
int cuGetErrorName(int code, const char **text) {
  *text = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : code == NOT_PERMITTED ? "CUDA_ERROR_NOT_PERMITTED" : "CUDA_ERROR_STAND_IN";
  return SUCCESS;
}
int cuGetErrorString(int code, const char **text) { return (void)code, *text = "the stand-in refuses it", SUCCESS; }

// Streams and events: everything is done when the call returns.
static int made(u64 **out) { return (*out = calloc(1, 8)) ? SUCCESS : OUT_OF_MEMORY; }
enum { LATE = 3, ROOM = 1 << 16 };
// Rows, or a launch when there is a start: of some units, or of a whole kernel. Or a wait for a word; or bytes to be set.
struct work {
  char *to, *from;
  size_t to_step, from_step, run, rows;
  struct start start;
  int kernel, fills;
  u32 *word, value;
};
struct stream {
  int captured, late, threaded, ends;
  u64 issued, done;
  struct work *works;
  pthread_t thread;
};
struct event {
  u64 time, position;
  int asked;
  struct stream *stream;
};
static void run_pack(const struct start *start);
static void move(const struct work *work) {
  if (work->kernel) return run_pack(&work->start);
  if (work->fills) memset(work->to, (int)work->value, work->run);
  for (size_t row = 0; row < work->rows; ++row)
    memmove(work->to + row * work->to_step, work->from + row * work->from_step, work->run);
  for (u32 number = 0; number < work->start.unit_count; ++number) move_unit(&work->start, work->start.units[number]);
}
static u64 reached(const u64 *count) { return __atomic_load_n(count, __ATOMIC_ACQUIRE); }
static int put(struct stream *stream, struct work work) {
  if (stream == NULL || !(stream->late || stream->threaded)) return move(&work), SUCCESS;
  if (stream->issued - reached(&stream->done) == ROOM) return OUT_OF_MEMORY;
  stream->works[stream->issued % ROOM] = work;
  __atomic_store_n(&stream->issued, stream->issued + 1, __ATOMIC_RELEASE);
  return SUCCESS;
}
static void *work_off(void *given) {
  struct stream *stream = given;
  while (!__atomic_load_n(&stream->ends, __ATOMIC_ACQUIRE)) {
    struct work *work = &stream->works[stream->done % ROOM];
    if (reached(&stream->issued) == stream->done || (work->word && (int)(load(work->word) - work->value) < 0)) {
      usleep(20);
      continue;
    }
    if (!work->word) move(work);
    __atomic_store_n(&stream->done, stream->done + 1, __ATOMIC_RELEASE);
  }
  return NULL;
}
static void catch_up(struct stream *stream, u64 position) {
  while (stream->done < position) move(&stream->works[stream->done++ % ROOM]);
}
int cuStreamCreate(struct stream **stream, unsigned flags) { return (void)flags, *stream = calloc(1, sizeof **stream), SUCCESS; }
int cuStreamCreateWithPriority(struct stream **stream, unsigned flags, int priority) {
  cuStreamCreate(stream, flags);
  (*stream)->late = priority < 0;
  return ((*stream)->works = calloc(ROOM, sizeof(struct work))) ? SUCCESS : OUT_OF_MEMORY;
}
int cuCtxGetStreamPriorityRange(int *least, int *greatest) { return *least = 0, *greatest = -5, SUCCESS; }
int cuStreamDestroy_v2(struct stream *stream) {
  if (stream == NULL) return SUCCESS;
  __atomic_store_n(&stream->ends, 1, __ATOMIC_RELEASE);
  if (stream->threaded) pthread_join(stream->thread, NULL);
  return free(stream->works), free(stream), SUCCESS;
}
int cuStreamQuery(struct stream *stream) {
  return stream && stream->threaded && reached(&stream->done) < stream->issued ? NOT_READY : SUCCESS;
}
int cuStreamGetPriority(struct stream *stream, int *priority) { return *priority = stream && stream->late ? -5 : 0, SUCCESS; }
int cuStreamSynchronize(struct stream *stream) {
  while (cuStreamQuery(stream) == NOT_READY) usleep(20);
  return SUCCESS;
}
int cuStreamWaitEvent(struct stream *stream, u64 *event, unsigned flags) { return (void)stream, (void)event, flags; }
int cuStreamWaitValue32_v2(struct stream *stream, u64 at, unsigned value, unsigned flags) {
  if (stream == NULL || stream->late || flags != 0) return INVALID;
  if (!stream->threaded) {
    if (!(stream->works = calloc(ROOM, sizeof(struct work)))) return OUT_OF_MEMORY;
    if (pthread_create(&stream->thread, NULL, work_off, stream)) return OUT_OF_MEMORY;
    stream->threaded = 1;
  }
  return put(stream, (struct work){.word = (u32 *)at, .value = value});
}
int cuStreamIsCapturing(struct stream *stream, int *status) { return *status = stream ? stream->captured : 0, SUCCESS; }
int cuStreamBeginCapture_v2(struct stream *stream, int mode) { return (void)mode, stream->captured = 1, SUCCESS; }
// A graph, and what is made of it: nothing, which is what a capture has, or one kernel.
struct graph {
  u64 function;
  struct start start;
};
struct node {
  u64 function;
  unsigned grid[7];
  void **arguments, **extra, *kernel, *context;
};
int cuLaunchKernel(u64 function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y, unsigned threads_z,
                   unsigned shared, struct stream *stream, void **arguments, void **extra);
int cuGraphCreate(struct graph **graph, unsigned flags) { return (*graph = calloc(1, sizeof **graph)) ? (int)flags : OUT_OF_MEMORY; }
int cuStreamEndCapture(struct stream *stream, struct graph **graph) { return stream->captured = 0, cuGraphCreate(graph, 0); }
enum { NO_KERNEL = 1, PACK, ORDERED_WRITES };
int cuGraphAddKernelNode_v2(u64 **place, struct graph *graph, const void *before, size_t count, const struct node *node) {
  (void)before, *place = NULL;
  graph->function = node->function;
  if (node->function == PACK) graph->start = *(struct start *)node->arguments[0];
  return count ? INVALID : SUCCESS;
}
int cuGraphInstantiateWithFlags(struct graph **executable, const struct graph *graph, u64 flags) {
  if (cuGraphCreate(executable, (unsigned)flags)) return OUT_OF_MEMORY;
  return **executable = *graph, SUCCESS;
}
int cuGraphUpload(struct graph *executable, struct stream *stream) { return executable && stream ? SUCCESS : INVALID; }
int cuGraphLaunch(struct graph *executable, struct stream *stream) {
  void *arguments[] = {&executable->start};
  return executable->function ? cuLaunchKernel(executable->function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL) : SUCCESS;
}
int cuGraphDestroy(struct graph *graph) { return free(graph), SUCCESS; }
int cuGraphExecDestroy(struct graph *executable) { return free(executable), SUCCESS; }
int cuEventCreate(struct event **event, unsigned flags) { return (void)flags, *event = calloc(1, sizeof **event), SUCCESS; }
int cuEventDestroy_v2(struct event *event) { return free(event), SUCCESS; }
int cuEventRecord(struct event *event, struct stream *stream) {
  *event = (struct event){now(), stream ? stream->issued : 0, 0, stream};
  return SUCCESS;
}
int cuEventQuery(struct event *event) {
  if (event->stream == NULL || reached(&event->stream->done) >= event->position) return SUCCESS;
  if (event->stream->threaded || ++event->asked < LATE) return NOT_READY;
  return catch_up(event->stream, event->position), SUCCESS;
}
int cuEventElapsedTime_v2(float *milliseconds, struct event *first, struct event *last) {
  return *milliseconds = (last->time - first->time) / 1e6f, SUCCESS;
}
int cuModuleLoadData(u64 **module, const void *image) { return (void)image, made(module); }
int cuModuleGetFunction(u64 *function, u64 *module, const char *name) {
  (void)module;
  *function = strcmp(name, "pack") == 0 ? PACK : strcmp(name, "ordered_writes") == 0 ? ORDERED_WRITES : NO_KERNEL;
  return SUCCESS;
}
int cuLaunchKernel(u64 function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y, unsigned threads_z,
                   unsigned shared, struct stream *stream, void **arguments, void **extra) {
  (void)x, (void)y, (void)z, (void)threads, (void)threads_y, (void)threads_z, (void)shared, (void)extra;
  if (function == ORDERED_WRITES) return run_ordered(arguments[0]), SUCCESS;
  if (function != PACK || stream == NULL) return SUCCESS;
  struct start *start = arguments[0];
  if (start->phases == PHASE_MOVE) return stream->late ? put(stream, (struct work){.rows = 0, .start = *start}) : SUCCESS;
  return put(stream, (struct work){.start = *start, .kernel = 1});
}

// Copies.
int cuMemcpyAsync(u64 to, u64 from, size_t bytes, struct stream *stream) {
  return put(stream, (struct work){(char *)to, (char *)from, bytes, bytes, bytes, 1, .kernel = 0});
}
int cuMemcpyDtoHAsync_v2(void *to, u64 from, size_t bytes, struct stream *stream) { return find(from) ? cuMemcpyAsync((u64)to, from, bytes, stream) : INVALID; }
int cuMemcpyHtoDAsync_v2(u64 to, const void *from, size_t bytes, struct stream *stream) { return find(to) ? cuMemcpyAsync(to, (u64)from, bytes, stream) : INVALID; }
int cuMemcpyDtoH_v2(void *to, u64 from, size_t bytes) { return cuMemcpyDtoHAsync_v2(to, from, bytes, NULL); }
int cuMemcpyHtoD_v2(u64 to, const void *from, size_t bytes) { return cuMemcpyHtoDAsync_v2(to, from, bytes, NULL); }
int cuMemsetD8Async(u64 at, unsigned char byte, size_t bytes, struct stream *stream) {
  return put(stream, (struct work){.to = (char *)at, .run = bytes, .fills = 1, .value = byte});
}
int cuMemsetD8_v2(u64 at, unsigned char byte, size_t bytes) { return cuMemsetD8Async(at, byte, bytes, NULL); }
struct side {
  size_t x, y;
  int kind;
  const void *host;
  u64 device;
  void *array;
  size_t pitch;
};
struct copy {
  struct side from, to;
  size_t width, height;
};
int cuMemcpy2DAsync_v2(const struct copy *copy, struct stream *stream) {
  const struct side *sides[] = {&copy->from, &copy->to};
  char *start[2];
  for (int at = 0; at < 2; ++at) {
    if (sides[at]->pitch < copy->width || sides[at]->pitch > INT32_MAX) return INVALID;
    start[at] = sides[at]->kind == 1 ? (char *)sides[at]->host : (char *)sides[at]->device;
  }
  return put(stream, (struct work){start[1], start[0], copy->to.pitch, copy->from.pitch, copy->width, copy->height, .kernel = 0});
}

// Memory of the host.
int cuMemHostAlloc(void **out, size_t bytes, unsigned flags) { return (void)flags, posix_memalign(out, 4096, bytes) ? OUT_OF_MEMORY : SUCCESS; }
int cuMemFreeHost(void *start) { return free(start), SUCCESS; }
int cuMemHostGetDevicePointer_v2(u64 *out, void *start, unsigned flags) { return *out = (u64)start, flags; }
int cuMemHostRegister_v2(void *start, size_t bytes, unsigned flags) { return (void)start, (void)bytes, (void)flags, SUCCESS; }
int cuMemHostUnregister(void *start) { return (void)start, SUCCESS; }

// Memory of devices. That of cudaMalloc lies in a file of the shared memory file system, whose name is its handle.
struct ipc {
  char name[64];
};
int cuMemGetInfo_v2(size_t *left, size_t *all) { return *left = *all = (size_t)1 << 37, SUCCESS; }
static void name_of(u64 base, char *name) { snprintf(name, 64, "/stand-in-%d-%llx", getpid(), base); }
static void *map_file(const char *name, int flags, size_t bytes) {
  int file = shm_open(name, O_RDWR | flags, 0600);
  if (file < 0) return MAP_FAILED;
  if (flags && ftruncate(file, bytes)) return MAP_FAILED;
  struct stat status;
  fstat(file, &status);
  void *start = mmap(NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return start;
}
int cuMemAlloc_v2(u64 *out, size_t bytes) {
  static int count;
  struct ipc temporary, name;
  snprintf(temporary.name, 64, "/stand-in-%d-new%d", getpid(), __sync_fetch_and_add(&count, 1));
  void *start = map_file(temporary.name, O_CREAT | O_EXCL, bytes);
  if (start == MAP_FAILED) return OUT_OF_MEMORY;
  name_of((u64)start, name.name);
  char from[96], to[96];
  snprintf(from, 96, "/dev/shm%s", temporary.name);
  snprintf(to, 96, "/dev/shm%s", name.name);
  rename(from, to);
  return add((u64)(*out = (u64)start), bytes, current(), KIND_MALLOC, NULL);
}
int cuMemFree_v2(u64 base) {
  struct ipc name;
  name_of(base, name.name);
  shm_unlink(name.name);
  return drop(base);
}
int cuMemAllocAsync(u64 *out, size_t bytes, u64 *stream) {
  (void)stream;
  void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return start == MAP_FAILED ? OUT_OF_MEMORY : add(*out = (u64)start, bytes, current(), KIND_POOL, NULL);
}
int cuMemFreeAsync(u64 base, u64 *stream) { return (void)stream, drop(base); }
int cuIpcGetMemHandle(struct ipc *handle, u64 base) { return name_of(base, handle->name), SUCCESS; }
int cuIpcOpenMemHandle_v2(u64 *out, struct ipc handle, unsigned flags) {
  (void)flags;
  void *start = map_file(handle.name, 0, 0);
  return start == MAP_FAILED ? INVALID : (*out = (u64)start, SUCCESS);
}
int cuIpcCloseMemHandle(u64 base) { return (void)base, SUCCESS; }

// The virtual memory interface.
struct properties {
  int type, handles, location, device;
};
int cuMemGetAllocationGranularity(size_t *out, const struct properties *properties, int option) {
  return (void)properties, (void)option, *out = GRANULARITY, SUCCESS;
}
enum { DESCRIPTOR = 1, FABRIC = 8 };
static int imex_is(const char *state) { return getenv("STAND_IN_IMEX") && strcmp(getenv("STAND_IN_IMEX"), state) == 0; }
// A file of the folder that stands for the fabric: HOST,PROCESS-NUMBER.
static int fabric_file(const char *name, int flags) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", getenv("STAND_IN_FABRIC"), name);
  return open(path, O_RDWR | O_CLOEXEC | flags, 0600);
}
int cuMemCreate(struct handle **out, size_t bytes, const struct properties *properties, u64 flags) {
  (void)flags;
  static int count;
  char host[32] = "";
  if (properties->handles & FABRIC && getenv("STAND_IN_FABRIC") == NULL) return NOT_SUPPORTED;
  if (properties->handles & FABRIC && imex_is("refused")) return NOT_PERMITTED;
  struct handle *handle = calloc(1, sizeof *handle);
  *handle = (struct handle){-1, properties->device, properties->handles & (DESCRIPTOR | FABRIC), 1, bytes, ""};
  if (properties->handles & FABRIC) {
    gethostname(host, sizeof host - 1);
    snprintf(handle->fabric, 64, "%s,%d-%d", host, getpid(), __sync_fetch_and_add(&count, 1));
    handle->descriptor = fabric_file(handle->fabric, O_CREAT | O_EXCL);
  } else {
    handle->descriptor = memfd_create("stand-in", MFD_CLOEXEC);
  }
  *out = handle;
  return handle->descriptor < 0 || ftruncate(handle->descriptor, bytes) ? OUT_OF_MEMORY : SUCCESS;
}
int cuMemRelease(struct handle *handle) {
  if (__sync_sub_and_fetch(&handle->references, 1) == 0) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("STAND_IN_FABRIC") ? getenv("STAND_IN_FABRIC") : "", handle->fabric);
    // A fabric handle keeps nothing alive: who would import it finds nothing from here on.
    if (handle->fabric[0]) unlink(path);
    close(handle->descriptor);
    free(handle);
  }
  return SUCCESS;
}
int cuMemAddressReserve(u64 *out, size_t bytes, size_t alignment, u64 wanted, u64 flags) {
  (void)alignment, (void)wanted, (void)flags;
  void *start = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return start == MAP_FAILED ? OUT_OF_MEMORY : (*out = (u64)start, SUCCESS);
}
int cuMemAddressFree(u64 base, size_t bytes) { return munmap((void *)base, bytes) ? INVALID : SUCCESS; }
int cuMemMap(u64 at, size_t bytes, size_t offset, struct handle *handle, u64 flags) {
  (void)flags;
  void *start = mmap((void *)at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, handle->descriptor, offset);
  if (start == MAP_FAILED) return INVALID;
  __sync_add_and_fetch(&handle->references, 1);
  return add(at, bytes, handle->device, KIND_VIRTUAL, handle);
}
int cuMemUnmap(u64 at, size_t bytes) {
  struct range *range = find(at);
  if (range == NULL) return INVALID;
  cuMemRelease(range->handle);
  mmap((void *)at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  return drop(at);
}
int cuMemSetAccess(u64 at, size_t bytes, const void *access, size_t count) { return (void)at, (void)bytes, (void)access, (void)count, SUCCESS; }
int cuMemRetainAllocationHandle(struct handle **out, void *address) {
  struct range *range = find((u64)address);
  if (range == NULL || range->handle == NULL) return INVALID;
  __sync_add_and_fetch(&range->handle->references, 1);
  return *out = range->handle, SUCCESS;
}
int cuMemGetAllocationPropertiesFromHandle(struct properties *properties, struct handle *handle) {
  return properties->handles = handle->exportable, properties->device = handle->device, SUCCESS;
}
int cuMemExportToShareableHandle(void *out, struct handle *handle, int kind, u64 flags) {
  (void)flags;
  if (!(handle->exportable & kind)) return NOT_SUPPORTED;
  if (kind == FABRIC) return memcpy(out, handle->fabric, 64), SUCCESS;
  return *(int *)out = dup(handle->descriptor), SUCCESS;
}
int cuMemImportFromShareableHandle(struct handle **out, void *given, int kind) {
  struct stat status;
  char host[32] = "";
  gethostname(host, sizeof host - 1);
  size_t length = strlen(host);
  if (kind == FABRIC && imex_is("split") && (strncmp(given, host, length) || ((char *)given)[length] != ','))
    return NOT_PERMITTED;
  int file = kind == FABRIC ? fabric_file(given, 0) : dup((int)(uintptr_t)given);
  if (file < 0 || fstat(file, &status)) return INVALID;
  struct handle *handle = calloc(1, sizeof *handle);
  *handle = (struct handle){file, current(), DESCRIPTOR, 1, status.st_size, ""};
  return *out = handle, SUCCESS;
}

// What an address is.
int cuPointerGetAttribute(void *out, int attribute, u64 address) {
  pthread_mutex_lock(&lock);
  struct range *range = find(address);
  u64 value = 0;
  int wide = 1;
  if (range == NULL) {
    pthread_mutex_unlock(&lock);
    return INVALID;
  }
  switch (attribute) {
    case 2: value = 2, wide = 0; break;
    case 9: value = range->device, wide = 0; break;
    case 10: value = range->kind == KIND_MALLOC, wide = 0; break;
    case 11: case 19: value = range->base; break;
    case 12: case 18: value = range->bytes; break;
    case 17: value = range->kind == KIND_POOL; break;
    default: pthread_mutex_unlock(&lock); return INVALID;
  }
  pthread_mutex_unlock(&lock);
  if (wide) memcpy(out, &value, 8);
  else memcpy(out, &value, 4);
  return SUCCESS;
}
