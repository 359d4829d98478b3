/* The receiving side of a ring (ring.h), which believes nothing that the other one wrote. */
#ifndef HK_SHM_RECEIVE_H
#define HK_SHM_RECEIVE_H

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "system/atomics.h"
#include "system/copy.h"
#include "system/wait.h"
#include "transports/shm/ring.h"

/* It could when the ranks met. */
#define HK_NOT_READABLE \
    "the system no longer lets this process read that one's memory: one of the two has changed its user or its " \
    "privileges; do that before hocket.init(), or use HOCKET_TRANSPORT=tcp"

#define HK_NEITHER_WAY \
    "an array lies where no other process can read it (a device's memory, or secret), and the system does not let its own " \
    "process write to this one (process_vm_writev); allow that, or use HOCKET_TRANSPORT=tcp"

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
    c->offered = (int)(len & (HK_OFFERED | HK_RATHER));
    c->invited = c->unreadable = 0;
    c->asked = 0;
    len &= ~(uint32_t)HK_FLAGS;
    c->tag = hk_relaxed64(&line->tag);
    c->taken = c->fetched = c->staged = 0;
    c->remote = 0;
    c->packet = len;
    c->took = 0;
    if (flags == 0) {
        if (len > HK_INLINE) return hk_ring_fault(c);
        c->length = len;
        c->data = line->u.bytes;
        return 1;
    }
    const uint64_t where = hk_relaxed64(&line->u.ref.where);
    c->length = hk_relaxed64(&line->u.ref.length);
    c->took = hk_relaxed32(&line->u.ref.took);
    /* An empty packet would be progress for ever, without a byte. */
    if (len == 0 || len > c->length) return hk_ring_fault(c);
    if (flags == HK_REF) {
        if (!hk_window_holds(c, where, len)) return hk_ring_fault(c);
        if (c->pid == HK_NO_MEMORY) c->offered = 0;
        c->data = c->window + where;
        return 1;
    }
    if (flags == HK_FAR || c->pid == HK_NO_MEMORY || where == 0) return hk_ring_fault(c);
    if (c->stage == NULL && (c->stage = (char *)aligned_alloc(HK_COPY_PAGE, HK_STAGE)) == NULL) {
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
        if (n && errno == EPERM) c->base.words = HK_NOT_READABLE;
        return n && errno == ESRCH ? HK_LOST : HK_FAULT;
    }
    c->fetched += (uint32_t)n;
    return n;
}

/* Invite the producer to write these shares of the open packet: all of it to where it belongs, or some to the stage. */
static inline void hk_invite(hk_consumer *c, uint64_t where, uint32_t begin, uint32_t end) {
    hk_invitation *v = &c->ring->invitation;
    const hk_left left = {c->next + 1, (uint16_t)begin, (uint16_t)end};
    __atomic_store_n(&v->where, c->unreadable ? where | HK_UNREADABLE : where, __ATOMIC_RELAXED);
    v->written = begin;
    __atomic_store_n(&v->refused, 0, __ATOMIC_RELAXED);
    hk_store64(&v->left, hk_left_word(left));
    hk_ring_bell(c->peer_bell);
}

static inline void hk_invite_into(hk_consumer *c, char *dst) {
    const size_t at = (size_t)(dst - c->own);
    const int here = at < c->own_bytes && c->packet <= c->own_bytes - at;
    c->into = dst;
    c->invited = 1;
    c->looks = 0;
    hk_invite(c, here ? at | HK_HERE : (uint64_t)(uintptr_t)dst, 0, hk_shares(c->packet));
}

/* Read these shares of the packet to where they belong; how many bytes, or HK_LOST, HK_FAULT. */
static inline long hk_read_shares(hk_consumer *c, uint32_t begin, uint32_t end) {
    size_t at = (size_t)begin * HK_SHARE, until = (size_t)end * HK_SHARE;
    const size_t first = at;
    if (until > c->packet) until = c->packet;
    if (c->remote == 0) {
        hk_copy_of(c->into + at, c->data + at, until - at, c->packet);
        return (long)(until - first);
    }
    while (at < until) {
        c->fetched = (uint32_t)at;
        const long n = hk_ring_fetch(c, c->into + at, until - at);
        if (n < 0) return n;
        at += (size_t)n;
    }
    return (long)(until - first);
}

/* Is it the producer's memory that the system has refused to read?  It may be what the caller gave to read into. */
static inline int hk_is_unreadable(hk_consumer *c, long rc) {
    char byte;
    struct iovec here = {&byte, 1}, there = {(void *)(uintptr_t)(c->remote + c->fetched), 1};
    if (rc != HK_FAULT || c->base.error != EFAULT || c->unreadable) return 0;
    if (process_vm_readv(c->pid, &here, 1, &there, 1, 0) == 1 || errno != EFAULT) return 0;
    c->base.error = 0;
    c->unreadable = 1;
    return 1;
}

