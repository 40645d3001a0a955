// All-reduce and reduce-scatter for one element type, which the macro ELEMENT names (collective.h). In: calls. Out: reduced
// buffers. Guarantee: that of each kernel's file.
#include "push.cuh"
#include "push_lines.cuh"
#include "pull.cuh"
#include "shards.cuh"
#include "ring.cuh"
