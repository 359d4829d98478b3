/* Messages with a check of their bytes behind them, over any channel: what memory has damaged is an error.
 *
 * Behind each message that is not empty goes another one with its tag, of 8 bytes: a check of all its bytes (crc.h).  The
 * reader is shown the last element when that has come and fits.  What came before may have been used by then; the run ends. */
#ifndef HK_CHECKED_H
#define HK_CHECKED_H

#include "system/copy.h"
#include "transports/crc.h"
#include "transports/channel.h"

enum { HK_CHECK_BYTES = 8, HK_CHECK_LAST = 4096 };

typedef struct hk_checked_writer {
    hk_channel base;
    hk_channel *under;
    uint64_t tag;
    hk_crc3 crc;
    int due; /* the check of the last message has not gone yet */
} hk_checked_writer;

typedef struct hk_checked_reader {
    hk_channel base;
    hk_channel *under;
    uint64_t tag, length, left; /* of the open message; left: below, and not taken yet */
    const char *shown;          /* the next of these, as peeked last */
    hk_crc3 crc;
    int open, right;
    size_t held, at;            /* of the last element, in `last` */
    char last[HK_CHECK_LAST];
} hk_checked_reader;

/* What the channel below says. */
static inline long hk_checked_as(hk_channel *ch, const hk_channel *under, long rc) {
    if (rc == HK_LOST || rc == HK_FAULT) ch->error = under->error, ch->words = under->words;
    return rc;
}

static inline long hk_check_flush(hk_checked_writer *w) {
    if (!w->due) return 1;
    const hk_call call = {.tag = w->tag, .traffic = HK_ONE_WAY};
    const uint64_t word = hk_crc3_end(&w->crc);
    const long n = w->under->ops->send(w->under, &call, HK_CHECK_BYTES, 0, &word, HK_CHECK_BYTES);
    if (n == HK_CHECK_BYTES) w->due = 0;
    return n == HK_CHECK_BYTES ? 1 : hk_checked_as(&w->base, w->under, n);
}

static long hk_checked_send(hk_channel *ch, const hk_call *call, uint64_t length, uint64_t done, const void *src, size_t len) {
    hk_checked_writer *w = (hk_checked_writer *)ch;
    const long flushed = hk_check_flush(w);
    if (flushed != 1) return flushed;
    if (done == 0) hk_crc3_begin(&w->crc);
    hk_call in_order = *call; /* where both copy, the last bytes may come first */
    const int traffic = call->traffic & HK_TRAFFIC;
    if (traffic == HK_WRITTEN || traffic == HK_BOTH) in_order.traffic = HK_READ;
    const long n = w->under->ops->send(w->under, &in_order, length, done, src, len);
    if (n <= 0) return hk_checked_as(ch, w->under, n);
    hk_crc3_add(&w->crc, src, (size_t)n);
    w->due = done + (uint64_t)n == length;
    w->tag = call->tag;
    if (w->due) hk_check_flush(w); /* now or later */
    return n;
}

static int hk_checked_settled(hk_channel *ch, const hk_call *call) {
    hk_checked_writer *w = (hk_checked_writer *)ch;
    const long flushed = hk_check_flush(w);
    if (flushed != 1) return flushed == HK_AGAIN ? 0 : (int)flushed;
    if (w->under->ops->settled == NULL) return 1;
    return (int)hk_checked_as(ch, w->under, w->under->ops->settled(w->under, call));
}

static void hk_checked_forget_sent(hk_channel *ch) {
    hk_channel *under = ((hk_checked_writer *)ch)->under;
    if (under->ops->forget) under->ops->forget(under);
}

/* Does the check fit?  1, HK_AGAIN: it has not come; HK_FAULT, HK_LOST. */
static inline int hk_checked_is_right(hk_checked_reader *r, const hk_call *call) {
    hk_view v;
    uint64_t word;
    if (r->right) return 1;
    const int rc = r->under->ops->peek(r->under, call, &v, HK_CHECK_BYTES);
    if (rc != 1) return (int)hk_checked_as(&r->base, r->under, rc);
    if (v.length == HK_CHECK_BYTES && v.avail < HK_CHECK_BYTES) return HK_AGAIN;
    if (v.length == HK_CHECK_BYTES) memcpy(&word, v.data, sizeof word);
    if (v.length != HK_CHECK_BYTES || v.tag != r->tag || word != hk_crc3_end(&r->crc)) {
        r->base.words = "bytes came damaged through shared memory, which HOCKET_CHECK has found: test this host's memory";
        return HK_FAULT;
    }
    r->right = 1;
    return (int)hk_checked_as(&r->base, r->under, r->under->ops->consume(r->under, call, HK_CHECK_BYTES, 1)) < 0 ? HK_FAULT : 1;
}

