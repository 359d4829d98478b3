/* The codecs of codec.h, by kind; once per level, as table.h.  The kinds say what is in an element.
 *
 * A kind is three functions on one block, of c->block floats at any address: head(c, out, x, n) writes what the floats have
 * in common, where n of them are the caller's and the others 0; put(c, out, x, dice) writes the codes behind it; get(c, x,
 * in, add) makes floats of both, or adds them to x.
 *
 * The head of the next block is made before this one's codes are put.  It ends in two divisions, one after the other, and a
 * CPU does not look ahead far enough to do something else meanwhile. */
#ifndef HOCKET_KERNELS_BLOCKS_H
#define HOCKET_KERNELS_BLOCKS_H

#include "kernels/factor.h"
#include "codec.h"
#include "fold.h"

/* Where floats to be encoded come from: an array, each times a factor; or the sum of k vectors of elements. */
typedef struct {
    const any_f32 *x;
    f32 by;
    const void *const *in;
    int k;
} hk_source;

/* The block that begins with float `at`, of which n are the caller's; in `room` unless it lies in memory as it is. */
typedef const f32 *(*hk_fetch_fn)(const hk_codec *, const hk_source *, size_t at, size_t n, f32 *room);

HK_INLINE size_t hk_lesser(size_t count, size_t block) { return count < block ? count : block; }

#endif

#include "codec_heads.h"
#ifdef HK_LANES
#include "codec_x86.h"
#endif
#include "codec_pack.h"
#include "codec_whole.h"
#include "codec_signs.h"
#include "codec_floats.h"
#include "codec_residual.h"
#include "kernels/exact/sums.h"
#include "kernels/exact/heads.h"
#include "kernels/exact/accumulators.h"
#include "kernels/exact/lossless.h"

HK_INLINE const f32 *AT(fetch_floats)(const hk_codec *c, const hk_source *from, size_t at, size_t n, f32 *room) {
    if (n == c->block && from->by == 1 && (uintptr_t)from->x % sizeof(f32) == 0)
        return (const f32 *)from->x + at;
    for (size_t i = 0; i < n; i++) room[i] = get_f32(from->x, at + i) * from->by;
    if (n < c->block) memset(room + n, 0, (c->block - n) * sizeof room[0]);
    return room;
}

