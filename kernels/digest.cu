// Contents of tensors: digests and synthetic values. In: a box (params.h). Out: a sum, or filled elements.
// Guarantee: the digest is that of lib/layout/content_digest.rs; an element's value depends on its place alone, so that
// every rank fills the same tensor, whatever its layout.
#include "params.h"

static const u64 KEY = 0xa0761d6478bd642full;

// Place and address of element `number`.
__device__ __forceinline__ u64 locate(const Box &box, u64 number, u64 *address) {
  u64 place = box.place, at = box.address, rest = number;
  for (int dim = (int)box.rank - 1; dim >= 0; --dim) {
    u64 below = rest / box.extent[dim];
    u64 index = rest - below * box.extent[dim];
    at += index * box.stride[dim];
    place += index * box.step[dim];
    rest = below;
  }
  *address = at;
  return place;
}

__device__ __forceinline__ u64 element_at(u64 address, u32 bytes) {
  switch (bytes) {
    case 1:
      return *(const unsigned char *)address;
    case 2:
      return *(const unsigned short *)address;
    case 4:
      return *(const u32 *)address;
    default:
      return *(const u64 *)address;
  }
}

extern "C" __global__ void __launch_bounds__(256) digest(const __grid_constant__ Box box, u64 *sum) {
  u64 total = 0;
  u64 threads = (u64)gridDim.x * blockDim.x;
  for (u64 number = (u64)blockIdx.x * blockDim.x + threadIdx.x; number < box.elements; number += threads) {
    u64 address;
    u64 place = locate(box, number, &address);
    u64 element = element_at(address, box.element) ^ KEY;
    total += element * place ^ __umul64hi(element, place);
  }
  for (u32 step = 16; step > 0; step /= 2) total += __shfl_down_sync(0xffffffffu, total, step);
  if (threadIdx.x % 32 == 0) atomicAdd(sum, total);
}

// 64 well-mixed bits of a place.
__device__ __forceinline__ u64 mix(u64 word) {
  word = (word ^ (word >> 32)) * 0xd6e8feb86659fd93ull;
  word = (word ^ (word >> 29)) * 0xa0761d6478bd642full;
  return word ^ (word >> 32);
}

extern "C" __global__ void __launch_bounds__(256) fill(const __grid_constant__ Box box) {
  u64 threads = (u64)gridDim.x * blockDim.x;
  for (u64 number = (u64)blockIdx.x * blockDim.x + threadIdx.x; number < box.elements; number += threads) {
    u64 address;
    u64 value = mix(locate(box, number, &address));
    switch (box.element) {
      case 1:
        *(unsigned char *)address = (unsigned char)value;
        break;
      case 2:
        *(unsigned short *)address = (unsigned short)value;
        break;
      case 4:
        *(u32 *)address = (u32)value;
        break;
      default:
        *(u64 *)address = value;
    }
  }
}
