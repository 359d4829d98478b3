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
 * multicast slots of a lane are shared by all its rings: written once, named in one line per reader.  Both are taken
 * from the window when they are first needed: most ranks of a large job never talk to each other.
 * End: who will not read a ring any more says so in it (`gone`); a block all of whose readers are gone is free.
 * Bytes that already lie in the window (hocket.empty) are named where they are and not copied at all; so are long
 * ones in the producer's own memory, if the consumer may read that (process_vm_readv).  Not between threads: a call
 * that fails lets go of memory which a thread may be copying from; the system's copy would just end.
 *
 * The peer may scribble on the window: indices are masked, offsets and lengths are checked against the window on
 * every read, and read once.  Model-checked by ThreadSanitizer: tests/transports/shm/ring_stress.c. */
#ifndef HK_RING_H
#define HK_RING_H

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "system/atomics.h"
#include "transports/channel.h"
#include "system/wait.h"

enum {
    HK_LINES = 64,
    HK_INLINE = 48,
    HK_SLOTS = 4,
    HK_SLOT_BYTES = 65536,
    HK_SHARED_SLOTS = 8,
    HK_REF = 1 << 30, /* the payload lies elsewhere in the window */
    HK_FAR = 1 << 29, /* ... or, with HK_REF, in the producer's own memory */
    HK_PACKET_MAX = 1 << 28,
    /* Shorter messages are copied wherever they lie, and so do not wait for their reader.  Above what the hub takes
     * for surely buffered (`eager` of its traits): two ranks that send before they receive would wait for ever. */
    HK_BY_REF_MIN = 16384 + 1,
    HK_FAR_REDUCED_MIN = 1 << 20, /* to reduce straight from the peer's memory pays later than to copy from there */
    HK_FAR_PIECE_MIN = 4096,  /* a shorter piece of a long message is copied: a system call would cost more */
    HK_FAR_AT_ONCE = 1 << 18, /* per system call, so that the messages of a step take turns */
    HK_NO_MEMORY = -1         /* as a pid: of a peer whose memory cannot be read */
};

typedef struct hk_line {
    uint32_t seq;
    uint32_t len; /* of this packet; HK_REF, HK_FAR */
    uint64_t tag;
    union {
        char bytes[HK_INLINE];
        struct {
            uint64_t where;  /* offset in the producer's window, or HK_FAR: address */
            uint64_t length; /* of the whole message */
        } ref;
    } u;
} __attribute__((aligned(64))) hk_line;

/* In the producer's window, one per reader. */
typedef struct hk_ring {
    hk_line line[HK_LINES];
    uint32_t released __attribute__((aligned(128))); /* written by the consumer only ... */
    uint32_t gone;                                   /* ... which sets this last */
    char pad[120];
} hk_ring;

/* A lane's block in the window: a ring for each rank. */
#define HK_LANE_BYTES(size) ((size_t)(size) * sizeof(hk_ring))

typedef struct hk_producer hk_producer;

/* Memory of the window for a lane, as long as that lives.  NULL: there is none. */
typedef char *hk_take(void *lane, size_t nbytes);

