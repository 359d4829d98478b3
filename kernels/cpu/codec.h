/* A codec: `block` float32 become one element of `nbytes` on the wire.  The last block of a vector may be short: what it
 * lacks is encoded as zeros.  The codec_*.h have the laws of each kind. */
#ifndef HOCKET_KERNELS_CODEC_H
#define HOCKET_KERNELS_CODEC_H

#include "kernels/codes.h"

typedef struct hk_codec hk_codec;

/* Floats beside those that are encoded: `before` is added to them, or nothing if it is NULL; `after` gets what their encoding
 * loses, and may be `before`. */
typedef struct {
    const void *before;
    void *after;
} hk_residual;

/* A kind's functions and one codec's parameters. */
struct hk_codec {
    /* `count` floats, each times factor, into elements; and back.  `to` and `from` lie apart, at any alignment. */
    void (*encode)(const hk_codec *, void *to, const void *from, size_t count, double factor, hk_dice);
    void (*decode)(const hk_codec *, void *to, const void *from, size_t count, double factor);
    /* out = in[0] + ... + in[k-1], left to right in float32, encoded once; the elements of `count` floats.  k == 1 copies.
     * `out` may be exactly one of the inputs. */
    void (*fold)(const hk_codec *, void *out, const void *const *in, int k, size_t count, hk_dice);
    /* The same with a residual (codec_residual.h).  k == 1 encodes, too. */
    void (*encode_residual)(const hk_codec *, void *to, const void *from, size_t count, hk_residual, hk_dice);
    void (*fold_residual)(const hk_codec *, void *out, const void *const *in, int k, size_t count, hk_residual, hk_dice);
    size_t block, nbytes;
    uint64_t seed;
    int bits, levels;   /* whole numbers: those of a code, and the largest */
    int norm, stochastic;
    float clip;         /* whole numbers: at so many times the block's root mean square; 0: nowhere */
    /* Sums that are exact (kernels/exact/): the dtype, the rows of x that are added up and the bytes from one to the next, what the
     * sum is divided by, and the words and the base of a wide number. */
    int dtype, words, base;
    size_t rows, stride;
    double divisor;
    /* For elements that are sent shorter than they lie (engine/packed.h); NULL: they are not.  pack: whole elements of the
     * `n` bytes are taken, as many as fit into `room`; returns the bytes of what it made.  count: how many elements lie in
     * n bytes that came, where these may be read as they are, or -1 if they are not what a peer sends; unpack then makes n
     * bytes of them at `to`, or skips as many if that is NULL, and returns how many were read.  Where count is NULL, unpack
     * takes all n bytes that came, and returns the bytes that they stand for, or -1. */
    size_t (*pack)(const hk_codec *, unsigned char *to, size_t room, const unsigned char *from, size_t n, size_t *taken);
    long (*count)(const hk_codec *, const unsigned char *from, size_t n);
    long (*unpack)(const hk_codec *, unsigned char *to, const unsigned char *from, size_t n);
};

enum hk_code { HK_CODE_WHOLE, HK_CODE_FP8, HK_CODE_SIGN, HK_CODE_ONEBIT, HK_CODE_NATURAL, HK_CODE_F16, HK_CODE_BF16,
               HK_CODE_EXACT, HK_CODE_SUMS, HK_CODE_EXTREMES, HK_CODE_LOSSLESS, HK_CODE_COUNT };

/* out = x + before; after = 0: floats that are handed on as they are. */
static inline void hk_add_residual(void *out, const void *x, size_t count, hk_residual residual) {
    const any_f32 *before = (const any_f32 *)residual.before;
    memcpy(out, x, count * sizeof(f32));
    for (size_t i = 0; before && i < count; i++)
        put_f32((any_f32 *)out, i, get_f32((any_f32 *)out, i) + get_f32(before, i));
    memset(residual.after, 0, count * sizeof(f32));
}

enum { HK_BLOCK_MOST = 1024 }; /* floats; an element must be no more than 4096 bytes (transports/channel.h) */

#endif
