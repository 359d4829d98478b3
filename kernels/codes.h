/* The arithmetic of the codecs on one float, or on what its block has in common: the kernels of CPUs and GPUs share it.
 * cpu/codec_whole.h, codec_floats.h and codec_signs.h have the laws, pack.h how short codes lie in an element. */
#ifndef HOCKET_KERNELS_CODES_H
#define HOCKET_KERNELS_CODES_H

#include "kernels/dice.h"

#ifdef HK_CUDA
#define HK_ROOT sqrtf
#else
#define HK_ROOT __builtin_sqrtf
#endif

/* Thirty-two sums of every thirty-second element, added in pairs (0 and 16, 0 and 8, ..., 0 and 1): an order that any width
 * of vectors can keep, four of eight at a time. */
enum { HK_SUMS = 32 };

enum hk_norm { HK_NORM_MAX, HK_NORM_L2 };

/* As integers, magnitudes are ordered as they are, and NaN is above infinity. */
HK_INLINE u32 hk_magnitude(f32 value) { return hk_bits(value) & 0x7fffffffu; }

HK_INLINE int hk_is_finite(f32 value) { return hk_magnitude(value) < 0x7f800000u; }

/* A scale is not subnormal, as 1 / scale might be infinite. */
HK_INLINE f32 hk_usual_scale(f32 scale) { return scale < 0x1p-126f ? 0 : scale; }

/* Are all codes to be zero? */
HK_INLINE int hk_odd_scale(f32 scale) { return !(scale > 0 && hk_is_finite(scale)); }

HK_INLINE f32 hk_nan(void) { return hk_float(0x7fc00000u); }

/* ---- whole numbers */

/* Is the norm of a block whose largest magnitude is `top` just that?  1 / a subnormal might be infinite. */
HK_INLINE int hk_norm_is(f32 top, int norm, f32 clip) {
    return !(top >= 0x1p-126f && hk_is_finite(top)) || (norm == HK_NORM_MAX && clip == 0);
}

/* Else it comes of the sum of (x / top)^2; n of the block's floats are the caller's. */
HK_INLINE f32 hk_norm_of(f32 top, f32 squares, f32 n, int norm, f32 clip) {
    if (norm == HK_NORM_L2) {
        const f32 length = top * HK_ROOT(squares);
        return hk_is_finite(length) ? length : hk_float(0x7f7fffffu); /* the largest, which is no less than any float */
    }
    const f32 most = top * (clip * HK_ROOT(squares / n));
    return most < top ? most : top;
}

/* 1.5 * 2^23: a float of less than 2^22 that is added to it is rounded to a whole number, in its lowest bits.  A block's
 * largest is no more than 32 root mean squares, and is cut off at no less than a thousandth of one (hk_norm_of). */
#define HK_TO_WHOLE 12582912.0f

/* Only where the scale is less than the largest magnitude's is a code above the largest. */
HK_INLINE i32 hk_at_most(i32 whole, i32 most) {
    whole = whole > most ? most : whole;
    return whole < -most ? -most : whole;
}

HK_INLINE i32 hk_nearest(f32 value, i32 most) {
    return hk_at_most((i32)(hk_bits(value + HK_TO_WHOLE) - hk_bits(HK_TO_WHOLE)), most);
}

/* One of the two whole numbers around the value, which is the mean of what may come. */
HK_INLINE i32 hk_rolled(f32 value, i32 most, u32 roll) { return hk_nearest(value + hk_spread(roll), most); }

/* ---- floats of 8 bits */

/* Of a magnitude from 2^e up, or below 2^-6, a code counts steps of 2^(e - 3); adding 2^(e + 20) rounds to them. */
HK_INLINE u8 hk_e4m3fn_at_most_448(f32 value) {
    const u32 bits = hk_bits(value), magnitude = bits & 0x7fffffffu;
    const u32 own = bits & 0x7f800000u, least = 121u << 23, power = own > least ? own : least;
    const u32 magic = power + (20u << 23), steps = hk_bits(hk_float(magnitude) + hk_float(magic)) - magic;
    const u32 small = steps + ((power - least) >> 20);
    return (u8)((small > 0x7eu ? 0x7eu : small) | (bits >> 24 & 0x80u));
}

/* The power of two that is not below `top`.  Above 2^127 there is none that is finite: what is larger than that comes
 * back as it. */
HK_INLINE f32 hk_power_not_below(f32 top) {
    const u32 bits = (hk_bits(top) + 0x7fffffu) & 0x7f800000u;
    return !hk_is_finite(top) ? hk_nan() : hk_float(bits > 0x7f000000u ? 0x7f000000u : bits);
}

/* What halves are parts of, in a block whose largest magnitude is `top`: 1 if that fits. */
HK_INLINE f32 hk_half_scale(f32 top) {
    return top < 65520.0f || !hk_is_finite(top) ? 1 : hk_power_not_below(top) * 0x1p-14f;
}

/* `carry`: added to the 23 bits behind the exponent; where they overflow, the next power of two is taken. */
HK_INLINE u8 hk_power(f32 value, u32 carry) {
    const u32 bits = hk_bits(value), power = ((bits & 0x7fffffffu) + carry) >> 23;
    return (u8)((power > 127 ? 127 : power) | (bits >> 24 & 0x80u));
}

HK_INLINE u8 hk_power_nearest(f32 value) { return hk_power(value, 0x400000u); }

HK_INLINE u8 hk_power_rolled(f32 value, u32 roll) { return hk_power(value, roll >> 9 | 0x40u); }

HK_INLINE f32 hk_from_power(u8 code) { return hk_float((code & 0x7fu) << 23 | (code & 0x80u) << 24); }

/* ---- signs */

/* The mean of `some` of a block's n floats, from the sum of these over n. */
HK_INLINE f32 hk_mean_of(f32 sum, f32 n, f32 some) { return some > 0 ? sum * (n / some) : 0; }

/* Is a float below zero?  Byte i of a block's bits, which lie as pack.h has it; `stride`: an eighth of the block. */
HK_INLINE u8 hk_below_zero(const f32 *x, size_t i, size_t stride) {
    unsigned bits = 0;
    for (unsigned j = 0; j < 8; j++) bits |= (unsigned)(x[i + j * stride] < 0) << j;
    return (u8)bits;
}

#endif
