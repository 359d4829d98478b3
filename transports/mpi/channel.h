/* Two channels over an MPI library: packets, and pieces that are too long for one.
 *
 * A packet is a header and up to HK_MPI_PAYLOAD bytes.  MPI sends it at once, so it arrives though the sender calls MPI
 * no more (above 3.9 KiB Open MPI's shared memory wants one more call of the sender's).  The receiver keeps persistent
 * receives posted for HK_MPI_SLOTS of them.  The sender sends each from a slot of its own with MPI_Issend, so the slot is
 * free again when the receiver has matched it: a sender whom nobody reads is stopped by that, without credits.
 *
 * A longer piece is announced by a packet without payload, and then sent straight from the caller's memory, on the
 * next tag; with MPI_Issend too, as a send that MPI has only buffered (Intel MPI does) may need further calls of a
 * sender who makes none.  The receiver posts its receive when it knows where the piece goes: into the caller's memory
 * where the whole piece fits, else (it is to be reduced, or the two sides cut differently) into a stage of its own.  The
 * receives of pieces that have been announced meanwhile are posted ahead, so that MPI can bring them while one is worked
 * on.
 *
 * All of it runs on a private communicator; (communicator, source, tag) is the channel.  A peer that is gone is not
 * seen here: the control plane sees it. */
#ifndef HK_MPI_CHANNEL_H
#define HK_MPI_CHANNEL_H

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "transports/channel.h"
#include "transports/mpi/library.h"
#include "system/wait.h"

enum {
    HK_MPI_SLOTS = 8,
    HK_MPI_PAYLOAD = 4096, /* what `send` must take though nobody reads, in one piece */
    HK_MPI_PIECES = 4,       /* under way at once */
    HK_MPI_PIECE = 1 << 24,  /* bytes: long, as MPI shakes hands for each; see SEGMENT_MPI in collectives/engine/queue.py */
    HK_MPI_FORGET_NS = 20000000, /* that one channel waits for what cannot be cancelled */
};

typedef struct hk_mpi_packet {
    uint64_t tag, length; /* of the message */
    uint32_t bytes;       /* in this packet, or in the piece that it announces */
    uint32_t announces;
    char payload[HK_MPI_PAYLOAD];
} hk_mpi_packet;

typedef struct hk_mpi_end {
    hk_channel base;
    hk_mpi *mpi;
    uintptr_t comm;
    int peer, tag; /* tag: of packets; pieces have the next one */
    int dead;      /* a run has failed, or it is closed */
    hk_mpi_packet *packets; /* HK_MPI_SLOTS */
    hk_mpi_request slot[HK_MPI_SLOTS];
} hk_mpi_end;

typedef struct hk_mpi_sender {
    hk_mpi_end end;
    hk_mpi_request piece[HK_MPI_PIECES];
    unsigned next_slot, next_piece;
} hk_mpi_sender;

typedef struct hk_mpi_piece {
    hk_mpi_request request;
    char *to;
    int staged;
} hk_mpi_piece;

typedef struct hk_mpi_receiver {
    hk_mpi_end end;
    hk_mpi_piece piece[HK_MPI_SLOTS]; /* of the packet in the same slot */
    char *stage[HK_MPI_PIECES];
    size_t stage_bytes[HK_MPI_PIECES]; /* as long as the longest piece that came to it */
    unsigned next_stage;
    unsigned head;    /* the slot of the oldest packet */
    unsigned arrived; /* packets there, from `head` on */
    unsigned posted;  /* pieces of them whose receive is posted, from `head` on */
    size_t at;        /* what was taken of the head packet or its piece */
    int open;
    uint64_t tag, length, left; /* of the open message; left: not yet consumed */
} hk_mpi_receiver;

static inline int hk_mpi_refused(hk_mpi_end *e, int error) {
    e->base.error = error;
    return HK_FAULT;
}

static inline int hk_mpi_usable(hk_mpi_end *e) {
    if (!e->dead && !hk_load32(&e->mpi->over)) return 1;
    e->base.error = ESHUTDOWN;
    return 0;
}

