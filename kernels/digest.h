/* XXH64 (Yann Collet, https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md): 64 bits that tell bytes apart.
 * Against accidents, not against whoever wants two that are alike.  Four lanes of 64-bit words, each with a multiplication
 * and a rotation, over stripes of 32 bytes; the bytes may come in pieces. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HK_PRIME_1 0x9E3779B185EBCA87ull
#define HK_PRIME_2 0xC2B2AE3D27D4EB4Full
#define HK_PRIME_3 0x165667B19E3779F9ull
#define HK_PRIME_4 0x85EBCA77C2B2AE63ull
#define HK_PRIME_5 0x27D4EB2F165667C5ull

enum { HK_STRIPE = 32 };

typedef struct {
    uint64_t lanes[4], total;
    uint8_t rest[HK_STRIPE]; /* of the last stripe, total % HK_STRIPE bytes */
} hk_digest;

static inline uint64_t hk_word(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint64_t hk_rotl(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

static inline uint64_t hk_round(uint64_t lane, uint64_t word)
{
    return hk_rotl(lane + word * HK_PRIME_2, 31) * HK_PRIME_1;
}

static inline void hk_digest_begin(hk_digest *d)
{
    *d = (hk_digest){{HK_PRIME_1 + HK_PRIME_2, HK_PRIME_2, 0, 0 - HK_PRIME_1}, 0, {0}};
}

/* The whole stripes of these bytes.  How many bytes they are. */
static inline size_t hk_stripes(hk_digest *d, const uint8_t *p, size_t nbytes)
{
    uint64_t a = d->lanes[0], b = d->lanes[1], c = d->lanes[2], e = d->lanes[3];
    size_t at = 0;
    for (; at + HK_STRIPE <= nbytes; at += HK_STRIPE) {
        a = hk_round(a, hk_word(p + at));
        b = hk_round(b, hk_word(p + at + 8));
        c = hk_round(c, hk_word(p + at + 16));
        e = hk_round(e, hk_word(p + at + 24));
    }
    d->lanes[0] = a, d->lanes[1] = b, d->lanes[2] = c, d->lanes[3] = e;
    return at;
}

static inline void hk_digest_more(hk_digest *d, const uint8_t *p, size_t nbytes)
{
    size_t held = d->total % HK_STRIPE;
    d->total += nbytes;
    if (held) {
        size_t fit = HK_STRIPE - held < nbytes ? HK_STRIPE - held : nbytes;
        memcpy(d->rest + held, p, fit);
        if (held + fit < HK_STRIPE)
            return;
        hk_stripes(d, d->rest, HK_STRIPE);
        p += fit, nbytes -= fit;
    }
    size_t done = hk_stripes(d, p, nbytes);
    if (done < nbytes)
        memcpy(d->rest, p + done, nbytes - done);
}

static inline uint64_t hk_digest_end(const hk_digest *d)
{
    static const int turns[4] = {1, 7, 12, 18};
    uint64_t h = HK_PRIME_5;
    const uint8_t *p = d->rest, *end = p + d->total % HK_STRIPE;
    if (d->total >= HK_STRIPE) {
        h = 0;
        for (int i = 0; i < 4; i++)
            h += hk_rotl(d->lanes[i], turns[i]);
        for (int i = 0; i < 4; i++)
            h = (h ^ hk_round(0, d->lanes[i])) * HK_PRIME_1 + HK_PRIME_4;
    }
    h += d->total;
    for (; p + 8 <= end; p += 8)
        h = hk_rotl(h ^ hk_round(0, hk_word(p)), 27) * HK_PRIME_1 + HK_PRIME_4;
    if (p + 4 <= end) {
        uint32_t half;
        memcpy(&half, p, sizeof half);
        h = hk_rotl(h ^ half * HK_PRIME_1, 23) * HK_PRIME_2 + HK_PRIME_3;
        p += 4;
    }
    for (; p < end; p++)
        h = hk_rotl(h ^ *p * HK_PRIME_5, 11) * HK_PRIME_1;
    h = (h ^ h >> 33) * HK_PRIME_2;
    h = (h ^ h >> 29) * HK_PRIME_3;
    return h ^ h >> 32;
}
