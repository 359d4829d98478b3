/* Codes of 1 to 7 bits in bytes, and back; once per level, as table.h.
 *
 * The lowest bits lie first: an area of 4 bits a code, then one of 2, then one of 1, where `bits` has these as binary
 * digits.  In an area of w bits byte i holds the codes i, i + stride, i + 2 stride, ..., the first in its lowest bits, with
 * stride = n * w / 8: so that vectors of bytes pack without a shuffle.  n is a multiple of 8. */
#ifndef HOCKET_KERNELS_CODEC_PACK_H
#define HOCKET_KERNELS_CODEC_PACK_H

#include "kernels/elements.h"

HK_INLINE u8 *hk_pack_area(u8 *restrict out, const u8 *restrict codes, size_t n, int width, int shift) {
    const size_t stride = n * (size_t)width / 8;
    for (int j = 0; j < 8 / width; j++)
        for (size_t i = 0; i < stride; i++) {
            const unsigned part = (codes[i + (size_t)j * stride] >> shift & ((1u << width) - 1)) << j * width;
            out[i] = (u8)(j ? out[i] | part : part);
        }
    return out + stride;
}

HK_INLINE const u8 *hk_unpack_area(u8 *restrict codes, const u8 *restrict in, size_t n, int width, int shift) {
    const size_t stride = n * (size_t)width / 8;
    for (int j = 0; j < 8 / width; j++)
        for (size_t i = 0; i < stride; i++) {
            const unsigned code = (in[i] >> j * width & ((1u << width) - 1)) << shift;
            codes[i + (size_t)j * stride] = (u8)(shift ? codes[i + (size_t)j * stride] | code : code);
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
