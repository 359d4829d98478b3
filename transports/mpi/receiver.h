/* The receiving end: packets in their order, and the receives of announced pieces, posted ahead. */
#ifndef HK_MPI_RECEIVER_H
#define HK_MPI_RECEIVER_H

#include <stdlib.h>
#include <string.h>

#include "transports/mpi/protocol.h"

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

/* The head packet has been used up: its slot listens again.  0, or HK_FAULT. */
static inline int hk_mpi_release(hk_mpi_receiver *r) {
    const unsigned slot = r->head;
    r->head = (r->head + 1) % HK_MPI_SLOTS;
    r->arrived--;
    if (r->posted) r->posted--;
    r->at = 0;
    return hk_mpi_listen(r, slot) ? hk_mpi_refused(&r->end, EIO) : 0;
}

static int hk_mpi_peek(hk_channel *ch, const hk_call *call, hk_view *v, size_t want) {
    hk_mpi_receiver *r = (hk_mpi_receiver *)ch;
    (void)call;
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

static int hk_mpi_consume(hk_channel *ch, const hk_call *call, size_t len, int end) {
    hk_mpi_receiver *r = (hk_mpi_receiver *)ch;
    (void)call;
    r->at += len;
    r->left -= len;
    if (end) r->open = 0;
    if ((len || (end && r->length == 0)) && r->at == hk_mpi_packet_at(r, 0)->bytes) return hk_mpi_release(r);
    return 0;
}

static long hk_mpi_recv(hk_channel *ch, const hk_call *call, void *dst, size_t len) {
    hk_mpi_receiver *r = (hk_mpi_receiver *)ch;
    (void)call;
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
    rc = r->at == p->bytes ? hk_mpi_release(r) : 0;
    return rc < 0 ? rc : (long)len;
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

static const hk_channel_ops hk_mpi_receiver_ops = {
    .peek = hk_mpi_peek, .consume = hk_mpi_consume, .recv = hk_mpi_recv, .forget = hk_mpi_forget_received};

#endif