/* ------------------------------------------------------------------------------------------------- sending */

static int hk_mpi_settled(hk_channel *ch) {
    hk_mpi_sender *s = (hk_mpi_sender *)ch;
    if (!hk_mpi_usable(&s->end)) return 1;
    for (unsigned i = 0; i < HK_MPI_PIECES; i++) /* the oldest first: each look is a call of MPI */
        if (hk_mpi_ended(s->end.mpi, &s->piece[(s->next_piece + i) % HK_MPI_PIECES]) == 0) return 0;
    return 1;
}

static long hk_mpi_send(hk_channel *ch, uint64_t tag, uint64_t length, uint64_t done, const void *src, size_t len) {
    hk_mpi_sender *s = (hk_mpi_sender *)ch;
    hk_mpi_end *e = &s->end;
    hk_mpi *m = e->mpi;
    hk_mpi_request *slot = &e->slot[s->next_slot], *piece = &s->piece[s->next_piece];
    hk_mpi_packet *p = &e->packets[s->next_slot];
    const int announces = len > HK_MPI_PAYLOAD;
    int rc;
    (void)done;
    if (!hk_mpi_usable(e)) return HK_LOST;
    rc = hk_mpi_ended(m, slot);
    if (rc == 1 && announces) rc = hk_mpi_ended(m, piece);
    if (rc < 0) return hk_mpi_refused(e, EIO);
    if (rc == 0) return HK_AGAIN;
    if (len > HK_MPI_PIECE) len = HK_MPI_PIECE;
    p->tag = tag;
    p->length = length;
    p->bytes = (uint32_t)len;
    p->announces = (uint32_t)announces;
    if (!announces && len) memcpy(p->payload, src, len);
    const int n = (int)(sizeof(*p) - sizeof(p->payload) + (announces ? 0 : len));
    hk_mpi_enter(m);
    rc = m->issend(p, n, m->byte, e->peer, e->tag, e->comm, &slot->cell);
    if (rc == 0) slot->busy = 1;
    if (rc == 0 && announces) {
        rc = m->issend(src, (int)len, m->byte, e->peer, e->tag + 1, e->comm, &piece->cell);
        if (rc == 0) piece->busy = 1;
    }
    hk_mpi_leave(m);
    if (rc) return hk_mpi_refused(e, EIO);
    s->next_slot = (s->next_slot + 1) % HK_MPI_SLOTS;
    if (announces) s->next_piece = (s->next_piece + 1) % HK_MPI_PIECES;
    return (long)len;
}

/* ----------------------------------------------------------------------------------------------- receiving */

static inline hk_mpi_packet *hk_mpi_packet_at(hk_mpi_receiver *r, unsigned i) {
    return &r->end.packets[(r->head + i) % HK_MPI_SLOTS];
}

static inline hk_mpi_piece *hk_mpi_piece_at(hk_mpi_receiver *r, unsigned i) {
    return &r->piece[(r->head + i) % HK_MPI_SLOTS];
}

/* Post, or post again, the receive of one packet. */
static inline int hk_mpi_listen(hk_mpi_receiver *r, unsigned slot) {
    hk_mpi *m = r->end.mpi;
    hk_mpi_enter(m);
    const int rc = m->start(&r->end.slot[slot].cell);
    hk_mpi_leave(m);
    if (rc == 0) r->end.slot[slot].busy = 1;
    return rc;
}

/* 1: packet i from the head is there; or HK_AGAIN, HK_FAULT. */
static inline int hk_mpi_arrived(hk_mpi_receiver *r, unsigned i) {
    while (r->arrived <= i) {
        if (i >= HK_MPI_SLOTS) return HK_AGAIN;
        const int rc = hk_mpi_ended(r->end.mpi, &r->end.slot[(r->head + r->arrived) % HK_MPI_SLOTS]);
        if (rc < 0) return hk_mpi_refused(&r->end, EIO);
        if (rc == 0) return HK_AGAIN;
        r->arrived++;
    }
    return 1;
}

