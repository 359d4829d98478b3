/* A stream inside TLS (tls.h) as a pair of channels. */
#ifndef HK_TLS_CHANNELS_H
#define HK_TLS_CHANNELS_H

#include <string.h>

#include "transports/channel.h"
#include "transports/tcp/stream.h"
#include "system/tls.h"

_Static_assert((int)HK_TLS_AGAIN == HK_AGAIN && (int)HK_TLS_LOST == HK_LOST && (int)HK_TLS_FAULT == HK_FAULT,
               "a channel tells them as they are");

typedef struct hk_tls_sender {
    hk_channel base;
    hk_tls *tls;
} hk_tls_sender;

typedef struct hk_tls_receiver {
    hk_receiver plain;
    hk_tls *tls; /* before `fd` is set */
} hk_tls_receiver;

static inline int hk_tls_tell(hk_channel *ch, const hk_tls *t, int rc) {
    if (rc == HK_LOST || rc == HK_FAULT) {
        ch->error = t->error;
        ch->words = t->words[0] ? t->words : NULL;
    }
    return rc;
}

/* Taken is what was sealed: nothing of it lies in the caller's memory, but the end of the message may lie in `out`. */
static long hk_tls_send(hk_channel *ch, const hk_call *call, uint64_t length, uint64_t done, const void *src, size_t len) {
    hk_tls *t = ((hk_tls_sender *)ch)->tls;
    const int flushed = hk_tls_flush(t, 0);
    if (flushed != 1) return hk_tls_tell(ch, t, flushed);
    size_t taken = 0;
    if (len > HK_TLS_PIECE) len = HK_TLS_PIECE;
    if (done == 0) { /* the header and what follows it fill a record */
        const size_t before = hk_frame_write(t->first, call->tag, length, src);
        taken = len < HK_TLS_RECORD - before ? len : HK_TLS_RECORD - before;
        if (taken) memcpy(t->first + before, src, taken);
        const long n = hk_tls_seal(t, t->first, before + taken);
        if (n < 0) return hk_tls_tell(ch, t, (int)n);
    }
    if (taken < len) {
        const long n = hk_tls_seal(t, (const char *)src + taken, len - taken);
        if (n < 0) return hk_tls_tell(ch, t, (int)n);
        taken = len;
    }
    if (hk_tls_flush(t, done + taken < length) == HK_LOST) return hk_tls_tell(ch, t, HK_LOST);
    return (long)taken;
}

static int hk_tls_settled(hk_channel *ch, const hk_call *call) {
    hk_tls *t = ((hk_tls_sender *)ch)->tls;
    const int rc = hk_tls_flush(t, 0);
    (void)call;
    return rc == HK_AGAIN ? 0 : hk_tls_tell(ch, t, rc);
}

static long hk_tls_read(hk_receiver *r, void *dst, size_t len) {
    hk_tls *t = ((hk_tls_receiver *)r)->tls;
    const long n = hk_tls_unseal(t, (char *)dst, len < HK_TLS_PIECE ? len : HK_TLS_PIECE);
    return n > 0 ? n : hk_tls_tell(&r->base, t, (int)n);
}

static int hk_tls_peek(hk_channel *ch, const hk_call *call, hk_view *v, size_t want) {
    (void)call;
    if (!hk_stream_has_come(ch)) return HK_AGAIN;
    return hk_peek_by(hk_tls_read, ch, v, want);
}

static long hk_tls_recv(hk_channel *ch, const hk_call *call, void *dst, size_t len) {
    (void)call;
    return hk_recv_by(hk_tls_read, ch, dst, len);
}

static const hk_channel_ops hk_tls_sender_ops = {.send = hk_tls_send, .settled = hk_tls_settled};
static const hk_channel_ops hk_tls_receiver_ops = {
    .peek = hk_tls_peek, .consume = hk_stream_consume, .recv = hk_tls_recv};

#endif
