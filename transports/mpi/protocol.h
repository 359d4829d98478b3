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
 * seen here: the control plane sees it.
 *
 * This file says what the two sides exchange, and what they keep.  sender.h and receiver.h are the two ends, channel.h
 * makes both and ends them. */
#ifndef HK_MPI_PROTOCOL_H
#define HK_MPI_PROTOCOL_H

#include <errno.h>
#include <stdint.h>

#include "system/wait.h"
#include "transports/channel.h"
#include "transports/mpi/library.h"

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

#endif
