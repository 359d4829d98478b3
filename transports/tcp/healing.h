/* Channels over connections that are made again when they break (kept.h has the counts).
 *
 * A broken connection is "not now" for the engine, and a stroke on `bell`: who hears it (healing.py) dials, learns what the
 * receiver got, and gives that the rest.  So the sender's connection and the receiver's change under the engine's feet:
 * each function here holds the line's lock, which nobody keeps for longer than a system call that does not wait.
 * How bytes are given and got is a parameter: of a socket here, inside TLS in tls_channels.h. */
#ifndef HK_HEALING_H
#define HK_HEALING_H

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "transports/tcp/kept.h"
#include "transports/tcp/stream.h"

typedef enum hk_line_state {
    HK_LINE_NONE,   /* there is no connection yet */
    HK_LINE_OPEN,
    HK_LINE_BROKEN, /* there will be another one */
    HK_LINE_AGAIN,  /* the connection is new, and is given what is kept */
    HK_LINE_LOST    /* there will be none */
} hk_line_state;

typedef struct hk_record hk_record;

typedef struct hk_line {
    pthread_mutex_t lock;
    hk_line_state state;
    int fd;   /* the connection, also while the engine is not to wait for it */
    int bell; /* the end of a pipe */
    int idle; /* it broke while nothing was on the way: it is made again when something is to be sent */
    int mute; /* the receiver's words do not go out any more: what has come is read all the same */
    struct hk_tls *tls; /* the connection's, or NULL */
    char words[128];    /* of a connection's TLS, which goes with that */
    struct hk_record *record; /* of healing_checked.h, or NULL */
    uint32_t damaged; /* records of it */
    uint32_t serial;  /* of the connection: 1 is the first */
} hk_line;

typedef struct hk_healing_sender hk_healing_sender;
typedef struct hk_healing_receiver hk_healing_receiver;
/* Gives bytes: how many, or HK_AGAIN, HK_LOST, HK_FAULT.  No pieces: what it has taken before goes on its way, then 0. */
typedef long hk_giver(hk_healing_sender *, struct iovec *, int pieces, int more);
/* Gets bytes of the other direction: as a hk_reader. */
typedef long hk_hearer(hk_healing_sender *, void *to, size_t len);

struct hk_healing_sender {
    hk_sender plain;
    hk_line line;
    hk_kept kept;
    hk_giver *give; /* for who does not know what kind of connection it is */
    hk_hearer *hear;
    char word[HK_WORD];
    size_t word_bytes; /* of the receiver's word, so far */
    hk_healing_receiver *pair; /* of the other direction; or NULL */
};

struct hk_healing_receiver {
    hk_receiver plain;
    hk_line line;
    uint64_t got, told, said; /* kept.h: hk_tell_due */
    hk_healing_sender *pair;
};

/* Says a word against the stream: 1, HK_AGAIN (it says it later), or HK_LOST. */
typedef int hk_teller(hk_healing_receiver *, const char word[HK_WORD]);

static inline void hk_line_calls(hk_line *l) {
    l->idle = 0;
    if (write(l->bell, "!", 1) < 0) return; /* it is full: somebody will hear */
}

static inline void hk_line_breaks(hk_line *l, hk_channel *ch) {
    if (l->state != HK_LINE_OPEN) return;
    l->state = HK_LINE_BROKEN;
    hk_store32((uint32_t *)&ch->fd, (uint32_t)-1);
    hk_line_calls(l);
}

/* Read the receiver's words.  1, or HK_LOST; of TLS, HK_FAULT. */
HK_ALWAYS_INLINE int hk_hear(hk_hearer *hear, hk_healing_sender *s) {
    for (;;) {
        const long n = hear(s, s->word + s->word_bytes, HK_WORD - s->word_bytes);
        if (n < 0) return n == HK_AGAIN ? 1 : (int)n;
        s->word_bytes += (size_t)n;
        if (s->word_bytes < HK_WORD) continue;
        uint64_t got;
        s->word_bytes = 0;
        if (!hk_word_read(s->word, &got) || !hk_kept_has(&s->kept, got)) return HK_LOST; /* damaged */
    }
}

/* Say in a message's head what has come the other way.  One thread at a time uses the two. */
static inline void hk_say_in(hk_healing_sender *s, char *head, size_t bytes) {
    if (s->pair == NULL || bytes == HK_FRAME_BYTES) return;
    s->pair->said = s->pair->got;
    hk_word_write(head + HK_FRAME_BYTES, s->pair->said);
}

