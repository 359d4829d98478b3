/* A codec: `block` float32 become one element of `nbytes` on the wire.  The last block of a vector may be short: what it
 * lacks is encoded as zeros.  blocks.h has the laws. */
#ifndef HOCKET_KERNELS_CODEC_H
#define HOCKET_KERNELS_CODEC_H

#include <stddef.h>

typedef struct hk_codec hk_codec;

struct hk_codec {
    size_t block, nbytes;
    /* `count` floats, each times factor, into elements; and back.  `to` and `from` lie apart, at any alignment. */
    void (*encode)(const hk_codec *, void *to, const void *from, size_t count, double factor);
    void (*decode)(const hk_codec *, void *to, const void *from, size_t count, double factor);
    /* out = in[0] + ... + in[k-1], left to right in float32, encoded once; `count` elements.  k == 1 copies.  `out` may be
     * exactly one of the inputs. */
    void (*fold)(const hk_codec *, void *out, const void *const *in, int k, size_t count);
};

enum hk_code { HK_CODE_INT8, HK_CODE_FP8, HK_CODE_INT4, HK_CODE_COUNT };

enum { HK_BLOCK_MOST = 1024 }; /* floats; an element must be no more than 4096 bytes (transports/channel.h) */

#endif
