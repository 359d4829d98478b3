/* The sending end: short pieces in packets, long ones announced by one and sent from where they lie. */
#ifndef HK_MPI_SENDER_H
#define HK_MPI_SENDER_H

#include <string.h>

#include "transports/mpi/protocol.h"

static int hk_mpi_settled(hk_channel *ch, const hk_call *call) {
    hk_mpi_sender *s = (hk_mpi_sender *)ch;
    (void)call;
    if (!hk_mpi_usable(&s->end)) return 1;
    for (unsigned i = 0; i < HK_MPI_PIECES; i++) /* the oldest first: each look is a call of MPI */
        if (hk_mpi_ended(s->end.mpi, &s->piece[(s->next_piece + i) % HK_MPI_PIECES]) == 0) return 0;
    return 1;
}

static long hk_mpi_send(hk_channel *ch, const hk_call *call, uint64_t length, uint64_t done, const void *src, size_t len) {
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
    p->tag = call->tag;
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

static void hk_mpi_forget_sent(hk_channel *ch) {
    hk_mpi_sender *s = (hk_mpi_sender *)ch;
    if (!hk_mpi_usable(&s->end)) return;
    const uint64_t deadline = hk_now() + HK_MPI_FORGET_NS;
    for (unsigned i = 0; i < HK_MPI_PIECES; i++) hk_mpi_end_by(s->end.mpi, &s->piece[i], deadline);
    s->end.dead = 1;
}

static const hk_channel_ops hk_mpi_sender_ops = {
    .send = hk_mpi_send, .settled = hk_mpi_settled, .forget = hk_mpi_forget_sent};

#endif
