/* Every reduction, once per level: included with HK_LEVEL (and HK_LANES, where simd_x86.h serves the level) defined.
 *
 * Integers share code where the bits allow it: sum and prod need no sign, bitwise ops no width. */
#ifndef HOCKET_KERNELS_TABLE_H
#define HOCKET_KERNELS_TABLE_H

#include "fold.h"

/* The laws of min_f32 and max_f32 on the bits U of a float S whose conversion takes long: as whole numbers of type I with a
 * sign they have the same order.  Past the magnitude INFINITE a float is NaN, and comes out as QUIET. */
#define HK_ORDERED_BITS(S, U, I, INFINITE, QUIET)                                                                 \
    HK_INLINE I order_##S(U x) {                                                                                  \
        const I sign = (I)((I)x >> (8 * sizeof(U) - 1)), magnitude = (I)(x & ((U)~(U)0 >> 1));                    \
        return (I)((magnitude ^ sign) - sign);                                                                    \
    }                                                                                                             \
    HK_INLINE int nan_##S(U x) { return (U)(x & ((U)~(U)0 >> 1)) > (INFINITE); }                                  \
    HK_INLINE U pick_##S(U a, U b, U other) {                                                                     \
        const U odd = nan_##S(b) ? b : a;                                                                         \
        return nan_##S(odd) ? (U)(QUIET) : other;                                                                 \
    }                                                                                                             \
    HK_INLINE U min_##S(U a, U b) { return pick_##S(a, b, order_##S(b) < order_##S(a) ? b : a); }                 \
    HK_INLINE U max_##S(U a, U b) { return pick_##S(a, b, order_##S(b) > order_##S(a) ? b : a); }

HK_ORDERED_BITS(f16, u16, i16, 0x7c00, odd | 0x0200)
HK_ORDERED_BITS(e4m3fn, u8, i8, 0x7e, odd)
HK_ORDERED_BITS(e5m2, u8, i8, 0x7c, (odd & 0x80) | 0x7e)

#endif

#define HK_L HK_SCALAR_LOOP

HK_FOLD_FAST(AT(sum_u8), u8, u8, sum_u8, HK_L)
HK_FOLD_FAST(AT(sum_u16), u16, u16, sum_u16, HK_L)
HK_FOLD_FAST(AT(sum_u32), u32, u32, sum_u32, HK_L)
HK_FOLD_FAST(AT(sum_u64), u64, u64, sum_u64, HK_L)
HK_FOLD(AT(prod_u8), u8, u8, prod_u8, HK_L)
HK_FOLD(AT(prod_u16), u16, u16, prod_u16, HK_L)
HK_FOLD(AT(prod_u32), u32, u32, prod_u32, HK_L)
HK_FOLD(AT(prod_u64), u64, u64, prod_u64, HK_L)

