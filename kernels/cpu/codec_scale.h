/* What the kinds of codecs share: a block's scale, and the order of sums over a block. */
#ifndef HOCKET_KERNELS_CODEC_SCALE_H
#define HOCKET_KERNELS_CODEC_SCALE_H

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

/* What a code stands for, in place of a float or added to it. */
HK_INLINE void hk_give(f32 *x, f32 value, int add) { *x = add ? *x + value : value; }

#endif