/* 1: the head packet is there, and belongs to the open message, which it opens if none is. */
static inline int hk_mpi_look(hk_mpi_receiver *r) {
    if (!hk_mpi_usable(&r->end)) return HK_LOST;
    const int rc = hk_mpi_arrived(r, 0);
    if (rc != 1) return rc;
    const hk_mpi_packet *p = hk_mpi_packet_at(r, 0);
    if (!r->open) {
        r->tag = p->tag;
        r->length = r->left = p->length;
        r->open = 1;
    }
    const uint32_t most = p->announces ? HK_MPI_PIECE : HK_MPI_PAYLOAD;
    if (p->tag != r->tag || p->length != r->length || p->bytes > most || p->bytes - r->at > r->left)
        return hk_mpi_refused(&r->end, EPROTO);
    return 1;
}

/* Post the receive of the piece that packet i announces: the next one after those that are posted. */
static inline int hk_mpi_fetch(hk_mpi_receiver *r, unsigned i, char *to) {
    hk_mpi *m = r->end.mpi;
    hk_mpi_piece *q = hk_mpi_piece_at(r, i);
    q->staged = to == NULL;
    if (to == NULL) {
        const unsigned i_stage = r->next_stage;
        const size_t bytes = hk_mpi_packet_at(r, i)->bytes;
        if (r->stage_bytes[i_stage] < bytes) {
            free(r->stage[i_stage]);
            r->stage[i_stage] = (char *)malloc(bytes);
            r->stage_bytes[i_stage] = r->stage[i_stage] ? bytes : 0;
            if (r->stage[i_stage] == NULL) return hk_mpi_refused(&r->end, ENOMEM);
        }
        r->next_stage = (r->next_stage + 1) % HK_MPI_PIECES;
        to = r->stage[i_stage];
    }
    q->to = to;
    hk_mpi_enter(m);
    const int rc = m->irecv(to, (int)hk_mpi_packet_at(r, i)->bytes, m->byte, r->end.peer, r->end.tag + 1, r->end.comm,
                            &q->request.cell);
    hk_mpi_leave(m);
    if (rc) return hk_mpi_refused(&r->end, EIO);
    q->request.busy = 1;
    r->posted = i + 1;
    return 1;
}

/* Post the receives of this message's further pieces, as far as they are announced: to `to`, of which `room` bytes
 * are left behind the head's piece, or (NULL) to stages. */
static inline int hk_mpi_fetch_ahead(hk_mpi_receiver *r, char *to, size_t room) {
    uint64_t before = 0;
    for (unsigned i = 0; i < HK_MPI_PIECES; i++) {
        if (i && hk_mpi_arrived(r, i) != 1) return 1; /* a refusal shows when it is the head's turn */
        const hk_mpi_packet *p = hk_mpi_packet_at(r, i);
        if (!p->announces || before >= r->left + r->at || p->bytes > HK_MPI_PIECE) return 1;
        if (to && before + p->bytes > room) return 1;
        if (i >= r->posted) {
            const int rc = hk_mpi_fetch(r, i, to ? to + before : NULL);
            if (rc != 1) return rc;
        }
        before += p->bytes;
    }
    return 1;
}

/* The head packet has been used up: its slot listens again. */
static inline void hk_mpi_release(hk_mpi_receiver *r) {
    const unsigned slot = r->head;
    r->head = (r->head + 1) % HK_MPI_SLOTS;
    r->arrived--;
    if (r->posted) r->posted--;
    r->at = 0;
    if (hk_mpi_listen(r, slot)) r->end.dead = 1;
}

