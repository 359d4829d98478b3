/* Floats in fewer bytes, with the same bits: each byte of an element, turned left by a bit so that its exponent is one byte,
 * lies with those of its neighbours, and where few values are frequent they are coded by Huffman's codes.
 *
 * A piece is its memory bytes (u32), then for each byte of the element, the lowest first, a plane: how it is coded, and that.
 *   raw: the bytes;   same: one byte;   coded: the codes' lengths, four streams' lengths, the streams.
 * Of gradients and weights the exponents are worth 2.5 to 3 bits, and the rest is noise: the highest plane is always looked
 * at, the others if a sample of them looks unlike noise.  (ZipNN, arXiv 2411.05239, found the same of trained weights.)
 *
 * Codes have at most HK_LONGEST_CODE bits and fill the table of a reader, which refuses others.  A reader believes nothing:
 * it returns -1 where what came is not what a writer makes. */
#ifndef HOCKET_KERNELS_LOSSLESS_H
#define HOCKET_KERNELS_LOSSLESS_H

#include "kernels/cpu/codec.h"

enum {
    HK_PIECE = 61440,     /* memory bytes of a piece: however badly it packs, it is shorter than HK_SLICE */
    HK_LONGEST_CODE = 11, /* 5 of them fit into what is read at once */
    HK_STREAMS = 4,
    HK_SAMPLED = 256
};
enum { HK_PLANE_RAW, HK_PLANE_SAME, HK_PLANE_CODED };

typedef struct {
    u16 code[256];
    u8 length[256];
} hk_codes;

/* The lengths of the codes of these counts, whose Kraft sum is 1; there are at least two symbols. */
static void hk_code_lengths(const u32 *counts, u8 *lengths) {
    u8 symbols[256];
    u32 weight[512];
    u16 parent[512];
    int n = 0;
    memset(lengths, 0, 256);
    for (int s = 0; s < 256; s++) { /* by count, the rarest first: few are frequent */
        if (counts[s] == 0) continue;
        int i = n++;
        for (; i > 0 && counts[symbols[i - 1]] > counts[s]; i--) symbols[i] = symbols[i - 1];
        symbols[i] = (u8)s;
    }
    for (int i = 0; i < n; i++) weight[i] = counts[symbols[i]];
    int leaf = 0, inner = n;
    for (int made = n; made < 2 * n - 1; made++) { /* the two lightest of two sorted rows become one */
        u32 total = 0;
        for (int k = 0; k < 2; k++) {
            const int take = leaf < n && (inner >= made || weight[leaf] <= weight[inner]) ? leaf++ : inner++;
            total += weight[take];
            parent[take] = (u16)made;
        }
        weight[made] = total;
    }
    u8 depth[512];
    depth[2 * n - 2] = 0;
    i32 room = 1 << HK_LONGEST_CODE;
    for (int i = 2 * n - 3; i >= 0; i--) depth[i] = (u8)(depth[parent[i]] + 1);
    for (int i = 0; i < n; i++) {
        lengths[symbols[i]] = depth[i] < HK_LONGEST_CODE ? depth[i] : HK_LONGEST_CODE;
        room -= 1 << (HK_LONGEST_CODE - lengths[symbols[i]]);
    }
    for (int i = 0; room < 0; i = i + 1 < n ? i + 1 : 0) /* too many short ones: the rarest that can becomes longer */
        while (room < 0 && lengths[symbols[i]] < HK_LONGEST_CODE) {
            lengths[symbols[i]]++;
            room += 1 << (HK_LONGEST_CODE - lengths[symbols[i]]);
        }
    for (int i = n - 1; room > 0; i = i > 0 ? i - 1 : n - 1) /* what is left goes to the most frequent that it fits */
        if (1 << (HK_LONGEST_CODE - lengths[symbols[i]]) <= room) {
            room -= 1 << (HK_LONGEST_CODE - lengths[symbols[i]]);
            lengths[symbols[i]]--;
        }
}