#define HK_MIN_MAX_OF(S, FOLD, STORED, A, OP, LOOP)          \
    FOLD(AT(min_##S), STORED, A, min_##OP, LOOP)             \
    FOLD(AT(max_##S), STORED, A, max_##OP, LOOP)
#define HK_MIN_MAX(S) HK_MIN_MAX_OF(S, HK_FOLD_FAST, S, S, S, HK_L)

HK_MIN_MAX(i8) HK_MIN_MAX(u8) HK_MIN_MAX(i16) HK_MIN_MAX(u16)
HK_MIN_MAX(i32) HK_MIN_MAX(u32) HK_MIN_MAX(i64) HK_MIN_MAX(u64)

#define HK_FLOAT(S)                                          \
    HK_FOLD_FAST(AT(sum_##S), S, S, sum_##S, HK_L)           \
    HK_FOLD(AT(prod_##S), S, S, prod_##S, HK_L)              \
    HK_MIN_MAX(S)

HK_FLOAT(f32) HK_FLOAT(f64)

#define HK_DIGITS(S, FOLD_SUM, LOOP)                          \
    FOLD_SUM(AT(sum_##S), S, f32, sum_f32, LOOP)             \
    HK_FOLD_DIGITS(AT(prod_##S), S, f32, prod_f32, LOOP)

#ifdef HK_LANES
#include "simd_x86.h"
#define HK_HALF_LOOP HK_LANES_LOOP
HK_MIN_MAX_OF(f16, HK_FOLD_DIGITS_FAST, f16, f32, f32, HK_HALF_LOOP)
#else
#define HK_HALF_LOOP HK_L
HK_MIN_MAX_OF(f16, HK_FOLD_FAST, u16, u16, f16, HK_L)
#endif
HK_DIGITS(f16, HK_FOLD_DIGITS_FAST, HK_HALF_LOOP)
HK_DIGITS(bf16, HK_FOLD_DIGITS_FAST, HK_HALF_LOOP)
HK_MIN_MAX_OF(bf16, HK_FOLD_DIGITS_FAST, bf16, f32, f32, HK_HALF_LOOP)

/* Conversions take most of the time, however many inputs a pass has. */
#define HK_FLOAT8(S)                                         \
    HK_DIGITS(S, HK_FOLD_DIGITS, HK_L)                       \
    HK_MIN_MAX_OF(S, HK_FOLD_FAST, u8, u8, S, HK_L)

HK_FLOAT8(e4m3fn) HK_FLOAT8(e5m2)

/* A complex sum is a real sum of twice the length; a bitwise op on wider elements is one on more bytes. */
#define HK_LONGER(name, times, base)                                                          \
    static void AT(name)(void *out, const void *const *in, int k, size_t count) {             \
        AT(base)(out, in, k, times * count);                                                  \
    }

HK_LONGER(sum_c64, 2, sum_f32)
HK_LONGER(sum_c128, 2, sum_f64)
HK_FOLD(AT(prod_c64), c64, c64, prod_c64, HK_L)
HK_FOLD(AT(prod_c128), c128, c128, prod_c128, HK_L)

#define HK_BITWISE(op)                                       \
    HK_FOLD(AT(op##_u8), u8, u8, op##_u8, HK_L)              \
    HK_LONGER(op##_u16, 2, op##_u8)                          \
    HK_LONGER(op##_u32, 4, op##_u8)                          \
    HK_LONGER(op##_u64, 8, op##_u8)

HK_BITWISE(band) HK_BITWISE(bor) HK_BITWISE(bxor)

#define HK_TRUTH(D, U)                                       \
    HK_FOLD(AT(land_##D), U, U, land_##D, HK_L)              \
    HK_FOLD(AT(lor_##D), U, U, lor_##D, HK_L)                \
    HK_FOLD(AT(lxor_##D), U, U, lxor_##D, HK_L)

HK_TRUTH(u8, u8) HK_TRUTH(u16, u16) HK_TRUTH(u32, u32) HK_TRUTH(u64, u64) HK_TRUTH(f16, u16) HK_TRUTH(bf16, u16)
HK_TRUTH(f32, u32) HK_TRUTH(f64, u64) HK_TRUTH(e4m3fn, u8) HK_TRUTH(e5m2, u8)

#define HK_LOCATE(S)                                         \
    HK_FOLD(AT(minloc_##S), S, S, minloc_##S, HK_L)          \
    HK_FOLD(AT(maxloc_##S), S, S, maxloc_##S, HK_L)

HK_LOCATE(f32_i32) HK_LOCATE(f64_i64) HK_LOCATE(i32_i32) HK_LOCATE(i64_i64)

#define HK_LOGICAL_ROW(D) [HK_LAND] = AT(land_##D), [HK_LOR] = AT(lor_##D), [HK_LXOR] = AT(lxor_##D)
#define HK_INT_ROW(S, U)                                                                                          \
    {[HK_SUM] = AT(sum_##U), [HK_PROD] = AT(prod_##U), [HK_MIN] = AT(min_##S), [HK_MAX] = AT(max_##S),            \
     [HK_BAND] = AT(band_##U), [HK_BOR] = AT(bor_##U), [HK_BXOR] = AT(bxor_##U), HK_LOGICAL_ROW(U)}
#define HK_FLOAT_ROW(S)                                                                                           \
    {[HK_SUM] = AT(sum_##S), [HK_PROD] = AT(prod_##S), [HK_MIN] = AT(min_##S), [HK_MAX] = AT(max_##S),            \
     HK_LOGICAL_ROW(S)}
#define HK_PAIR_ROW(S) {[HK_MINLOC] = AT(minloc_##S), [HK_MAXLOC] = AT(maxloc_##S)}

static const hk_reduce_fn AT(hk_reductions)[HK_DTYPE_COUNT][HK_OP_COUNT] = {
    /* On truth values every op is one of three; written so that a byte other than 0 and 1 is still true. */
    [HK_BOOL] = {[HK_SUM] = AT(lor_u8), [HK_PROD] = AT(land_u8), [HK_MIN] = AT(land_u8), [HK_MAX] = AT(lor_u8),
                 [HK_BAND] = AT(land_u8), [HK_BOR] = AT(lor_u8), [HK_BXOR] = AT(lxor_u8), HK_LOGICAL_ROW(u8)},
    [HK_INT8] = HK_INT_ROW(i8, u8),
    [HK_UINT8] = HK_INT_ROW(u8, u8),
    [HK_INT16] = HK_INT_ROW(i16, u16),
    [HK_UINT16] = HK_INT_ROW(u16, u16),
    [HK_INT32] = HK_INT_ROW(i32, u32),
    [HK_UINT32] = HK_INT_ROW(u32, u32),
    [HK_INT64] = HK_INT_ROW(i64, u64),
    [HK_UINT64] = HK_INT_ROW(u64, u64),
    [HK_FLOAT16] = HK_FLOAT_ROW(f16),
    [HK_BFLOAT16] = HK_FLOAT_ROW(bf16),
    [HK_FLOAT32] = HK_FLOAT_ROW(f32),
    [HK_FLOAT64] = HK_FLOAT_ROW(f64),
    [HK_COMPLEX64] = {[HK_SUM] = AT(sum_c64), [HK_PROD] = AT(prod_c64)},
    [HK_COMPLEX128] = {[HK_SUM] = AT(sum_c128), [HK_PROD] = AT(prod_c128)},
    [HK_FLOAT8_E4M3FN] = HK_FLOAT_ROW(e4m3fn),
    [HK_FLOAT8_E5M2] = HK_FLOAT_ROW(e5m2),
    [HK_FLOAT32_INT32] = HK_PAIR_ROW(f32_i32),
    [HK_FLOAT64_INT64] = HK_PAIR_ROW(f64_i64),
    [HK_INT32_INT32] = HK_PAIR_ROW(i32_i32),
    [HK_INT64_INT64] = HK_PAIR_ROW(i64_i64),
};

#undef HK_L
#undef HK_MIN_MAX_OF
#undef HK_MIN_MAX
#undef HK_FLOAT
#undef HK_DIGITS
#undef HK_HALF_LOOP
#undef HK_FLOAT8
#undef HK_LONGER
#undef HK_BITWISE
#undef HK_TRUTH
#undef HK_LOCATE
#undef HK_LOGICAL_ROW
#undef HK_INT_ROW
#undef HK_FLOAT_ROW
#undef HK_PAIR_ROW
