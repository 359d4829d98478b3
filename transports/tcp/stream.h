/* A byte stream (a connected, non-blocking socket) as a pair of channels.
 *
 * Sending goes from the caller's memory, header and payload in one sendmsg; nothing is buffered here.  Receiving
 * reads ahead into a stage, so that a small message is one recv; what is left of a large one goes straight to the
 * caller's memory.  How bytes are had is a parameter of the receiving functions: tls_channels.h has another way. */
#ifndef HK_STREAM_H
#define HK_STREAM_H

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "system/atomics.h"
#include "system/copy.h"
#include "transports/channel.h"
#include "transports/tcp/frame.h"

enum {
    HK_STAGE = 65536,       /* read-ahead: what came is reduced while it is in the nearest caches */
    HK_SEND_PIECE = 131072, /* per call, so that sending and receiving take turns: up to a multiple of pages of the frame */
    HK_DIRECT_MIN = 16384   /* straight into the caller's memory from this many bytes */
};

typedef struct hk_sender {
    hk_channel base;
    char header[HK_FRAME_PADDED_MORE];
    size_t header_bytes, header_left; /* of the open message's header */
    int open;
} hk_sender;

typedef struct hk_receiver {
    hk_channel base;
    char *stage;
    size_t head, tail; /* unread bytes of the stage */
    int open;
    uint64_t tag, length, left; /* of the open message; left: payload not yet consumed */
    int says;                   /* its head had room ... */
    char said[HK_FRAME_ROOM];   /* ... for this */
} hk_receiver;

/* How many of `len` bytes, of which the first is number `at` of its frame, does one call send?  Where the peer has read all
 * that came, the kernel's next buffer begins with what the next call sends: the payload must lie there as it does behind
 * the frame's head (frame.h). */
static inline size_t hk_send_piece(uint64_t at, size_t len) {
    const size_t most = HK_SEND_PIECE - (size_t)(at % HK_COPY_PAGE);
    return len <= most + HK_COPY_PAGE ? len : most; /* no small rest: behind the last bytes the place is free to choose */
}

/* What `errno` says: later, or never again. */
static inline long hk_stream_by_errno(hk_channel *ch) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return HK_AGAIN;
    ch->error = errno;
    return HK_LOST;
}

static long hk_stream_send(hk_channel *ch, const hk_call *call, uint64_t length, uint64_t done, const void *src,
                           size_t len) {
    hk_sender *s = (hk_sender *)ch;
    if (done == 0 && !s->open) {
        s->header_bytes = s->header_left = hk_frame_write(s->header, call->tag, length, src);
        s->open = 1;
    }
    len = hk_send_piece(s->header_bytes + done, len);
    struct iovec v[2] = {{s->header + s->header_bytes - s->header_left, s->header_left}, {(void *)src, len}};
    struct msghdr m = {0};
    m.msg_iov = s->header_left ? v : v + 1;
    m.msg_iovlen = (s->header_left ? 1 : 0) + (len ? 1 : 0);
    long n = 0;
    if (m.msg_iovlen) {
        int more = done + len < length ? MSG_MORE : 0;
        n = sendmsg(ch->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL | more);
        if (n < 0) return hk_stream_by_errno(ch);
    }
    size_t of_header = (size_t)n < s->header_left ? (size_t)n : s->header_left;
    s->header_left -= of_header;
    n -= (long)of_header;
    if (s->header_left || (n == 0 && len)) return HK_AGAIN;
    if (done + (uint64_t)n == length) s->open = 0;
    return n;
}

/* Gets up to `len` bytes, which is not 0: how many, or HK_AGAIN, HK_LOST, HK_FAULT. */
typedef long hk_reader(hk_receiver *, void *dst, size_t len);
#define HK_ALWAYS_INLINE static inline __attribute__((always_inline)) /* so that the reader is no call by pointer */

static long hk_socket_read(hk_receiver *r, void *dst, size_t len) {
    long n = recv(r->base.fd, dst, len, MSG_DONTWAIT);
    if (n < 0) return hk_stream_by_errno(&r->base);
    if (n == 0) {
        r->base.error = 0;
        return HK_LOST;
    }
    return n;
}

