/* Codes of 1 to 7 bits in bytes, and back; once per level, as table.h.
 *
 * The lowest bits lie first: an area of 4 bits a code, then one of 2, then one of 1, where `bits` has these as binary
 * digits.  In an area of w bits byte i holds the codes i, i + stride, i + 2 stride, ..., the first in its lowest bits, with
 * stride = n * w / 8: so that vectors of bytes pack without a shuffle.  n is a multiple of 8. */
#ifndef HOCKET_KERNELS_CODEC_PACK_H
#define HOCKET_KERNELS_CODEC_PACK_H

#include "kernels/elements.h"
#include "fold.h"

/* Eight bytes in a word, each with `low` in its low bits. */
HK_INLINE u64 hk_bytes(unsigned low) { return low * 0x0101010101010101u; }

HK_INLINE u8 *hk_pack_area(u8 *restrict out, const u8 *restrict codes, size_t n, int width, int shift) {
    const size_t stride = n * (size_t)width / 8;
    const u64 mask = hk_bytes((1u << width) - 1);
    size_t i = 0;
    for (; i + 8 <= stride; i += 8) {
        u64 word = 0;
        HK_UNROLL for (int j = 0; j < 8 / width; j++)
            word |= (get_u64((const any_u64 *)(codes + i + (size_t)j * stride), 0) >> shift & mask) << j * width;
        put_u64((any_u64 *)(out + i), 0, word);
    }
    for (; i < stride; i++) {
        unsigned byte = 0;
        for (int j = 0; j < 8 / width; j++)
            byte |= (codes[i + (size_t)j * stride] >> shift & ((1u << width) - 1)) << j * width;
        out[i] = (u8)byte;
    }
    return out + stride;
}

HK_INLINE const u8 *hk_unpack_area(u8 *restrict codes, const u8 *restrict in, size_t n, int width, int shift) {
    const size_t stride = n * (size_t)width / 8;
    const u64 mask = hk_bytes((1u << width) - 1);
    HK_UNROLL for (int j = 0; j < 8 / width; j++) {
        u8 *to = codes + (size_t)j * stride;
        size_t i = 0;
        for (; i + 8 <= stride; i += 8) {
            const u64 word = (get_u64((const any_u64 *)(in + i), 0) >> j * width & mask) << shift;
            put_u64((any_u64 *)(to + i), 0, shift ? get_u64((any_u64 *)(to + i), 0) | word : word);
        }
        for (; i < stride; i++) {
            const unsigned code = (in[i] >> j * width & ((1u << width) - 1)) << shift;
            to[i] = (u8)(shift ? to[i] | code : code);
        }
    }
    return in + stride;
}

HK_INLINE void hk_pack(u8 *out, const u8 *codes, size_t n, int bits) {
    int shift = 0;
    for (int width = 4; width; width /= 2)
        if (bits & width) {
            out = hk_pack_area(out, codes, n, width, shift);
            shift += width;
        }
}

HK_INLINE void hk_unpack(u8 *codes, const u8 *in, size_t n, int bits) {
    int shift = 0;
    for (int width = 4; width; width /= 2)
        if (bits & width) {
            in = hk_unpack_area(codes, in, n, width, shift);
            shift += width;
        }
}

#endif

#define HK_EACH_WIDTH(DO) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)

#define HK_PACK_BITS(B) \
    case B: hk_pack(out, codes, n, B); break;
#define HK_UNPACK_BITS(B) \
    case B: hk_unpack(codes, in, n, B); break;

static void AT(pack)(u8 *restrict out, const u8 *restrict codes, size_t n, int bits) {
    switch (bits) { HK_EACH_WIDTH(HK_PACK_BITS) }
}

static void AT(unpack)(u8 *restrict codes, const u8 *restrict in, size_t n, int bits) {
    switch (bits) { HK_EACH_WIDTH(HK_UNPACK_BITS) }
}

#undef HK_EACH_WIDTH
#undef HK_PACK_BITS
#undef HK_UNPACK_BITS
