/* Encoding with a residual: what was lost before is added, what is lost now is left; once per level, as table.h.
 *
 * after = given - decode(encode(given)), in float32, where given = x + before, or the sum that a fold encodes, + before.
 * The bits on the wire are those of the codec's encode(given).  A few blocks at a time, which stay in the first-level cache
 * between the encoding and the decoding. */
#ifndef HOCKET_KERNELS_CODEC_RESIDUAL_H
#define HOCKET_KERNELS_CODEC_RESIDUAL_H

#include "codec.h"
#include "fold.h"

enum { HK_CACHED = 2048 }; /* floats */

#endif

HK_INLINE void AT(add)(f32 *sum, const any_f32 *x, size_t n) {
    HK_IVDEP for (size_t i = 0; i < n; i++) sum[i] += get_f32(x, i);
}

/* The elements from float `at` on, which `given` has been made of but for the residual. */
HK_INLINE void AT(encode_given)(const hk_codec *c, void *out, f32 *given, hk_residual residual, size_t at, size_t n,
                                hk_dice dice) {
    f32 came[HK_CACHED];
    any_f32 *after = (any_f32 *)residual.after + at;
    u8 *element = (u8 *)out + at / c->block * c->nbytes;
    if (residual.before)
        AT(add)(given, (const any_f32 *)residual.before + at, n);
    dice.first += (u32)at;
    c->encode(c, element, given, n, 1, dice);
    c->decode(c, came, element, n, 1);
    HK_IVDEP for (size_t i = 0; i < n; i++) put_f32(after, i, given[i] - came[i]);
}

static void AT(encode_residual)(const hk_codec *c, void *to, const void *from, size_t count, hk_residual residual,
                                hk_dice dice) {
    const size_t step = HK_CACHED / c->block * c->block;
    f32 given[HK_CACHED];
    for (size_t at = 0; at < count; at += step) {
        const size_t n = hk_lesser(count - at, step);
        memcpy(given, (const any_f32 *)from + at, n * sizeof(f32));
        AT(encode_given)(c, to, given, residual, at, n, dice);
    }
}

static void AT(fold_residual)(const hk_codec *c, void *out, const void *const *in, int k, size_t count,
                              hk_residual residual, hk_dice dice) {
    const size_t step = HK_CACHED / c->block * c->block;
    f32 given[HK_CACHED], term[HK_CACHED];
    for (size_t at = 0; at < count; at += step) {
        const size_t n = hk_lesser(count - at, step), first = at / c->block * c->nbytes;
        c->decode(c, given, (const u8 *)in[0] + first, n, 1);
        for (int j = 1; j < k; j++) {
            c->decode(c, term, (const u8 *)in[j] + first, n, 1);
            AT(add)(given, (const any_f32 *)term, n);
        }
        AT(encode_given)(c, out, given, residual, at, n, dice);
    }
}
