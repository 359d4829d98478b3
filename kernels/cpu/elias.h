/* The elements of codec_whole.h with codes of different lengths: the smaller a number, the fewer bits.
 *
 * A number from 1 up is Elias' omega code (Elias, "Universal codeword sets and representations of the integers", 1975): 1 is
 * 0; another is its binary digits and a 0, and before them, coded the same way but for the 0, how many digits follow the
 * first.  Bits lie from the highest of each byte down.
 *
 * An element is its scale (32 bits), and a bit that says which of two forms comes, the shorter one (Alistarh et al., "QSGD",
 * 2017, has both).  0: how many codes are not zero, plus 1; of each the distance from the one before, a bit that says whether
 * it is negative, and its magnitude.  1: of each code the magnitude plus 1, and the bit, if it is not zero. */
#ifndef HOCKET_KERNELS_ELIAS_H
#define HOCKET_KERNELS_ELIAS_H

#include "codec.h"

#define AT(name) hk_elias_##name
#include "codec_heads.h"
#include "codec_pack.h"
#undef AT

enum {
    HK_OMEGA_DIGITS = 11,    /* of the largest number, HK_BLOCK_MOST + 1 */
    HK_ELIAS_MOST = 15       /* bits of a code: of magnitude 127, in the second form */
};

typedef struct {
    u64 bits;
    int length;
} hk_omega;

HK_INLINE hk_omega hk_omega_of(u32 number) {
    hk_omega code = {0, 1};
    while (number > 1) {
        const int digits = 32 - __builtin_clz(number);
        code.bits |= (u64)number << code.length;
        code.length += digits;
        number = (u32)digits - 1;
    }
    return code;
}

typedef struct {
    u8 *at;
    u64 held;      /* the lowest `length` bits are still to be written; fewer than 8, between two calls */
    int length;
} hk_bits_out;

HK_INLINE void hk_write_bits(hk_bits_out *to, u64 bits, int length) {
    to->held = to->held << length | bits;
    for (to->length += length; to->length >= 8; to->length -= 8)
        *to->at++ = (u8)(to->held >> (to->length - 8));
}

HK_INLINE void hk_write_omega(hk_bits_out *to, u32 number) {
    const hk_omega code = hk_omega_of(number);
    hk_write_bits(to, code.bits, code.length);
}

typedef struct {
    const u8 *at, *end;
    u64 held;
    int length;
    int ended;     /* more was asked for than there is */
} hk_bits_in;

HK_INLINE u32 hk_read_bits(hk_bits_in *from, int length) {
    for (; from->length < length; from->length += 8) {
        if (from->at == from->end) {
            from->ended = 1;
            return 0;
        }
        from->held = from->held << 8 | *from->at++;
    }
    from->length -= length;
    return (u32)(from->held >> from->length & ((1ull << length) - 1));
}

/* 0: it is none. */
HK_INLINE u32 hk_read_omega(hk_bits_in *from) {
    u32 number = 1;
    while (hk_read_bits(from, 1)) {
        if (number >= HK_OMEGA_DIGITS)
            return 0;
        number = 1u << number | hk_read_bits(from, (int)number);
    }
    return from->ended ? 0 : number;
}

/* Codes as they are in an element: bytes, with `zero` added. */
static void hk_elias_codes(const hk_codec *c, u8 *codes, const u8 *element) {
    if (c->bits == 8)
        memcpy(codes, element + 4, c->block);
    else
        hk_elias_unpack(codes, element + 4, c->block, c->bits);
}

HK_INLINE int hk_elias_zero(const hk_codec *c) { return c->bits == 8 ? 0 : 1 << (c->bits - 1); }

