/* Codes of 1 to 7 bits in bytes, and back, as pack.h has it; once per level, as table.h. */
#ifndef HOCKET_KERNELS_CODEC_PACK_H
#define HOCKET_KERNELS_CODEC_PACK_H

#include "fold.h"
#include "kernels/pack.h"

HK_INLINE const u8 *hk_unpack_area(u8 *restrict codes, const u8 *restrict in, size_t n, int width, int shift) {
    const size_t stride = n * (size_t)width / 8;
    const u64 mask = hk_bytes((1u << width) - 1);
    HK_UNROLL for (int j = 0; j < 8 / width; j++) {
        u8 *to = codes + (size_t)j * stride;
        for (size_t i = 0; i < stride; i += 8) {
            const u64 word = (get_u64((const any_u64 *)(in + i), 0) >> j * width & mask) << shift;
            put_u64((any_u64 *)(to + i), 0, shift ? get_u64((any_u64 *)(to + i), 0) | word : word);
        }
    }
    return in + stride;
}

/* Areas lie from the widest on; what is given is constants. */
HK_INLINE void hk_unpack(u8 *codes, const u8 *in, size_t n, int bits) {
    if (bits & 4) in = hk_unpack_area(codes, in, n, 4, 0);
    if (bits & 2) in = hk_unpack_area(codes, in, n, 2, bits & 4);
    if (bits & 1) hk_unpack_area(codes, in, n, 1, bits & 6);
}

#endif

#define HK_EACH_WIDTH(DO) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)

#define HK_PACK_BITS(B) \
    case B: hk_pack_codes(out, codes, n, B, 0, 1); break;
#define HK_UNPACK_BITS(B) \
    case B: hk_unpack(codes, in, n, B); break;

static void AT(pack)(u8 *restrict out, const u8 *restrict codes, size_t n, int bits) {
#ifdef HK_LANES
    const size_t stride = n * (size_t)bits / 8;
    if (stride % 32 == 0 && (bits == 4 || bits == 2)) {
        bits == 4 ? AT(pack_one_area)(out, codes, stride, 4) : AT(pack_one_area)(out, codes, stride, 2);
        return;
    }
#endif
    switch (bits) { HK_EACH_WIDTH(HK_PACK_BITS) }
}

static void AT(unpack)(u8 *restrict codes, const u8 *restrict in, size_t n, int bits) {
    switch (bits) { HK_EACH_WIDTH(HK_UNPACK_BITS) }
}

#undef HK_EACH_WIDTH
#undef HK_PACK_BITS
#undef HK_UNPACK_BITS
