/* The shared-memory protocol: one producer, one consumer, no locks.
 *
 * A ring is 64 lines of 64 bytes in the producer's window.  A line is one packet: a sequence number, the message's
 * tag, and either up to 48 bytes of payload or where in the producer's window they lie.  So a small message is
 * one cache line, written once and read once.
 *
 *   line i carries packet n with n % 64 == i; its `seq` becomes n + 1 (release) when the rest is written
 *   the consumer reads a line when `seq` says n + 1 (acquire), and says how many packets it has finished
 *   (`released`, release) in a line of its own
 *   the producer writes packet n when released >= n - 63, and reuses a slot when the packet that named it is
 *   released
 *
 * Slots: each ring has its own (HK_SLOTS of HK_SLOT_BYTES) so that a slow reader holds up nobody else; the
 * multicast slots of a lane are shared by all its rings: written once, named in one line per reader.
 * Bytes that already lie in the window (hocket.empty) are named where they are and not copied at all.
 *
 * The peer may scribble on the window: indices are masked, offsets and lengths are checked against the window on
 * every read, and read once.  Model-checked by ThreadSanitizer: tests/transports/ring_stress.c. */
#ifndef HK_RING_H
#define HK_RING_H

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "transports/atomics.h"
#include "transports/channel.h"
#include "transports/wait.h"

enum {
    HK_LINES = 64,
    HK_INLINE = 48,
    HK_SLOTS = 4,
    HK_SLOT_BYTES = 65536,
    HK_SHARED_SLOTS = 8,
    HK_REF = 1u << 31, /* the payload lies elsewhere in the window */
    /* Shorter messages are copied even if they lie in the window, and so do not wait for their reader.  Above what
     * the hub takes for surely buffered (queue.EAGER_LOCAL): two ranks that send before they receive wait for ever. */
    HK_BY_REF_MIN = 32768 + 1
};

typedef struct hk_line {
    uint32_t seq;
    uint32_t len; /* of this packet; HK_REF */
    uint64_t tag;
    union {
        char bytes[HK_INLINE];
        struct {
            uint64_t where;  /* offset in the producer's window */
            uint64_t length; /* of the whole message */
        } ref;
    } u;
} __attribute__((aligned(64))) hk_line;

/* In the producer's window, one per reader. */
typedef struct hk_ring {
    hk_line line[HK_LINES];
    uint32_t released __attribute__((aligned(128))); /* written by the consumer only */
    char pad[124];
} hk_ring;

#define HK_RING_BYTES (sizeof(hk_ring) + (size_t)HK_SLOTS * HK_SLOT_BYTES)
/* A lane's block in the window: a ring with its slots for each rank, then the multicast slots. */
#define HK_LANE_BYTES(size) ((size_t)(size) * HK_RING_BYTES + (size_t)HK_SHARED_SLOTS * HK_SLOT_BYTES)

typedef struct hk_producer hk_producer;

/* The multicast slots of a lane, private to its rank. */
typedef struct hk_shared_slots {
    char *slot; /* HK_SHARED_SLOTS of HK_SLOT_BYTES */
    uint32_t next;
    int readers[HK_SHARED_SLOTS];               /* how many rings named the slot last time */
    hk_producer **reader[HK_SHARED_SLOTS];      /* which ... */
    uint32_t *until[HK_SHARED_SLOTS];           /* ... and the `released` that frees it */
} hk_shared_slots;

struct hk_producer {
    hk_channel base;
    hk_ring *ring;
    char *window; /* this rank's own */
    size_t window_bytes;
    char *slot; /* HK_SLOTS of HK_SLOT_BYTES, behind the ring */
    hk_shared_slots *shared;
    uint32_t *peer_bell;
    uint32_t next;                /* packets written */
    uint32_t released;            /* as last seen */
    uint32_t slot_next;           /* slots used */
    uint32_t slot_free[HK_SLOTS]; /* `released` that frees each */
    uint32_t ref_until;           /* `released` that gives the caller's memory back */
};

