/* healing.h inside TLS (system/tls.h): each connection has keys of its own. */
#ifndef HK_HEALING_TLS_H
#define HK_HEALING_TLS_H

#include "transports/tcp/healing.h"
#include "transports/tcp/tls_channels.h"

/* hk_tls_tell, whose words outlive the connection: another one may take its place before they are read. */
static inline int hk_line_tell(hk_line *l, hk_channel *ch, int rc) {
    hk_tls_tell(ch, l->tls, rc);
    if (ch->words == l->tls->words) ch->words = memcpy(l->words, l->tls->words, sizeof l->words);
    return rc;
}

/* The header and what follows it fill a record. */
static long hk_tls_give(hk_healing_sender *s, struct iovec *v, int pieces, int more) {
    hk_tls *t = s->line.tls;
    const int flushed = hk_tls_flush(t, 0);
    size_t taken = 0;
    if (flushed != 1) return hk_line_tell(&s->line, &s->plain.base, flushed);
    if (pieces == 2) {
        const size_t head = v[0].iov_len, room = HK_TLS_RECORD - head, n = v[1].iov_len < room ? v[1].iov_len : room;
        memcpy(t->first, v[0].iov_base, head);
        memcpy(t->first + head, v[1].iov_base, n);
        const long sealed = hk_tls_seal(t, t->first, head + n);
        if (sealed < 0) return hk_line_tell(&s->line, &s->plain.base, (int)sealed);
        taken = head + n;
        v++;
        v->iov_base = (char *)v->iov_base + n;
        v->iov_len -= n;
    }
    if (pieces) {
        const size_t n = v->iov_len < HK_TLS_PIECE - taken ? v->iov_len : HK_TLS_PIECE - taken;
        const long sealed = n ? hk_tls_seal(t, (const char *)v->iov_base, n) : 0;
        if (sealed < 0) return hk_line_tell(&s->line, &s->plain.base, (int)sealed);
        taken += n;
    }
    return hk_tls_flush(t, more) == HK_LOST ? hk_line_tell(&s->line, &s->plain.base, HK_LOST) : (long)taken;
}

static long hk_tls_hear(hk_healing_sender *s, void *to, size_t len) {
    const long n = hk_tls_unseal(s->line.tls, (char *)to, len);
    return n > 0 ? n : hk_line_tell(&s->line, &s->plain.base, (int)n);
}

static int hk_tls_say(hk_healing_receiver *r, const char word[HK_WORD]) {
    hk_tls *t = r->line.tls;
    const int flushed = hk_tls_flush(t, 0);
    if (flushed != 1) return flushed;
    if (hk_tls_seal(t, word, HK_WORD) < 0) return HK_LOST;
    return hk_tls_flush(t, 0) == HK_LOST ? HK_LOST : 1;
}

static long hk_tls_get(hk_receiver *r, void *dst, size_t len) {
    hk_line *const l = &((hk_healing_receiver *)r)->line;
    const long n = hk_tls_unseal(l->tls, (char *)dst, len < HK_TLS_PIECE ? len : HK_TLS_PIECE);
    return n > 0 ? n : hk_line_tell(l, &r->base, (int)n);
}

static long hk_healing_tls_read(hk_receiver *r, void *dst, size_t len) {
    return hk_get_and_tell(hk_tls_get, hk_tls_say, (hk_healing_receiver *)r, dst, len);
}

static long hk_healing_tls_send(hk_channel *ch, const hk_call *call, uint64_t length, uint64_t done, const void *src,
                                size_t len) {
    hk_healing_sender *s = (hk_healing_sender *)ch;
    pthread_mutex_lock(&s->line.lock);
    const long n = hk_keep_and_give(hk_tls_give, hk_tls_hear, s, call, length, done, src, len);
    pthread_mutex_unlock(&s->line.lock);
    return n;
}

/* What is sealed goes on its way; if the connection breaks, who heals it gives it again. */
static int hk_healing_tls_settled(hk_channel *ch, const hk_call *call) {
    hk_healing_sender *s = (hk_healing_sender *)ch;
    int rc = 1;
    pthread_mutex_lock(&s->line.lock);
    hk_let_go(hk_tls_hear, s, call);
    if (s->line.state == HK_LINE_OPEN) rc = hk_tls_flush(s->line.tls, 0);
    if (rc == HK_LOST) hk_line_breaks(&s->line, ch);
    pthread_mutex_unlock(&s->line.lock);
    return rc == HK_AGAIN ? 0 : 1;
}

static int hk_healing_tls_peek(hk_channel *ch, const hk_call *call, hk_view *v, size_t want) {
    (void)call;
    return hk_heard(ch, hk_peek_by(hk_healing_tls_read, ch, v, want));
}

static long hk_healing_tls_recv(hk_channel *ch, const hk_call *call, void *dst, size_t len) {
    (void)call;
    return hk_recv_by(hk_healing_tls_read, ch, dst, len);
}

static const hk_channel_ops hk_healing_tls_sender_ops = {
    .send = hk_healing_tls_send, .settled = hk_healing_tls_settled, .forget = hk_healing_forget};
static const hk_channel_ops hk_healing_tls_receiver_ops = {
    .peek = hk_healing_tls_peek, .consume = hk_stream_consume, .recv = hk_healing_tls_recv};

#endif