/* Codes in the order of their lengths, then of symbols, with the first bit lowest; 0: these are no lengths of codes. */
static int hk_make_codes(hk_codes *made, const u8 *lengths) {
    u32 next = 0;
    i32 room = 1 << HK_LONGEST_CODE;
    memcpy(made->length, lengths, 256);
    for (int bits = 1; bits <= HK_LONGEST_CODE; bits++, next <<= 1)
        for (int s = 0; s < 256; s++) {
            if (lengths[s] != bits) continue;
            u32 turned = 0;
            for (int b = 0; b < bits; b++) turned |= (next >> b & 1) << (bits - 1 - b);
            made->code[s] = (u16)turned;
            next++;
            room -= 1 << (HK_LONGEST_CODE - bits);
            if (room < 0) return 0;
        }
    return room == 0;
}

/* n symbols as a stream at `to`, which has 8 bytes more than they need.  Its bytes. */
static size_t hk_put_stream(u8 *to, const u8 *symbols, size_t n, const hk_codes *codes) {
    u32 both[256];
    for (int s = 0; s < 256; s++) both[s] = (u32)codes->code[s] << 8 | codes->length[s];
    u64 bits = 0;
    u32 held = 0;
    u8 *at = to;
    size_t i = 0;
    for (; i + 4 <= n; i += 4) { /* 7 + 4 * 11 bits at most */
        for (int k = 0; k < 4; k++) {
            const u32 code = both[symbols[i + k]];
            bits |= (u64)(code >> 8) << held;
            held += code & 255;
        }
        memcpy(at, &bits, 8);
        at += held >> 3;
        bits >>= held & ~7u;
        held &= 7;
    }
    for (; i < n; i++) {
        bits |= (u64)codes->code[symbols[i]] << held;
        held += codes->length[symbols[i]];
    }
    memcpy(at, &bits, 8);
    return (size_t)(at - to) + (held + 7) / 8;
}

typedef struct {
    const u8 *at, *end;
    u64 bits;
    u32 held;
} hk_reader;

HK_INLINE void hk_refill(hk_reader *r) {
    if (r->end - r->at >= 8) {
        u64 more;
        memcpy(&more, r->at, 8);
        r->bits |= more << r->held;
        r->at += (63 - r->held) >> 3;
        r->held |= 56;
    } else
        while (r->held <= 56 && r->at < r->end) {
            r->bits |= (u64)*r->at++ << r->held;
            r->held += 8;
        }
}