static int hk_mpi_peek(hk_channel *ch, hk_view *v, size_t want) {
    hk_mpi_receiver *r = (hk_mpi_receiver *)ch;
    int rc = hk_mpi_look(r);
    if (rc != 1) return rc;
    const hk_mpi_packet *p = hk_mpi_packet_at(r, 0);
    v->tag = r->tag;
    v->length = r->length;
    v->data = p->payload + r->at;
    v->avail = p->bytes - r->at;
    if (!p->announces) return 1;
    v->avail = 0;
    if (want == 0 && r->posted == 0) return 1; /* who only looks may want it somewhere else */
    const hk_mpi_piece *q = hk_mpi_piece_at(r, 0);
    if (r->posted == 0 || q->staged) rc = hk_mpi_fetch_ahead(r, NULL, 0);
    if (rc == 1 && q->staged) {
        rc = hk_mpi_ended(r->end.mpi, (hk_mpi_request *)&q->request);
        if (rc < 0) return hk_mpi_refused(&r->end, EIO);
        v->data = q->to + r->at;
        v->avail = rc ? p->bytes - r->at : 0;
        rc = 1;
    }
    return rc;
}

static void hk_mpi_consume(hk_channel *ch, size_t len, int end) {
    hk_mpi_receiver *r = (hk_mpi_receiver *)ch;
    r->at += len;
    r->left -= len;
    if (end) r->open = 0;
    if ((len || (end && r->length == 0)) && r->at == hk_mpi_packet_at(r, 0)->bytes) hk_mpi_release(r);
}

static long hk_mpi_recv(hk_channel *ch, void *dst, size_t len) {
    hk_mpi_receiver *r = (hk_mpi_receiver *)ch;
    int rc = hk_mpi_look(r);
    if (rc != 1) return rc;
    const hk_mpi_packet *p = hk_mpi_packet_at(r, 0);
    const hk_mpi_piece *q = hk_mpi_piece_at(r, 0);
    const char *from = p->payload;
    if (p->announces) {
        if (r->posted == 0 || q->staged || q->to == dst) {
            const int straight = r->posted ? !q->staged : len >= p->bytes;
            rc = hk_mpi_fetch_ahead(r, straight ? (char *)dst : NULL, len);
        } else {
            rc = hk_mpi_refused(&r->end, EINVAL); /* the engine has asked for it elsewhere */
        }
        if (rc == 1) rc = hk_mpi_ended(r->end.mpi, (hk_mpi_request *)&q->request);
        if (rc == 0) return HK_AGAIN;
        if (rc < 0) return hk_mpi_refused(&r->end, r->end.base.error ? r->end.base.error : EIO);
        from = q->staged ? q->to : NULL;
    }
    if (len > p->bytes - r->at) len = p->bytes - r->at;
    if (from && len) memcpy(dst, from + r->at, len);
    r->at += len;
    r->left -= len;
    if (r->at == p->bytes) hk_mpi_release(r);
    return (long)len;
}

/* -------------------------------------------------------------------------------------------------- the end */

/* Wait until the request has ended, at most until `deadline` (ns).  1 if it has. */
static inline int hk_mpi_end_by(hk_mpi *m, hk_mpi_request *q, uint64_t deadline) {
    while (hk_mpi_ended(m, q) == 0) {
        if (hk_now() > deadline) return 0;
        sched_yield();
    }
    return !q->busy;
}

static inline void hk_mpi_cancel(hk_mpi *m, hk_mpi_request *q) {
    if (!q->busy) return;
    hk_mpi_enter(m);
    m->cancel(&q->cell);
    hk_mpi_leave(m);
}

/* A matched receive ends when its sender goes on; one that is not matched ends at once.  A send cannot be cancelled in
 * today's MPIs.  What is still under way when time is over shows in `hk_mpi_pinned`. */
static void hk_mpi_forget_received(hk_channel *ch) {
    hk_mpi_receiver *r = (hk_mpi_receiver *)ch;
    if (!hk_mpi_usable(&r->end)) return;
    const uint64_t deadline = hk_now() + HK_MPI_FORGET_NS;
    for (unsigned i = 0; i < r->posted; i++) {
        hk_mpi_piece *q = hk_mpi_piece_at(r, i);
        hk_mpi_cancel(r->end.mpi, &q->request);
        hk_mpi_end_by(r->end.mpi, &q->request, deadline);
    }
    r->end.dead = 1;
}

