/* The words that the .cuh files use: CUDA C++ for NVRTC and nvcc, or an emulation of it for a C++ compiler.
 *
 * Every .cuh is one source for both.  What differs stands here, or in the header that HK_EMULATOR names, which the
 * tests bring along to run the kernels on a CPU.  Needs no CUDA header and, under NVRTC, no C header.
 * Compile with -std=c++17 and -fmad=false, and never with fast math: the bits must be those of the CPU's kernels. */
#ifndef HOCKET_KERNELS_CUDA_CUH
#define HOCKET_KERNELS_CUDA_CUH

/* Tells elements.h and the headers that it includes that they are compiled for a GPU. */
#define HK_CUDA

#ifdef HK_EMULATOR
#include HK_EMULATOR
#else

#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define INT8_MIN (-128)
#define INT8_MAX 127
#define UINT8_MAX 255
#define INT16_MIN (-32768)
#define INT16_MAX 32767
#define UINT16_MAX 65535
#define INT32_MIN (-2147483647 - 1)
#define INT32_MAX 2147483647
#define UINT32_MAX 4294967295u
#define INT64_MIN (-9223372036854775807ll - 1)
#define INT64_MAX 9223372036854775807ll
#define UINT64_MAX 18446744073709551615ull
#endif

#define HK_INLINE static __device__ __forceinline__
#define HK_DEVICE __device__ __forceinline__
#define HK_KERNEL(name, ...) extern "C" __global__ void name(__VA_ARGS__)
/* A structure that stays where the launch put it: indexing a copy at run time would send it to local memory. */
#define HK_PARAM(T) const __grid_constant__ T
#define HK_UNROLL _Pragma("unroll")
/* What all threads of a block have in common, uninitialised; one of a kernel. */
#define HK_SHARED(T, name) __shared__ T name

/* Loads and stores are of the element's own size, and the hardware wants them aligned to it. */
#define HK_ANY
#define HK_ANY_TWO

/* One instruction each; hk_store_as in tiles.cuh says why. */
HK_DEVICE void hk_store_words(uint4 *to, const uint32_t *w) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
                 : "memory");
}

HK_DEVICE void hk_store_words(uint2 *to, const uint32_t *w) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(w[0]), "r"(w[1]) : "memory");
}

HK_DEVICE void hk_store_words(uint32_t *to, const uint32_t *w) {
    *to = *w;
}

/* Across devices: a thread that has loaded the value sees what was written before the store. */
HK_DEVICE void hk_store_release(uint32_t *at, uint32_t value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

HK_DEVICE uint32_t hk_load_acquire(const uint32_t *at) {
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

/* Wall time in nanoseconds; its steps may be a microsecond long. */
HK_DEVICE uint64_t hk_time_ns() {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

/* Called in every loop that waits for another thread. */
HK_DEVICE void hk_pause() {}

#include "hardware_floats.cuh"
#endif

#include "kernels/elements.h"

/* Up to eight buffers, one per rank, passed by value. */
enum { HK_RANKS = 8 };
struct hk_pointers { void *at[HK_RANKS]; };

/* The operands of a reduction, if they may be more: half of what a launch can be given by value. */
enum { HK_WAYS = 256 };
struct hk_ways { void *at[HK_WAYS]; };

#define HK_JOIN3_(a, b, c) a##_##b##_##c
#define HK_JOIN3(a, b, c) HK_JOIN3_(a, b, c)
#define HK_PASTE_(a, b) a##b
#define HK_PASTE(a, b) HK_PASTE_(a, b)

#endif