/* The open packet cannot be read: the producer writes what the stage holds of it, from the share on in which `at` lies. */
static inline int hk_ask(hk_consumer *c, uint32_t at) {
    const uint32_t begin = at / HK_SHARE, all = hk_shares(c->packet), most = HK_STAGE / HK_SHARE;
    const uint32_t end = begin + (all - begin < most ? all - begin : most);
    c->staged = begin * HK_SHARE;
    c->fetched = at;
    c->asked = end < all ? end * HK_SHARE : c->packet;
    hk_invite(c, (uint64_t)(uintptr_t)c->stage - c->staged, begin, end);
    return HK_AGAIN;
}

/* Is all in the stage that was asked for?  1, or HK_AGAIN, HK_FAULT. */
static inline int hk_has_come(hk_consumer *c) {
    hk_invitation *v = &c->ring->invitation;
    const hk_left left = hk_left_of(hk_load64(&v->left));
    if (left.packet != c->next + 1) return hk_ring_fault(c);
    if (hk_load32(&v->refused)) {
        c->base.error = EFAULT;
        c->base.words = HK_NEITHER_WAY;
        return HK_FAULT;
    }
    if (left.begin != left.end || hk_load32(&v->written) != left.begin) return HK_AGAIN;
    c->fetched = c->asked;
    c->asked = 0;
    return 1;
}

/* Withdraw the invitation: the producer takes no more shares of the open packet.  It has taken those before `begin`. */
static inline hk_left hk_withdraw(hk_consumer *c) {
    uint64_t *word = &c->ring->invitation.left, seen = hk_load64(word);
    hk_left left;
    do {
        left = hk_left_of(seen);
        left.end = left.begin;
    } while (!hk_swap64(word, &seen, hk_left_word(left)));
    return left;
}

/* A packet that both were to copy cannot be read: all of it comes through the stage.  The bytes that are still due, or ... */
static inline long hk_take_by_stage(hk_consumer *c) {
    hk_invitation *v = &c->ring->invitation;
    if (!c->asked) {
        const hk_left left = hk_withdraw(c);
        if (hk_load32(&v->written) != left.begin && !hk_load32(&v->refused)) return HK_AGAIN;
        return hk_ask(c, 0);
    }
    const int rc = hk_has_come(c);
    if (rc != 1) return rc;
    hk_copy(c->into + c->staged, c->stage, c->fetched - c->staged);
    return c->fetched < c->packet ? hk_ask(c, c->fetched) : (long)(c->packet - c->taken);
}

/* The bytes of this packet that have come since the last time, from the back those that were read here; or HK_AGAIN ... */
static inline long hk_take_share(hk_consumer *c) {
    hk_invitation *v = &c->ring->invitation;
    const uint32_t all = hk_shares(c->packet), rather = (uint32_t)c->offered & HK_RATHER;
    if (c->unreadable) return hk_take_by_stage(c);
    uint64_t word = hk_load64(&v->left);
    for (;;) {
        hk_left left = hk_left_of(word);
        if (left.packet != c->next + 1 || left.begin > left.end || left.end > all) return hk_ring_fault(c);
        const uint32_t refused = hk_load32(&v->refused);
        if (left.begin == left.end && refused) {
            if (refused > left.begin) return hk_ring_fault(c);
            const long n = hk_read_shares(c, refused - 1, left.begin);
            if (n < 0) return hk_is_unreadable(c, n) ? HK_AGAIN : n;
            return (long)(c->packet - c->taken);
        }
        if (left.begin == left.end)
            return hk_load32(&v->written) == left.begin ? (long)(c->packet - c->taken) : HK_AGAIN;
        if (rather && !refused && (left.begin || c->looks++ < HK_PATIENCE)) return HK_AGAIN;
        uint32_t n = hk_share_of(all, 0);
        if (n > (uint32_t)(left.end - left.begin)) n = left.end - left.begin;
        left.end = (uint16_t)(left.end - n);
        if (!hk_swap64(&v->left, &word, hk_left_word(left))) continue;
        const long rc = hk_read_shares(c, left.end, left.end + n);
        return hk_is_unreadable(c, rc) ? HK_AGAIN : rc;
    }
}

/* Fetch as many of them as the stage holds; 1, or HK_AGAIN, HK_LOST, HK_FAULT. */
static inline int hk_ring_stage(hk_consumer *c) {
    if (c->asked) return hk_has_come(c);
    if (c->unreadable) return hk_ask(c, c->taken);
    c->staged = c->fetched;
    while (c->fetched < c->packet && c->fetched < c->staged + HK_STAGE) {
        size_t left = c->packet - c->fetched, room = c->staged + HK_STAGE - c->fetched;
        long n = hk_ring_fetch(c, c->stage + (c->fetched - c->staged), left < room ? left : room);
        if (n < 0) return hk_is_unreadable(c, n) ? hk_ask(c, c->taken) : (int)n;
    }
    return 1;
}

