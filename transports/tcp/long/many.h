/* Several streams that carry one channel's messages: long ones are cut into pieces, and each goes over whichever stream has room.
 *
 * Each stream is a whole one (healing.h): it keeps its order, is made again when it breaks, and may be inside TLS.  A piece is
 * a message of it, whose tag is the piece's number; numbers have no gaps, so whatever stream has the next one goes on.  The
 * first piece of a message begins with its tag and length.  The receiver leaves what is ahead where it lies, and copies
 * nothing more than from one stream.
 *
 * In a LAN messages travel as they are.  The sender alone says when that ends: by a message (HK_MANY_BEGINS) on the first
 * stream, behind which all are pieces.  So it needs no agreement, and a LAN pays nothing.  A piece is copied into the
 * stream's ring (kept.h) whole: what its socket does not take waits there, and holds up no other stream.
 *
 * Who opens streams (many.pyx) stores the stream first, then its bit of `have`. */
#ifndef HK_MANY_H
#define HK_MANY_H

#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "transports/tcp/healing.h"

#define HK_MANY 16
#define HK_MANY_PIECE 65536 /* as much as channel.h promises not to cut elements with */
#define HK_MANY_HEAD 16
#define HK_MANY_BEGINS (~(uint64_t)0) /* the tag; no call has it */

typedef struct hk_many {
    hk_channel base;
    hk_channel *stream[HK_MANY];
    uint32_t have;         /* bits: streams that there are, */
    uint32_t use;          /* ... and that the sender gives pieces to */
    uint32_t ready;        /* what may get on: asked, or told by the epoll */
    uint32_t seen[HK_MANY]; /* the line that the epoll knows */
    pthread_mutex_t lock; /* of the epoll, */
    int epoll, closed;    /* ... which goes when the pair is closed, though a call may be under way */
    int many, open;
    int cuts;              /* the sender cuts messages, whether there are several streams yet or not: they may come at any piece */
    uint64_t next;         /* the number of the next piece */
    /* the sender */
    uint32_t pending;      /* streams whose ring holds what their socket has not taken */
    int turn;
    /* the receiver */
    uint32_t known;        /* streams at whose head is a later piece: */
    uint64_t number[HK_MANY];
    int at;                /* the stream of the piece under way, or -1, */
    uint64_t piece;        /* ... and what is left of it */
    uint64_t tag, length, left; /* of the message */
} hk_many;

static inline hk_healing_sender *hk_many_sender_at(const hk_many *m, int k) { return (hk_healing_sender *)m->stream[k]; }

static inline hk_line *hk_many_line(const hk_many *m, int k, int sends) {
    return sends ? &hk_many_sender_at(m, k)->line : &((hk_healing_receiver *)m->stream[k])->line;
}

/* Wait as this stream does. */
static inline void hk_many_as(hk_many *m, int k) {
    hk_channel *const s = m->stream[k];
    hk_store32((uint32_t *)&m->base.fd, hk_load32((const uint32_t *)&s->fd));
    m->base.events = s->events;
}

static inline long hk_many_failed(hk_many *m, int k, long rc) {
    if (rc == HK_LOST || rc == HK_FAULT) m->base.error = m->stream[k]->error, m->base.words = m->stream[k]->words;
    return rc;
}

/* Learn which streams may get on.  An edge comes once: whoever says HK_AGAIN is asked again behind the next one. */
static void hk_many_listen(hk_many *m, int sends) {
    struct epoll_event events[HK_MANY];
    const uint32_t have = hk_load32(&m->have);
    pthread_mutex_lock(&m->lock);
    if (m->epoll < 0 && !m->closed) m->epoll = epoll_create1(EPOLL_CLOEXEC);
    for (int k = 0; k < HK_MANY; k++) {
        if (!(have >> k & 1)) continue;
        hk_line *const l = hk_many_line(m, k, sends);
        if (sends && l->state == HK_LINE_BROKEN && l->idle) hk_line_calls(l);
        const uint32_t serial = hk_load32(&l->serial);
        const int fd = (int)hk_load32((const uint32_t *)&m->stream[k]->fd);
        if (serial == m->seen[k] || fd < 0) continue;
        struct epoll_event e = {EPOLLET | EPOLLIN | EPOLLRDHUP | (sends ? EPOLLOUT : 0), {.u32 = (uint32_t)k}};
        if (m->epoll >= 0 && epoll_ctl(m->epoll, EPOLL_CTL_ADD, fd, &e) < 0) epoll_ctl(m->epoll, EPOLL_CTL_MOD, fd, &e);
        m->seen[k] = serial;
        m->ready |= 1u << k;
    }
    const int n = m->epoll < 0 ? 0 : epoll_wait(m->epoll, events, HK_MANY, 0);
    for (int i = 0; i < n; i++) m->ready |= 1u << events[i].data.u32;
    if (m->epoll < 0) m->ready = have; /* there is no descriptor for it: all are asked each time */
    pthread_mutex_unlock(&m->lock);
}

