/* The frame of a byte stream (TCP): a header of 24 bytes, little endian, zeros before a long payload, then `length`
 * bytes of payload.
 *
 *   0   magic    4  "hkt1"
 *   4   check    4  of the other 20 bytes, so that a stream that lost its place is noticed at once
 *   8   tag      8
 *  16   length   8  at most HK_FRAME_MAX; and HK_FRAME_FURTHER
 *
 * A long payload begins 64 bytes after the header's begin, or 96 (HK_FRAME_FURTHER).  Linux copies into and out of its
 * buffers by `rep movsb`, which takes an AMD EPYC (Zen 3) three to six times as long where (to - from) mod 4096 is from 1
 * to 31 (system/copy.h).  A buffer of the kernel mostly begins with a frame, or with the last bytes of one.  So a payload
 * at 24 was slow to send from each array that begins 0 or 16 bytes after a page, as NumPy's do.  The receiver's stage
 * begins with a page, as frames mostly do there.  docs/performance.md has the times.
 *
 * Pure functions on bytes, no I/O: this is what the fuzzer feeds. */
#ifndef HK_FRAME_H
#define HK_FRAME_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HK_FRAME_BYTES 24
#define HK_FRAME_LONG 4096 /* a payload of so many bytes is long, */
#define HK_FRAME_NEAR 64   /* ... and begins here, */
#define HK_FRAME_FAR 96    /* ... or here */
#define HK_FRAME_FURTHER ((uint64_t)1 << 63)
#define HK_FRAME_MAX ((uint64_t)1 << 46)

typedef struct hk_frame {
    uint32_t magic, check;
    uint64_t tag, length;
} hk_frame;

static inline uint64_t hk_le64(uint64_t v) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return __builtin_bswap64(v);
#else
    return v;
#endif
}

static inline uint32_t hk_frame_check(uint64_t tag, uint64_t length) {
    uint64_t h = (tag ^ 0x9e3779b97f4a7c15u) * 0xff51afd7ed558ccdu;
    h = (h ^ (h >> 32) ^ length) * 0xc4ceb9fe1a85ec53u;
    return (uint32_t)(h >> 32);
}

/* Would a long payload from `src` be slow at 64 bytes of a page?  Or at 128: its frame may begin at 64, behind another. */
static inline int hk_frame_further(const void *src) {
    const uintptr_t place = (uintptr_t)src & 4095;
    return place < 2 * HK_FRAME_NEAR && place % HK_FRAME_NEAR > 32;
}

/* Writes the bytes before the payload, which lies at `src`; how many. */
static inline size_t hk_frame_write(char out[HK_FRAME_FAR], uint64_t tag, uint64_t length, const void *src) {
    const int further = length >= HK_FRAME_LONG && hk_frame_further(src);
    const uint64_t said = length | (further ? HK_FRAME_FURTHER : 0);
    const uint32_t check = hk_frame_check(tag, said);
    const uint64_t words[3] = {hk_le64((uint64_t)0x31746b68u | (uint64_t)check << 32), hk_le64(tag), hk_le64(said)};
    const size_t before = length < HK_FRAME_LONG ? HK_FRAME_BYTES : further ? HK_FRAME_FAR : HK_FRAME_NEAR;
    memcpy(out, words, sizeof words);
    memset(out + HK_FRAME_BYTES, 0, before - HK_FRAME_BYTES);
    return before;
}

/* Bytes before the payload, or 0 if these 24 are no header. */
static inline size_t hk_frame_read(const char in[HK_FRAME_BYTES], uint64_t *tag, uint64_t *length) {
    uint64_t words[3];
    memcpy(words, in, sizeof words);
    const uint64_t head = hk_le64(words[0]), t = hk_le64(words[1]), said = hk_le64(words[2]);
    const uint64_t n = said & ~HK_FRAME_FURTHER;
    if ((uint32_t)head != 0x31746b68u || (uint32_t)(head >> 32) != hk_frame_check(t, said)) return 0;
    if (n > HK_FRAME_MAX) return 0;
    if (n != said && n < HK_FRAME_LONG) return 0;
    *tag = t;
    *length = n;
    return n < HK_FRAME_LONG ? HK_FRAME_BYTES : said & HK_FRAME_FURTHER ? HK_FRAME_FAR : HK_FRAME_NEAR;
}

#endif