typedef struct hk_consumer {
    hk_channel base;
    hk_ring *ring;
    const char *window; /* the producer's, as mapped here */
    size_t window_bytes; /* as last seen: it grows */
    size_t window_reserved; /* the addresses kept for it */
    int window_fd; /* whose size it is, or -1: plain memory, which does not grow */
    uint32_t *peer_bell;
    uint32_t next;   /* packets finished */
    uint32_t taken;  /* bytes of the open packet already consumed */
    uint32_t packet; /* its length */
    const char *data; /* its payload; NULL: none open */
    uint64_t tag, length;
} hk_consumer;

/* Has the consumer finished packet number `until - 1`?  Wraps.  Packet n is written only when n - 64 is finished, so
 * whatever is that old is finished: without asking, a mark left alone for 2^31 packets would lie in the future. */
static inline int hk_is_released(hk_producer *p, uint32_t until) {
    if (p->next - until >= HK_LINES) return 1;
    if ((int32_t)(p->released - until) >= 0) return 1;
    p->released = hk_load32(&p->ring->released);
    return (int32_t)(p->released - until) >= 0;
}

static inline int hk_has_line(hk_producer *p) { return hk_is_released(p, p->next + 1 - HK_LINES); }

static inline void hk_publish(hk_producer *p, hk_line *line, uint64_t tag, uint32_t len) {
    line->tag = tag;
    line->len = len;
    p->next++;
    hk_store32(&line->seq, p->next);
    hk_ring_bell(p->peer_bell);
}

static inline void hk_publish_ref(hk_producer *p, uint64_t tag, uint64_t length, const char *at, uint32_t len) {
    hk_line *line = &p->ring->line[p->next % HK_LINES];
    line->u.ref.where = (uint64_t)(at - p->window);
    line->u.ref.length = length;
    hk_publish(p, line, tag, len | HK_REF);
}

static inline void hk_publish_inline(hk_producer *p, uint64_t tag, const void *src, size_t len) {
    hk_line *line = &p->ring->line[p->next % HK_LINES];
    if (len) memcpy(line->u.bytes, src, len);
    hk_publish(p, line, tag, (uint32_t)len);
}

static inline int hk_in_window(const hk_producer *p, const void *src, uint64_t length, size_t len) {
    const char *c = (const char *)src;
    return length >= HK_BY_REF_MIN && c >= p->window && c < p->window + p->window_bytes &&
           len <= (size_t)(p->window + p->window_bytes - c);
}

static long hk_ring_send(hk_channel *ch, uint64_t tag, uint64_t length, uint64_t done, const void *src, size_t len) {
    hk_producer *p = (hk_producer *)ch;
    (void)done;
    if (!hk_has_line(p)) return HK_AGAIN;
    if (length <= HK_INLINE && len == length) {
        hk_publish_inline(p, tag, src, len);
        return (long)len;
    }
    if (hk_in_window(p, src, length, len)) {
        if (len > 1u << 30) len = 1u << 30;
        hk_publish_ref(p, tag, length, (const char *)src, (uint32_t)len);
        p->ref_until = p->next;
        return (long)len;
    }
    uint32_t s = p->slot_next % HK_SLOTS;
    if (!hk_is_released(p, p->slot_free[s])) return HK_AGAIN;
    if (len > HK_SLOT_BYTES) len = HK_SLOT_BYTES;
    char *slot = p->slot + (size_t)s * HK_SLOT_BYTES;
    memcpy(slot, src, len);
    hk_publish_ref(p, tag, length, slot, (uint32_t)len);
    p->slot_free[s] = p->next;
    p->slot_next++;
    return (long)len;
}

static int hk_ring_settled(hk_channel *ch) {
    hk_producer *p = (hk_producer *)ch;
    return hk_is_released(p, p->ref_until);
}

static inline int hk_shared_slot_is_free(hk_shared_slots *m, uint32_t s) {
    for (int i = 0; i < m->readers[s]; i++)
        if (!hk_is_released(m->reader[s][i], m->until[s][i])) return 0;
    return 1;
}

