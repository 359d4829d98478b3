/* Floats of 8 bits with a common scale: fp8, and natural compression; and halves; once per level, as table.h.
 *
 * An element is the scale, a float32, and a byte for each float.  fp8: the scale is the block's largest magnitude / 448,
 * a byte is x * (1 / scale) as e4m3fn, rounded to nearest, ties to even; a subnormal scale is 0.  natural: the scale is the power of two that is not
 * below the largest magnitude; a byte is a sign and an exponent e, which stands for scale * 2^(e - 127), and for zero if
 * it is 0; it is one of the two powers of two around x, the nearer one or `stochastic`: then x is the mean of what may
 * come.
 *
 * A block of zeros has scale 0 and codes 0.  A block that holds a NaN or an infinity comes back as NaN.
 *
 * bf16 is that dtype (convert.h), for calls that encode only in some of their steps.  f16 is that dtype with a scale, for
 * sums: 1, and where the largest magnitude would be infinite the power of two that makes it at most 2^15.  A block that
 * holds a NaN or an infinity has scale 1. */
#ifndef HOCKET_KERNELS_CODEC_FLOATS_H
#define HOCKET_KERNELS_CODEC_FLOATS_H

#include "codec.h"

/* The scale of halves that have none. */
HK_INLINE f32 hk_one(const u8 *element) {
    (void)element;
    return 1;
}

#endif

#ifndef HK_LANES
HK_INLINE void AT(e4m3fn_codes)(u8 *restrict codes, const f32 *restrict x, size_t n, f32 by) {
    for (size_t i = 0; i < n; i++) codes[i] = hk_e4m3fn_at_most_448(x[i] * by);
}
#endif

HK_INLINE void AT(head_fp8)(const hk_codec *c, u8 *out, const f32 *x, size_t n) {
    (void)n;
    hk_put_f32(out, hk_usual_scale(AT(largest)(x, c->block) / 448));
}

HK_INLINE void AT(put_fp8)(const hk_codec *c, u8 *restrict out, const f32 *restrict x, hk_dice dice) {
    (void)dice;
    const f32 scale = hk_get_f32(out);
    if (hk_odd_scale(scale))
        memset(out + 4, 0, c->block);
    else
        AT(e4m3fn_codes)(out + 4, x, c->block, 1 / scale);
}

HK_INLINE void AT(get_fp8)(const hk_codec *c, f32 *restrict x, const u8 *restrict in, int add) {
    const f32 scale = hk_get_f32(in);
    const size_t block = c->block;
    const u8 *restrict codes = in + 4;
    size_t i = 0;
#ifdef HK_LANES
    /* As a half a code is worth 2^-8 of itself, and the hardware knows halves. */
    const __m256 by = _mm256_set1_ps(scale * 256);
    for (; i + 16 <= block; i += 16) {
        const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(codes + i)));
        const __m256i magnitude = _mm256_and_si256(wide, _mm256_set1_epi16(0x7f));
        const __m256i sign = _mm256_slli_epi16(_mm256_xor_si256(wide, magnitude), 8);
        const __m256i nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f));
        const __m256i half = _mm256_or_si256(_mm256_or_si256(_mm256_slli_epi16(magnitude, 7), sign), nan);
        AT(give_lanes)(x + i, _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(half)), by), add);
        AT(give_lanes)(x + i + 8, _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)), by), add);
    }
#endif
    for (; i < block; i++) hk_give(x + i, hk_from_e4m3fn(codes[i]) * scale, add);
}

HK_INLINE void AT(head_natural)(const hk_codec *c, u8 *out, const f32 *x, size_t n) {
    (void)n;
    hk_put_f32(out, hk_power_not_below(AT(largest)(x, c->block)));
}

HK_INLINE void AT(put_natural)(const hk_codec *c, u8 *restrict out, const f32 *restrict x, hk_dice dice) {
    const f32 scale = hk_get_f32(out), by = 1 / scale; /* exact */
    const size_t block = c->block, half = block / 2;
    u8 *restrict codes = out + 4;
    if (hk_odd_scale(scale))
        memset(codes, 0, block);
    else if (c->stochastic)
        for (size_t i = 0; i < half; i++) {
            const hk_rolls roll = hk_roll_two(dice, (u32)i);
            codes[i] = hk_power_rolled(x[i] * by, roll.first);
            codes[i + half] = hk_power_rolled(x[i + half] * by, roll.second);
        }
    else
        for (size_t i = 0; i < block; i++) codes[i] = hk_power_nearest(x[i] * by);
}

HK_INLINE void AT(get_natural)(const hk_codec *c, f32 *restrict x, const u8 *restrict in, int add) {
    const f32 scale = hk_get_f32(in);
    const size_t block = c->block;
    const u8 *restrict codes = in + 4;
    size_t i = 0;
#ifdef HK_LANES
    const __m256i power = _mm256_set1_epi32(0x7f << 23), sign = _mm256_set1_epi32((int)0x80000000u);
    for (; i + 8 <= block; i += 8) {
        const __m256i code = AT(eight_bytes)(codes + i);
        const __m256i powers = _mm256_and_si256(_mm256_slli_epi32(code, 23), power);
        const __m256i bits = _mm256_or_si256(powers, _mm256_and_si256(_mm256_slli_epi32(code, 24), sign));
        AT(give_lanes)(x + i, _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(scale)), add);
    }
#endif
    for (; i < block; i++) hk_give(x + i, hk_from_power(codes[i]) * scale, add);
}

HK_INLINE void AT(head_f16)(const hk_codec *c, u8 *out, const f32 *x, size_t n) {
    (void)n;
    hk_put_f32(out, hk_half_scale(AT(largest)(x, c->block)));
}

HK_INLINE void AT(head_bf16)(const hk_codec *c, u8 *out, const f32 *x, size_t n) { (void)c, (void)out, (void)x, (void)n; }

/* HEAD: bytes of the scale; SCALE: what it is. */
#define HK_HALF(TYPE, HEAD, SCALE)                                                                                  \
    HK_INLINE void AT(put_##TYPE)(const hk_codec *c, u8 *restrict out, const f32 *restrict x, hk_dice dice) {      \
        (void)dice;                                                                                                 \
        AT(narrow_##TYPE)(out + HEAD, x, c->block, 1 / SCALE(out));                                                 \
    }                                                                                                               \
    HK_INLINE void AT(get_##TYPE)(const hk_codec *c, f32 *restrict x, const u8 *restrict in, int add) {            \
        f32 room[HK_BLOCK_MOST];                                                                                    \
        AT(widen_##TYPE)(add ? room : x, in + HEAD, c->block, SCALE(in));                                           \
        if (add)                                                                                                    \
            for (size_t i = 0; i < c->block; i++) x[i] += room[i];                                                  \
    }
HK_HALF(f16, 4, hk_get_f32)
HK_HALF(bf16, 0, hk_one)
#undef HK_HALF
