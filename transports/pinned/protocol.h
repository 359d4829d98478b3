/* A channel of GPU memory on any channel of host memory, by way of pinned memory.
 *
 * On the host channel the messages are what they would be without us: the same tags, lengths and bytes.  So the rank
 * at the other end may have its array in host memory, or in a GPU's.
 *
 * The sender's stream copies a piece into a slot and records an event behind that; when the event is done the piece
 * goes to the host channel, while the stream copies the next ones.  The receiver fills a slot from the host channel
 * and shows it when it is full: kernels read pinned memory where it lies.  An event is recorded behind what uses it,
 * and when that is done the slot is filled again.
 *
 * So, unlike channels between GPUs of a host, a message is settled only when the stream has come as far as its copies.
 * All work on the stream of their call.
 *
 * Waiting: while the host channel is what is waited for, by its fd or bell.  A GPU wakes nobody: while it is waited for
 * there is no fd, so that the engine looks every 50 us.  Where another channel has one, or there is a bell, the engine
 * has looked for 2 ms without a break before it naps, for 1 ms at most, and for 10 ms when it has waited for a second
 * (wait.h). */
#ifndef HK_PINNED_H
#define HK_PINNED_H

#include <string.h>

#include "system/atomics.h"
#include "transports/channel.h"
#include "system/cuda/device.h"

enum { HK_P_SLOTS = 4 }; /* each way */
#define HK_P_SLOT_BYTES ((size_t)1 << 20) /* a multiple of 64 KiB: so `send` may cut a message there */

typedef struct hk_p_end {
    hk_channel base;
    hk_device *device;
    hk_channel *host;
    char *slots;
    CUevent event[HK_P_SLOTS]; /* recorded behind what the stream does with each slot */
    int ended;                 /* HK_LOST or HK_FAULT: nothing more can be done */
    int lingers;               /* the host channel works between calls */
} hk_p_end;

typedef struct hk_p_piece {
    hk_call call;               /* what it is part of */
    uint64_t length, done;      /* of the message; done: its bytes before those that are left */
    size_t bytes, sent;
    int copied;                 /* its event is done */
} hk_p_piece;

typedef struct hk_p_sender {
    hk_p_end end;
    hk_p_piece piece[HK_P_SLOTS];
    uint32_t taken, pushed, freed; /* counts of pieces: from the engine, to the host channel, and settled there */
} hk_p_sender;

typedef struct hk_p_receiver {
    hk_p_end end;
    size_t bytes[HK_P_SLOTS];
    uint32_t full, used;           /* counts of slots */
    int filling;                   /* the one behind the full ones may be filled, and has so many bytes */
    size_t taken;                  /* by the engine, of the first full one */
    int open;                      /* a message is under way ... */
    uint64_t tag, length, left;    /* ... this one; left: bytes still with the host channel */
} hk_p_receiver;

static inline char *hk_p_slot(hk_p_end *e, uint32_t n) { return e->slots + n % HK_P_SLOTS * HK_P_SLOT_BYTES; }

/* Waiting is for the host channel now, whose fd may come later; or for the GPU. */
static inline int hk_p_wait_for_host(hk_p_end *e) {
    e->base.fd = (int)hk_load32((const uint32_t *)&e->host->fd);
    return HK_AGAIN;
}

static inline int hk_p_wait_for_gpu(hk_p_end *e) {
    e->base.fd = -1;
    return HK_AGAIN;
}

/* The driver has refused something, or the host channel has ended: the last words. */
static inline int hk_p_refused(hk_p_end *e) {
    e->base.words = e->device->words;
    return e->ended = HK_FAULT;
}

static inline int hk_p_ended(hk_p_end *e, int why) {
    e->base.error = e->host->error;
    e->base.words = e->host->words;
    return e->ended = why;
}

/* Has the stream done what it was given to do with this slot?  1, or HK_AGAIN, HK_FAULT. */
static inline int hk_p_is_through(hk_p_end *e, uint32_t n) {
    hk_device *d = e->device;
    const int entered = hk_device_enter(d);
    const int past = entered < 0 ? -1 : hk_device_is_past(d, e->event[n % HK_P_SLOTS]);
    hk_device_leave(d, entered);
    if (past == 0) return hk_p_wait_for_gpu(e);
    return past < 0 ? hk_p_refused(e) : 1;
}

/* ------------------------------------------------------------------------------------------- sending */

