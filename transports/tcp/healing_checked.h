/* healing.h with a check of all bytes (HOCKET_CHECK=payload): the stream goes in records of up to 64 KiB.
 *
 *   0   length   4   of what comes behind this head: 1 to HK_RECORD
 *   4   check    4   of these bytes (crc.h), and of their number
 *
 * The engine is shown what was checked alone.  A record that is damaged is a connection that is broken: what the receiver
 * has ends before it, and the next connection is given it again.  A long record goes from the caller's memory and comes
 * into it, where the system takes it at once, or has all of it. */
#ifndef HK_HEALING_CHECKED_H
#define HK_HEALING_CHECKED_H

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include "transports/crc.h"
#include "transports/tcp/healing.h"

enum {
    HK_RECORD = 65536,
    HK_RECORD_HEAD = 8,
    HK_RECORD_AHEAD = 4096,
    HK_RECORD_LONG = 16384,                                               /* not copied, from so many bytes on */
    HK_RECORD_BEFORE = 2 * HK_RECORD_HEAD + HK_FRAME_PADDED_MORE          /* a record of a message's head, and the next's */
};

/* One direction's: what is left of the record on its way out; or what has come, of which [at, end) was checked. */
struct hk_record {
    char bytes[HK_RECORD_BEFORE + HK_RECORD];
    size_t at, end, tail;
};

static inline uint32_t hk_record_check(const char *body, size_t n) { return hk_check_of(body, n) ^ hk_frame_check(0, n); }

/* 1: nothing of the last record is left here; or HK_AGAIN, HK_LOST. */
static int hk_record_flush(hk_line *l, hk_channel *ch) {
    hk_record *r = l->record;
    while (r->at < r->end) {
        const long n = send(l->fd, r->bytes + r->at, r->end - r->at, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0) return (int)hk_stream_by_errno(ch);
        r->at += (size_t)n;
    }
    return 1;
}

static inline void hk_record_begin(char *to, const char *body, size_t n) {
    const uint64_t word = hk_le64((uint64_t)n | (uint64_t)hk_record_check(body, n) << 32);
    memcpy(to, &word, sizeof word);
}

/* The last piece is long: it goes from where it is, as a record of its own; what the system does not take now is copied. */
static long hk_checked_give_long(hk_healing_sender *s, const struct iovec *v, int pieces) {
    hk_record *r = s->line.record;
    const struct iovec body = {v[pieces - 1].iov_base, v[pieces - 1].iov_len < HK_RECORD ? v[pieces - 1].iov_len : HK_RECORD};
    size_t before = 0, head = 0;
    if (pieces == 2) {
        head = v[0].iov_len;
        memcpy(r->bytes + HK_RECORD_HEAD, v[0].iov_base, head);
        hk_record_begin(r->bytes, r->bytes + HK_RECORD_HEAD, head);
        before = HK_RECORD_HEAD + head;
    }
    hk_record_begin(r->bytes + before, (const char *)body.iov_base, body.iov_len);
    before += HK_RECORD_HEAD;
    struct iovec both[2] = {{r->bytes, before}, body};
    struct msghdr m = {0};
    m.msg_iov = both;
    m.msg_iovlen = 2;
    const long n = sendmsg(s->line.fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) return hk_stream_by_errno(&s->plain.base);
    const size_t gone = (size_t)n > before ? (size_t)n - before : 0;
    hk_copy(r->bytes + before + gone, (const char *)body.iov_base + gone, body.iov_len - gone);
    r->at = (size_t)n;
    r->end = before + body.iov_len;
    return (long)(head + body.iov_len);
}

static long hk_checked_give(hk_healing_sender *s, struct iovec *v, int pieces, int more) {
    hk_record *r = s->line.record;
    const int flushed = hk_record_flush(&s->line, &s->plain.base);
    if (flushed != 1 || pieces == 0) return flushed == 1 ? 0 : flushed;
    size_t length = 0;
    (void)more;
    if (v[pieces - 1].iov_len >= HK_RECORD_LONG && (pieces == 1 || v[0].iov_len <= HK_FRAME_PADDED_MORE))
        return hk_checked_give_long(s, v, pieces);
    for (int i = 0; i < pieces && length < HK_RECORD; i++) {
        const size_t n = v[i].iov_len < HK_RECORD - length ? v[i].iov_len : HK_RECORD - length;
        hk_copy(r->bytes + HK_RECORD_HEAD + length, v[i].iov_base, n);
        length += n;
    }
    hk_record_begin(r->bytes, r->bytes + HK_RECORD_HEAD, length);
    r->at = 0;
    r->end = HK_RECORD_HEAD + length;
    return hk_record_flush(&s->line, &s->plain.base) == HK_LOST ? HK_LOST : (long)length;
}

