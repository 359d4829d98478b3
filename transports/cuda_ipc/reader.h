/* The reading end: it uses the piece in front where it lies, and then gives the slot back. */
#ifndef HK_CUDA_IPC_READER_H
#define HK_CUDA_IPC_READER_H

#include "transports/cuda_ipc/protocol.h"

static inline const char *hk_c_from(const hk_c_pair *p, const hk_c_packet *k) {
    if (k->kind == HK_C_DIRECT) return (const char *)(uintptr_t)(p->registered.at[k->memory] + k->offset);
    return k->slot < HK_C_SLOTS ? p->theirs + k->slot * HK_C_SLOT_BYTES
                                : p->their_shared + (k->slot - HK_C_SLOTS) * HK_C_SLOT_BYTES;
}

/* 1: the piece in front belongs to the open message; or HK_AGAIN, HK_LOST, HK_FAULT. */
static inline int hk_c_front(hk_c_pair *p) {
    hk_c_pump(p);
    if (p->came == p->first) return p->ended ? p->ended : HK_AGAIN;
    const hk_c_packet *k = &p->piece[p->first % HK_C_ALL];
    if (!p->open) {
        p->open = 1;
        p->tag = k->tag;
        p->length = p->left = k->length;
    }
    if (k->tag != p->tag || k->length != p->length || k->bytes - p->taken > p->left)
        return hk_c_wrong(p, "a message begins in the middle of another, or is too long");
    return 1;
}

/* The piece in front is there, or the stream waits for it.  1, 0 not yet, or -1. */
static inline int hk_c_await(hk_c_pair *p, void *stream) {
    hk_device *d = p->common->device;
    if (p->awaited) return 1;
    const int entered = hk_device_enter(d);
    const int rc = entered < 0 ? -1 : hk_mark_await(&p->peer_ready[p->piece[p->first % HK_C_ALL].slot], d, stream);
    hk_device_leave(d, entered);
    p->awaited = rc == 1;
    return rc;
}

/* `n` bytes of the piece in front have been used: at its end the slot is given back. */
static inline int hk_c_use(hk_c_pair *p, void *stream, size_t n) {
    hk_device *d = p->common->device;
    const hk_c_packet *k = &p->piece[p->first % HK_C_ALL];
    int rc = 0;
    p->taken += n;
    p->left -= n;
    if (p->taken < k->bytes) return 0;
    if (k->bytes) {
        const int entered = hk_device_enter(d);
        rc = entered < 0 ? -1 : hk_mark_set(&p->done[k->slot], d, stream);
        hk_device_leave(d, entered);
    }
    if (rc == 0) hk_c_post(p, (hk_c_packet){.kind = HK_C_DONE, .slot = k->slot});
    p->first++;
    p->taken = 0;
    p->awaited = 0;
    hk_c_flush(p);
    return rc;
}

static int hk_c_peek(hk_channel *ch, const hk_call *call, hk_view *v, size_t want) {
    hk_c_end *e = (hk_c_end *)ch;
    hk_c_pair *p = e->pair;
    int rc = hk_c_front(p);
    if (rc != 1) return rc;
    const hk_c_packet *k = &p->piece[p->first % HK_C_ALL];
    if (want && k->bytes && (rc = hk_c_await(p, call->stream)) != 1) return rc == 0 ? HK_AGAIN : hk_c_refused(e);
    v->tag = p->tag;
    v->length = p->length;
    v->data = hk_c_from(p, k) + p->taken;
    v->avail = k->bytes - p->taken;
    return 1;
}

static int hk_c_consume(hk_channel *ch, const hk_call *call, size_t len, int end) {
    hk_c_end *e = (hk_c_end *)ch;
    if (end) e->pair->open = 0;
    return (len || e->pair->length == 0) && hk_c_use(e->pair, call->stream, len) != 0 ? hk_c_refused(e) : 0;
}

static long hk_c_recv(hk_channel *ch, const hk_call *call, void *dst, size_t len) {
    hk_c_end *e = (hk_c_end *)ch;
    hk_c_pair *p = e->pair;
    hk_device *d = p->common->device;
    int rc = hk_c_front(p);
    if (rc != 1) return rc;
    const hk_c_packet *k = &p->piece[p->first % HK_C_ALL];
    if (len > k->bytes - p->taken) len = k->bytes - p->taken;
    if ((rc = hk_c_await(p, call->stream)) != 1) return rc == 0 ? HK_AGAIN : hk_c_refused(e);
    const int entered = hk_device_enter(d);
    rc = entered < 0 ? -1 : hk_device_copy(d, call->stream, dst, hk_c_from(p, k) + p->taken, len);
    hk_device_leave(d, entered);
    if (rc != 0 || hk_c_use(p, call->stream, len) != 0) return hk_c_refused(e);
    return (long)len;
}

static const hk_channel_ops hk_c_rx_ops = {.peek = hk_c_peek, .consume = hk_c_consume, .recv = hk_c_recv};

#endif