static void hk_mpi_forget_sent(hk_channel *ch) {
    hk_mpi_sender *s = (hk_mpi_sender *)ch;
    if (!hk_mpi_usable(&s->end)) return;
    const uint64_t deadline = hk_now() + HK_MPI_FORGET_NS;
    for (unsigned i = 0; i < HK_MPI_PIECES; i++) hk_mpi_end_by(s->end.mpi, &s->piece[i], deadline);
    s->end.dead = 1;
}

/* Requests still under way on memory that is not ours. */
static inline int hk_mpi_pinned(const hk_mpi_sender *s, const hk_mpi_receiver *r) {
    int n = 0;
    for (unsigned i = 0; i < HK_MPI_PIECES; i++) n += s->piece[i].busy;
    for (unsigned i = 0; i < HK_MPI_SLOTS; i++) n += r->piece[i].request.busy && !r->piece[i].staged;
    return n;
}

/* End everything that can be ended until `deadline`: packets that we sent still go out, nothing more comes in.
 * Returns 1 if nothing is under way any more; else may be called again. */
static inline int hk_mpi_close(hk_mpi_sender *s, hk_mpi_receiver *r, uint64_t deadline) {
    hk_mpi *m = s->end.mpi;
    int all = 1;
    s->end.dead = r->end.dead = 1;
    if (hk_load32(&m->over)) return 0;
    for (unsigned i = 0; i < HK_MPI_SLOTS; i++) {
        hk_mpi_cancel(m, &r->end.slot[i]);
        hk_mpi_cancel(m, &r->piece[i].request);
    }
    for (unsigned i = 0; i < HK_MPI_SLOTS; i++) {
        all &= hk_mpi_end_by(m, &r->piece[i].request, deadline);
        all &= hk_mpi_end_by(m, &s->end.slot[i], deadline);
        if (!hk_mpi_end_by(m, &r->end.slot[i], deadline)) {
            all = 0;
        } else if (r->end.slot[i].cell) {
            hk_mpi_enter(m);
            m->request_free(&r->end.slot[i].cell);
            hk_mpi_leave(m);
            r->end.slot[i].cell = 0;
        }
    }
    for (unsigned i = 0; i < HK_MPI_PIECES; i++) all &= hk_mpi_end_by(m, &s->piece[i], deadline);
    return all;
}

static const hk_channel_ops hk_mpi_sender_ops = {
    .send = hk_mpi_send, .settled = hk_mpi_settled, .forget = hk_mpi_forget_sent};
static const hk_channel_ops hk_mpi_receiver_ops = {
    .peek = hk_mpi_peek, .consume = hk_mpi_consume, .recv = hk_mpi_recv, .forget = hk_mpi_forget_received};

/* Make both ends, and listen.  0, or what MPI returned. */
static inline int hk_mpi_open(hk_mpi_sender *s, hk_mpi_receiver *r, int send_tag, int recv_tag) {
    hk_mpi *m = s->end.mpi;
    int rc = 0;
    s->end.base.ops = &hk_mpi_sender_ops;
    r->end.base.ops = &hk_mpi_receiver_ops;
    s->end.base.fd = r->end.base.fd = -1;
    s->end.tag = send_tag;
    r->end.tag = recv_tag;
    for (unsigned i = 0; i < HK_MPI_SLOTS; i++) {
        s->end.slot[i].cell = r->end.slot[i].cell = r->piece[i].request.cell = m->request_null;
        if (i < HK_MPI_PIECES) s->piece[i].cell = m->request_null;
    }
    for (unsigned i = 0; i < HK_MPI_SLOTS && rc == 0; i++) {
        hk_mpi_enter(m);
        rc = m->recv_init(&r->end.packets[i], (int)sizeof(hk_mpi_packet), m->byte, r->end.peer, recv_tag, r->end.comm,
                          &r->end.slot[i].cell);
        hk_mpi_leave(m);
        if (rc == 0) rc = hk_mpi_listen(r, i);
    }
    return rc;
}

#endif