HK_ALWAYS_INLINE long hk_keep_and_give(hk_giver *give, hk_hearer *hear, hk_healing_sender *s, const hk_call *call,
                                       uint64_t length, uint64_t done, const void *src, size_t len) {
    hk_sender *p = &s->plain;
    if (s->line.state == HK_LINE_BROKEN && s->line.idle) hk_line_calls(&s->line);
    if (s->line.state != HK_LINE_OPEN) return s->line.state == HK_LINE_LOST ? HK_LOST : HK_AGAIN;
    if (done == 0 && !p->open) {
        p->header_bytes = p->header_left = hk_frame_write(p->header, call->tag, length, src);
        p->open = 1;
        hk_say_in(s, p->header, p->header_bytes);
    }
    len = hk_send_piece(p->header_bytes + done, len);
    const size_t all = p->header_left + len;
    p->base.events = 0;
    if (s->kept.sent - s->kept.acked >= 2 * HK_TELL || s->kept.sent - s->kept.acked + all > s->kept.room) {
        const int rc = hk_hear(hear, s);
        if (rc == HK_LOST) hk_line_breaks(&s->line, &p->base);
        if (rc != 1) return rc == HK_LOST ? HK_AGAIN : rc;
    }
    const size_t fits = hk_kept_free(&s->kept, all);
    if (fits < all && (fits < p->header_left || fits - p->header_left == 0)) { /* until the peer has more */
        p->base.events = POLLIN;
        return HK_AGAIN;
    }
    if (fits < all) len = fits - p->header_left;
    char *const header = p->header + p->header_bytes - p->header_left;
    struct iovec v[2] = {{header, p->header_left}, {(void *)src, len}};
    long n = 0;
    if (p->header_left + len) n = give(s, p->header_left ? v : v + 1, (p->header_left ? 1 : 0) + (len ? 1 : 0), done + len < length);
    if (n == HK_LOST) hk_line_breaks(&s->line, &p->base);
    if (n < 0) return n == HK_LOST ? HK_AGAIN : n;
    const size_t of_header = (size_t)n < p->header_left ? (size_t)n : p->header_left;
    hk_kept_add(&s->kept, header, of_header);
    p->header_left -= of_header;
    n -= (long)of_header;
    if (call->stays) hk_kept_name(&s->kept, (const char *)src, (size_t)n);
    else hk_kept_add(&s->kept, (const char *)src, (size_t)n);
    if (p->header_left || (n == 0 && len)) return HK_AGAIN;
    if (done + (uint64_t)n == length) p->open = 0;
    return n;
}

/* What was sent is about to change in the caller's memory, perhaps.  Under the line's lock. */
HK_ALWAYS_INLINE void hk_let_go(hk_hearer *hear, hk_healing_sender *s, const hk_call *call) {
    if (s->kept.names == 0 || call->stays) return;
    const int may_say = s->line.state == HK_LINE_OPEN && s->kept.sent - s->kept.acked >= HK_TELL;
    if (may_say && hk_hear(hear, s) == HK_LOST) hk_line_breaks(&s->line, &s->plain.base);
    hk_kept_fill(&s->kept, call->changes, call->nbytes);
}

static void hk_healing_forget(hk_channel *ch) {
    hk_healing_sender *s = (hk_healing_sender *)ch;
    pthread_mutex_lock(&s->line.lock);
    hk_kept_fill(&s->kept, NULL, 0);
    pthread_mutex_unlock(&s->line.lock);
}

/* A message has begun, perhaps, whose head says what the peer has. */
static inline int hk_heard(hk_channel *ch, int rc) {
    hk_healing_receiver *r = (hk_healing_receiver *)ch;
    uint64_t got;
    if (!r->plain.says) return rc;
    r->plain.says = 0;
    if (r->pair == NULL || !hk_word_read(r->plain.said, &got)) return rc;
    pthread_mutex_lock(&r->pair->line.lock);
    hk_kept_has(&r->pair->kept, got); /* it cannot?  Then the head was damaged */
    pthread_mutex_unlock(&r->pair->line.lock);
    return rc;
}

/* Give a new connection what is kept.  1: all of it; or HK_AGAIN, HK_LOST, HK_FAULT. */
HK_ALWAYS_INLINE int hk_give_again(hk_giver *give, hk_healing_sender *s) {
    const char *at;
    size_t n;
    if (s->line.state != HK_LINE_AGAIN) return s->line.state == HK_LINE_OPEN ? 1 : HK_LOST;
    while ((n = hk_kept_next(&s->kept, &at)) > 0) {
        if (n > HK_SEND_PIECE) n = HK_SEND_PIECE;
        struct iovec v = {(void *)at, n};
        const long given = give(s, &v, 1, 0);
        if (given < 0 && given != HK_AGAIN) s->line.state = HK_LINE_BROKEN;
        if (given < 0) return (int)given;
        s->kept.given += (uint64_t)given;
    }
    const long rest = give(s, NULL, 0, 0);
    if (rest < 0 && rest != HK_AGAIN) s->line.state = HK_LINE_BROKEN;
    if (rest < 0) return (int)rest;
    s->line.state = HK_LINE_OPEN;
    hk_store32((uint32_t *)&s->plain.base.fd, (uint32_t)s->line.fd);
    return 1;
}

