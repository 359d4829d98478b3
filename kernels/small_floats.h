/* 16- and 8-bit floats to fp32 and back: branch-free bit code, so that loops over it vectorise.
 *
 * Widening is exact.  Narrowing rounds to nearest, ties to even, subnormals included; what is too large becomes
 * infinity, or NaN in e4m3fn, which has no infinity.  NaN stays NaN and keeps its sign.
 * Selections are made with masks: compilers do not speculate float arithmetic, so a branch would stay a branch. */
#ifndef HOCKET_KERNELS_SMALL_FLOATS_H
#define HOCKET_KERNELS_SMALL_FLOATS_H

#ifndef __CUDACC_RTC__
#include <stdint.h>
#include <string.h>
#endif

/* kernels/gpu/cuda.cuh, included before this, has words of its own for a GPU. */
#ifndef HK_INLINE
#define HK_INLINE static inline __attribute__((always_inline, unused))
#endif

HK_INLINE float hk_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

HK_INLINE uint32_t hk_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

HK_INLINE uint32_t hk_select(int condition, uint32_t yes, uint32_t no) {
    uint32_t mask = 0u - (uint32_t)condition;
    return (yes & mask) | (no & ~mask);
}

/* A small float of 1 sign bit, e exponent bits and m mantissa bits lies `shift` = 23 - m bits below fp32; its exponent
 * bias differs by `rebias`; its smallest subnormal is `tiny`; `infinity` is the first pattern past the finite ones. */
HK_INLINE float hk_widen(uint32_t magnitude, uint32_t sign, int shift, uint32_t rebias, float tiny, uint32_t infinity) {
    uint32_t normal = (magnitude << shift) + (rebias << 23);
    uint32_t subnormal = hk_bits((float)(int32_t)magnitude * tiny);
    uint32_t special = (magnitude << shift) | 0x7f800000u;
    uint32_t bits = hk_select(magnitude < (1u << (23 - shift)), subnormal, normal);
    bits = hk_select(magnitude >= infinity, special, bits);
    return hk_float(bits | sign);
}

/* The magnitude of `value` in the small format, before overflow and NaN are looked at.  Adding `magic`, whose last bit
 * weighs as much as the smallest subnormal, lets the FPU round a subnormal result. */
HK_INLINE uint32_t hk_narrow(uint32_t bits, int shift, uint32_t rebias, float magic) {
    uint32_t normal = (bits + (1u << (shift - 1)) - 1 + ((bits >> shift) & 1) - (rebias << 23)) >> shift;
    uint32_t subnormal = hk_bits(hk_float(bits) + magic) - hk_bits(magic);
    return hk_select(bits < ((rebias + 1) << 23), subnormal, normal);
}

/* bfloat16 is the upper half of an fp32. */
HK_INLINE float hk_from_bf16(uint16_t x) {
    return hk_float((uint32_t)x << 16);
}

#ifndef HK_OWN_TO_BF16
/* For what comes of bfloat16 operands.  Their NaN have a lower half of zeros, and so has every NaN an FPU makes, so
 * rounding cannot carry into the upper half and no NaN needs to be looked for. */
HK_INLINE uint16_t hk_to_bf16(float value) {
    uint32_t bits = hk_bits(value);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}
#endif

#if defined(HK_OWN_F16)
#elif defined(__aarch64__)
HK_INLINE float hk_from_f16(uint16_t x) {
    __fp16 half;
    memcpy(&half, &x, 2);
    return (float)half;
}

HK_INLINE uint16_t hk_to_f16(float value) {
    __fp16 half = (__fp16)value;
    uint16_t bits;
    memcpy(&bits, &half, 2);
    return bits;
}
#else
HK_INLINE float hk_from_f16(uint16_t x) {
    uint32_t bits = hk_bits(hk_widen(x & 0x7fffu, (uint32_t)(x & 0x8000u) << 16, 13, 112, 0x1p-24f, 0x7c00));
    /* Conversion makes a signalling NaN quiet, as the hardware's does. */
    return hk_float(bits | hk_select((x & 0x7fffu) > 0x7c00u, 0x00400000u, 0u));
}

HK_INLINE uint16_t hk_to_f16(float value) {
    uint32_t bits = hk_bits(value) & 0x7fffffffu, sign = (hk_bits(value) >> 16) & 0x8000u;
    uint32_t half = hk_narrow(bits, 13, 112, 0.5f);
    uint32_t nan = 0x7e00u | ((bits >> 13) & 0x3ffu);
    half = hk_select(bits >= 0x47800000u, 0x7c00u, half);
    half = hk_select(bits > 0x7f800000u, nan, half);
    return (uint16_t)(half | sign);
}
#endif

#ifndef HK_OWN_FROM_FLOAT8
/* e4m3fn: no infinity, the one pattern 0x7f is NaN, the largest number is 448. */
HK_INLINE float hk_from_e4m3fn(uint8_t x) {
    uint32_t magnitude = x & 0x7fu;
    return hk_widen(magnitude, (uint32_t)(x & 0x80u) << 24, 20, 120, 0x1p-9f, 0x7f);
}

/* e5m2 is the upper half of an fp16. */
HK_INLINE float hk_from_e5m2(uint8_t x) {
    return hk_widen(x & 0x7fu, (uint32_t)(x & 0x80u) << 24, 21, 112, 0x1p-16f, 0x7c);
}
#endif

HK_INLINE uint8_t hk_to_e4m3fn(float value) {
    uint32_t bits = hk_bits(value) & 0x7fffffffu, sign = (hk_bits(value) >> 24) & 0x80u;
    uint32_t small = hk_narrow(bits, 20, 120, 0x1p14f);
    return (uint8_t)(hk_select(small > 0x7eu, 0x7fu, small) | sign);
}

HK_INLINE uint8_t hk_to_e5m2(float value) {
    uint32_t bits = hk_bits(value) & 0x7fffffffu, sign = (hk_bits(value) >> 24) & 0x80u;
    uint32_t small = hk_narrow(bits, 21, 112, 0x1p7f);
    small = hk_select(small > 0x7cu, 0x7cu, small);
    return (uint8_t)(hk_select(bits > 0x7f800000u, 0x7eu, small) | sign);
}

#endif
