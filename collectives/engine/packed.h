/* A channel over another one, for elements that are sent shorter than they lie in memory (kernels/cpu/codec.h, `pack`).
 *
 * A message becomes slices, messages of the channel below, all with its tag: as many whole elements as fit, packed.  The
 * first begins with the bytes that the whole message has in memory; by these alone the engine counts.  Elements that may be
 * used as they were sent are handed on where they lie; others are unpacked.  One such channel serves all calls with codecs
 * that pack, one after the other, and those without go to the channel below. */
#ifndef HK_PACKED_H
#define HK_PACKED_H

#include <stdlib.h>

#include "kernels/cpu/codec.h"
#include "transports/channel.h"

enum {
    HK_SLICE = 65536,      /* bytes of a slice: what a slot of shared memory holds, so that it can be used there ... */
    HK_SLICE_MOST = 73728, /* ... or one element, if that is more */
    HK_SLICE_HEAD = 8
};

typedef struct hk_packed {
    hk_channel base;
    hk_channel *under;
    const hk_codec *codec;
    uint64_t total;                  /* memory bytes of the message, once its first slice is there */
    unsigned char *room, *plain;     /* a slice; and its elements, unpacked, if they cannot be used as they came */
    const unsigned char *at;         /* what has come and was not used yet ... */
    size_t left;                     /* ... and the memory bytes that it stands for */
    size_t filled, done;             /* bytes of the slice in `room`; those that were sent */
    size_t taken;                    /* memory bytes in the slice that is being sent */
    int busy, begun, in_place;       /* a slice is being sent or used; the message's first one has come; below, unread */
} hk_packed;

static long hk_packed_send(hk_channel *ch, const hk_call *call, uint64_t length, uint64_t done, const void *src,
                           size_t len) {
    hk_packed *p = (hk_packed *)ch;
    const hk_channel_ops *ops = p->under->ops;
    if (!p->busy) {
        if (p->filled && ops->settled) {
            const int rc = ops->settled(p->under, call);
            if (rc <= 0) return rc ? rc : HK_AGAIN;
        }
        size_t head = 0, most = HK_SLICE > p->codec->nbytes + HK_SLICE_HEAD ? HK_SLICE : HK_SLICE_MOST;
        if (done == 0) memcpy(p->room, &length, head = HK_SLICE_HEAD);
        p->taken = 0;
        p->filled = head + (len ? p->codec->pack(p->codec, p->room + head, most - head, (const unsigned char *)src, len, &p->taken) : 0);
        p->done = 0, p->busy = 1;
    }
    while (p->done < p->filled) {
        const long n = ops->send(p->under, call, p->filled, p->done, p->room + p->done, p->filled - p->done);
        if (n < 0) return n;
        p->done += (size_t)n;
    }
    p->busy = 0;
    return (long)p->taken;
}

static int hk_packed_settled(hk_channel *ch, const hk_call *call) {
    hk_packed *p = (hk_packed *)ch;
    const int rc = p->under->ops->settled ? p->under->ops->settled(p->under, call) : 1;
    if (rc == 1) p->filled = 0;
    return rc;
}

static int hk_packed_fault(hk_packed *p) {
    p->under->words = "a packed message is not what it says";
    return HK_FAULT;
}

