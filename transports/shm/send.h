/* The sending side of a ring (ring.h): packets, slots, and what is named instead of copied. */
#ifndef HK_SHM_SEND_H
#define HK_SHM_SEND_H

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#include "system/atomics.h"
#include "system/wait.h"
#include "transports/shm/ring.h"

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
    line->u.ref.took = p->took;
    hk_publish(p, line, tag, len | HK_REF);
}

static inline void hk_publish_ref(hk_producer *p, uint64_t tag, uint64_t length, const char *at, uint32_t len) {
    hk_publish_at(p, tag, length, (uint64_t)(at - p->window), len);
}

/* The caller's memory is named, not copied; `settled` says when it has been read.  `flags`: does it offer to write? */
static inline void hk_publish_named(hk_producer *p, uint64_t tag, uint64_t length, const char *at, uint32_t len,
                                    uint32_t flags) {
    if (at >= p->window && at < p->window + p->window_bytes) {
        hk_publish_ref(p, tag, length, at, len | flags);
    } else {
        hk_publish_at(p, tag, length, (uint64_t)(uintptr_t)at, len | HK_FAR | flags);
    }
    p->ref_until = p->next;
}

static inline void hk_publish_inline(hk_producer *p, uint64_t tag, const void *src, size_t len) {
    hk_line *line = &p->ring->line[p->next % HK_LINES];
    if (len) memcpy(line->u.bytes, src, len);
    hk_publish(p, line, tag, (uint32_t)len);
}

/* Can another process read these bytes?  Not what a device has mapped (a driver's pinned memory), nor secret memory.  To try
 * costs more than all else that is done for a message, and nearly all can: so the consumer tries, and asks for what it
 * cannot read (hk_ask).  From then on this side tries. */
static inline int hk_can_be_read(const hk_producer *p, const char *at, size_t len) {
    if (!p->tries && p->reader != HK_NO_MEMORY) return 1;
    char ends[2];
    struct iovec here = {ends, 2}, there[2] = {{(void *)(uintptr_t)at, 1}, {(void *)(uintptr_t)(at + len - 1), 1}};
    return process_vm_readv(p->self, &here, 1, there, 2, 0) == 2;
}

/* From how many bytes on are messages of a call read in the producer's own memory? */
static inline uint64_t hk_far_from(const hk_producer *p, int traffic) {
    switch (traffic & HK_TRAFFIC) {
    case HK_MOVED: return p->far_moved;
    case HK_REDUCED: return p->far_reduced;
    case HK_READ:
    case HK_WRITTEN:
    case HK_BOTH: return HK_BY_REF_MIN;
    default: return HK_NEVER;
    }
}

/* What does the producer of such a message offer? */
static inline uint32_t hk_offers(const hk_producer *p, int traffic) {
    if (p->reader == HK_NO_MEMORY) return 0;
    switch (traffic & HK_TRAFFIC) {
    case HK_WRITTEN: return HK_OFFERED | HK_RATHER;
    case HK_BOTH: return HK_OFFERED;
    default: return 0;
    }
}

/* Need these bytes not be copied?  In the producer's own memory: if that is the faster way.  With slots both cores copy,
 * half of the work each, which is always better where only one side sends.  Where reductions do not read far memory, they
 * do not read the window's either: the receiver would draw lines out of the sender's core that this one is about to write. */
static inline int hk_by_name(const hk_producer *p, int traffic, const void *src, uint64_t length, size_t len) {
    const char *c = (const char *)src;
    const uint64_t far_from = hk_far_from(p, traffic);
    if (length < HK_BY_REF_MIN || ((traffic & HK_TRAFFIC) == HK_REDUCED && far_from == HK_NEVER)) return 0;
    if (c >= p->window && c < p->window + p->window_bytes) return len <= (size_t)(p->window + p->window_bytes - c);
    if (!p->far || length < far_from || len < HK_FAR_PIECE_MIN) return 0;
    return hk_can_be_read(p, c, len);
}

/* The first message that needs a slot takes them.  0: there is no memory. */
static inline int hk_take_slots(hk_producer *p, char **slots, size_t nbytes) {
    *slots = p->take(p->taker, nbytes, &p->base.words);
    if (*slots == NULL) p->base.error = ENOMEM;
    return *slots != NULL;
}

/* The larger circle, if it is time, and if there is memory.  What lies in the old one may still be read there. */
static inline void hk_grow_circle(hk_producer *p) {
    if (p->slots_bytes == p->slots_most || p->cut < (uint64_t)HK_GROW_AFTER * p->slots_bytes) return;
    const char *why;
    char *larger = p->take(p->taker, HK_SLOTS_BYTES(p->slots_most), &why);
    if (larger != NULL) {
        p->slots = larger;
        p->cut = p->given_back = p->oldest = p->newest = 0;
        p->slots_bytes = p->slots_most;
    }
    p->slots_most = p->slots_bytes; /* asked once */
}

