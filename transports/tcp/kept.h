/* What a stream has sent and its peer may not have yet, without I/O: so that a broken connection is made again.
 *
 * A stream counts its bytes from its beginning, whatever connections carry them.  The sender:
 *
 *   acked <= given <= sent     the ring holds the bytes from `acked` to `sent`
 *     acked   the peer has said that it has them: they are forgotten
 *     given   this connection was given them
 *     sent    the caller thinks of them as sent, and may have overwritten them
 *
 * Some of these may lie in the caller's memory yet, where it stays as it is for a while: a `name` says where, and their
 * places in the ring are empty.  Most are acked before that memory changes; what is not is copied then, or when a new
 * connection needs it.
 *
 * The receiver counts what it has `got`, and says so (a word of 16 bytes, against the stream) when that is HK_TELL bytes
 * more than it has said.  Where long messages go the other way it says so in their heads, too, which costs nothing (not
 * over several streams: nothing wakes their sender then).  A new connection begins with what the receiver got: from
 * there on all is given again.  So a byte arrives once, wherever connections break.
 *
 * `tests/transports/tcp/kept.c` walks through every order of these, with a cut at any byte, and without each line. */
#ifndef HK_KEPT_H
#define HK_KEPT_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "system/atomics.h"
#include "system/copy.h"
#include "transports/tcp/frame.h"

#ifndef HK_KEPT_MOST
enum {
    HK_KEPT_FIRST = 65536,    /* bytes of the ring at first, */
    HK_KEPT_MOST = 8 << 20,   /* ... and at most: who sends on waits until the peer has more */
    HK_TELL = 262144,         /* bytes that a receiver gets before it says so */
    HK_TELL_SURE = 2 << 20,   /* ... by a word of its own */
    HK_NAMES = 32             /* places in the caller's memory */
};
#endif

#define HK_WORD 16 /* bytes of a receiver's word: "hka1", a check, and the count */

typedef struct hk_name {
    uint64_t from, to; /* these bytes of the stream ... */
    const char *at;    /* ... lie here */
} hk_name;

typedef struct hk_kept {
    char *ring;
    size_t room; /* bytes of the ring: a power of two, or 0 */
    uint64_t sent, given, acked;
    uint32_t names; /* in the order of the stream */
    hk_name name[HK_NAMES];
} hk_kept;

/* A larger ring, with what the old one holds.  0: there is no more. */
static inline int hk_kept_grow(hk_kept *k, size_t wanted) {
    size_t room = k->room ? k->room : HK_KEPT_FIRST;
    while (room < wanted && room < HK_KEPT_MOST) room *= 2;
    if (room <= k->room) return 0;
    char *ring = (char *)malloc(room);
    if (ring == NULL) return 0;
    uint32_t i = 0;
    for (uint64_t at = k->acked; at < k->sent;) {
        while (i < k->names && k->name[i].to <= at) i++;
        if (i < k->names && k->name[i].from <= at) { /* its place is empty */
            at = k->name[i].to;
            continue;
        }
        const size_t from = at & (k->room - 1), to = at & (room - 1);
        size_t n = (size_t)((i < k->names ? k->name[i].from : k->sent) - at);
        if (n > k->room - from) n = k->room - from;
        if (n > room - to) n = room - to;
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

static inline void hk_kept_copy(hk_kept *k, uint64_t at, const char *from, size_t n) {
    const size_t to = at & (k->room - 1), first = n < k->room - to ? n : k->room - to;
    hk_copy(k->ring + to, from, first);
    hk_copy(k->ring, from + first, n - first);
}

/* Keep `n` bytes, for which there is room, that this connection was given just now. */
static inline void hk_kept_add(hk_kept *k, const char *from, size_t n) {
    if (n == 0) return;
    hk_kept_copy(k, k->sent, from, n);
    k->sent += n;
    k->given += n;
}

/* The same of bytes that stay where they are until hk_kept_fill. */
static inline void hk_kept_name(hk_kept *k, const char *from, size_t n) {
    hk_name *const last = k->names ? &k->name[k->names - 1] : NULL;
    if (n == 0) return;
    if (last && last->to == k->sent && last->at + (last->to - last->from) == from) last->to += n;
    else if (k->names < HK_NAMES) k->name[k->names++] = (hk_name){k->sent, k->sent + n, from};
    else hk_kept_copy(k, k->sent, from, n);
    k->sent += n;
    k->given += n;
}

/* The `n` bytes at `at` are about to change (NULL: any may): copy those of them that the peer may lack. */
static inline void hk_kept_fill(hk_kept *k, const char *at, size_t n) {
    uint32_t left = 0;
    for (uint32_t i = 0; i < k->names; i++) {
        const hk_name x = k->name[i];
        const size_t has = k->acked > x.from ? (size_t)(k->acked - x.from) : 0, all = (size_t)(x.to - x.from);
        if (has >= all) continue;
        if (at && (x.at >= at + n || at >= x.at + all)) k->name[left++] = x;
        else hk_kept_copy(k, x.from + has, x.at + has, all - has);
    }
    hk_store32(&k->names, left);
}

/* Keep `n` bytes, for which there is room, that this connection is yet to be given. */
static inline void hk_kept_put(hk_kept *k, const char *from, size_t n) {
    hk_kept_add(k, from, n);
    k->given -= n;
}

/* The peer has `count` bytes.  0: it cannot have them. */
static inline int hk_kept_has(hk_kept *k, uint64_t count) {
    uint32_t gone = 0;
    if (count > k->given) return 0;
    if (count > k->acked) k->acked = count;
    while (gone < k->names && k->name[gone].to <= k->acked) gone++;
    if (gone) hk_store32(&k->names, k->names - gone);
    if (gone) memmove(k->name, k->name + gone, k->names * sizeof *k->name);
    return 1;
}

/* A new connection, whose receiver has `count` bytes: give it the rest.  0: that cannot be. */
static inline int hk_kept_again(hk_kept *k, uint64_t count) {
    if (count < k->acked || count > k->sent) return 0;
    k->acked = k->given = count;
    hk_kept_fill(k, NULL, 0);
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

/* `told`: by words; `said`: in heads of long messages the other way, too, which may lie unread there for long. */
static inline int hk_tell_due(uint64_t got, uint64_t told, uint64_t said) {
    return got - (said > told ? said : told) >= HK_TELL || got - told >= HK_TELL_SURE;
}

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