/* A slice is there: 1; or what the channel below says.  `view` has the head of another call's message. */
static int hk_packed_fetch(hk_packed *p, const hk_call *call, hk_view *view) {
    const hk_channel_ops *ops = p->under->ops;
    hk_view v;
    if (p->busy) return 1;
    int rc = ops->peek(p->under, call, &v, 0);
    if (rc != 1) return rc;
    const size_t head = p->begun ? 0 : HK_SLICE_HEAD;
    if (v.tag != call->tag) {
        *view = v;
        view->avail = 0;
        return 2;
    }
    if (v.length > HK_SLICE_MOST || v.length < head) return hk_packed_fault(p);
    p->in_place = p->filled == 0 && v.avail == v.length && p->codec->count;
    while (!p->in_place && p->filled < v.length) {
        const long n = hk_receive_copied(p->under, call, p->room + p->filled, v.length - p->filled, v.length - p->filled);
        if (n < 0) return (int)n;
        p->filled += (size_t)n;
    }
    p->at = p->in_place ? (const unsigned char *)v.data : p->room;
    p->filled = v.length;
    if (head) memcpy(&p->total, p->at, head);
    p->begun = 1;
    const long n = p->codec->count ? p->codec->count(p->codec, p->at + head, v.length - head)
        : p->codec->unpack(p->codec, p->plain, p->at + head, v.length - head);
    if (n < 0) return hk_packed_fault(p);
    p->at = p->codec->count ? p->at + head : p->plain;
    p->left = p->codec->count ? (size_t)n * p->codec->nbytes : (size_t)n;
    p->busy = 1;
    return 1;
}

/* The slice has been used. */
static int hk_packed_release(hk_packed *p, const hk_call *call) {
    const size_t length = p->filled;
    p->busy = 0, p->filled = 0;
    return p->in_place ? p->under->ops->consume(p->under, call, length, 1) : 0;
}

static int hk_packed_peek(hk_channel *ch, const hk_call *call, hk_view *view, size_t want) {
    hk_packed *p = (hk_packed *)ch;
    const int rc = hk_packed_fetch(p, call, view);
    (void)want;
    if (rc != 1) return rc == 2 ? 1 : rc;
    view->tag = call->tag, view->length = p->total, view->data = (const char *)p->at, view->avail = p->left;
    return 1;
}

static int hk_packed_consume(hk_channel *ch, const hk_call *call, size_t len, int end) {
    hk_packed *p = (hk_packed *)ch;
    if (len) {
        p->at += p->codec->count ? p->codec->unpack(p->codec, NULL, p->at, len) : (long)len;
        p->left -= len;
    }
    if (end) p->begun = 0;
    return p->busy && p->left == 0 ? hk_packed_release(p, call) : 0;
}

static long hk_packed_recv(hk_channel *ch, const hk_call *call, void *dst, size_t len) {
    hk_packed *p = (hk_packed *)ch;
    hk_view view;
    int rc = hk_packed_fetch(p, call, &view);
    if (rc != 1) return rc == 2 ? HK_FAULT : rc;
    const size_t n = p->left < len ? p->left : len;
    if (p->codec->count)
        p->at += p->codec->unpack(p->codec, (unsigned char *)dst, p->at, n);
    else {
        memcpy(dst, p->at, n);
        p->at += n;
    }
    p->left -= n;
    rc = p->left == 0 ? hk_packed_release(p, call) : 0;
    return rc < 0 ? rc : (long)n;
}

static const hk_channel_ops hk_packed_ops = {hk_packed_send, hk_packed_settled, NULL, hk_packed_peek, hk_packed_consume,
                                             hk_packed_recv, NULL};

static inline void hk_packed_free(hk_packed *p) {
    if (p == NULL) return;
    free(p->room);
    free(p->plain);
    free(p);
}

static inline hk_packed *hk_packed_new(void) {
    hk_packed *p = (hk_packed *)calloc(1, sizeof *p);
    if (p == NULL) return NULL;
    p->base.ops = &hk_packed_ops, p->base.fd = -1;
    p->room = (unsigned char *)malloc(HK_SLICE_MOST), p->plain = (unsigned char *)malloc(HK_SLICE_MOST);
    if (p->room && p->plain) return p;
    hk_packed_free(p);
    return NULL;
}

/* The channel over `under` for elements of this codec. */
static inline hk_channel *hk_packed_over(hk_packed *p, hk_channel *under, const hk_codec *codec) {
    p->under = under, p->codec = codec;
    return &p->base;
}

#endif
