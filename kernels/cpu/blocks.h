/* Codecs of blocks with a common scale (codec.h); once per level, as table.h.
 *
 * An element is the scale, a float32, and then the codes.  The scale is the largest magnitude of the block / the largest
 * code; a code is x / scale, rounded to nearest, ties to even, all in float32: the law of kernels/gpu/quantise.cuh.  A
 * block of zeros, or one whose scale underflows, has scale 0 and codes 0.  A block that holds a NaN or an infinity has a
 * scale that is neither zero nor finite, and comes back as NaN.
 *
 * Codes of int8: one byte each, -127 to 127.  fp8: one e4m3fn each, at most 448.  int4: -7 to 7, plus 8; byte i holds
 * those of x[i], in its lower half, and x[i + block / 2]. */
#ifndef HOCKET_KERNELS_BLOCKS_H
#define HOCKET_KERNELS_BLOCKS_H

#include "kernels/factor.h"
#include "codec.h"
#include "fold.h"

/* 1.5 * 2^23: a float of less than 2^22 that is added to it is rounded to a whole number, in its lowest bits. */
#define HK_TO_WHOLE 12582912.0f

/* The nearest code.  Only where the scale is subnormal, and coarse, is a scaled element above the largest. */
HK_INLINE i32 hk_whole(f32 value, i32 most) {
    i32 whole = (i32)(hk_bits(value + HK_TO_WHOLE) - hk_bits(HK_TO_WHOLE));
    whole = whole > most ? most : whole;
    return whole < -most ? -most : whole;
}

HK_INLINE u8 hk_e4m3fn_at_most_448(f32 value) {
    u32 bits = hk_bits(value), small = hk_narrow(bits & 0x7fffffffu, 20, 120, 0x1p14f);
    return (u8)((small > 0x7eu ? 0x7eu : small) | (bits >> 24 & 0x80u));
}

/* The scale, which is also stored.  As integers, magnitudes are ordered as they are, and NaN is above infinity. */
HK_INLINE f32 hk_put_scale(u8 *out, const f32 *x, size_t n, f32 largest) {
    u32 top = 0;
    for (size_t i = 0; i < n; i++) {
        u32 magnitude = hk_bits(x[i]) & 0x7fffffffu;
        top = magnitude > top ? magnitude : top;
    }
    f32 scale = hk_float(top) / largest;
    memcpy(out, &scale, 4);
    return scale;
}

HK_INLINE f32 hk_get_scale(const u8 *in) {
    f32 scale;
    memcpy(&scale, in, 4);
    return scale;
}

/* Are all codes to be zero? */
HK_INLINE int hk_odd_scale(f32 scale) {
    return !(scale > 0 && hk_bits(scale) < 0x7f800000u);
}

#endif

static void AT(put_int8)(u8 *restrict out, const f32 *restrict x, size_t n) {
    const f32 scale = hk_put_scale(out, x, n, 127);
    i8 *restrict codes = (i8 *)(out + 4);
    if (hk_odd_scale(scale)) {
        memset(codes, 0, n);
        return;
    }
    for (size_t i = 0; i < n; i++) codes[i] = (i8)hk_whole(x[i] / scale, 127);
}

static void AT(get_int8)(f32 *restrict x, const u8 *restrict in, size_t n) {
    const f32 scale = hk_get_scale(in);
    const i8 *restrict codes = (const i8 *)(in + 4);
    for (size_t i = 0; i < n; i++) x[i] = (f32)codes[i] * scale;
}

static void AT(put_fp8)(u8 *restrict out, const f32 *restrict x, size_t n) {
    const f32 scale = hk_put_scale(out, x, n, 448);
    u8 *restrict codes = out + 4;
    if (hk_odd_scale(scale)) {
        memset(codes, 0, n);
        return;
    }
    for (size_t i = 0; i < n; i++) codes[i] = hk_e4m3fn_at_most_448(x[i] / scale);
}

static void AT(get_fp8)(f32 *restrict x, const u8 *restrict in, size_t n) {
    const f32 scale = hk_get_scale(in);
    const u8 *restrict codes = in + 4;
    for (size_t i = 0; i < n; i++) x[i] = hk_from_e4m3fn(codes[i]) * scale;
}