/* A plane of n symbols, from the bytes before `end`.  Where it ends, or NULL. */
static const u8 *hk_get_coded(u8 *plane, size_t n, const u8 *at, const u8 *end) {
    u8 lengths[256];
    u16 table[1 << HK_LONGEST_CODE];
    hk_codes codes;
    hk_reader r[HK_STREAMS];
    if (end - at < 2) return NULL;
    const size_t first = at[0], last = at[1], sized = first <= last ? (last - first + 2) / 2 : 0;
    if (first > last || (size_t)(end - at) < 2 + sized + 4 * HK_STREAMS) return NULL;
    memset(lengths, 0, sizeof lengths);
    for (size_t s = first; s <= last; s++) lengths[s] = (at[2 + (s - first) / 2] >> 4 * ((s - first) & 1)) & 15;
    at += 2 + sized;
    for (int s = 0; s < 256; s++)
        if (lengths[s] > HK_LONGEST_CODE) return NULL;
    if (!hk_make_codes(&codes, lengths)) return NULL;
    for (u32 s = (u32)first; s <= last; s++)
        for (u32 i = codes.code[s]; lengths[s] && i < 1u << HK_LONGEST_CODE; i += 1u << lengths[s])
            table[i] = (u16)(s << 8 | lengths[s]);
    const u8 *stream = at + 4 * HK_STREAMS;
    for (int k = 0; k < HK_STREAMS; k++) {
        u32 bytes;
        memcpy(&bytes, at + 4 * k, 4);
        if (bytes > (size_t)(end - stream)) return NULL;
        r[k].at = stream, r[k].end = stream += bytes, r[k].bits = 0, r[k].held = 0;
    }
    const size_t share = n / HK_STREAMS;
    size_t i = 0;
    for (; i + 5 <= share; i += 5) {
        for (int k = 0; k < HK_STREAMS; k++) hk_refill(&r[k]);
        for (int j = 0; j < 5; j++)
            for (int k = 0; k < HK_STREAMS; k++) {
                const u32 found = table[r[k].bits & ((1u << HK_LONGEST_CODE) - 1)], bits = found & 255;
                plane[share * (size_t)k + i + (size_t)j] = (u8)(found >> 8);
                r[k].bits >>= bits;
                r[k].held -= bits; /* below 0 it is huge, and the stream has not ended where it should */
            }
        for (int k = 0; k < HK_STREAMS; k++)
            if (r[k].held > 64) return NULL;
    }
    for (int k = 0; k < HK_STREAMS; k++) {
        const size_t until = k + 1 < HK_STREAMS ? share : n - share * (HK_STREAMS - 1);
        for (size_t j = i; j < until; j++) {
            hk_refill(&r[k]);
            const u32 found = table[r[k].bits & ((1u << HK_LONGEST_CODE) - 1)], bits = found & 255;
            plane[share * (size_t)k + j] = (u8)(found >> 8);
            if (bits > r[k].held) return NULL;
            r[k].bits >>= bits;
            r[k].held -= bits;
        }
        if (r[k].at != r[k].end || r[k].held > 7) return NULL;
    }
    return stream;
}

/* A plane at `to`, which has room for n + 1 bytes and 8 more.  Its bytes. */
static size_t hk_put_plane(u8 *to, const u8 *plane, size_t n, int look) {
    u32 counts[4][256];
    u64 other = 0;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        u64 eight;
        memcpy(&eight, plane + i, 8);
        other |= eight ^ (plane[0] * 0x0101010101010101u);
    }
    for (; i < n; i++) other |= plane[i] ^ plane[0];
    if (n && !other) {
        to[0] = HK_PLANE_SAME, to[1] = plane[0];
        return 2;
    }
    if (!look && n >= 4 * HK_SAMPLED) {
        u8 seen[256] = {0};
        int most = 0;
        for (i = 0; i < HK_SAMPLED; i++) {
            const int times = ++seen[plane[i * (n / HK_SAMPLED)]];
            most = times > most ? times : most;
        }
        look = most > 16;
    }
    if (look && n >= 64) {
        u8 lengths[256];
        hk_codes codes;
        u64 bits = 0;
        int first = 256, last = 0;
        memset(counts, 0, sizeof counts);
        for (i = 0; i + 4 <= n; i += 4)
            for (int k = 0; k < 4; k++) counts[k][plane[i + (size_t)k]]++;
        for (; i < n; i++) counts[0][plane[i]]++;
        for (int s = 0; s < 256; s++) {
            counts[0][s] += counts[1][s] + counts[2][s] + counts[3][s];
            if (counts[0][s]) last = s, first = first < s ? first : s;
        }
        hk_code_lengths(counts[0], lengths);
        for (int s = first; s <= last; s++) bits += (u64)counts[0][s] * lengths[s];
        const size_t sized = (size_t)(last - first + 2) / 2;
        if (bits / 8 + 3 + sized + 4 * HK_STREAMS + HK_STREAMS < n - n / 64) {
            hk_make_codes(&codes, lengths);
            to[0] = HK_PLANE_CODED, to[1] = (u8)first, to[2] = (u8)last;
            memset(to + 3, 0, sized);
            for (int s = first; s <= last; s++) to[3 + (s - first) / 2] |= (u8)(lengths[s] << 4 * ((s - first) & 1));
            u8 *at = to + 3 + sized + 4 * HK_STREAMS;
            const size_t share = n / HK_STREAMS;
            for (int k = 0; k < HK_STREAMS; k++) {
                const size_t count = k + 1 < HK_STREAMS ? share : n - share * (HK_STREAMS - 1);
                const u32 bytes = (u32)hk_put_stream(at, plane + share * (size_t)k, count, &codes);
                memcpy(to + 3 + sized + 4 * k, &bytes, 4);
                at += bytes;
            }
            return (size_t)(at - to);
        }
    }
    to[0] = HK_PLANE_RAW;
    memcpy(to + 1, plane, n);
    return n + 1;
}

