/* Codes of 1 to 7 bits in bytes, and back: what the codecs of CPUs and GPUs share.
 *
 * The lowest bits lie first: an area of 4 bits a code, then one of 2, then one of 1, where `bits` has these as binary
 * digits.  In an area of w bits byte i holds the codes i, i + stride, i + 2 stride, ..., the first in its lowest bits,
 * with stride = n * w / 8: so that vectors of bytes pack without a shuffle.  n is a multiple of 64. */
#ifndef HOCKET_KERNELS_PACK_H
#define HOCKET_KERNELS_PACK_H

#include "kernels/elements.h"

/* Eight bytes in a word, each with `low` in its low bits. */
HK_INLINE u64 hk_bytes(unsigned low) { return low * 0x0101010101010101u; }

/* To an area, which a GPU's memory has at a multiple of four bytes. */
HK_INLINE void hk_put_eight(u8 *to, u64 word) {
#ifdef HK_CUDA
    ((u32 *)to)[0] = (u32)word;
    ((u32 *)to)[1] = (u32)(word >> 32);
#else
    put_u64((any_u64 *)to, 0, word);
#endif
}

/* Eight bytes at a time: those of number `first`, first + step, ...  Where the next area begins. */
HK_INLINE u8 *hk_pack_area(u8 *__restrict__ out, const u8 *__restrict__ codes, size_t n, int width, int shift,
                           size_t first, size_t step) {
    const size_t stride = n * (size_t)width / 8;
    const u64 mask = hk_bytes((1u << width) - 1);
    for (size_t i = 8 * first; i < stride; i += 8 * step) {
        u64 word = 0;
        HK_UNROLL for (int j = 0; j < 8 / width; j++)
            word |= (get_u64((const any_u64 *)(codes + i + (size_t)j * stride), 0) >> shift & mask) << j * width;
        hk_put_eight(out + i, word);
    }
    return out + stride;
}

HK_INLINE void hk_pack_codes(u8 *out, const u8 *codes, size_t n, int bits, size_t first, size_t step) {
    int shift = 0;
    for (int width = 4; width; width /= 2)
        if (bits & width) {
            out = hk_pack_area(out, codes, n, width, shift, first, step);
            shift += width;
        }
}

#endif