#define HK_CODEC(NAME)                                                                                               \
    HK_INLINE const f32 *AT(fetch_sum_##NAME)(const hk_codec *c, const hk_source *from, size_t at, size_t n,         \
                                              f32 *room) {                                                           \
        const size_t block = c->block, first = at / block * c->nbytes;                                               \
        AT(get_##NAME)(c, room, (const u8 *)from->in[0] + first, 0);                                                 \
        for (int j = 1; j < from->k; j++) AT(get_##NAME)(c, room, (const u8 *)from->in[j] + first, 1);               \
        if (n < block) memset(room + n, 0, (block - n) * sizeof room[0]);                                            \
        return room;                                                                                                 \
    }                                                                                                                \
    HK_INLINE void AT(put_all_##NAME)(const hk_codec *c, u8 *out, const hk_source *from, hk_fetch_fn fetch,          \
                                      size_t count, hk_dice dice) {                                                  \
        const size_t block = c->block, nbytes = c->nbytes;                                                           \
        f32 rooms[2][HK_BLOCK_MOST];                                                                                 \
        if (count == 0) return;                                                                                      \
        size_t n = hk_lesser(count, block);                                                                      \
        const f32 *x = fetch(c, from, 0, n, rooms[0]), *next = x;                                                    \
        AT(head_##NAME)(c, out, x, n);                                                                               \
        for (size_t at = block, turn = 1;; at += block, turn ^= 1, out += nbytes, dice.first += (u32)block) {        \
            if (at < count) {                                                                                        \
                n = hk_lesser(count - at, block);                                                                \
                next = fetch(c, from, at, n, rooms[turn]);                                                           \
                AT(head_##NAME)(c, out + nbytes, next, n);                                                           \
            }                                                                                                        \
            AT(put_##NAME)(c, out, x, dice);                                                                         \
            if (at >= count) return;                                                                                 \
            x = next;                                                                                                \
        }                                                                                                            \
    }                                                                                                                \
    static void AT(encode_##NAME)(const hk_codec *c, void *to, const void *from, size_t count, double factor,        \
                                  hk_dice dice) {                                                                    \
        const hk_source floats = {(const any_f32 *)from, hk_small_factor(factor), NULL, 0};                          \
        AT(put_all_##NAME)(c, (u8 *)to, &floats, AT(fetch_floats), count, dice);                                     \
    }                                                                                                                \
    static void AT(decode_##NAME)(const hk_codec *c, void *to, const void *from, size_t count, double factor) {      \
        const size_t block = c->block, nbytes = c->nbytes;                                                           \
        const f32 by = hk_small_factor(factor);                                                                      \
        const u8 *in = (const u8 *)from;                                                                             \
        any_f32 *out = (any_f32 *)to;                                                                                \
        const int plain = by == 1 && (uintptr_t)to % sizeof(f32) == 0;                                               \
        f32 x[HK_BLOCK_MOST];                                                                                        \
        for (size_t at = 0; at < count; at += block, in += nbytes) {                                                 \
            const size_t n = hk_lesser(count - at, block);                                                       \
            if (plain && n == block) {                                                                               \
                AT(get_##NAME)(c, (f32 *)to + at, in, 0);                                                            \
                continue;                                                                                            \
            }                                                                                                        \
            AT(get_##NAME)(c, x, in, 0);                                                                             \
            for (size_t i = 0; i < n; i++) put_f32(out, at + i, x[i] * by);                                          \
        }                                                                                                            \
    }                                                                                                                \
    static void AT(fold_##NAME)(const hk_codec *c, void *out, const void *const *in, int k, size_t count,            \
                                hk_dice dice) {                                                                      \
        const hk_source vectors = {NULL, 1, in, k};                                                                  \
        if (k > 1)                                                                                                   \
            AT(put_all_##NAME)(c, (u8 *)out, &vectors, AT(fetch_sum_##NAME), count, dice);                           \
        else if (out != in[0])                                                                                       \
            memcpy(out, in[0], (count + c->block - 1) / c->block * c->nbytes);                                       \
    }

HK_CODEC(whole)
HK_CODEC(fp8)
HK_CODEC(sign)
HK_CODEC(onebit)
HK_CODEC(natural)
HK_CODEC(f16)
HK_CODEC(bf16)

#define HK_ROW(NAME) {AT(encode_##NAME), AT(decode_##NAME), AT(fold_##NAME), AT(encode_residual), AT(fold_residual)}

/* Without their parameters. */
static const hk_codec AT(hk_codecs)[HK_CODE_COUNT] = {
    [HK_CODE_WHOLE] = HK_ROW(whole),   [HK_CODE_FP8] = HK_ROW(fp8),         [HK_CODE_SIGN] = HK_ROW(sign),
    [HK_CODE_ONEBIT] = HK_ROW(onebit), [HK_CODE_NATURAL] = HK_ROW(natural),
    [HK_CODE_F16] = HK_ROW(f16),       [HK_CODE_BF16] = HK_ROW(bf16),
    [HK_CODE_EXACT] = {AT(encode_exact), AT(decode_exact), AT(fold_exact), .pack = hk_pack_exact,
                       .unpack = hk_unpack_exact, .count = hk_count_exact},
    [HK_CODE_SUMS] = {.fold = AT(fold_sums)}, [HK_CODE_EXTREMES] = {.fold = AT(fold_extremes)},
    [HK_CODE_LOSSLESS] = {.pack = AT(pack_lossless), .unpack = AT(unpack_lossless)},
};

#undef HK_CODEC
#undef HK_ROW