#endif

/* --- once per level: between elements and planes */

static size_t AT(pack_lossless)(const hk_codec *c, u8 *to, size_t room, const u8 *from, size_t n, size_t *taken) {
    u8 planes[4][HK_PIECE / 2];
    const size_t width = c->nbytes, most = n < HK_PIECE ? n : HK_PIECE, count = most / width;
    const u32 bytes = (u32)(count * width);
    u8 *at = to + 4;
    *taken = bytes;
    if (room < bytes + 16 + width) *taken = 0;
    if (*taken == 0) return 0;
    memcpy(to, &bytes, 4);
    if (width == 4) {
        const any_u32 *in = (const any_u32 *)from;
        u8 *restrict a = planes[0], *restrict b = planes[1], *restrict d = planes[2], *restrict e = planes[3];
        HK_IVDEP for (size_t i = 0; i < count; i++) {
            const u32 x = in[i] << 1 | in[i] >> 31;
            a[i] = (u8)x, b[i] = (u8)(x >> 8), d[i] = (u8)(x >> 16), e[i] = (u8)(x >> 24);
        }
    } else {
        const any_u16 *in = (const any_u16 *)from;
        u8 *restrict a = planes[0], *restrict b = planes[1];
        HK_IVDEP for (size_t i = 0; i < count; i++) {
            const u16 x = (u16)(in[i] << 1 | in[i] >> 15);
            a[i] = (u8)x, b[i] = (u8)(x >> 8);
        }
    }
    for (size_t k = 0; k < width; k++) at += hk_put_plane(at, planes[k], count, k + 1 == width);
    return (size_t)(at - to);
}

static long AT(unpack_lossless)(const hk_codec *c, u8 *to, const u8 *from, size_t n) {
    u8 room[4][HK_PIECE / 2];
    const u8 *plane[4] = {room[0], room[1], room[2], room[3]}, *at = from + 4, *end = from + n;
    const size_t width = c->nbytes;
    u32 bytes;
    if (n == 0) return 0;
    if (n < 4) return -1;
    memcpy(&bytes, from, 4);
    const size_t count = bytes / width;
    if (bytes > HK_PIECE || count * width != bytes || count == 0) return -1;
    for (size_t k = 0; k < width; k++) {
        if (end - at < 2) return -1;
        const int coded = *at++;
        if (coded == HK_PLANE_RAW) {
            if ((size_t)(end - at) < count) return -1;
            plane[k] = at;
            at += count;
        } else if (coded == HK_PLANE_SAME)
            memset(room[k], *at++, count);
        else if (coded != HK_PLANE_CODED || (at = hk_get_coded(room[k], count, at, end)) == NULL)
            return -1;
    }
    if (at != end) return -1;
    const u8 *a = plane[0], *b = plane[1], *d = plane[2], *e = plane[3];
    if (width == 4) {
        any_u32 *out = (any_u32 *)to;
        HK_IVDEP for (size_t i = 0; i < count; i++) {
            const u32 x = (u32)a[i] | (u32)b[i] << 8 | (u32)d[i] << 16 | (u32)e[i] << 24;
            out[i] = x >> 1 | x << 31;
        }
    } else {
        any_u16 *out = (any_u16 *)to;
        HK_IVDEP for (size_t i = 0; i < count; i++) {
            const u16 x = (u16)(a[i] | b[i] << 8);
            out[i] = (u16)(x >> 1 | x << 15);
        }
    }
    return (long)bytes;
}