/* Have a record that was checked.  1, or HK_AGAIN, HK_LOST; 0: a long one has begun to come, if that is asked for. */
static int hk_record_have(hk_line *l, hk_receiver *to, int begun) {
    hk_record *r = l->record;
    if (r->at < r->end) return 1;
    memmove(r->bytes, r->bytes + r->end, r->tail - r->end);
    r->tail -= r->end;
    r->at = r->end = 0;
    for (;;) {
        size_t wanted = HK_RECORD_AHEAD, length = 0;
        if (r->tail >= HK_RECORD_HEAD) {
            uint64_t word;
            memcpy(&word, r->bytes, sizeof word);
            word = hk_le64(word);
            length = (uint32_t)word;
            wanted = HK_RECORD_HEAD + length;
            const int possible = length > 0 && length <= HK_RECORD;
            if (!possible || (r->tail >= wanted && (uint32_t)(word >> 32) != hk_record_check(r->bytes + HK_RECORD_HEAD, length))) {
                l->damaged++;
                to->base.error = EBADMSG;
                return HK_LOST;
            }
            if (r->tail >= wanted) {
                r->at = HK_RECORD_HEAD;
                r->end = wanted;
                return 1;
            }
            if (begun && length >= HK_RECORD_LONG) return 0;
        }
        const long n = hk_socket_read(to, r->bytes + r->tail, wanted - r->tail);
        if (n < 0) return (int)n;
        r->tail += (size_t)n;
    }
}

/* Get a long record that has come straight into `dst`: its bytes, or 0: hk_record_have has it, or tells what is wrong. */
static size_t hk_record_straight(hk_line *l, char *dst, size_t room) {
    hk_record *r = l->record;
    const size_t ahead = r->tail - r->end;
    uint64_t word;
    int come = 0;
    if (r->at < r->end || ahead < HK_RECORD_HEAD) return 0;
    memcpy(&word, r->bytes + r->end, sizeof word);
    word = hk_le64(word);
    const size_t length = (uint32_t)word, part = ahead - HK_RECORD_HEAD;
    if (length < HK_RECORD_LONG || length > HK_RECORD || length > room || part >= length) return 0;
    if (ioctl(l->fd, SIOCINQ, &come) < 0 || (size_t)come < length - part) return 0;
    memcpy(dst, r->bytes + r->end + HK_RECORD_HEAD, part);
    struct iovec both[2] = {{dst + part, length - part}, {r->bytes, HK_RECORD_HEAD}}; /* and the next one's head */
    struct msghdr m = {0};
    m.msg_iov = both;
    m.msg_iovlen = 2;
    const long n = recvmsg(l->fd, &m, MSG_DONTWAIT);
    const int right = n >= (long)(length - part) && (uint32_t)(word >> 32) == hk_record_check(dst, length);
    r->at = r->end = 0;
    r->tail = right ? (size_t)n - (length - part) : HK_RECORD_HEAD;
    if (!right) memset(r->bytes, 0, HK_RECORD_HEAD); /* the next record is one that cannot be */
    return right ? length : 0;
}

static long hk_checked_get(hk_receiver *to, void *dst, size_t len) {
    hk_line *l = &((hk_healing_receiver *)to)->line;
    size_t got = 0;
    int tried = 0;
    while (got < len) {
        const size_t straight = hk_record_straight(l, (char *)dst + got, len - got);
        got += straight;
        if (straight) continue;
        const int rc = hk_record_have(l, to, !tried);
        tried = rc == 0;
        if (tried) continue;
        if (rc != 1) return got ? (long)got : rc; /* it is told again by the next call */
        hk_record *r = l->record;
        const size_t n = r->end - r->at < len - got ? r->end - r->at : len - got;
        hk_copy((char *)dst + got, r->bytes + r->at, n);
        r->at += n;
        got += n;
    }
    return (long)got;
}

static long hk_healing_checked_read(hk_receiver *r, void *dst, size_t len) {
    return hk_get_and_tell(hk_checked_get, hk_socket_tell, (hk_healing_receiver *)r, dst, len);
}

static long hk_healing_checked_send(hk_channel *ch, const hk_call *call, uint64_t length, uint64_t done, const void *src,
                                    size_t len) {
    hk_healing_sender *s = (hk_healing_sender *)ch;
    pthread_mutex_lock(&s->line.lock);
    const long n = hk_keep_and_give(hk_checked_give, hk_socket_hear, s, call, length, done, src, len);
    pthread_mutex_unlock(&s->line.lock);
    return n;
}

static int hk_healing_checked_settled(hk_channel *ch, const hk_call *call) {
    hk_healing_sender *s = (hk_healing_sender *)ch;
    int rc = 1;
    pthread_mutex_lock(&s->line.lock);
    hk_let_go(hk_socket_hear, s, call);
    if (s->line.state == HK_LINE_OPEN) rc = hk_record_flush(&s->line, ch);
    if (rc == HK_LOST) hk_line_breaks(&s->line, ch);
    pthread_mutex_unlock(&s->line.lock);
    return rc == HK_AGAIN ? 0 : 1;
}

static int hk_healing_checked_peek(hk_channel *ch, const hk_call *call, hk_view *v, size_t want) {
    (void)call;
    return hk_heard(ch, hk_peek_by(hk_healing_checked_read, ch, v, want));
}

static long hk_healing_checked_recv(hk_channel *ch, const hk_call *call, void *dst, size_t len) {
    (void)call;
    return hk_recv_by(hk_healing_checked_read, ch, dst, len);
}

static const hk_channel_ops hk_healing_checked_sender_ops = {
    .send = hk_healing_checked_send, .settled = hk_healing_checked_settled, .forget = hk_healing_forget};
static const hk_channel_ops hk_healing_checked_receiver_ops = {
    .peek = hk_healing_checked_peek, .consume = hk_stream_consume, .recv = hk_healing_checked_recv};

#endif