static void hk_many_begin(hk_many *m) {
    pthread_mutex_init(&m->lock, NULL);
    m->base.fd = m->epoll = m->at = -1;
    m->base.late = 1;
}

/* Nobody learns anything any more.  May come twice. */
static void hk_many_close(hk_many *m) {
    pthread_mutex_lock(&m->lock);
    m->closed = 1;
    if (m->epoll >= 0) close(m->epoll);
    m->epoll = -1;
    pthread_mutex_unlock(&m->lock);
}

/* Nothing gets on: wait for any of these streams.  HK_LOST where none will.  A broken one is looked at, as nothing tells of
 * its next connection: by a receiver always, as what comes next may lie there. */
static long hk_many_wait(hk_many *m, uint32_t of, int sends) {
    int open = 0, broken = 0, last = 0;
    for (int k = 0; k < HK_MANY; k++) {
        if (!(of >> k & 1)) continue;
        const hk_line *l = hk_many_line(m, k, sends);
        last = l->state == HK_LINE_LOST ? k : last;
        open += l->state == HK_LINE_OPEN;
        broken += l->state != HK_LINE_OPEN && l->state != HK_LINE_LOST;
    }
    if (open + broken == 0) return hk_many_failed(m, last, HK_LOST);
    hk_store32((uint32_t *)&m->base.fd, (uint32_t)(open == 0 || (broken && !sends) ? -1 : m->epoll));
    m->base.events = POLLIN;
    return HK_AGAIN;
}

/* --- the sender */

/* Give the socket what the ring holds for it.  1: all; or HK_AGAIN, HK_FAULT.  Under the line's lock. */
static int hk_many_flush_line(hk_healing_sender *s) {
    const char *at;
    size_t n;
    long given = 0;
    if (s->line.state != HK_LINE_OPEN) return HK_AGAIN;
    while (given >= 0 && (n = hk_kept_next(&s->kept, &at)) > 0) {
        struct iovec v = {(void *)at, n < HK_SEND_PIECE ? n : HK_SEND_PIECE};
        given = s->give(s, &v, 1, 0);
        if (given > 0) s->kept.given += (uint64_t)given;
    }
    if (given >= 0) given = s->give(s, NULL, 0, 0);
    if (given == HK_LOST) hk_line_breaks(&s->line, &s->plain.base);
    return given >= 0 ? 1 : given == HK_FAULT ? HK_FAULT : HK_AGAIN;
}

/* Put a piece into the ring, whole.  1; or HK_AGAIN: not now, HK_FAULT. */
static int hk_many_place(hk_healing_sender *s, uint64_t number, const char *head, size_t ahead, const char *src, size_t len) {
    char before[HK_FRAME_PADDED_MORE];
    const size_t framed = hk_frame_write(before, number, ahead + len, src), all = framed + ahead + len;
    int rc = hk_many_flush_line(s);
    if (rc != 1) return rc;
    if (s->kept.sent - s->kept.acked >= 2 * HK_TELL || s->kept.sent - s->kept.acked + all > s->kept.room) {
        rc = hk_hear(s->hear, s);
        if (rc == HK_LOST) hk_line_breaks(&s->line, &s->plain.base);
        if (rc != 1) return rc == HK_FAULT ? HK_FAULT : HK_AGAIN;
    }
    if (hk_kept_free(&s->kept, all) < all) return HK_AGAIN; /* until the peer has more */
    hk_kept_put(&s->kept, before, framed);
    hk_kept_put(&s->kept, head, ahead);
    hk_kept_put(&s->kept, src, len);
    return 1;
}

/* 1: nothing is pending any more, where a socket could take it. */
static int hk_many_flush(hk_many *m) {
    for (int k = 0; k < HK_MANY; k++) {
        const uint32_t bit = 1u << k;
        if (!(m->pending & bit)) continue;
        hk_healing_sender *const s = hk_many_sender_at(m, k);
        pthread_mutex_lock(&s->line.lock);
        const int rc = m->ready & bit ? hk_many_flush_line(s) : HK_AGAIN;
        const int open = s->line.state == HK_LINE_OPEN;
        pthread_mutex_unlock(&s->line.lock);
        if (rc == HK_FAULT) return (int)hk_many_failed(m, k, rc);
        if (rc == 1 || !open) m->pending &= ~bit; /* whoever heals it gives what is kept */
        else m->ready &= ~bit;
    }
    return m->pending == 0;
}

