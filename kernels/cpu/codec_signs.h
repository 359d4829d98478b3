/* One bit for each float: `sign` and `onebit`; once per level, as table.h.
 *
 * sign: an element is the mean magnitude of the block, a float32, and a bit for each float: is it below zero?  It comes back
 * as plus or minus that mean.  onebit: the mean of those that are not below zero, the mean of those that are, and the bits;
 * a float comes back as the mean of its kind, so the block keeps its sum.  Only the caller's floats count for a mean.  A
 * block that holds a NaN or an infinity comes back as NaN.  The bits lie as kernels/pack.h says. */
#ifndef HOCKET_KERNELS_CODEC_SIGNS_H
#define HOCKET_KERNELS_CODEC_SIGNS_H

#include "codec.h"

#endif

static void AT(put_bits)(u8 *restrict out, const f32 *restrict x, size_t block) {
    const size_t stride = block / 8;
    size_t i = 0;
#ifdef HK_LANES
    i = AT(bits_below_zero)(out, x, stride);
#endif
    for (; i < stride; i++) out[i] = hk_below_zero(x, i, stride);
}

#ifndef HK_LANES
HK_INLINE void AT(get_bits)(f32 *restrict x, const u8 *restrict in, size_t block, f32 above, f32 below, int add) {
    const size_t stride = block / 8;
    const u32 no = hk_bits(above), other = hk_bits(below) ^ no;
    HK_UNROLL for (unsigned j = 0; j < 8; j++, x += stride)
        for (size_t i = 0; i < stride; i++) hk_give(x + i, hk_float(no ^ (other & (0u - (in[i] >> j & 1u)))), add);
}
#endif

HK_INLINE void AT(head_sign)(const hk_codec *c, u8 *out, const f32 *x, size_t n) {
    const f32 mean = AT(magnitudes)(x, c->block, 1 / (f32)n); /* each part is divided, so that no sum overflows */
    hk_put_f32(out, hk_is_finite(mean) ? mean : hk_nan());
}

HK_INLINE void AT(put_sign)(const hk_codec *c, u8 *restrict out, const f32 *restrict x, hk_dice dice) {
    (void)dice;
    AT(put_bits)(out + 4, x, c->block);
}

HK_INLINE void AT(get_sign)(const hk_codec *c, f32 *restrict x, const u8 *restrict in, int add) {
    const f32 mean = hk_get_f32(in);
    AT(get_bits)(x, in + 4, c->block, mean, -mean, add);
}

#ifndef HK_LANES
HK_INLINE hk_sides AT(sides)(const f32 *restrict x, size_t n, f32 by) {
    f32 above[HK_SUMS] = {0}, below[HK_SUMS] = {0}, minus[HK_SUMS] = {0};
    for (size_t at = 0; at < n; at += HK_SUMS)
        for (size_t i = 0; i < HK_SUMS; i++) {
            const f32 part = x[at + i] * by;
            const int is = x[at + i] < 0;
            above[i] += hk_float(hk_select(is, 0, hk_bits(part)));
            below[i] += hk_float(hk_select(is, hk_bits(part), 0));
            minus[i] += (f32)is;
        }
    const hk_sides found = {hk_add_sums(above), hk_add_sums(below), hk_add_sums(minus)};
    return found;
}
#endif

HK_INLINE void AT(head_onebit)(const hk_codec *c, u8 *out, const f32 *x, size_t n) {
    const hk_sides sums = AT(sides)(x, c->block, 1 / (f32)n);
    f32 high = hk_mean_of(sums.above, (f32)n, (f32)n - sums.minus), low = hk_mean_of(sums.below, (f32)n, sums.minus);
    if (!hk_is_finite(high) || !hk_is_finite(low))
        high = low = hk_nan();
    hk_put_f32(out, high);
    hk_put_f32(out + 4, low);
}

HK_INLINE void AT(put_onebit)(const hk_codec *c, u8 *restrict out, const f32 *restrict x, hk_dice dice) {
    (void)dice;
    AT(put_bits)(out + 8, x, c->block);
}

HK_INLINE void AT(get_onebit)(const hk_codec *c, f32 *restrict x, const u8 *restrict in, int add) {
    AT(get_bits)(x, in + 8, c->block, hk_get_f32(in), hk_get_f32(in + 4), add);
}