static inline void hk_grow_shared(hk_producer *p, hk_shared_slots *m) {
    if (m->count == m->most || m->next < HK_GROW_AFTER * m->count) return;
    const char *why;
    char *more = p->take(p->taker, (size_t)m->most * HK_SLOT_BYTES, &why);
    if (more != NULL) m->slot = more, m->count = m->most, m->warm = m->next + m->count;
    m->most = m->count;
}

/* A slot of `len` bytes for the next packet, cut from the circle if it is no small one; NULL: too much is being read. */
static inline char *hk_cut_slot(hk_producer *p, size_t len) {
    if (len <= HK_SMALL_BYTES && hk_is_released(p, p->next + 1 - HK_SMALL_SLOTS))
        return hk_small_slot(p);
    const uint64_t at = p->cut & (p->slots_bytes - 1), whole = (len + HK_SLOT_ALIGN - 1) & ~(uint64_t)(HK_SLOT_ALIGN - 1);
    const uint64_t from = at + whole > p->slots_bytes ? p->cut + p->slots_bytes - at : p->cut; /* slots do not wrap */
    /* Of the slots of packets that old we know that they are free: so never many are looked at at once. */
    while (p->newest - p->oldest == HK_LINES || from + whole - p->given_back > p->slots_bytes) {
        if (p->oldest == p->newest || !hk_is_released(p, p->free_at[p->oldest % HK_LINES])) return NULL;
        p->given_back = p->end[p->oldest++ % HK_LINES];
    }
    p->cut = from + whole;
    p->free_at[p->newest % HK_LINES] = p->next + 1;
    p->end[p->newest++ % HK_LINES] = p->cut;
    return p->slots + (from & (p->slots_bytes - 1));
}

/* Write a share of the packet that the consumer invites to.  If the system does not let us, the consumer reads it. */
static inline void hk_write_share(hk_producer *p) {
    hk_invitation *v = &p->ring->invitation;
    uint64_t word = hk_load64(&v->left);
    hk_left left = hk_left_of(word);
    if (left.begin >= left.end || hk_is_released(p, left.packet) || hk_relaxed32(&v->refused)) return;
    /* The consumer could have changed this line; but it may read all of this process's memory anyway. */
    const hk_line *line = &p->ring->line[(left.packet - 1) % HK_LINES];
    const uint32_t len = hk_relaxed32(&line->len), bytes = len & ~(uint32_t)HK_FLAGS, all = hk_shares(bytes);
    if (!(len & (HK_OFFERED | HK_FAR))) return;
    const uint64_t from = hk_relaxed64(&line->u.ref.where) + (len & HK_FAR ? 0 : (uint64_t)(uintptr_t)p->window);
    uint32_t taken;
    do {
        left = hk_left_of(word);
        if (left.begin >= left.end || left.end > all) return;
        taken = hk_share_of(all, len & HK_RATHER);
        if (taken > (uint32_t)(left.end - left.begin)) taken = left.end - left.begin;
    } while (!hk_swap64(&v->left, &word, word + taken) && hk_left_of(word).packet == left.packet);
    if (hk_left_of(word).packet != left.packet) return;
    /* Where to is known by now alone: a packet is asked for anew, with the same word, if its reader could not read it. */
    const uint64_t where = hk_relaxed64(&v->where), to = where & ~HK_UNREADABLE, here = to & ~HK_HERE;
    p->tries |= (where & HK_UNREADABLE) != 0;
    size_t at = (size_t)left.begin * HK_SHARE, end = at + (size_t)taken * HK_SHARE;
    if (end > bytes) end = bytes;
    if ((to & HK_HERE) && p->back && hk_window_holds(p->back, here, bytes)) {
        hk_copy_of((char *)p->back->window + here + at, (const char *)(uintptr_t)from + at, end - at, bytes);
        at = end;
    }
    const int may = p->reader != HK_NO_MEMORY && !(to & HK_HERE);
    while (at < end) {
        struct iovec mine = {(void *)(uintptr_t)(from + at), end - at}, there = {(void *)(uintptr_t)(to + at), end - at};
        const long n = may ? process_vm_writev(p->reader, &mine, 1, &there, 1, 0) : -1;
        if (n <= 0) {
            if (may && errno != EFAULT) p->reader = HK_NO_MEMORY; /* not this memory alone */
            hk_store32(&v->refused, left.begin + 1u);
            break;
        }
        at += (size_t)n;
    }
    if (at >= end) hk_store32(&v->written, left.begin + taken);
    hk_ring_bell(p->peer_bell);
}

/* It waits for the consumer, which may wait for what it has asked for. */
static inline long hk_wait_for_reader(hk_producer *p) {
    hk_write_share(p);
    return HK_AGAIN;
}