static int hk_checked_peek(hk_channel *ch, const hk_call *call, hk_view *v, size_t want) {
    hk_checked_reader *r = (hk_checked_reader *)ch;
    int rc;
    if (!r->open) {
        rc = r->under->ops->peek(r->under, call, v, 0);
        if (rc != 1) return (int)hk_checked_as(ch, r->under, rc);
        r->tag = v->tag, r->length = r->left = v->length;
        hk_crc3_begin(&r->crc);
        r->right = 0, r->held = r->at = 0, r->open = 1;
    }
    *v = (hk_view){r->tag, r->length, NULL, 0};
    if (want == 0 || r->length == 0) return 1;
    if (r->left) {
        rc = r->under->ops->peek(r->under, call, v, want);
        if (rc != 1) return (int)hk_checked_as(ch, r->under, rc);
        r->shown = v->data;
        if (v->avail < r->left) return 1;
        v->avail = r->left > want ? r->left - want : 0;
        if (v->avail) return 1;
        r->held = (size_t)r->left, r->left = 0;
        memcpy(r->last, v->data, r->held);
        hk_crc3_add(&r->crc, r->last, r->held);
        rc = r->under->ops->consume(r->under, call, r->held, 1);
        if (rc < 0) return (int)hk_checked_as(ch, r->under, rc);
    }
    *v = (hk_view){r->tag, r->length, NULL, 0};
    rc = hk_checked_is_right(r, call);
    if (rc != 1) return rc == HK_AGAIN ? 1 : rc;
    v->data = r->last + r->at, v->avail = r->held;
    return 1;
}

static int hk_checked_consume(hk_channel *ch, const hk_call *call, size_t len, int end) {
    hk_checked_reader *r = (hk_checked_reader *)ch;
    int rc = 0;
    if (len && r->left) {
        hk_crc3_add(&r->crc, r->shown, len);
        r->left -= len, r->shown += len;
        rc = r->under->ops->consume(r->under, call, len, 0);
    } else if (len) {
        r->held -= len, r->at += len;
    } else if (r->length == 0) {
        rc = r->under->ops->consume(r->under, call, 0, 1);
    }
    if (end) r->open = 0;
    return (int)hk_checked_as(ch, r->under, rc);
}

static long hk_checked_recv(hk_channel *ch, const hk_call *call, void *dst, size_t len) {
    hk_checked_reader *r = (hk_checked_reader *)ch;
    long n = 0;
    if (r->left) {
        n = hk_receive(r->under, call, dst, len < r->left ? len : (size_t)r->left, r->left);
        if (n < 0) return hk_checked_as(ch, r->under, n);
        hk_crc3_add(&r->crc, dst, (size_t)n);
        r->left -= (uint64_t)n;
        if (r->left) return n;
        r->last[0] = ((const char *)dst)[--n];
        r->held = 1;
    }
    const int rc = hk_checked_is_right(r, call);
    if (rc != 1) return rc == HK_AGAIN && n ? n : rc;
    ((char *)dst)[n] = r->last[0];
    r->held = 0;
    return n + 1;
}

static void hk_checked_forget_come(hk_channel *ch) {
    hk_channel *under = ((hk_checked_reader *)ch)->under;
    if (under->ops->forget) under->ops->forget(under);
}

static const hk_channel_ops hk_checked_writer_ops = {
    .send = hk_checked_send, .settled = hk_checked_settled, .forget = hk_checked_forget_sent};
static const hk_channel_ops hk_checked_reader_ops = {.peek = hk_checked_peek, .consume = hk_checked_consume,
                                                     .recv = hk_checked_recv, .forget = hk_checked_forget_come};

static inline void hk_checked_over(hk_channel *ch, const hk_channel_ops *ops, const hk_channel *under) {
    ch->ops = ops;
    ch->fd = under->fd;
    ch->bell = under->bell;
}

#endif