static long hk_many_give(hk_many *m, const char *head, size_t ahead, const char *src, size_t len, int whole) {
    const uint32_t use = hk_load32(&m->have) & (hk_load32(&m->use) | 1);
    hk_many_listen(m, 1);
    const int rc = hk_many_flush(m);
    if (rc < 0) return rc;
    for (int i = 0; i < HK_MANY; i++) { /* a short message stays on the first, if that takes it */
        const int k = whole ? i : (m->turn + i) % HK_MANY;
        const uint32_t bit = 1u << k;
        if (!(use & m->ready & ~m->pending & bit)) continue;
        hk_healing_sender *const s = hk_many_sender_at(m, k);
        pthread_mutex_lock(&s->line.lock);
        const int placed = hk_many_place(s, m->next, head, ahead, src, len);
        const int flushed = placed == 1 ? hk_many_flush_line(s) : placed;
        pthread_mutex_unlock(&s->line.lock);
        if (flushed == HK_FAULT) return hk_many_failed(m, k, flushed);
        if (flushed != 1) m->ready &= ~bit;
        if (placed != 1) continue;
        if (flushed != 1) m->pending |= bit;
        m->turn = k + 1;
        m->next++;
        return 1;
    }
    return hk_many_wait(m, use, 1);
}

static long hk_many_send(hk_channel *ch, const hk_call *call, uint64_t length, uint64_t done, const void *src, size_t len) {
    hk_many *const m = (hk_many *)ch;
    hk_channel *const first = m->stream[0];
    if (!m->many) {
        const int several = m->cuts || (hk_load32(&m->have) & hk_load32(&m->use) & ~1u);
        const int begins = several && done == 0 && !((hk_sender *)first)->open;
        if (begins || m->open) {
            const hk_call word = {.tag = HK_MANY_BEGINS, .traffic = HK_ONE_WAY};
            m->open = 1;
            const long n = first->ops->send(first, &word, 1, 0, "+", 1);
            hk_many_as(m, 0);
            if (n < 0) return hk_many_failed(m, 0, n);
            m->many = 1;
            m->open = 0;
        } else {
            const long n = first->ops->send(first, call, length, done, src, len);
            hk_many_as(m, 0);
            return n < 0 ? hk_many_failed(m, 0, n) : n;
        }
    }
    uint64_t head[2] = {hk_le64(call->tag), hk_le64(length)};
    if (len > HK_MANY_PIECE) len = HK_MANY_PIECE;
    const long placed = hk_many_give(m, (const char *)head, m->open ? 0 : HK_MANY_HEAD, (const char *)src, len, done == 0 && len == length);
    if (placed != 1) return placed;
    m->open = done + len < length;
    return (long)len;
}

/* What was taken lies in rings, and goes on its way while this is asked. */
static int hk_many_settled(hk_channel *ch, const hk_call *call) {
    hk_many *const m = (hk_many *)ch;
    hk_channel *const first = m->stream[0];
    if (!m->many) {
        const int rc = first->ops->settled ? first->ops->settled(first, call) : 1;
        hk_many_as(m, 0);
        return (int)hk_many_failed(m, 0, rc);
    }
    first->ops->settled(first, call); /* of what went before the first piece, and stays where it lies */
    if (m->pending == 0) return 1;
    hk_many_listen(m, 1);
    const int rc = hk_many_flush(m);
    if (rc != 0) return rc;
    const long waits = hk_many_wait(m, m->pending, 1);
    return waits == HK_AGAIN ? 0 : (int)waits;
}

/* --- the receiver */

/* Have the stream of the next piece.  1, or HK_AGAIN, HK_LOST, HK_FAULT. */
static long hk_many_find(hk_many *m, const hk_call *call) {
    if (m->at >= 0) return 1;
    hk_many_listen(m, 0);
    const uint32_t have = hk_load32(&m->have);
    for (int k = 0; k < HK_MANY; k++) {
        const uint32_t bit = 1u << k;
        if ((have & m->ready & ~m->known & bit)) {
            hk_view v;
            const int rc = m->stream[k]->ops->peek(m->stream[k], call, &v, 0);
            if (rc == HK_FAULT) return hk_many_failed(m, k, rc);
            m->ready &= ~bit;
            if (rc != 1) continue;
            m->known |= bit;
            m->number[k] = v.tag;
            if (v.tag < m->next) {
                m->base.error = EPROTO;
                return HK_FAULT;
            }
        }
        if (!(m->known & bit) || m->number[k] != m->next) continue;
        m->piece = ((hk_receiver *)m->stream[k])->left;
        if (m->open && m->piece > m->left) { /* it would go into the message behind */
            m->base.error = EPROTO;
            return HK_FAULT;
        }
        m->known &= ~bit;
        m->at = k;
        return 1;
    }
    return hk_many_wait(m, have, 0);
}