static void hk_write_element(const hk_codec *c, hk_bits_out *to, const u8 *element) {
    const int zero = hk_elias_zero(c);
    const size_t block = c->block;
    u8 codes[HK_BLOCK_MOST];
    size_t at[HK_BLOCK_MOST], count = 0, few = 0, all = 0;
    hk_elias_codes(c, codes, element);
    for (size_t i = 0; i < block; i++) {
        at[count] = i;
        count += codes[i] != (u8)zero;
    }
    for (size_t i = 0; i < count; i++) {
        const i32 code = (i8)(codes[at[i]] - zero);
        const u32 magnitude = (u32)(code < 0 ? -code : code);
        few += (size_t)(hk_omega_of((u32)(at[i] - (i ? at[i - 1] : (size_t)-1))).length + 1 + hk_omega_of(magnitude).length);
        all += (size_t)(1 + hk_omega_of(magnitude + 1).length);
    }
    few += (size_t)hk_omega_of((u32)count + 1).length;
    all += block - count;
    const int dense = all < few;
    u32 scale;
    memcpy(&scale, element, 4);
    hk_write_bits(to, scale, 32);
    hk_write_bits(to, (u64)dense, 1);
    if (!dense)
        hk_write_omega(to, (u32)count + 1);
    for (size_t i = 0, begin = 0; i < count; begin = at[i++] + 1) {
        const i32 code = (i8)(codes[at[i]] - zero);
        const u32 magnitude = (u32)(code < 0 ? -code : code), gap = (u32)(at[i] - begin);
        if (dense) {
            for (u32 j = 0; j < gap; j++) hk_write_bits(to, 0, 1);
            hk_write_omega(to, magnitude + 1);
            hk_write_bits(to, code < 0, 1);
        } else {
            hk_write_omega(to, gap + 1);
            hk_write_bits(to, code < 0, 1);
            hk_write_omega(to, magnitude);
        }
    }
    for (size_t i = count ? at[count - 1] + 1 : 0; dense && i < block; i++) hk_write_bits(to, 0, 1);
}

/* 0, or -1 if it is none. */
static int hk_read_element(const hk_codec *c, u8 *element, hk_bits_in *from) {
    const int zero = hk_elias_zero(c);
    const size_t block = c->block;
    const u32 scale = hk_read_bits(from, 32), dense = hk_read_bits(from, 1);
    size_t left = dense ? block : hk_read_omega(from), at = 0;
    u8 codes[HK_BLOCK_MOST];
    if (from->ended || left == 0)
        return -1;
    memset(codes, zero, block);
    for (left -= !dense; left; left--, at++) {
        u32 magnitude, gap = dense ? 1 : hk_read_omega(from), negative = dense ? 0 : hk_read_bits(from, 1);
        magnitude = hk_read_omega(from) - dense;
        if (dense && magnitude)
            negative = hk_read_bits(from, 1);
        if (from->ended || gap == 0 || gap > block - at || magnitude > (u32)c->levels || (magnitude == 0 && !dense))
            return -1;
        at += gap - 1;
        codes[at] = (u8)((negative ? -(i32)magnitude : (i32)magnitude) + zero);
    }
    memcpy(element, &scale, 4);
    if (c->bits == 8)
        memcpy(element + 4, codes, block);
    else
        hk_elias_pack(element + 4, codes, block, c->bits);
    return 0;
}

/* Bytes that `count` elements may take. */
static size_t hk_elias_most(const hk_codec *c, size_t count) { return (count * (33 + HK_ELIAS_MOST * c->block) + 7) / 8; }

/* The bytes written. */
static size_t hk_elias_put(const hk_codec *c, u8 *out, const u8 *elements, size_t count) {
    hk_bits_out to = {out, 0, 0};
    for (size_t i = 0; i < count; i++) hk_write_element(c, &to, elements + i * c->nbytes);
    if (to.length)
        hk_write_bits(&to, 0, 8 - to.length);
    return (size_t)(to.at - out);
}

/* 0; or -1 if the bytes are not those of `count` elements: then some of `elements` may have been written. */
static int hk_elias_get(const hk_codec *c, u8 *elements, size_t count, const u8 *in, size_t nbytes) {
    hk_bits_in from = {in, in + nbytes, 0, 0, 0};
    for (size_t i = 0; i < count; i++)
        if (hk_read_element(c, elements + i * c->nbytes, &from) < 0)
            return -1;
    return from.at == from.end && from.length < 8 && hk_read_bits(&from, from.length) == 0 ? 0 : -1;
}

#endif
