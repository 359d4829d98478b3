/* What the kinds of codecs share: a block's scale, and what the heads of elements are made of; once per level, as table.h. */
#ifndef HOCKET_KERNELS_CODEC_HEADS_H
#define HOCKET_KERNELS_CODEC_HEADS_H

#include "kernels/codes.h"

HK_INLINE void hk_put_f32(u8 *out, f32 value) { memcpy(out, &value, 4); }

HK_INLINE f32 hk_get_f32(const u8 *in) {
    f32 value;
    memcpy(&value, in, 4);
    return value;
}

HK_INLINE void hk_fold_sums(f32 *sums, int half) {
    for (int i = 0; i < half; i++) sums[i] += sums[i + half];
}

/* Not a loop over the halves: compilers made it ten times as slow as this. */
HK_INLINE f32 hk_add_sums(f32 *sums) {
    hk_fold_sums(sums, 16);
    hk_fold_sums(sums, 8);
    hk_fold_sums(sums, 4);
    hk_fold_sums(sums, 2);
    return sums[0] + sums[1];
}

/* The sums of x * by where x is not below zero and where it is, and how often it is. */
typedef struct {
    f32 above, below, minus;
} hk_sides;

/* What a code stands for, in place of a float or added to it. */
HK_INLINE void hk_give(f32 *x, f32 value, int add) { *x = add ? *x + value : value; }

#endif

#ifndef HK_LANES
/* The largest magnitude. */
HK_INLINE f32 AT(largest)(const f32 *x, size_t n) {
    u32 top = 0;
    for (size_t i = 0; i < n; i++) {
        const u32 magnitude = hk_magnitude(x[i]);
        top = magnitude > top ? magnitude : top;
    }
    return hk_float(top);
}

/* The sum of (x * by)^2. */
HK_INLINE f32 AT(squares)(const f32 *restrict x, size_t n, f32 by) {
    f32 sums[HK_SUMS] = {0};
    for (size_t at = 0; at < n; at += HK_SUMS)
        for (size_t i = 0; i < HK_SUMS; i++) {
            const f32 part = x[at + i] * by;
            sums[i] += part * part;
        }
    return hk_add_sums(sums);
}

/* The sum of |x| * by. */
HK_INLINE f32 AT(magnitudes)(const f32 *restrict x, size_t n, f32 by) {
    f32 sums[HK_SUMS] = {0};
    for (size_t at = 0; at < n; at += HK_SUMS)
        for (size_t i = 0; i < HK_SUMS; i++) sums[i] += hk_float(hk_magnitude(x[at + i])) * by;
    return hk_add_sums(sums);
}
#endif
