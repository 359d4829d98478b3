/* The shape of every reduction: HK_FOLD makes one hk_reduce_fn out of a storage S, an arithmetic type A and a combiner.
 *
 * Up to eight inputs are combined in registers in one pass.  More go through a block of partial results that stays in
 * the first-level cache, so that every input is read once and every output written once, at the end of its block:
 * only then may `out` overwrite an input.  Each loop reads element i of all its inputs before it writes element i of
 * `out`; that is what HK_IVDEP promises to the compiler, which would otherwise go scalar when out is one of them. */
#ifndef HOCKET_KERNELS_FOLD_H
#define HOCKET_KERNELS_FOLD_H

#include "kernels/elements.h"

#if defined(__clang__)
#define HK_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#define HK_UNROLL _Pragma("clang loop unroll(full)")
/* Some loops (pairs, and all of them without optimisation) stay scalar; that is no mistake. */
#pragma clang diagnostic ignored "-Wpass-failed"
#else
#define HK_IVDEP _Pragma("GCC ivdep")
#ifdef __OPTIMIZE__ /* else it warns that it does not */
#define HK_UNROLL _Pragma("GCC unroll 8")
#else
#define HK_UNROLL
#endif
#endif

/* Partial results of one block take 8 KiB. */
#define HK_BLOCK(A) (8192 / sizeof(A))

#define HK_SCALAR_LOOP(BODY, S, A, OP, n)                                             \
    HK_IVDEP for (size_t i = 0; i < (n); i++) {                                       \
        BODY(A, get_##S, put_##S, get_##A, put_##A, OP, i)                            \
    }

#define HK_START(A, get, OP, i) A r = get(a, i); r = OP(r, get(b, i));
#define HK_BODY_2(A, get, put, load, store, OP, i) HK_START(A, get, OP, i) put(out, i, r);
#define HK_BODY_3(A, get, put, load, store, OP, i) HK_START(A, get, OP, i) r = OP(r, get(c, i)); put(out, i, r);
#define HK_BODY_4(A, get, put, load, store, OP, i)                                    \
    HK_START(A, get, OP, i) r = OP(r, get(c, i)); r = OP(r, get(d, i)); put(out, i, r);
#define HK_BODY_8(A, get, put, load, store, OP, i)                                    \
    HK_START(A, get, OP, i) r = OP(r, get(c, i)); r = OP(r, get(d, i));               \
    r = OP(r, get(e, i)); r = OP(r, get(f, i)); r = OP(r, get(g, i)); r = OP(r, get(h, i)); put(out, i, r);
#define HK_BODY_FIRST(A, get, put, load, store, OP, i) HK_START(A, get, OP, i) store(part, i, r);
#define HK_BODY_NEXT(A, get, put, load, store, OP, i) A r = OP(load(part, i), get(a, i)); store(part, i, r);
#define HK_BODY_LAST(A, get, put, load, store, OP, i) A r = OP(load(part, i), get(a, i)); put(out, i, r);

#define HK_INPUT(S, name, j) const any_##S *name = (const any_##S *)in[j];

#define HK_COPY(S)                                                                    \
    if (out != in[0])                                                                 \
        memcpy(out, in[0], count * sizeof(any_##S));

typedef void (*hk_pass_fn)(void *out, const void *const *in, size_t n);

/* More than two inputs by way of partial results that are stored as the elements are. */
static inline void hk_fold_blocks(void *out, const void *const *in, int k, size_t count, size_t size, hk_pass_fn two) {
    char part[8192] __attribute__((aligned(64)));
    const size_t most = sizeof part / size;
    for (size_t at = 0; at < count; at += most) {
        const size_t n = count - at < most ? count - at : most;
        const void *pair[2] = {(const char *)in[0] + at * size, NULL};
        for (int j = 1; j < k; j++) {
            pair[1] = (const char *)in[j] + at * size;
            two(j < k - 1 ? part : (char *)out + at * size, pair, n);
            pair[0] = part;
        }
    }
}

#define HK_PASS_2(name, S, A, OP, LOOP)                                                                           \
    static void name##_2(void *to, const void *const *in, size_t n) {                                             \
        any_##S *out = (any_##S *)to;                                                                             \
        HK_INPUT(S, a, 0) HK_INPUT(S, b, 1) LOOP(HK_BODY_2, S, A, OP, n)                                          \
    }
#define HK_PLAIN_BLOCKS(name, S) hk_fold_blocks(out, in, k, count, sizeof(any_##S), name##_2)
#define HK_WIDE_BLOCKS(name, S) name##_blocks((any_##S *)out, in, k, count)

/* The shape of ops that need not be fast with many inputs.  (Two macros, so that `name` may be one itself.) */
#define HK_FOLD(...) HK_FOLD_(__VA_ARGS__)
#define HK_FOLD_(name, S, A, OP, LOOP) HK_PASS_2(name, S, A, OP, LOOP) HK_FEW(name, S, HK_PLAIN_BLOCKS)
#define HK_FEW(name, S, BLOCKS)                                                                                   \
    static void name(void *out, const void *const *in, int k, size_t count) {                                     \
        if (k == 1) { HK_COPY(S) }                                                                                \
        else if (k == 2) name##_2(out, in, count);                                                                \
        else BLOCKS(name, S);                                                                                     \
    }

/* The shape with passes of its own for 3, 4 and 8 inputs, for sum, min and max. */
#define HK_FOLD_FAST(...) HK_FOLD_FAST_(__VA_ARGS__)
#define HK_FOLD_FAST_(name, S, A, OP, LOOP) HK_PASS_2(name, S, A, OP, LOOP) HK_MANY(name, S, A, OP, LOOP, HK_PLAIN_BLOCKS)
#define HK_MANY(name, S, A, OP, LOOP, BLOCKS)                                                                     \
    static void name##_3(any_##S *out, const void *const *in, size_t n) {                                         \
        HK_INPUT(S, a, 0) HK_INPUT(S, b, 1) HK_INPUT(S, c, 2) LOOP(HK_BODY_3, S, A, OP, n)                        \
    }                                                                                                             \
    static void name##_4(any_##S *out, const void *const *in, size_t n) {                                         \
        HK_INPUT(S, a, 0) HK_INPUT(S, b, 1) HK_INPUT(S, c, 2) HK_INPUT(S, d, 3) LOOP(HK_BODY_4, S, A, OP, n)      \
    }                                                                                                             \
    static void name##_8(any_##S *out, const void *const *in, size_t n) {                                         \
        HK_INPUT(S, a, 0) HK_INPUT(S, b, 1) HK_INPUT(S, c, 2) HK_INPUT(S, d, 3)                                   \
        HK_INPUT(S, e, 4) HK_INPUT(S, f, 5) HK_INPUT(S, g, 6) HK_INPUT(S, h, 7) LOOP(HK_BODY_8, S, A, OP, n)      \
    }                                                                                                             \
    static void name(void *out, const void *const *in, int k, size_t count) {                                     \
        switch (k) {                                                                                              \
        case 1: HK_COPY(S) return;                                                                                \
        case 2: name##_2(out, in, count); return;                                                                 \
        case 3: name##_3((any_##S *)out, in, count); return;                                                      \
        case 4: name##_4((any_##S *)out, in, count); return;                                                      \
        case 8: name##_8((any_##S *)out, in, count); return;                                                      \
        default: BLOCKS(name, S);                                                                                 \
        }                                                                                                         \
    }