static long hk_ring_multicast(hk_channel *const *chs, int n, uint64_t tag, uint64_t length, uint64_t done,
                              const void *src, size_t len) {
    hk_producer *first = (hk_producer *)chs[0];
    (void)done;
    for (int i = 0; i < n; i++)
        if (!hk_has_line((hk_producer *)chs[i])) return HK_AGAIN;
    if (length <= HK_INLINE && len == length) {
        for (int i = 0; i < n; i++) hk_publish_inline((hk_producer *)chs[i], tag, src, len);
        return (long)len;
    }
    if (hk_in_window(first, src, length, len)) {
        if (len > 1u << 30) len = 1u << 30;
        for (int i = 0; i < n; i++) {
            hk_producer *p = (hk_producer *)chs[i];
            hk_publish_ref(p, tag, length, (const char *)src, (uint32_t)len);
            p->ref_until = p->next;
        }
        return (long)len;
    }
    hk_shared_slots *m = first->shared;
    uint32_t s = m->next % HK_SHARED_SLOTS;
    if (!hk_shared_slot_is_free(m, s)) return HK_AGAIN;
    if (len > HK_SLOT_BYTES) len = HK_SLOT_BYTES;
    char *slot = m->slot + (size_t)s * HK_SLOT_BYTES;
    memcpy(slot, src, len);
    for (int i = 0; i < n; i++) {
        hk_producer *p = (hk_producer *)chs[i];
        hk_publish_ref(p, tag, length, slot, (uint32_t)len);
        m->reader[s][i] = p;
        m->until[s][i] = p->next;
    }
    m->readers[s] = n;
    m->next++;
    return (long)len;
}

/* Do these bytes lie in the producer's window?  Beyond its end is SIGBUS; it never shrinks (it is sealed). */
static inline int hk_window_holds(hk_consumer *c, uint64_t where, uint64_t len) {
    struct stat file;
    if (where <= c->window_bytes && len <= c->window_bytes - where) return 1;
    if (c->window_fd < 0 || fstat(c->window_fd, &file) != 0) return 0;
    c->window_bytes = (size_t)file.st_size < c->window_reserved ? (size_t)file.st_size : c->window_reserved;
    return where <= c->window_bytes && len <= c->window_bytes - where;
}

static int hk_ring_peek(hk_channel *ch, hk_view *v, size_t want) {
    hk_consumer *c = (hk_consumer *)ch;
    (void)want; /* a packet is contiguous, and cut at multiples of the largest element */
    if (c->data == NULL) {
        hk_line *line = &c->ring->line[c->next % HK_LINES];
        if (hk_load32(&line->seq) != c->next + 1) return HK_AGAIN;
        uint32_t len = hk_relaxed32(&line->len); /* once: it may change between a check and a second look */
        c->tag = line->tag;
        c->taken = 0;
        if (len & HK_REF) {
            uint64_t where = hk_relaxed64(&line->u.ref.where);
            len &= ~(uint32_t)HK_REF;
            if (!hk_window_holds(c, where, len)) {
                ch->error = EPROTO;
                return HK_FAULT;
            }
            c->length = line->u.ref.length;
            c->data = c->window + where;
        } else {
            if (len > HK_INLINE) {
                ch->error = EPROTO;
                return HK_FAULT;
            }
            c->length = len;
            c->data = line->u.bytes;
        }
        c->packet = len;
    }
    v->tag = c->tag;
    v->length = c->length;
    v->data = c->data + c->taken;
    v->avail = c->packet - c->taken;
    return 1;
}

static void hk_ring_consume(hk_channel *ch, size_t len, int end) {
    hk_consumer *c = (hk_consumer *)ch;
    (void)end; /* a packet never spans two messages */
    c->taken += (uint32_t)len;
    if (c->taken < c->packet) return;
    c->data = NULL;
    c->next++;
    hk_store32(&c->ring->released, c->next);
    hk_ring_bell(c->peer_bell);
}

static const hk_channel_ops hk_producer_ops = {
    .send = hk_ring_send, .settled = hk_ring_settled, .multicast = hk_ring_multicast};
static const hk_channel_ops hk_consumer_ops = {.peek = hk_ring_peek, .consume = hk_ring_consume};

#endif