/* Have at least `want` bytes in the stage, if they have come. */
HK_ALWAYS_INLINE int hk_stage_fill(hk_receiver *r, size_t want, hk_reader *read) {
    if (r->tail - r->head >= want) return 1;
    if (r->stage == NULL && (r->stage = (char *)aligned_alloc(HK_COPY_PAGE, HK_STAGE)) == NULL) { /* frame.h: why */
        r->base.error = ENOMEM;
        return HK_FAULT;
    }
    if (r->head == r->tail) {
        r->head = r->tail = 0;
    } else if (HK_STAGE - r->head < want) {
        memmove(r->stage, r->stage + r->head, r->tail - r->head);
        r->tail -= r->head;
        r->head = 0;
    }
    if (r->tail < HK_STAGE) {
        long n = read(r, r->stage + r->tail, HK_STAGE - r->tail);
        if (n < 0 && n != HK_AGAIN) return (int)n;
        if (n > 0) r->tail += (size_t)n;
    }
    return r->tail - r->head >= want ? 1 : HK_AGAIN;
}

HK_ALWAYS_INLINE int hk_peek_by(hk_reader *read, hk_channel *ch, hk_view *v, size_t want) {
    hk_receiver *r = (hk_receiver *)ch;
    if (!r->open) {
        int e = hk_stage_fill(r, HK_FRAME_BYTES, read);
        if (e != 1) return e;
        const size_t before = hk_frame_read(r->stage + r->head, &r->tag, &r->length);
        if (before == 0) {
            ch->error = EPROTO;
            return HK_FAULT;
        }
        if ((e = hk_stage_fill(r, before, read)) != 1) return e; /* the header is looked at again */
        r->says = before > HK_FRAME_BYTES;
        if (r->says) memcpy(r->said, r->stage + r->head + HK_FRAME_BYTES, HK_FRAME_ROOM);
        r->head += before;
        r->left = r->length;
        r->open = 1;
    }
    if (want > r->left) want = (size_t)r->left;
    if (want) {
        int e = hk_stage_fill(r, want, read);
        if (e != 1 && e != HK_AGAIN) return e;
    }
    const size_t staged = r->tail - r->head;
    v->tag = r->tag;
    v->length = r->length;
    v->data = r->stage + r->head;
    v->avail = staged < r->left ? staged : (size_t)r->left;
    return 1;
}

static int hk_stream_consume(hk_channel *ch, const hk_call *call, size_t len, int end) {
    hk_receiver *r = (hk_receiver *)ch;
    (void)call;
    r->head += len;
    r->left -= len;
    if (end) r->open = 0;
    return 0;
}

HK_ALWAYS_INLINE long hk_recv_by(hk_reader *read, hk_channel *ch, void *dst, size_t len) {
    hk_receiver *r = (hk_receiver *)ch;
    size_t staged = r->tail - r->head;
    if (staged == 0 && len < HK_DIRECT_MIN) {
        int e = hk_stage_fill(r, 1, read);
        if (e != 1) return e;
        staged = r->tail - r->head;
    }
    long n;
    if (staged) {
        n = (long)(staged < len ? staged : len);
        hk_copy(dst, r->stage + r->head, (size_t)n);
        r->head += (size_t)n;
    } else {
        n = read(r, dst, len);
        if (n < 0) return n;
    }
    r->left -= (uint64_t)n;
    return n;
}

/* Has the peer's stream come? */
static inline int hk_stream_has_come(hk_channel *ch) { return (int)hk_load32((const uint32_t *)&ch->fd) >= 0; }

static int hk_stream_peek(hk_channel *ch, const hk_call *call, hk_view *v, size_t want) {
    (void)call;
    if (!hk_stream_has_come(ch)) return HK_AGAIN;
    return hk_peek_by(hk_socket_read, ch, v, want);
}

static long hk_stream_recv(hk_channel *ch, const hk_call *call, void *dst, size_t len) {
    (void)call;
    return hk_recv_by(hk_socket_read, ch, dst, len);
}

static const hk_channel_ops hk_sender_ops = {.send = hk_stream_send};
static const hk_channel_ops hk_receiver_ops = {
    .peek = hk_stream_peek, .consume = hk_stream_consume, .recv = hk_stream_recv};

#endif