/* More than two inputs where partial results are kept in an arithmetic type A that has more digits than S. */
#define HK_FOLD_DIGITS(...) HK_FOLD_DIGITS_(__VA_ARGS__)
#define HK_FOLD_DIGITS_(name, S, A, OP, LOOP)                                                                     \
    HK_PASS_2(name, S, A, OP, LOOP) HK_BLOCKS(name, S, A, OP, LOOP) HK_FEW(name, S, HK_WIDE_BLOCKS)
#define HK_FOLD_DIGITS_FAST(...) HK_FOLD_DIGITS_FAST_(__VA_ARGS__)
#define HK_FOLD_DIGITS_FAST_(name, S, A, OP, LOOP)                                                                \
    HK_PASS_2(name, S, A, OP, LOOP) HK_BLOCKS(name, S, A, OP, LOOP) HK_MANY(name, S, A, OP, LOOP, HK_WIDE_BLOCKS)
#define HK_BLOCKS(name, S, A, OP, LOOP)                                                                           \
    static void name##_first(any_##A *part, const any_##S *a, const any_##S *b, size_t n) {                       \
        LOOP(HK_BODY_FIRST, S, A, OP, n)                                                                          \
    }                                                                                                             \
    static void name##_next(any_##A *part, const any_##S *a, size_t n) { LOOP(HK_BODY_NEXT, S, A, OP, n) }        \
    static void name##_last(any_##S *out, const any_##A *part, const any_##S *a, size_t n) {                      \
        LOOP(HK_BODY_LAST, S, A, OP, n)                                                                           \
    }                                                                                                             \
    static void name##_blocks(any_##S *out, const void *const *in, int k, size_t count) {                         \
        A part[HK_BLOCK(A)];                                                                                      \
        for (size_t at = 0; at < count; at += HK_BLOCK(A)) {                                                      \
            size_t n = count - at < HK_BLOCK(A) ? count - at : HK_BLOCK(A);                                       \
            name##_first((any_##A *)part, (const any_##S *)in[0] + at, (const any_##S *)in[1] + at, n);           \
            for (int j = 2; j < k - 1; j++)                                                                       \
                name##_next((any_##A *)part, (const any_##S *)in[j] + at, n);                                     \
            name##_last(out + at, (const any_##A *)part, (const any_##S *)in[k - 1] + at, n);                     \
        }                                                                                                         \
    }

#endif
