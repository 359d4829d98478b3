/* Both ends of a channel over MPI: how they are made and ended; protocol.h says what they exchange. */
#ifndef HK_MPI_CHANNEL_H
#define HK_MPI_CHANNEL_H

#include "transports/mpi/receiver.h"
#include "transports/mpi/sender.h"

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