static void AT(put_int4)(u8 *restrict out, const f32 *restrict x, size_t n) {
    const f32 scale = hk_put_scale(out, x, n, 7);
    u8 *restrict codes = out + 4;
    if (hk_odd_scale(scale)) {
        memset(codes, 0x88, n / 2);
        return;
    }
    for (size_t i = 0; i < n / 2; i++)
        codes[i] = (u8)((hk_whole(x[i] / scale, 7) + 8) | (hk_whole(x[i + n / 2] / scale, 7) + 8) << 4);
}

static void AT(get_int4)(f32 *restrict x, const u8 *restrict in, size_t n) {
    const f32 scale = hk_get_scale(in);
    const u8 *restrict codes = in + 4;
    for (size_t i = 0; i < n / 2; i++) {
        x[i] = (f32)((codes[i] & 15) - 8) * scale;
        x[i + n / 2] = (f32)((codes[i] >> 4) - 8) * scale;
    }
}

#define HK_CODEC(NAME)                                                                                               \
    static void AT(encode_##NAME)(const hk_codec *c, void *to, const void *from, size_t count, double factor) {      \
        const f32 by = hk_small_factor(factor);                                                                      \
        const any_f32 *in = (const any_f32 *)from;                                                                   \
        u8 *out = (u8 *)to;                                                                                          \
        f32 x[HK_BLOCK_MOST];                                                                                        \
        for (size_t at = 0; at < count; at += c->block, out += c->nbytes) {                                          \
            const size_t n = count - at < c->block ? count - at : c->block;                                          \
            for (size_t i = 0; i < n; i++) x[i] = get_f32(in, at + i) * by;                                          \
            if (n < c->block) memset(x + n, 0, (c->block - n) * sizeof x[0]);                                        \
            AT(put_##NAME)(out, x, c->block);                                                                        \
        }                                                                                                            \
    }                                                                                                                \
    static void AT(decode_##NAME)(const hk_codec *c, void *to, const void *from, size_t count, double factor) {      \
        const f32 by = hk_small_factor(factor);                                                                      \
        const u8 *in = (const u8 *)from;                                                                             \
        any_f32 *out = (any_f32 *)to;                                                                                \
        f32 x[HK_BLOCK_MOST];                                                                                        \
        for (size_t at = 0; at < count; at += c->block, in += c->nbytes) {                                           \
            const size_t n = count - at < c->block ? count - at : c->block;                                          \
            AT(get_##NAME)(x, in, c->block);                                                                         \
            for (size_t i = 0; i < n; i++) put_f32(out, at + i, x[i] * by);                                          \
        }                                                                                                            \
    }                                                                                                                \
    static void AT(fold_##NAME)(const hk_codec *c, void *out, const void *const *in, int k, size_t count) {          \
        f32 sum[HK_BLOCK_MOST], x[HK_BLOCK_MOST];                                                                    \
        if (k == 1) {                                                                                                \
            if (out != in[0]) memcpy(out, in[0], count * c->nbytes);                                                 \
            return;                                                                                                  \
        }                                                                                                            \
        for (size_t at = 0; at < count * c->nbytes; at += c->nbytes) {                                               \
            AT(get_##NAME)(sum, (const u8 *)in[0] + at, c->block);                                                   \
            for (int j = 1; j < k; j++) {                                                                            \
                AT(get_##NAME)(x, (const u8 *)in[j] + at, c->block);                                                 \
                for (size_t i = 0; i < c->block; i++) sum[i] += x[i];                                                \
            }                                                                                                        \
            AT(put_##NAME)((u8 *)out + at, sum, c->block);                                                           \
        }                                                                                                            \
    }

HK_CODEC(int8)
HK_CODEC(fp8)
HK_CODEC(int4)

static const hk_codec AT(hk_codecs)[HK_CODE_COUNT] = {
    [HK_CODE_INT8] = {256, 260, AT(encode_int8), AT(decode_int8), AT(fold_int8)},
    [HK_CODE_FP8] = {256, 260, AT(encode_fp8), AT(decode_fp8), AT(fold_fp8)},
    [HK_CODE_INT4] = {128, 68, AT(encode_int4), AT(decode_int4), AT(fold_int4)},
};

#undef HK_CODEC