/* `len` bytes of the piece have gone. */
static void hk_many_passed(hk_many *m, size_t len) {
    m->piece -= len;
    if (m->piece) return;
    m->ready |= 1u << m->at;
    m->at = -1;
    m->next++;
}

static int hk_many_peek(hk_channel *ch, const hk_call *call, hk_view *v, size_t want) {
    hk_many *const m = (hk_many *)ch;
    hk_channel *s = m->stream[0];
    if (!m->many) {
        const int rc = s->ops->peek(s, call, v, want);
        hk_many_as(m, 0);
        if (rc != 1 || v->tag != HK_MANY_BEGINS || v->length != 1) return (int)hk_many_failed(m, 0, rc);
        s->ops->peek(s, call, v, 1);
        if (v->avail == 0) return HK_AGAIN;
        s->ops->consume(s, call, 1, 1);
        m->many = 1;
        m->ready = hk_load32(&m->have);
    }
    *v = (hk_view){m->tag, m->length, NULL, 0};
    if (m->open && m->left == 0) return 1;
    long rc = hk_many_find(m, call);
    if (rc != 1) return rc == HK_AGAIN && m->open ? 1 : (int)rc;
    s = m->stream[m->at];
    if (!m->open) {
        rc = s->ops->peek(s, call, v, HK_MANY_HEAD);
        hk_many_as(m, m->at);
        if (rc != 1) return (int)hk_many_failed(m, m->at, rc);
        if (m->piece < HK_MANY_HEAD) {
            m->base.error = EPROTO;
            return HK_FAULT;
        }
        if (v->avail < HK_MANY_HEAD) return HK_AGAIN;
        uint64_t head[2];
        memcpy(head, v->data, sizeof head);
        m->tag = hk_le64(head[0]);
        m->length = m->left = hk_le64(head[1]);
        m->open = 1;
        s->ops->consume(s, call, HK_MANY_HEAD, m->piece == HK_MANY_HEAD);
        hk_many_passed(m, HK_MANY_HEAD);
        if (m->left < m->piece * (m->at >= 0)) {
            m->base.error = EPROTO;
            return HK_FAULT;
        }
        return hk_many_peek(ch, call, v, want);
    }
    rc = s->ops->peek(s, call, v, want);
    hk_many_as(m, m->at);
    if (rc != 1) return rc == HK_AGAIN ? 1 : (int)hk_many_failed(m, m->at, rc);
    const size_t avail = v->avail < m->piece ? v->avail : (size_t)m->piece;
    *v = (hk_view){m->tag, m->length, v->data, avail};
    return 1;
}

static int hk_many_consume(hk_channel *ch, const hk_call *call, size_t len, int end) {
    hk_many *const m = (hk_many *)ch;
    if (!m->many) return m->stream[0]->ops->consume(m->stream[0], call, len, end);
    if (len) {
        m->stream[m->at]->ops->consume(m->stream[m->at], call, len, m->piece == len);
        m->left -= len;
        hk_many_passed(m, len);
    }
    if (end) m->open = 0;
    return 0;
}

static long hk_many_recv(hk_channel *ch, const hk_call *call, void *dst, size_t len) {
    hk_many *const m = (hk_many *)ch;
    if (!m->many) {
        const long n = m->stream[0]->ops->recv(m->stream[0], call, dst, len);
        hk_many_as(m, 0);
        return n < 0 ? hk_many_failed(m, 0, n) : n;
    }
    const long found = hk_many_find(m, call);
    if (found != 1) return found;
    hk_channel *const s = m->stream[m->at];
    const long n = s->ops->recv(s, call, dst, len < m->piece ? len : (size_t)m->piece);
    hk_many_as(m, m->at);
    if (n < 0) return hk_many_failed(m, m->at, n);
    if ((uint64_t)n == m->piece) s->ops->consume(s, call, 0, 1);
    m->left -= (uint64_t)n;
    hk_many_passed(m, (size_t)n);
    return n;
}

static void hk_many_forget(hk_channel *ch) {
    hk_channel *const first = ((hk_many *)ch)->stream[0];
    first->ops->forget(first);
}

static const hk_channel_ops hk_many_sender_ops = {
    .send = hk_many_send, .settled = hk_many_settled, .forget = hk_many_forget};
static const hk_channel_ops hk_many_receiver_ops = {
    .peek = hk_many_peek, .consume = hk_many_consume, .recv = hk_many_recv};

#endif