/* The multicast slots of a lane, private to its rank. */
typedef struct hk_shared_slots {
    char *slot; /* HK_SHARED_SLOTS of HK_SLOT_BYTES, or NULL: not needed yet */
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
    int far;    /* the consumer may read this process's memory */
    int self;   /* the pid of this process */
    char *slot; /* HK_SLOTS of HK_SLOT_BYTES, or NULL: not needed yet */
    hk_shared_slots *shared;
    hk_take *take;
    void *lane; /* what it takes memory for */
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
    const int *window_fd; /* whose size it is, or -1: plain memory, or left, so it does not grow */
    int pid;       /* of the producer, whose memory may be read; or HK_NO_MEMORY */
    uint32_t *peer_bell;
    uint32_t next;   /* packets finished */
    uint32_t taken;  /* bytes of the open packet already consumed */
    uint32_t packet; /* its length */
    const char *data; /* its payload; NULL: none open */
    uint64_t tag, length;
    uint64_t remote;  /* where the payload of a far packet lies in the producer's memory, 0: not far */
    char *stage;      /* HK_SLOT_BYTES, where far payload is fetched to that is not received into place */
    uint32_t fetched; /* bytes of the packet that were fetched; the last of them lie in the stage */
    uint32_t staged;  /* ... and where in the packet the stage begins */
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

static inline void hk_publish_at(hk_producer *p, uint64_t tag, uint64_t length, uint64_t where, uint32_t len) {
    hk_line *line = &p->ring->line[p->next % HK_LINES];
    line->u.ref.where = where;
    line->u.ref.length = length;
    hk_publish(p, line, tag, len | HK_REF);
}

static inline void hk_publish_ref(hk_producer *p, uint64_t tag, uint64_t length, const char *at, uint32_t len) {
    hk_publish_at(p, tag, length, (uint64_t)(at - p->window), len);
}

/* The caller's memory is named, not copied; `settled` says when it has been read. */
static inline void hk_publish_named(hk_producer *p, uint64_t tag, uint64_t length, const char *at, uint32_t len) {
    if (at >= p->window && at < p->window + p->window_bytes) {
        hk_publish_ref(p, tag, length, at, len);
    } else {
        hk_publish_at(p, tag, length, (uint64_t)(uintptr_t)at, len | HK_FAR);
    }
    p->ref_until = p->next;
}

static inline void hk_publish_inline(hk_producer *p, uint64_t tag, const void *src, size_t len) {
    hk_line *line = &p->ring->line[p->next % HK_LINES];
    if (len) memcpy(line->u.bytes, src, len);
    hk_publish(p, line, tag, (uint32_t)len);
}

/* Can another process read these bytes?  Not what a device has mapped (a driver's pinned memory), nor secret memory. */
static inline int hk_can_be_read(const hk_producer *p, const char *at, size_t len) {
    char ends[2];
    struct iovec here = {ends, 2}, there[2] = {{(void *)(uintptr_t)at, 1}, {(void *)(uintptr_t)(at + len - 1), 1}};
    return process_vm_readv(p->self, &here, 1, there, 2, 0) == 2;
}

/* Need these bytes not be copied?  In the producer's own memory: if that is the faster way.  With slots both cores copy,
 * half of the work each, which is better where only one side sends; and where the receiver reduces what the caches
 * hold, as then no line of the caller's memory is drawn into another core's. */
static inline int hk_by_name(const hk_producer *p, const void *src, uint64_t length, size_t len) {
    const char *c = (const char *)src;
    if (length < HK_BY_REF_MIN) return 0;
    if (c >= p->window && c < p->window + p->window_bytes) return len <= (size_t)(p->window + p->window_bytes - c);
    if (!p->far || len < HK_FAR_PIECE_MIN) return 0;
    if (p->base.traffic != HK_MOVED && (p->base.traffic != HK_REDUCED || length < HK_FAR_REDUCED_MIN)) return 0;
    return hk_can_be_read(p, c, len);
}

/* The first message that needs a slot takes them.  0: there is no memory. */
static inline int hk_take_slots(hk_producer *p, char **slot, size_t count) {
    *slot = p->take(p->lane, count * HK_SLOT_BYTES);
    if (*slot == NULL) p->base.error = ENOMEM;
    return *slot != NULL;
}

static long hk_ring_send(hk_channel *ch, uint64_t tag, uint64_t length, uint64_t done, const void *src, size_t len) {
    hk_producer *p = (hk_producer *)ch;
    (void)done;
    if (!hk_has_line(p)) return HK_AGAIN;
    if (length <= HK_INLINE && len == length) {
        hk_publish_inline(p, tag, src, len);
        return (long)len;
    }
    if (hk_by_name(p, src, length, len)) {
        if (len > HK_PACKET_MAX) len = HK_PACKET_MAX;
        hk_publish_named(p, tag, length, (const char *)src, (uint32_t)len);
        return (long)len;
    }
    uint32_t s = p->slot_next % HK_SLOTS;
    if (!hk_is_released(p, p->slot_free[s])) return HK_AGAIN;
    if (len > HK_SLOT_BYTES) len = HK_SLOT_BYTES;
    if (p->slot == NULL && !hk_take_slots(p, &p->slot, HK_SLOTS)) return HK_FAULT;
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
    int by_name = 1;
    (void)done;
    for (int i = 0; i < n; i++) {
        if (!hk_has_line((hk_producer *)chs[i])) return HK_AGAIN;
        by_name &= hk_by_name((hk_producer *)chs[i], src, length, len);
    }
    if (length <= HK_INLINE && len == length) {
        for (int i = 0; i < n; i++) hk_publish_inline((hk_producer *)chs[i], tag, src, len);
        return (long)len;
    }
    if (by_name) {
        if (len > HK_PACKET_MAX) len = HK_PACKET_MAX;
        for (int i = 0; i < n; i++)
            hk_publish_named((hk_producer *)chs[i], tag, length, (const char *)src, (uint32_t)len);
        return (long)len;
    }
    hk_shared_slots *m = first->shared;
    uint32_t s = m->next % HK_SHARED_SLOTS;
    if (!hk_shared_slot_is_free(m, s)) return HK_AGAIN;
    if (len > HK_SLOT_BYTES) len = HK_SLOT_BYTES;
    if (m->slot == NULL && !hk_take_slots(first, &m->slot, HK_SHARED_SLOTS)) return HK_FAULT;
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

/* Do these bytes lie in the producer's window?  Beyond its end is SIGBUS; it never shrinks (it is sealed).  It is asked
 * for its size only where a packet lies beyond what is known of it. */
static inline int hk_window_holds(hk_consumer *c, uint64_t where, uint64_t len) {
    struct stat file;
    if (where <= c->window_bytes && len <= c->window_bytes - where) return 1;
    const int fd = __atomic_load_n(c->window_fd, __ATOMIC_RELAXED); /* the window may be left meanwhile */
    if (fd < 0 || fstat(fd, &file) != 0) return 0;
    c->window_bytes = (size_t)file.st_size < c->window_reserved ? (size_t)file.st_size : c->window_reserved;
    return where <= c->window_bytes && len <= c->window_bytes - where;
}

static inline int hk_ring_fault(hk_consumer *c) {
    c->base.error = EPROTO;
    return HK_FAULT;
}

/* Look at the next packet: 1, or HK_AGAIN, HK_FAULT. */
static inline int hk_ring_open(hk_consumer *c) {
    hk_line *line = &c->ring->line[c->next % HK_LINES];
    if (hk_load32(&line->seq) != c->next + 1) return HK_AGAIN;
    uint32_t len = hk_relaxed32(&line->len); /* once: it may change between a check and a second look */
    const uint32_t flags = len & (HK_REF | HK_FAR);
    len &= ~(uint32_t)(HK_REF | HK_FAR);
    c->tag = hk_relaxed64(&line->tag);
    c->taken = c->fetched = c->staged = 0;
    c->remote = 0;
    c->packet = len;
    if (flags == 0) {
        if (len > HK_INLINE) return hk_ring_fault(c);
        c->length = len;
        c->data = line->u.bytes;
        return 1;
    }
    const uint64_t where = hk_relaxed64(&line->u.ref.where);
    c->length = hk_relaxed64(&line->u.ref.length);
    /* An empty packet would be progress for ever, without a byte. */
    if (len == 0 || len > c->length) return hk_ring_fault(c);
    if (flags == HK_REF) {
        if (!hk_window_holds(c, where, len)) return hk_ring_fault(c);
        c->data = c->window + where;
        return 1;
    }
    if (flags == HK_FAR || c->pid == HK_NO_MEMORY || where == 0) return hk_ring_fault(c);
    if (c->stage == NULL && (c->stage = (char *)malloc(HK_SLOT_BYTES)) == NULL) {
        c->base.error = ENOMEM;
        return HK_FAULT;
    }
    c->remote = where;
    c->data = c->stage;
    return 1;
}

/* Copy up to `len` of the far packet's bytes that were not fetched yet; how many, or HK_LOST, HK_FAULT. */
static inline long hk_ring_fetch(hk_consumer *c, void *dst, size_t len) {
    struct iovec here = {dst, len}, there = {(void *)(uintptr_t)(c->remote + c->fetched), len};
    long n = process_vm_readv(c->pid, &here, 1, &there, 1, 0);
    if (n <= 0) {
        c->base.error = n ? errno : EPROTO;
        return n && errno == ESRCH ? HK_LOST : HK_FAULT;
    }
    c->fetched += (uint32_t)n;
    return n;
}

static int hk_ring_peek(hk_channel *ch, hk_view *v, size_t want) {
    hk_consumer *c = (hk_consumer *)ch;
    /* Of what lies here `want` is always there: a packet is contiguous, and cut at multiples of the largest element. */
    if (c->data == NULL) {
        int rc = hk_ring_open(c);
        if (rc != 1) return rc;
    }
    if (c->remote && want && c->taken == c->fetched && c->fetched < c->packet) {
        c->staged = c->fetched;
        while (c->fetched < c->packet && c->fetched < c->staged + HK_SLOT_BYTES) {
            size_t left = c->packet - c->fetched, room = c->staged + HK_SLOT_BYTES - c->fetched;
            long n = hk_ring_fetch(c, c->stage + (c->fetched - c->staged), left < room ? left : room);
            if (n < 0) return (int)n;
        }
    }
    v->tag = c->tag;
    v->length = c->length;
    v->data = c->data + (c->taken - c->staged);
    v->avail = (c->remote ? c->fetched : c->packet) - c->taken;
    return 1;
}

static void hk_ring_consume(hk_channel *ch, size_t len, int end) {
    hk_consumer *c = (hk_consumer *)ch;
    (void)end; /* a packet never spans two messages */
    if (c->data == NULL) return; /* the end of a message that `recv` has taken */
    c->taken += (uint32_t)len;
    if (c->taken < c->packet) return;
    c->data = NULL;
    c->next++;
    hk_store32(&c->ring->released, c->next);
    hk_ring_bell(c->peer_bell);
}

static long hk_ring_recv(hk_channel *ch, void *dst, size_t len) {
    hk_consumer *c = (hk_consumer *)ch;
    const uint64_t tag = c->tag;
    long n;
    if (c->data == NULL) {
        int rc = hk_ring_open(c);
        if (rc != 1) return rc;
        if (c->tag != tag || c->packet == 0) { /* in the middle of a message there is no other, nor an empty one */
            c->data = NULL;
            return hk_ring_fault(c);
        }
    }
    if (c->remote && c->taken == c->fetched && len > 0) {
        size_t left = c->packet - c->taken;
        if (left > len) left = len;
        n = hk_ring_fetch(c, dst, left < HK_FAR_AT_ONCE ? left : HK_FAR_AT_ONCE);
        if (n < 0) return n;
        c->staged = c->fetched;
    } else {
        size_t left = (c->remote ? c->fetched : c->packet) - c->taken;
        n = (long)(left < len ? left : len);
        memcpy(dst, c->data + (c->taken - c->staged), (size_t)n);
    }
    hk_ring_consume(ch, (size_t)n, 0);
    return n;
}

static const hk_channel_ops hk_producer_ops = {
    .send = hk_ring_send, .settled = hk_ring_settled, .multicast = hk_ring_multicast};
static const hk_channel_ops hk_consumer_ops = {
    .peek = hk_ring_peek, .consume = hk_ring_consume, .recv = hk_ring_recv};

#endif
