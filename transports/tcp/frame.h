/* The frame of a byte stream (TCP): a header of 24 bytes, little endian, then `length` bytes of payload.
 *
 *   0   magic    4  "hkt1"
 *   4   check    4  of the other 20 bytes, so that a stream that lost its place is noticed at once
 *   8   tag      8
 *  16   length   8  at most HK_FRAME_MAX
 *
 * Before a long payload there are 40 bytes of zero more.  Linux copies into and out of its buffers by `rep movsb`, which
 * takes an AMD EPYC (Zen 3) three times as long where (to - from) mod 4096 is from 1 to 31 (system/copy.h).  A buffer of
 * the kernel mostly begins with a frame.  So a payload at 24 was slow each time, from and to arrays that begin 0 or 16
 * bytes after a page, as NumPy's do.  One at 64 is not.  docs/performance.md has the times.
 *
 * Pure functions on bytes, no I/O: this is what the fuzzer feeds. */
#ifndef HK_FRAME_H
#define HK_FRAME_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HK_FRAME_BYTES 24
#define HK_FRAME_LONG 4096 /* bytes of a long payload, and of all longer ones */
#define HK_FRAME_ROOM 64   /* bytes before it */
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

/* Bytes of a frame before its payload. */
static inline size_t hk_frame_before(uint64_t length) {
    return length < HK_FRAME_LONG ? HK_FRAME_BYTES : HK_FRAME_ROOM;
}

/* Writes hk_frame_before(length) bytes; how many. */
static inline size_t hk_frame_write(char out[HK_FRAME_ROOM], uint64_t tag, uint64_t length) {
    const uint32_t check = hk_frame_check(tag, length);
    const uint64_t words[3] = {hk_le64((uint64_t)0x31746b68u | (uint64_t)check << 32), hk_le64(tag), hk_le64(length)};
    const size_t before = hk_frame_before(length);
    memcpy(out, words, sizeof words);
    memset(out + HK_FRAME_BYTES, 0, before - HK_FRAME_BYTES);
    return before;
}

/* 0, or -1 if these 24 bytes are no header. */
static inline int hk_frame_read(const char in[HK_FRAME_BYTES], uint64_t *tag, uint64_t *length) {
    uint64_t words[3];
    memcpy(words, in, sizeof words);
    const uint64_t head = hk_le64(words[0]), t = hk_le64(words[1]), n = hk_le64(words[2]);
    if ((uint32_t)head != 0x31746b68u || (uint32_t)(head >> 32) != hk_frame_check(t, n) || n > HK_FRAME_MAX) return -1;
    *tag = t;
    *length = n;
    return 0;
}

#endif
