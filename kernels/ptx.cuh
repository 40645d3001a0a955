// Memory instructions, one function each, named semantics_scope_width.
// In: addresses. Out: values. Guarantee: each function is exactly the instruction that its name says; widths in bits.
#pragma once
#include "params.h"

__device__ __forceinline__ u32 load_acquire_system_32(const u32 *address) {
  u32 value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ u32 load_relaxed_system_32(const u32 *address) {
  u32 value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ u32 load_relaxed_device_32(const u32 *address) {
  u32 value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ void store_release_system_32(u32 *address, u32 value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void store_relaxed_system_32(u32 *address, u32 value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void store_relaxed_device_32(u32 *address, u32 value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void fence_acquire_release_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// A word of 16 bytes that another device writes or reads; each half of it is whole.
__device__ __forceinline__ uint4 load_volatile_128(u64 address) {
  uint4 value;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address)
               : "memory");
  return value;
}

__device__ __forceinline__ void store_volatile_128(u64 address, uint4 value) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

__device__ __forceinline__ uint2 load_weak_64(u64 address) {
  uint2 value;
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ uint4 load_weak_128(u64 address) {
  uint4 value;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address)
               : "memory");
  return value;
}

__device__ __forceinline__ void store_weak_64(u64 address, uint2 value) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(address), "r"(value.x), "r"(value.y) : "memory");
}

__device__ __forceinline__ void store_weak_128(u64 address, uint4 value) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(value.x), "r"(value.y), "r"(value.z),
               "r"(value.w)
               : "memory");
}

__device__ __forceinline__ u32 load_volatile_32(u64 address) {
  u32 value;
  asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ u64 load_volatile_64(u64 address) {
  u64 value;
  asm volatile("ld.volatile.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ void store_volatile_32(u64 address, u32 value) {
  asm volatile("st.volatile.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// Lets what follows in the stream start before this kernel has ended; only where the device knows it.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until what stands before this kernel in the stream has ended and can be seen.
__device__ __forceinline__ void wait_for_prerequisites() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Has the value computed here and not where it is used first.
__device__ __forceinline__ void compute_now(u64 &value) { asm volatile("" : "+l"(value)::"memory"); }

__device__ __forceinline__ void compute_now(u32 &value) { asm volatile("" : "+r"(value)::"memory"); }

// Adds one; the value before.
__device__ __forceinline__ u32 add_acquire_release_device_32(u32 *address, u32 value) {
  u32 before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(address), "r"(value) : "memory");
  return before;
}

// Stores `value` where `expected` stands; the value before.
__device__ __forceinline__ u32 compare_exchange_relaxed_system_32(u32 *address, u32 expected, u32 value) {
  u32 before;
  asm volatile("atom.relaxed.sys.global.cas.b32 %0, [%1], %2, %3;"
               : "=r"(before)
               : "l"(address), "r"(expected), "r"(value)
               : "memory");
  return before;
}

// Loads that bring nothing into the first-level cache: every byte is read once.
__device__ __forceinline__ uint4 load_weak_once_128(const uint4 *address) {
  uint4 value;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address)
               : "memory");
  return value;
}

__device__ __forceinline__ u64 nanoseconds() {
  u64 value;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(value));
  return value;
}

__device__ __forceinline__ void sleep_nanoseconds(u32 limit) { asm volatile("nanosleep.u32 %0;" ::"r"(limit)); }