/* The piece that is next goes to the host channel: 1 when all of it has gone; or HK_AGAIN ... */
static inline int hk_p_push_next(hk_p_sender *s) {
    hk_p_end *e = &s->end;
    hk_p_piece *p = &s->piece[s->pushed % HK_P_SLOTS];
    if (!p->copied) {
        const int rc = hk_p_is_through(e, s->pushed);
        if (rc != 1) return rc;
        p->copied = 1;
    }
    do {
        const char *at = hk_p_slot(e, s->pushed) + p->sent;
        const long n = e->host->ops->send(e->host, &p->call, p->length, p->done, at, p->bytes - p->sent);
        if (n == HK_AGAIN) return hk_p_wait_for_host(e);
        if (n < 0) return hk_p_ended(e, (int)n);
        p->sent += (size_t)n;
        p->done += (uint64_t)n;
    } while (p->sent < p->bytes);
    s->pushed++;
    return 1;
}

static inline int hk_p_push(hk_p_sender *s) {
    int rc = s->end.ended ? s->end.ended : 1;
    while (rc == 1 && s->pushed != s->taken) rc = hk_p_push_next(s);
    return rc;
}

/* The host channel says of all that it has taken at once when it is through with it: 1, or HK_AGAIN ... */
static inline int hk_p_reclaim(hk_p_sender *s, const hk_call *call) {
    hk_channel *host = s->end.host;
    const int rc = host->ops->settled ? host->ops->settled(host, call) : 1;
    if (rc < 0) return hk_p_ended(&s->end, rc);
    if (rc == 0) return hk_p_wait_for_host(&s->end);
    s->freed = s->pushed;
    return 1;
}

static long hk_p_send(hk_channel *ch, const hk_call *call, uint64_t length, uint64_t done, const void *src, size_t len) {
    hk_p_sender *s = (hk_p_sender *)ch;
    hk_p_end *e = &s->end;
    hk_device *d = e->device;
    int rc = hk_p_push(s);
    if (rc < 0 && rc != HK_AGAIN) return rc;
    if (s->taken - s->freed == HK_P_SLOTS && s->freed != s->pushed) rc = hk_p_reclaim(s, call);
    if (s->taken - s->freed == HK_P_SLOTS || (rc < 0 && rc != HK_AGAIN)) return rc;
    if (len > HK_P_SLOT_BYTES) len = HK_P_SLOT_BYTES;
    if (len) {
        const int entered = hk_device_enter(d);
        rc = entered < 0 ? -1 : hk_device_copy(d, call->stream, hk_p_slot(e, s->taken), src, len);
        if (rc == 0) rc = hk_device_record(d, call->stream, e->event[s->taken % HK_P_SLOTS]);
        hk_device_leave(d, entered);
        if (rc != 0) return hk_p_refused(e);
    }
    s->piece[s->taken++ % HK_P_SLOTS] = (hk_p_piece){*call, length, done, len, 0, len == 0};
    return (long)len;
}

static int hk_p_settled(hk_channel *ch, const hk_call *call) {
    hk_p_sender *s = (hk_p_sender *)ch;
    int rc = hk_p_push(s);
    if (rc == 1 && s->freed != s->pushed) rc = hk_p_reclaim(s, call);
    return rc == HK_AGAIN ? 0 : rc;
}

/* ------------------------------------------------------------------------------------------- receiving */

/* Fill the next slot with whole elements: 1 when it is full or has the end of the message, or there is nothing to do;
 * or HK_AGAIN ...  One at a time, so that the GPU can begin with it while the next is filled. */
static inline int hk_p_fill(hk_p_receiver *r, const hk_call *call, size_t element) {
    hk_p_end *e = &r->end;
    const size_t room = HK_P_SLOT_BYTES - HK_P_SLOT_BYTES % element;
    size_t *bytes = &r->bytes[r->full % HK_P_SLOTS];
    if (r->left == 0 || r->full - r->used == HK_P_SLOTS) return 1;
    if (!r->filling) {
        const int rc = hk_p_is_through(e, r->full);
        if (rc != 1) return rc;
        *bytes = 0;
        r->filling = 1;
    }
    while (r->left && *bytes < room) {
        const size_t most = room - *bytes < r->left ? room - *bytes : (size_t)r->left;
        const long n = hk_receive(e->host, call, hk_p_slot(e, r->full) + *bytes, most, r->left);
        if (n == HK_AGAIN) return hk_p_wait_for_host(e);
        if (n < 0) {
            if (*bytes) r->full++; /* what came before is read */
            return hk_p_ended(e, (int)n);
        }
        *bytes += (size_t)n;
        r->left -= (uint64_t)n;
    }
    r->filling = 0;
    r->full++;
    return 1;
}

