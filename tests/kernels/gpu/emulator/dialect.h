/* The words of kernels/gpu/cuda.cuh for g++: what a kernel says to a GPU, said to the scheduler.
 *
 * With -fsanitize=thread only barriers, shuffles, flags and the order of a stream make one access happen before
 * another: a missing one is found although an x86 would forgive it. */
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "registry.h"
#include "scheduler.h"

#define HK_DEVICE inline
#define HK_KERNEL(...) HK_KERNEL_(__VA_ARGS__)
#define HK_KERNEL_(name, ...)                                             \
    static void name(__VA_ARGS__);                                        \
    static const emulator::Registered registered_##name(#name, name);     \
    static void name(__VA_ARGS__)
#define HK_PARAM(T) const T
#define HK_UNROLL
#define HK_SHARED(T, name) T &name = *static_cast<T *>(emulator::shared(sizeof(T)))

/* Aligned to its parts, so that UBSan sees an address that a GPU would refuse. */
#define HK_ANY
#define HK_ANY_TWO

/* Emulated: that a GPU's NaN is 0x7fffffff; the other conversions are the bit code. */
#define HK_INLINE static inline __attribute__((always_inline, unused))
#include "kernels/gpu/hardware_floats.cuh"

#define threadIdx (emulator::place->thread)
#define blockIdx (emulator::place->block)
#define blockDim (emulator::place->threads)
#define gridDim (emulator::place->blocks)

struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct alignas(8) uint2 { uint32_t x, y; };

template <class W> static inline void hk_store_words(W *to, const uint32_t *words) {
    W word;
    memcpy(&word, words, sizeof word);
    *to = word;
}

static inline void __syncthreads() {
    emulator::meet_block(false);
}

static inline int __syncthreads_or(int condition) {
    return emulator::meet_block(condition != 0);
}

static inline void __syncwarp() {
    emulator::meet_warp();
}

template <class T> static inline T __shfl_xor_sync(unsigned, T value, int distance) {
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = emulator::exchange(bits, distance);
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline unsigned long long atomicAdd(unsigned long long *at, unsigned long long value) {
    return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}

static inline void hk_store_release(uint32_t *at, uint32_t value) {
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
    emulator::progressed();
}

static inline uint32_t hk_load_acquire(const uint32_t *at) {
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static inline uint64_t hk_time_ns() {
    return emulator::time_ns();
}

static inline void hk_pause() {
    emulator::pause();
}
