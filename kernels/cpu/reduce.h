/* Arithmetic on bytes: k-way reductions, scaling, conversion and codecs, at the best level this CPU has.
 *
 * This file knows levels and dispatch.  One level is one compilation of table.h, scale.h, convert.h and blocks.h: `base`
 * is plain C for whatever the compiler was told to assume (NEON on aarch64, SSE2 on x86-64); on x86-64 AVX2 with F16C is
 * one more.
 * A level with AVX-512 gained nothing where memory is the limit and lost a tenth to loads that cross cache lines
 * (bench/kernels.py on a Zen 4: float32 sums of 4 MB at 76 against 82 GB/s; on an Intel Sapphire Rapids, sums as with
 * AVX2, and codecs that nearly nobody uses 1.1 to 1.5 times as fast: docs/codecs.md).
 * All levels give the same bits, save for the payload of a NaN.  Needs GCC or Clang. */
#ifndef HOCKET_KERNELS_REDUCE_H
#define HOCKET_KERNELS_REDUCE_H

#include <stddef.h>

#include "kernels/dtypes.h"
#include "kernels/ops.h"

/* out = in[0] op in[1] op ... op in[k-1], element by element and left to right; k >= 1, and k == 1 copies.
 * `out` may be exactly one of the inputs, never overlap one otherwise.  Any alignment.  Each input is read once and
 * `out` written once: (k + 1) n bytes of memory traffic. */
typedef void (*hk_reduce_fn)(void *out, const void *const *in, int k, size_t count);

/* out = in * factor, stored as the same dtype or as another; `out` may be `in` if it is the same.  scale.h and convert.h
 * say how each rounds.  Each element is read once and written once. */
typedef void (*hk_apply_fn)(void *out, const void *in, size_t count, double factor);

#include "codec.h"
#include "fold.h"

#define HK_JOIN_(a, b) a##_##b
#define HK_JOIN(a, b) HK_JOIN_(a, b)
#define AT(name) HK_JOIN(name, HK_LEVEL)

#define HK_LEVEL base
#include "table.h"
#include "scale.h"
#include "convert.h"
#include "blocks.h"
#undef HK_LEVEL

#if defined(__x86_64__)
#define HK_HAVE_X86_LEVELS
#include <cpuid.h>
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif
#define HK_LEVEL avx2
#define HK_LANES 16
#include "table.h"
#include "scale.h"
#include "convert.h"
#include "blocks.h"
#undef HK_LEVEL
#undef HK_LANES
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

#undef AT

struct hk_level {
    const char *name;
    const char *features;
    const hk_reduce_fn (*reductions)[HK_OP_COUNT];
    const hk_apply_fn *scales, *narrow, *widen;
    const hk_codec *codecs;
};

/* Worst first. */
static const struct hk_level hk_levels[] = {
#if defined(__aarch64__)
    {"base", "neon", hk_reductions_base, hk_scales_base, hk_narrow_base, hk_widen_base, hk_codecs_base},
#elif defined(__x86_64__)
    {"base", "sse2", hk_reductions_base, hk_scales_base, hk_narrow_base, hk_widen_base, hk_codecs_base},
    {"avx2", "avx2 f16c", hk_reductions_avx2, hk_scales_avx2, hk_narrow_avx2, hk_widen_avx2, hk_codecs_avx2},
#else
    {"base", "portable", hk_reductions_base, hk_scales_base, hk_narrow_base, hk_widen_base, hk_codecs_base},
#endif
};

/* How many of hk_levels this CPU and its operating system can run. */
static inline int hk_level_count(void) {
#if defined(HK_HAVE_X86_LEVELS)
    /* __builtin_cpu_supports also asks whether the system saves the registers; GCC before 11 does not know f16c. */
    unsigned a, b, c, d;
    __builtin_cpu_init();
    return __get_cpuid(1, &a, &b, &c, &d) && (c & (1u << 29)) && __builtin_cpu_supports("avx2") ? 2 : 1;
#else
    return 1;
#endif
}

static inline hk_reduce_fn hk_find_reduce(const struct hk_level *level, int dtype, int op) {
    if (dtype < 0 || dtype >= HK_DTYPE_COUNT || op < 0 || op >= HK_OP_COUNT)
        return NULL;
    return level->reductions[dtype][op];
}

static inline hk_apply_fn hk_find_apply(const struct hk_level *level, int from, int to) {
    if (from < 0 || from >= HK_DTYPE_COUNT || to < 0 || to >= HK_DTYPE_COUNT)
        return NULL;
    if (from == to)
        return level->scales[from];
    return from == HK_FLOAT32 ? level->narrow[to] : to == HK_FLOAT32 ? level->widen[from] : NULL;
}

#endif