HK_ALWAYS_INLINE void hk_tell(hk_teller *tell, hk_healing_receiver *r) {
    char word[HK_WORD];
    if (r->line.mute) return;
    hk_word_write(word, r->got);
    const int told = tell(r, word);
    if (told == 1) r->told = r->got;
    r->line.mute = told == HK_LOST;
}

HK_ALWAYS_INLINE long hk_get_and_tell(hk_reader *get, hk_teller *tell, hk_healing_receiver *r, void *dst, size_t len) {
    long n = HK_AGAIN;
    pthread_mutex_lock(&r->line.lock);
    if (r->line.state == HK_LINE_LOST) n = HK_LOST;
    else if (r->line.state == HK_LINE_OPEN) n = get(&r->plain, dst, len);
    if (n == HK_LOST && r->line.state == HK_LINE_OPEN) {
        hk_line_breaks(&r->line, &r->plain.base);
        n = HK_AGAIN;
    }
    if (n > 0) r->got += (uint64_t)n;
    if (n > 0 && hk_tell_due(r->got, r->told, r->said)) hk_tell(tell, r);
    pthread_mutex_unlock(&r->line.lock);
    return n;
}

/* --- of a socket */

static long hk_socket_give(hk_healing_sender *s, struct iovec *v, int pieces, int more) {
    struct msghdr m = {0};
    if (pieces == 0) return 0;
    m.msg_iov = v;
    m.msg_iovlen = (size_t)pieces;
    const long n = sendmsg(s->line.fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL | (more ? MSG_MORE : 0));
    return n < 0 ? hk_stream_by_errno(&s->plain.base) : n;
}

static long hk_socket_hear(hk_healing_sender *s, void *to, size_t len) {
    const long n = recv(s->line.fd, to, len, MSG_DONTWAIT);
    if (n < 0) return hk_stream_by_errno(&s->plain.base);
    return n == 0 ? HK_LOST : n;
}

static int hk_socket_tell(hk_healing_receiver *r, const char word[HK_WORD]) {
    const long n = send(r->line.fd, word, HK_WORD, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n == HK_WORD) return 1;
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) ? HK_AGAIN : HK_LOST;
}

static long hk_healing_read(hk_receiver *r, void *dst, size_t len) {
    return hk_get_and_tell(hk_socket_read, hk_socket_tell, (hk_healing_receiver *)r, dst, len);
}

static long hk_healing_send(hk_channel *ch, const hk_call *call, uint64_t length, uint64_t done, const void *src,
                            size_t len) {
    hk_healing_sender *s = (hk_healing_sender *)ch;
    pthread_mutex_lock(&s->line.lock);
    const long n = hk_keep_and_give(hk_socket_give, hk_socket_hear, s, call, length, done, src, len);
    pthread_mutex_unlock(&s->line.lock);
    return n;
}

static int hk_healing_settled(hk_channel *ch, const hk_call *call) {
    hk_healing_sender *s = (hk_healing_sender *)ch;
    if (call->stays || hk_load32(&s->kept.names) == 0) return 1; /* they come by `send` alone */
    pthread_mutex_lock(&s->line.lock);
    hk_let_go(hk_socket_hear, s, call);
    pthread_mutex_unlock(&s->line.lock);
    return 1;
}

static int hk_healing_peek(hk_channel *ch, const hk_call *call, hk_view *v, size_t want) {
    (void)call;
    return hk_heard(ch, hk_peek_by(hk_healing_read, ch, v, want));
}

static long hk_healing_recv(hk_channel *ch, const hk_call *call, void *dst, size_t len) {
    (void)call;
    return hk_recv_by(hk_healing_read, ch, dst, len);
}

static const hk_channel_ops hk_healing_sender_ops = {
    .send = hk_healing_send, .settled = hk_healing_settled, .forget = hk_healing_forget};
static const hk_channel_ops hk_healing_receiver_ops = {
    .peek = hk_healing_peek, .consume = hk_stream_consume, .recv = hk_healing_recv};

#endif
