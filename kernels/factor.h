/* What scaling does to one element: the arithmetic that scale.h and scale.cuh share. */
#ifndef HOCKET_KERNELS_FACTOR_H
#define HOCKET_KERNELS_FACTOR_H

#include "kernels/elements.h"

/* n, if factor is 1.0 / n for an integer n > 1 of at most 31 bits; else 0. */
HK_INLINE i32 hk_divisor(double factor) {
    if (!(factor > 0x1p-31 && factor <= 0.5))
        return 0;
    i32 n = (i32)(1 / factor + 0.5);
    return 1.0 / n == factor ? n : 0;
}

/* A NaN is made the usual one: hk_to_bf16 relies on its lower half being zero. */
HK_INLINE f32 hk_small_factor(double factor) {
    return factor != factor ? hk_float(0x7fc00000u) : (f32)factor;
}

/* |factor| is mantissa * 2^exponent; NaN counts as zero. */
struct hk_factor {
    u64 mantissa;
    int exponent, negative;
    i32 divisor;
};

HK_INLINE struct hk_factor hk_split(double factor) {
    u64 bits;
    memcpy(&bits, &factor, 8);
    int exponent = (int)(bits >> 52) & 0x7ff;
    u64 mantissa = bits & ((1ull << 52) - 1);
    struct hk_factor by = {factor != factor ? 0 : exponent ? mantissa | 1ull << 52 : mantissa,
                           (exponent ? exponent : 1) - 1075, factor < 0, hk_divisor(factor)};
    return by;
}

/* x * |factor| rounded down, or UINT64_MAX if that is less: exact, since 64 by 53 bits fit in 128. */
HK_INLINE u64 hk_times(u64 x, struct hk_factor by) {
    unsigned __int128 product = (unsigned __int128)x * by.mantissa;
    if (by.exponent > 0)
        return product == 0 ? 0
               : by.exponent >= 64 || product >> (64 - by.exponent) ? UINT64_MAX
                                                                    : (u64)product << by.exponent;
    product = by.exponent <= -128 ? 0 : product >> -by.exponent;
    return product > UINT64_MAX ? UINT64_MAX : (u64)product;
}

/* One integer of at most 32 bits: double is exact there, and so is the truncated quotient of two such integers. */
HK_INLINE i64 hk_scale_int(f64 x, f64 times, f64 by, f64 low, f64 high) {
    f64 y = x * times / by;
    y = y > high ? high : y;
    y = y < low ? low : y;
    y = y != y ? 0 : y;
    return (i64)y;
}

HK_INLINE i64 hk_scale_i64(i64 x, struct hk_factor by) {
    if (by.divisor)
        return x / by.divisor;
    u64 magnitude = hk_times(x < 0 ? 0 - (u64)x : (u64)x, by);
    if ((x < 0) != by.negative)
        return magnitude > INT64_MAX ? INT64_MIN : -(i64)magnitude;
    return magnitude > INT64_MAX ? INT64_MAX : (i64)magnitude;
}

HK_INLINE u64 hk_scale_u64(u64 x, struct hk_factor by) {
    if (by.divisor)
        return x / (u64)by.divisor;
    return by.negative ? 0 : hk_times(x, by);
}

#endif