static int hk_ring_peek(hk_channel *ch, const hk_call *call, hk_view *v, size_t want) {
    hk_consumer *c = (hk_consumer *)ch;
    (void)call;
    /* Of what lies here `want` is always there, or fetched again with what follows: a packet is contiguous, and cut at
     * multiples of the largest element. */
    if (c->data == NULL) {
        int rc = hk_ring_open(c);
        if (rc != 1) return rc;
    }
    if (c->remote && want && !c->invited && c->fetched - c->taken < want && c->fetched < c->packet) {
        if (!c->asked) c->fetched = c->taken;
        int rc = hk_ring_stage(c);
        if (rc != 1) return rc;
    }
    v->tag = c->tag;
    v->length = c->length;
    v->data = c->data + (c->taken - c->staged);
    v->avail = c->remote == 0 ? c->packet - c->taken : c->invited ? 0 : c->fetched - c->taken;
    v->took = c->took;
    return 1;
}

/* A rank that has received `len` bytes mostly sends as many next.  Its peer's core still has the lines that it writes
 * then, and a store waits until they are back, as long as a message takes: so they are fetched while the program runs. */
static inline void hk_fetch_for_reply(const hk_producer *p, size_t len) {
    hk_fetch_to_store(&p->ring->line[p->next % HK_LINES]);
    if (len <= HK_INLINE || len > HK_SMALL_BYTES || p->slots == NULL) return;
    const char *slot = hk_small_slot(p);
    for (size_t i = 0; i < len; i += sizeof(hk_line)) hk_fetch_to_store(slot + i);
}

static int hk_ring_consume(hk_channel *ch, const hk_call *call, size_t len, int end) {
    hk_consumer *c = (hk_consumer *)ch;
    (void)call;
    (void)end; /* a packet never spans two messages */
    if (c->data == NULL) return 0; /* the end of a message that `recv` has taken */
    c->taken += (uint32_t)len;
    if (c->taken < c->packet) return 0;
    c->data = NULL;
    c->next++;
    hk_store32(&c->ring->released, c->next);
    hk_ring_bell(c->peer_bell);
    if (c->reply) hk_fetch_for_reply(c->reply, c->packet);
    return 0;
}

/* The call has failed: what the producer has begun to write must be over before the caller has its memory again.  A dead
 * one writes nothing more; one that has been stopped is not waited for longer than HK_FORGET_NS. */
static void hk_ring_forget(hk_channel *ch) {
    hk_consumer *c = (hk_consumer *)ch;
    hk_invitation *v = &c->ring->invitation;
    if (c->data == NULL || !(c->invited || c->asked)) return;
    const hk_left left = hk_withdraw(c);
    char byte;
    struct iovec here = {&byte, 1}, there = {(void *)(uintptr_t)c->remote, 1};
    for (const uint64_t began = hk_now(); hk_load32(&v->written) != left.begin && !hk_load32(&v->refused);) {
        if (process_vm_readv(c->pid, &here, 1, &there, 1, 0) < 0 && errno == ESRCH) break;
        if (hk_now() - began > HK_FORGET_NS) break;
        hk_pause();
    }
    c->invited = 0;
    c->asked = 0;
}

static long hk_ring_recv(hk_channel *ch, const hk_call *call, void *dst, size_t len) {
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
    if (c->invited) {
        n = hk_take_share(c);
        if (n < 0) return n;
        hk_ring_consume(ch, call, (size_t)n, 0);
        c->staged = c->fetched = c->taken;
        return n;
    }
    if (c->remote && c->taken == c->fetched &&
        (c->unreadable || hk_copy_is_slow(dst, (void *)(uintptr_t)(c->remote + c->fetched), len))) {
        int rc = hk_ring_stage(c); /* copied twice, which is faster still on a Zen 3 */
        if (rc != 1) return rc;
    }
    if (c->offered && c->taken == 0 && c->fetched == 0 && len >= c->packet) {
        hk_invite_into(c, (char *)dst);
        return hk_ring_recv(ch, call, dst, len);
    }
    if (c->remote && c->taken == c->fetched && len > 0) {
        size_t left = c->packet - c->taken;
        if (left > len) left = len;
        n = hk_ring_fetch(c, dst, left < HK_FAR_AT_ONCE ? left : HK_FAR_AT_ONCE);
        if (n < 0) return hk_is_unreadable(c, n) ? hk_ask(c, c->taken) : n;
        c->staged = c->fetched;
    } else {
        size_t left = (c->remote ? c->fetched : c->packet) - c->taken;
        n = (long)(left < len ? left : len);
        hk_copy(dst, c->data + (c->taken - c->staged), (size_t)n);
    }
    hk_ring_consume(ch, call, (size_t)n, 0);
    return n;
}

static const hk_channel_ops hk_consumer_ops = {
    .peek = hk_ring_peek, .consume = hk_ring_consume, .recv = hk_ring_recv, .forget = hk_ring_forget};

#endif
