/* One direction between two ranks over RDMA: a ring in the reader's memory that the writer fills from afar.
 *
 * The writer keeps a copy of the ring, puts a packet (a header and its payload) into it and writes that by RDMA write
 * with immediate to the same place of the reader's; the immediate says where, and the completion that it is whole.
 * Short packets are inlined into the work request.  The reader reduces or copies straight from the ring, and tells the
 * writer how many packets it has finished: that gives room back.  Nobody ever waits in the network: the writer has a
 * packet under way only if the reader has room and a posted receive for it.
 *
 * Long pieces of registered memory (`hk_pins`) are not copied.  The packet only offers them; the reader invites the
 * writer to a place, with a key that opens just these bytes, in the caller's memory if that is registered too; the
 * writer writes there, and then the key is invalidated.  (Not by RDMA read: a read that the network has repeated may
 * come after its key is gone, and then the queue pair ends; Soft-RoCE does so under load.)
 *
 * The first queue pair carries the packets and what the reader says; pieces take turns on the others, where the reader
 * sends nothing, and so repeats nothing: Soft-RoCE binds a window again when it repeats what was sent before it, and
 * ends the queue pair as the window is bound already.
 *
 * One thread at a time uses a channel.  hk_pins is shared between channels and has a lock.
 *
 * This file says what the two ends tell each other.  end.h has what both ends do, pins.h the registered memory,
 * writer.h and reader.h the two ends, places.h where offered pieces come to. */
#ifndef HK_VERBS_PROTOCOL_H
#define HK_VERBS_PROTOCOL_H

#include <stddef.h>
#include <stdint.h>

enum {
    HK_V_PACKET = 65536,     /* payload of a packet, at most */
    HK_V_ALIGN = 64,         /* packets begin at multiples */
    HK_V_DEPTH = 256,        /* packets under way */
    HK_V_QPS = 4,            /* queue pairs of a channel, at most; at least two */
    HK_V_SENDS = 1024,       /* work requests of the queue pair that carries packets ... */
    HK_V_MORE_SENDS = 128,   /* ... and of the others */
    HK_V_SIGNAL = 32,        /* every so many sends are reported: who never asks never frees the send queue */
    HK_V_CREDIT = 64,        /* packets after which the reader gives room back */
    HK_V_OFFER_MIN = 131072, /* shorter pieces are copied: an offer costs two more messages and a key */
    HK_V_PIECE = 262144,     /* of an offered piece: what is reduced while the next one comes */
    HK_V_OFFERS = 16,         /* pieces offered and not yet written */
    HK_V_STAGES = 8,         /* ... of which so many may come to the reader's own memory */
    /* Receives posted on a first queue pair: at the reader's for packets, pieces and a goodbye, at the writer's for an
     * invitation to each piece, room given back for packets, and a goodbye. */
    HK_V_WORDS = HK_V_DEPTH + HK_V_OFFERS + 1,
    HK_V_ARM_AFTER = 256,    /* vain looks before an event is asked for: the waiter will soon sleep */
    HK_V_PINS = 256,
    HK_V_BYE = 0x7fffffff,   /* as an immediate: no more will come */
    HK_V_COUNT = 0x3fffffff, /* packets are counted modulo this and one */
    HK_V_PIECE_CAME = 1 << 30, /* as an immediate, with the number of an offer: it is written */
    HK_V_OFFER = 1 << 30     /* in `len`: the payload is offered */
};
#define HK_V_RING ((size_t)1 << 20)
#define HK_V_IS_RECV ((uint64_t)1 << 63) /* in wr_id */
#define HK_V_CANCEL_NS ((uint64_t)1000000000) /* that cancelling, or a goodbye, may take */
#ifndef HK_V_ASK_NS
#define HK_V_ASK_NS ((uint64_t)1000000000) /* between two questions whether the peer's device is there */
#endif
#ifndef HK_V_SILENT_NS
#define HK_V_SILENT_NS ((uint64_t)10000000000) /* without an answer: longer than devices repeat a request */
#endif

enum { /* of a completion; ibv_wc_status(3) has them all */
    HK_V_FLUSHED = 5, /* the consequence of another */
    HK_V_BAD = 7,     /* a response that the protocol does not allow; also said by us, of what a packet says */
    HK_V_RETRY = 12,  /* no answer */
    HK_V_RNR = 13,
    HK_V_ABORTED = 16,
    HK_V_OVERRUN = 21,
    HK_V_REFUSED = 1000, /* not a status: a request could not even be posted */
    HK_V_SILENT = 1001   /* ... or has no end */
};

typedef struct hk_v_head { /* of a packet */
    uint64_t tag, length;  /* of the message */
    uint32_t len;          /* of the payload; HK_V_OFFER */
    uint32_t offer;        /* its number */
    uint64_t spare;        /* zero: the payload is to be aligned for vector loads */
} hk_v_head;

typedef struct hk_v_word { /* what the reader says */
    uint32_t finished;     /* packets so far, modulo HK_V_COUNT and one; or HK_V_BYE */
    uint32_t invited;      /* the number of an offer, or HK_V_NOBODY */
    uint32_t rkey, qp;     /* what opens the place, and on which queue pair */
    uint64_t place;
} hk_v_word;
#define HK_V_NOBODY 0xffffffffu

#endif
