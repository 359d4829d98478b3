/* The frame of a byte stream (TCP): a header of 24 bytes, little endian, zeros before a long payload, then `length`
 * bytes of payload.
 *
 *   0   magic    4  "hkt1"
 *   4   check    4  of the other 20 bytes, so that a stream that lost its place is noticed at once
 *   8   tag      8
 *  16   length   8  at most HK_FRAME_MAX; and HK_FRAME_MORE
 *
 * A long payload begins at byte 64 of its frame, or at 96 (HK_FRAME_MORE).  Linux copies into and out of its buffers by
 * `rep movsb`, which takes an AMD EPYC (Zen 3) three to six times as long where (to - from) mod 4096 is from 1 to 31
 * (system/copy.h).  A buffer of the kernel mostly begins with a frame, or with the last bytes of one.  So a payload at
 * 24 was slow to send from each array that begins 0 or 16 bytes after a page, as NumPy's do.  The receiver's stage
 * begins with a page, too, so that it is at no such distance.  docs/performance.md has the times.
 *
 * Pure functions on bytes, no I/O: this is what the fuzzer feeds. */
#ifndef HK_FRAME_H
#define HK_FRAME_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "system/copy.h"

#define HK_FRAME_BYTES 24
#define HK_FRAME_LONG 4096      /* a payload of so many bytes is long, */
#define HK_FRAME_PADDED 64      /* ... and begins here in its frame, */
#define HK_FRAME_PADDED_MORE 96 /* ... or here, as HK_FRAME_MORE says */
#define HK_FRAME_ROOM 16        /* the first of the zeros before it, where something else may be said (kept.h) */
#define HK_FRAME_MORE ((uint64_t)1 << 63)
#define HK_FRAME_MAX ((uint64_t)1 << 46)

static inline uint64_t hk_le64(uint64_t v) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#error "hocket needs a little-endian processor: ranks exchange numbers as they lie in memory"
#else
    return v;
#endif
}

static inline uint32_t hk_frame_check(uint64_t tag, uint64_t length) {
    uint64_t h = (tag ^ 0x9e3779b97f4a7c15u) * 0xff51afd7ed558ccdu;
    h = (h ^ (h >> 32) ^ length) * 0xc4ceb9fe1a85ec53u;
    return (uint32_t)(h >> 32);
}

/* Would a long payload from `src` be slow to copy to byte 64 of a page?  Or to 128, where the next frame's begins? */
static inline int hk_frame_needs_more(const void *src) {
    const void *const first = (void *)HK_FRAME_PADDED, *const second = (void *)(2 * HK_FRAME_PADDED);
    return hk_copy_is_behind(first, src, HK_FRAME_LONG) || hk_copy_is_behind(second, src, HK_FRAME_LONG);
}

/* Bytes of a frame before its payload. */
static inline size_t hk_frame_before(uint64_t length, int more) {
    if (length < HK_FRAME_LONG) return HK_FRAME_BYTES;
    return more ? HK_FRAME_PADDED_MORE : HK_FRAME_PADDED;
}

/* Writes the bytes before the payload, which lies at `src`; how many. */
static inline size_t hk_frame_write(char out[HK_FRAME_PADDED_MORE], uint64_t tag, uint64_t length, const void *src) {
    const int more = length >= HK_FRAME_LONG && hk_frame_needs_more(src);
    const uint64_t said = length | (more ? HK_FRAME_MORE : 0);
    const uint32_t check = hk_frame_check(tag, said);
    const uint64_t words[3] = {hk_le64((uint64_t)0x31746b68u | (uint64_t)check << 32), hk_le64(tag), hk_le64(said)};
    const size_t before = hk_frame_before(length, more);
    memcpy(out, words, sizeof words);
    memset(out + HK_FRAME_BYTES, 0, before - HK_FRAME_BYTES);
    return before;
}

/* Bytes before the payload, or 0 if these 24 are no header. */
static inline size_t hk_frame_read(const char in[HK_FRAME_BYTES], uint64_t *tag, uint64_t *length) {
    uint64_t words[3];
    memcpy(words, in, sizeof words);
    const uint64_t head = hk_le64(words[0]), t = hk_le64(words[1]), said = hk_le64(words[2]);
    const uint64_t n = said & ~HK_FRAME_MORE;
    if ((uint32_t)head != 0x31746b68u || (uint32_t)(head >> 32) != hk_frame_check(t, said)) return 0;
    if (n > HK_FRAME_MAX) return 0;
    if (n != said && n < HK_FRAME_LONG) return 0;
    *tag = t;
    *length = n;
    return hk_frame_before(n, n != said);
}

#endif
