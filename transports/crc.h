/* A check of many bytes: three CRC32C, each of a third, and the CRC32C of these.
 *
 * The instruction takes 8 bytes each cycle, and gives its result three cycles later: so three at once.  It finds every
 * burst of up to 32 bits, and misses one of 2^32 other damages.  Nobody's bytes but our own are checked so, and it proves
 * nothing where somebody wants two alike. */
#ifndef HK_CRC_H
#define HK_CRC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __x86_64__
#include <nmmintrin.h>
#endif

static inline uint32_t hk_crc_bytes(uint32_t crc, const unsigned char *p, size_t n) {
    while (n--) {
        crc ^= *p++;
        for (int i = 0; i < 8; i++) crc = crc >> 1 ^ (0x82f63b78u & (0u - (crc & 1)));
    }
    return crc;
}

static inline uint32_t hk_check_slow(const unsigned char *p, size_t n) {
    const size_t third = n / 24 * 8;
    uint32_t crcs[3] = {hk_crc_bytes(~0u, p, third), hk_crc_bytes(~0u, p + third, third),
                        hk_crc_bytes(~0u, p + 2 * third, n - 2 * third)};
    uint32_t crc = ~0u;
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 4; j++) {
            const unsigned char byte = (unsigned char)(crcs[i] >> 8 * j);
            crc = hk_crc_bytes(crc, &byte, 1);
        }
    return ~crc;
}

#ifdef __x86_64__
__attribute__((target("sse4.2"), noinline, unused)) static uint32_t hk_check_fast(const unsigned char *p, size_t n) {
    const size_t third = n / 24 * 8;
    uint64_t a = ~0u, b = ~0u, c = ~0u, x, y, z;
    for (size_t i = 0; i < third; i += 8) {
        memcpy(&x, p + i, 8), memcpy(&y, p + third + i, 8), memcpy(&z, p + 2 * third + i, 8);
        a = _mm_crc32_u64(a, x), b = _mm_crc32_u64(b, y), c = _mm_crc32_u64(c, z);
    }
    for (size_t i = 3 * third; i < n; i++) c = _mm_crc32_u8((uint32_t)c, p[i]);
    uint32_t crc = _mm_crc32_u32(~0u, (uint32_t)a);
    return ~_mm_crc32_u32(_mm_crc32_u32(crc, (uint32_t)b), (uint32_t)c);
}
#endif

/* The same of bytes that come in pieces, however they are cut: word `i` of 8 bytes goes into the CRC number i mod 3. */
typedef struct hk_crc3 {
    uint32_t crc[3];
    uint32_t at; /* bytes behind the last 24 */
} hk_crc3;

static inline void hk_crc3_begin(hk_crc3 *c) { *c = (hk_crc3){{~0u, ~0u, ~0u}, 0}; }

static inline void hk_crc3_slow(hk_crc3 *c, const unsigned char *p, size_t n) {
    for (; n; n--, p++, c->at = (c->at + 1) % 24) c->crc[c->at / 8] = hk_crc_bytes(c->crc[c->at / 8], p, 1);
}

#ifdef __x86_64__
__attribute__((target("sse4.2"), noinline, unused)) static void hk_crc3_fast(hk_crc3 *s, const unsigned char *p, size_t n) {
    uint64_t a, b, c, x, y, z;
    for (; n && s->at; n--, s->at = (s->at + 1) % 24) s->crc[s->at / 8] = _mm_crc32_u8(s->crc[s->at / 8], *p++);
    for (a = s->crc[0], b = s->crc[1], c = s->crc[2]; n >= 24; n -= 24, p += 24) {
        memcpy(&x, p, 8), memcpy(&y, p + 8, 8), memcpy(&z, p + 16, 8);
        a = _mm_crc32_u64(a, x), b = _mm_crc32_u64(b, y), c = _mm_crc32_u64(c, z);
    }
    s->crc[0] = (uint32_t)a, s->crc[1] = (uint32_t)b, s->crc[2] = (uint32_t)c;
    for (; n; n--, s->at++) s->crc[s->at / 8] = _mm_crc32_u8(s->crc[s->at / 8], *p++);
}
#endif

static inline void hk_crc3_add(hk_crc3 *c, const void *p, size_t n) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("sse4.2")) {
        hk_crc3_fast(c, (const unsigned char *)p, n);
        return;
    }
#endif
    hk_crc3_slow(c, (const unsigned char *)p, n);
}

static inline uint32_t hk_crc3_end(const hk_crc3 *c) {
    hk_crc3 end;
    hk_crc3_begin(&end);
    hk_crc3_add(&end, c->crc, sizeof c->crc);
    return ~(end.crc[0] ^ (end.crc[1] << 1 | end.crc[1] >> 31));
}

/* The check of `n` bytes. */
static inline uint32_t hk_check_of(const void *p, size_t n) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("sse4.2")) return hk_check_fast((const unsigned char *)p, n);
#endif
    return hk_check_slow((const unsigned char *)p, n);
}

#endif
