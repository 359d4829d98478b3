/* A codec: `block` float32 become one element of `nbytes` on the wire.  The last block of a vector may be short: what it
 * lacks is encoded as zeros.  The codec_*.h have the laws of each kind. */
#ifndef HOCKET_KERNELS_CODEC_H
#define HOCKET_KERNELS_CODEC_H

#include "kernels/codes.h"

typedef struct hk_codec hk_codec;

/* A kind's functions and one codec's parameters. */
struct hk_codec {
    /* `count` floats, each times factor, into elements; and back.  `to` and `from` lie apart, at any alignment. */
    void (*encode)(const hk_codec *, void *to, const void *from, size_t count, double factor, hk_dice);
    void (*decode)(const hk_codec *, void *to, const void *from, size_t count, double factor);
    /* out = in[0] + ... + in[k-1], left to right in float32, encoded once; the elements of `count` floats.  k == 1 copies.
     * `out` may be exactly one of the inputs. */
    void (*fold)(const hk_codec *, void *out, const void *const *in, int k, size_t count, hk_dice);
    size_t block, nbytes;
    uint64_t seed;
    int bits, levels;   /* whole numbers: those of a code, and the largest */
    int norm, stochastic;
    float clip;         /* whole numbers: at so many times the block's root mean square; 0: nowhere */
};

enum hk_code { HK_CODE_WHOLE, HK_CODE_FP8, HK_CODE_SIGN, HK_CODE_ONEBIT, HK_CODE_NATURAL, HK_CODE_F16, HK_CODE_BF16, HK_CODE_COUNT };

enum { HK_BLOCK_MOST = 1024 }; /* floats; an element must be no more than 4096 bytes (transports/channel.h) */

#endif
