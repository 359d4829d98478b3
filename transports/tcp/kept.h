/* What a stream has sent and its peer may not have yet, without I/O: so that a broken connection is made again.
 *
 * A stream counts its bytes from its beginning, whatever connections carry them.  The sender:
 *
 *   acked <= given <= sent     the ring holds the bytes from `acked` to `sent`
 *     acked   the peer has said that it has them: they are forgotten
 *     given   this connection was given them
 *     sent    the caller thinks of them as sent, and may have overwritten them
 *
 * The receiver counts what it has `got`, and says so (a word of 16 bytes, against the stream) when that is HK_TELL bytes
 * more than it has said.  A new connection begins with what the receiver got: from there on all is given again.  So a
 * byte arrives once, wherever connections break.
 *
 * `tests/transports/tcp/kept.c` walks through every order of these, with a cut at any byte, and without each line. */
#ifndef HK_KEPT_H
#define HK_KEPT_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "system/copy.h"
#include "transports/tcp/frame.h"

#ifndef HK_KEPT_MOST
enum {
    HK_KEPT_FIRST = 65536,    /* bytes of the ring at first, */
    HK_KEPT_MOST = 8 << 20,   /* ... and at most: who sends on waits until the peer has more */
    HK_TELL = 262144          /* bytes that a receiver gets before it says so */
};
#endif

#define HK_WORD 16 /* bytes of a receiver's word: "hka1", a check, and the count */

typedef struct hk_kept {
    char *ring;
    size_t room; /* bytes of the ring: a power of two, or 0 */
    uint64_t sent, given, acked;
} hk_kept;

/* A larger ring, with what the old one holds.  0: there is no more. */
static inline int hk_kept_grow(hk_kept *k, size_t wanted) {
    size_t room = k->room ? k->room : HK_KEPT_FIRST;
    while (room < wanted && room < HK_KEPT_MOST) room *= 2;
    if (room <= k->room) return 0;
    char *ring = (char *)malloc(room);
    if (ring == NULL) return 0;
    for (uint64_t at = k->acked; at < k->sent;) {
        const size_t from = at & (k->room - 1), to = at & (room - 1);
        const size_t n = k->room - from < room - to ? k->room - from : room - to; /* and some that are not kept */
        memcpy(ring + to, k->ring + from, n);
        at += n;
    }
    free(k->ring);
    k->ring = ring;
    k->room = room;
    return 1;
}

/* How many bytes can be kept now, of `wanted`. */
static inline size_t hk_kept_free(hk_kept *k, size_t wanted) {
    const size_t held = (size_t)(k->sent - k->acked);
    if (k->room - held < wanted) hk_kept_grow(k, held + wanted);
    return k->room - held < wanted ? k->room - held : wanted;
}

/* Keep `n` bytes, for which there is room, that this connection was given just now. */
static inline void hk_kept_add(hk_kept *k, const char *from, size_t n) {
    const size_t to = k->sent & (k->room - 1), first = n < k->room - to ? n : k->room - to;
    if (n == 0) return;
    hk_copy(k->ring + to, from, first);
    hk_copy(k->ring, from + first, n - first);
    k->sent += n;
    k->given += n;
}

/* Keep `n` bytes, for which there is room, that this connection is yet to be given. */
static inline void hk_kept_put(hk_kept *k, const char *from, size_t n) {
    hk_kept_add(k, from, n);
    k->given -= n;
}

/* The peer has `count` bytes.  0: it cannot have them. */
static inline int hk_kept_has(hk_kept *k, uint64_t count) {
    if (count > k->given) return 0;
    if (count > k->acked) k->acked = count;
    return 1;
}

/* A new connection, whose receiver has `count` bytes: give it the rest.  0: that cannot be. */
static inline int hk_kept_again(hk_kept *k, uint64_t count) {
    if (count < k->acked || count > k->sent) return 0;
    k->acked = k->given = count;
    return 1;
}

/* The next bytes to give again; how many.  0: this connection has been given all. */
static inline size_t hk_kept_next(const hk_kept *k, const char **at) {
    const size_t from = k->given & (k->room - 1), left = (size_t)(k->sent - k->given);
    if (left == 0) return 0;
    *at = k->ring + from;
    return left < k->room - from ? left : k->room - from;
}

/* --- the receiver's words */

static inline int hk_tell_due(uint64_t got, uint64_t told) { return got - told >= HK_TELL; }

static inline void hk_word_write(char to[HK_WORD], uint64_t got) {
    const uint64_t words[2] = {hk_le64((uint64_t)0x31616b68u | (uint64_t)hk_frame_check(0, got) << 32), hk_le64(got)};
    memcpy(to, words, sizeof words);
}

/* 1, or 0 if these bytes are no such word. */
static inline int hk_word_read(const char from[HK_WORD], uint64_t *got) {
    uint64_t words[2];
    memcpy(words, from, sizeof words);
    const uint64_t head = hk_le64(words[0]);
    *got = hk_le64(words[1]);
    return (uint32_t)head == 0x31616b68u && (uint32_t)(head >> 32) == hk_frame_check(0, *got);
}

#endif