static long hk_ring_send(hk_channel *ch, const hk_call *call, uint64_t length, uint64_t done, const void *src,
                         size_t len) {
    hk_producer *p = (hk_producer *)ch;
    const uint64_t tag = call->tag;
    (void)done;
    p->took = call->took;
    if (!hk_has_line(p)) return hk_wait_for_reader(p);
    if (length <= HK_INLINE && len == length) {
        hk_publish_inline(p, tag, src, len);
        return (long)len;
    }
    if (hk_by_name(p, call->traffic, src, length, len)) {
        if (len > HK_PACKET_MAX) len = HK_PACKET_MAX;
        hk_publish_named(p, tag, length, (const char *)src, (uint32_t)len, hk_offers(p, call->traffic));
        return (long)len;
    }
    if (len > HK_SLOT_BYTES) len = HK_SLOT_BYTES;
    if (p->slots == NULL && !hk_take_slots(p, &p->slots, HK_SLOTS_BYTES(p->slots_bytes))) return HK_FAULT;
    hk_grow_circle(p);
    char *slot = hk_cut_slot(p, len);
    if (slot == NULL) return hk_wait_for_reader(p);
    hk_fill_slot(&p->fill, slot, call->keep, (const char *)src, len, p->cut > p->slots_bytes);
    if (call->keep) *call->kept += len;
    hk_publish_ref(p, tag, length, slot, (uint32_t)len);
    return (long)len;
}

static int hk_ring_settled(hk_channel *ch, const hk_call *call) {
    hk_producer *p = (hk_producer *)ch;
    if (hk_is_released(p, call->whole ? p->next : p->ref_until)) return 1;
    hk_write_share(p);
    return 0;
}

static inline long hk_wait_for_readers(hk_channel *const *chs, int n) {
    for (int i = 0; i < n; i++) hk_wait_for_reader((hk_producer *)chs[i]);
    return HK_AGAIN;
}

static inline int hk_shared_slot_is_free(hk_shared_slots *m, uint32_t s) {
    for (int i = 0; i < m->readers[s]; i++)
        if (!hk_is_released(m->reader[s][i], m->until[s][i])) return 0;
    return 1;
}

static long hk_ring_multicast(hk_channel *const *chs, int n, const hk_call *call, uint64_t length, uint64_t done,
                              const void *src, size_t len) {
    hk_producer *first = (hk_producer *)chs[0];
    const uint64_t tag = call->tag;
    int by_name = 1;
    (void)done;
    for (int i = 0; i < n; i++) {
        ((hk_producer *)chs[i])->took = call->took;
        if (!hk_has_line((hk_producer *)chs[i])) return hk_wait_for_readers(chs, n);
        by_name &= hk_by_name((hk_producer *)chs[i], call->traffic, src, length, len);
    }
    if (length <= HK_INLINE && len == length) {
        for (int i = 0; i < n; i++) hk_publish_inline((hk_producer *)chs[i], tag, src, len);
        return (long)len;
    }
    if (by_name) {
        if (len > HK_PACKET_MAX) len = HK_PACKET_MAX;
        for (int i = 0; i < n; i++)
            hk_publish_named((hk_producer *)chs[i], tag, length, (const char *)src, (uint32_t)len,
                             hk_offers((hk_producer *)chs[i], call->traffic));
        return (long)len;
    }
    hk_shared_slots *m = first->shared;
    hk_grow_shared(first, m);
    if (len > HK_SLOT_BYTES) len = HK_SLOT_BYTES;
    uint32_t s = m->next_small % HK_SMALL_SLOTS;
    const int small = len <= HK_SMALL_BYTES && hk_shared_slot_is_free(m, s);
    if (!small) {
        s = HK_SMALL_SLOTS + m->next % (m->count - HK_SMALL_SLOTS);
        if (!hk_shared_slot_is_free(m, s)) return hk_wait_for_readers(chs, n);
    }
    if (m->slot == NULL) {
        if (!hk_take_slots(first, &m->slot, (size_t)m->count * HK_SLOT_BYTES)) return HK_FAULT;
        m->warm = m->next + m->count;
    }
    char *slot = m->slot + (size_t)s * HK_SLOT_BYTES;
    hk_fill_slot(&m->fill, slot, call->keep, (const char *)src, len, (int32_t)(m->next - m->warm) >= 0);
    if (call->keep) *call->kept += len;
    for (int i = 0; i < n; i++) {
        hk_producer *p = (hk_producer *)chs[i];
        hk_publish_ref(p, tag, length, slot, (uint32_t)len);
        m->reader[s][i] = p;
        m->until[s][i] = p->next;
    }
    m->readers[s] = n;
    small ? m->next_small++ : m->next++;
    return (long)len;
}

static const hk_channel_ops hk_producer_ops = {
    .send = hk_ring_send, .settled = hk_ring_settled, .multicast = hk_ring_multicast};

#endif
