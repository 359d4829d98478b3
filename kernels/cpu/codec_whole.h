/* Whole numbers with a common scale: int8 to int2, QSGD, TernGrad; once per level, as table.h.
 *
 * An element is the scale, a float32, and a code for each float: a whole number of at most `levels`, either sign.  The
 * scale is the block's norm / levels.  The norm is its largest magnitude, or its Euclidean length; with `clip` no more than
 * so many times its root mean square, and what is above it is cut off.  (Of subnormal floats it is the largest magnitude.)
 * A code is x * (1 / scale), rounded to nearest, ties to even; or `stochastic`: that is the mean of what may come, and what
 * needs no rounding is not rounded.  All in float32.
 *
 * A block of zeros, or one whose scale is subnormal, has scale 0 and codes 0.  A block that holds a NaN or an infinity has a
 * scale that is neither zero nor finite, and comes back as NaN.  Codes of 8 bits are bytes with a sign; shorter ones have
 * half of their range added, and kernels/pack.h says where they lie. */
#ifndef HOCKET_KERNELS_CODEC_WHOLE_H
#define HOCKET_KERNELS_CODEC_WHOLE_H

#include "codec.h"

#endif

/* What the block's codes are parts of; n of its floats are the caller's. */
HK_INLINE f32 AT(norm)(const hk_codec *c, const f32 *x, size_t n) {
    const f32 top = AT(largest)(x, c->block);
    if (hk_norm_is(top, c->norm, c->clip))
        return top;
    return hk_norm_of(top, AT(squares)(x, c->block, 1 / top), (f32)n, c->norm, c->clip);
}

#ifndef HK_LANES
HK_INLINE void AT(nearest_codes)(u8 *restrict codes, const f32 *restrict x, size_t n, f32 by, i32 most, int zero) {
    for (size_t i = 0; i < n; i++) codes[i] = (u8)(hk_nearest(x[i] * by, most) + zero);
}

HK_INLINE void AT(rolled_codes)(u8 *restrict codes, const f32 *restrict x, size_t n, f32 by, i32 most, int zero,
                                hk_dice dice) {
    const size_t half = n / 2;
    for (size_t i = 0; i < half; i++) {
        const hk_rolls roll = hk_roll_two(dice, (u32)i);
        codes[i] = (u8)(hk_rolled(x[i] * by, most, roll.first) + zero);
        codes[i + half] = (u8)(hk_rolled(x[i + half] * by, most, roll.second) + zero);
    }
}
#endif

HK_INLINE void AT(head_whole)(const hk_codec *c, u8 *out, const f32 *x, size_t n) {
    hk_put_f32(out, hk_usual_scale(AT(norm)(c, x, n) / (f32)c->levels));
}

HK_INLINE void AT(put_whole)(const hk_codec *c, u8 *restrict out, const f32 *restrict x, hk_dice dice) {
    const f32 scale = hk_get_f32(out);
    const size_t block = c->block;
    const i32 most = c->levels, zero = c->bits == 8 ? 0 : 1 << (c->bits - 1);
    u8 room[HK_BLOCK_MOST], *restrict codes = c->bits == 8 ? out + 4 : room;
    if (hk_odd_scale(scale))
        memset(codes, zero, block);
    else if (c->stochastic)
        AT(rolled_codes)(codes, x, block, 1 / scale, most, zero, dice);
    else
        AT(nearest_codes)(codes, x, block, 1 / scale, most, zero);
    if (c->bits != 8)
        AT(pack)(out + 4, codes, block, c->bits);
}

HK_INLINE void AT(get_whole)(const hk_codec *c, f32 *restrict x, const u8 *restrict in, int add) {
    const f32 scale = hk_get_f32(in);
    const size_t block = c->block;
    if (c->bits == 8) {
        const i8 *restrict codes = (const i8 *)(in + 4);
        for (size_t i = 0; i < block; i++) hk_give(x + i, (f32)codes[i] * scale, add);
        return;
    }
#ifdef HK_LANES
    if (c->bits == 4 || c->bits == 2) {
        AT(give_one_area)(x, in + 4, block, c->bits, scale, add);
        return;
    }
#endif
    const int zero = 1 << (c->bits - 1);
    u8 codes[HK_BLOCK_MOST];
    AT(unpack)(codes, in + 4, block, c->bits);
    for (size_t i = 0; i < block; i++) hk_give(x + i, (f32)(codes[i] - zero) * scale, add);
}