static inline int hk_p_begin(hk_p_receiver *r, const hk_call *call) {
    hk_p_end *e = &r->end;
    hk_view head;
    if (e->ended) return e->ended;
    const int rc = e->host->ops->peek(e->host, call, &head, 0);
    if (rc == HK_AGAIN) return hk_p_wait_for_host(e);
    if (rc != 1) return hk_p_ended(e, rc);
    r->open = 1;
    r->tag = head.tag;
    r->length = r->left = head.length;
    return 1;
}

static int hk_p_peek(hk_channel *ch, const hk_call *call, hk_view *v, size_t want) {
    hk_p_receiver *r = (hk_p_receiver *)ch;
    int rc = r->open ? 1 : hk_p_begin(r, call);
    if (rc != 1) return rc;
    if (want) rc = r->end.ended ? r->end.ended : hk_p_fill(r, call, want);
    const int shown = r->full != r->used;
    if (!shown && rc != 1 && rc != HK_AGAIN) return rc;
    v->tag = r->tag;
    v->length = r->length;
    v->data = hk_p_slot(&r->end, r->used) + r->taken;
    v->avail = shown ? r->bytes[r->used % HK_P_SLOTS] - r->taken : 0;
    return 1;
}

/* The event is recorded each time: a run may end in the middle of a slot, and whoever frees it must know. */
static int hk_p_consume(hk_channel *ch, const hk_call *call, size_t len, int end) {
    hk_p_receiver *r = (hk_p_receiver *)ch;
    hk_p_end *e = &r->end;
    if (len) {
        const int entered = hk_device_enter(e->device);
        CUevent used = e->event[r->used % HK_P_SLOTS];
        const int rc = entered < 0 ? -1 : hk_device_record(e->device, call->stream, used);
        hk_device_leave(e->device, entered);
        if (rc != 0) return hk_p_refused(e);
        r->taken += len;
        if (r->taken == r->bytes[r->used % HK_P_SLOTS]) {
            r->taken = 0;
            r->used++;
        }
    }
    if (end) r->open = 0;
    if (!end || r->length) return 0;
    const int rc = e->host->ops->consume(e->host, call, 0, 1);
    return rc < 0 ? hk_p_ended(e, rc) : 0;
}

/* What `peek` shows; the stream copies it. */
static long hk_p_recv(hk_channel *ch, const hk_call *call, void *dst, size_t len) {
    hk_device *d = ((hk_p_end *)ch)->device;
    hk_view v;
    int rc = hk_p_peek(ch, call, &v, 1);
    if (rc != 1) return rc;
    if (v.avail == 0) return HK_AGAIN;
    if (len > v.avail) len = v.avail;
    const int entered = hk_device_enter(d);
    rc = entered < 0 ? -1 : hk_device_copy(d, call->stream, dst, v.data, len);
    hk_device_leave(d, entered);
    if (rc != 0) return hk_p_refused((hk_p_end *)ch);
    rc = hk_p_consume(ch, call, len, 0);
    return rc < 0 ? rc : (long)len;
}

/* ------------------------------------------------------------------------------------------- the end */

/* The host never touches the caller's memory.  What the stream was given to do goes on: it is the caller's. */
static void hk_p_forget(hk_channel *ch) {
    hk_channel *host = ((hk_p_end *)ch)->host;
    if (host->ops->forget) host->ops->forget(host);
}

/* Does nobody use the slots any more?  Who knows, if the host channel was stopped in the middle of them: a library
 * below it may have more to do with them than `forget` could end (MPI). */
static inline int hk_p_is_idle(hk_p_end *e, int in_the_middle) {
    int rc = in_the_middle && e->lingers ? HK_AGAIN : 1;
    for (uint32_t n = 0; n < HK_P_SLOTS && rc == 1; n++) rc = hk_p_is_through(e, n);
    return rc != HK_AGAIN; /* a GPU that is lost does nothing any more */
}

static inline int hk_p_sender_is_idle(hk_p_sender *s) { return hk_p_is_idle(&s->end, s->freed != s->taken); }
static inline int hk_p_receiver_is_idle(hk_p_receiver *r) { return hk_p_is_idle(&r->end, r->filling); }

static const hk_channel_ops hk_p_sender_ops = {.send = hk_p_send, .settled = hk_p_settled, .forget = hk_p_forget};
static const hk_channel_ops hk_p_receiver_ops = {
    .peek = hk_p_peek, .consume = hk_p_consume, .recv = hk_p_recv, .forget = hk_p_forget};

/* The slots and events are there. */
static inline void hk_p_open(hk_p_end *e, const hk_channel_ops *ops, hk_device *device, hk_channel *host) {
    e->device = device;
    e->host = host;
    e->lingers = host->ops->forget != NULL;
    e->base = (hk_channel){.ops = ops, .fd = host->fd, .events = host->events, .bell = host->bell};
}

#endif
