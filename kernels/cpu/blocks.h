/* The codecs of codec.h, by kind; once per level, as table.h.  The kinds say what is in an element.
 *
 * A kind is two functions on one block, of c->block floats at any address: put(c, out, x, n, dice), where n of the floats
 * are the caller's and the others 0, and get(c, x, in). */
#include "kernels/factor.h"
#include "codec.h"
#include "fold.h"

#ifdef HK_LANES
#include "codec_x86.h"
#endif
#include "codec_pack.h"
#include "codec_whole.h"
#include "codec_signs.h"
#include "codec_floats.h"

#define HK_CODEC(NAME)                                                                                               \
    static void AT(encode_##NAME)(const hk_codec *c, void *to, const void *from, size_t count, double factor,        \
                                  hk_dice dice) {                                                                    \
        const size_t block = c->block, nbytes = c->nbytes;                                                           \
        const f32 by = hk_small_factor(factor);                                                                      \
        const any_f32 *in = (const any_f32 *)from;                                                                   \
        const int plain = by == 1 && (uintptr_t)from % sizeof(f32) == 0;                                             \
        u8 *out = (u8 *)to;                                                                                          \
        f32 x[HK_BLOCK_MOST];                                                                                        \
        for (size_t at = 0; at < count; at += block, out += nbytes, dice.first += (u32)block) {                      \
            const size_t n = count - at < block ? count - at : block;                                                \
            if (plain && n == block) {                                                                               \
                AT(put_##NAME)(c, out, (const f32 *)from + at, n, dice);                                             \
                continue;                                                                                            \
            }                                                                                                        \
            for (size_t i = 0; i < n; i++) x[i] = get_f32(in, at + i) * by;                                          \
            if (n < block) memset(x + n, 0, (block - n) * sizeof x[0]);                                              \
            AT(put_##NAME)(c, out, x, n, dice);                                                                      \
        }                                                                                                            \
    }                                                                                                                \
    static void AT(decode_##NAME)(const hk_codec *c, void *to, const void *from, size_t count, double factor) {      \
        const size_t block = c->block, nbytes = c->nbytes;                                                           \
        const f32 by = hk_small_factor(factor);                                                                      \
        const u8 *in = (const u8 *)from;                                                                             \
        any_f32 *out = (any_f32 *)to;                                                                                \
        const int plain = by == 1 && (uintptr_t)to % sizeof(f32) == 0;                                               \
        f32 x[HK_BLOCK_MOST];                                                                                        \
        for (size_t at = 0; at < count; at += block, in += nbytes) {                                                 \
            const size_t n = count - at < block ? count - at : block;                                                \
            if (plain && n == block) {                                                                               \
                AT(get_##NAME)(c, (f32 *)to + at, in);                                                               \
                continue;                                                                                            \
            }                                                                                                        \
            AT(get_##NAME)(c, x, in);                                                                                \
            for (size_t i = 0; i < n; i++) put_f32(out, at + i, x[i] * by);                                          \
        }                                                                                                            \
    }                                                                                                                \
    static void AT(fold_##NAME)(const hk_codec *c, void *out, const void *const *in, int k, size_t count,            \
                                hk_dice dice) {                                                                      \
        const size_t block = c->block, nbytes = c->nbytes;                                                           \
        f32 sum[HK_BLOCK_MOST], x[HK_BLOCK_MOST];                                                                    \
        if (k == 1) {                                                                                                \
            if (out != in[0]) memcpy(out, in[0], (count + block - 1) / block * nbytes);                              \
            return;                                                                                                  \
        }                                                                                                            \
        for (size_t at = 0, done = 0; done < count;                                                                  \
             at += nbytes, done += block, dice.first += (u32)block) {                                                \
            const size_t n = count - done < block ? count - done : block;                                            \
            AT(get_##NAME)(c, sum, (const u8 *)in[0] + at);                                                          \
            for (int j = 1; j < k; j++) {                                                                            \
                AT(get_##NAME)(c, x, (const u8 *)in[j] + at);                                                        \
                for (size_t i = 0; i < block; i++) sum[i] += x[i];                                                   \
            }                                                                                                        \
            if (n < block) memset(sum + n, 0, (block - n) * sizeof sum[0]);                                          \
            AT(put_##NAME)(c, (u8 *)out + at, sum, n, dice);                                                         \
        }                                                                                                            \
    }

HK_CODEC(whole)
HK_CODEC(fp8)
HK_CODEC(sign)
HK_CODEC(onebit)
HK_CODEC(natural)
HK_CODEC(f16)
HK_CODEC(bf16)

/* Without their parameters. */
static const hk_codec AT(hk_codecs)[HK_CODE_COUNT] = {
    [HK_CODE_WHOLE] = {AT(encode_whole), AT(decode_whole), AT(fold_whole)},
    [HK_CODE_FP8] = {AT(encode_fp8), AT(decode_fp8), AT(fold_fp8)},
    [HK_CODE_SIGN] = {AT(encode_sign), AT(decode_sign), AT(fold_sign)},
    [HK_CODE_ONEBIT] = {AT(encode_onebit), AT(decode_onebit), AT(fold_onebit)},
    [HK_CODE_NATURAL] = {AT(encode_natural), AT(decode_natural), AT(fold_natural)},
    [HK_CODE_F16] = {AT(encode_f16), AT(decode_f16), AT(fold_f16)},
    [HK_CODE_BF16] = {AT(encode_bf16), AT(decode_bf16), AT(fold_bf16)},
};

#undef HK_CODEC
