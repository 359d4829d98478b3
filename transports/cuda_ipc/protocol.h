/* Channels between the GPU memories of two processes of a host.
 *
 * The writer copies a piece into a slot of its own window, which the reader's process has mapped, and sets a mark
 * (mark.h) behind that; then a packet over a host channel names the slot.  The reader waits for the mark and copies, or
 * reduces, straight from the slot; it sets another behind that, and a packet the other way says that the slot is done
 * with.  The writer waits for that mark before the slot is used again.  It is the streams that wait, if marks are words.
 *
 * So the host channel carries what hosts must agree on (which message, how long, which slot), with its own waiting and
 * its own signs of a lost peer, and streams wait only for work that has been issued already: no kernel waits here, and
 * ranks may share one GPU.  A packet is sent after the mark that it tells of has been issued, and a mark is set again
 * only after its waiter has issued the wait: that is what a slot's turn is.  Nothing sets marks for an empty piece.
 *
 * A slot of the shared ones may be named to several readers (multicast).  All work on the stream of their call.
 *
 * What lies in registered memory (registered.h), and is long, is not copied into a slot: the packet names the place, and
 * the reader uses it there.  A slot's turn is taken all the same, for its marks.  The message is settled when the reader
 * has said that it is done, and the writer then waits for that mark: whoever changes the memory in stream order does it
 * after the reader.  Peers learn of it when the first message from it is sent, which still goes through slots; once they
 * have mapped it, those go without.  (After a failure nobody waits for readers: what they compute then belongs to a call
 * that has failed, or to a communicator that has.)
 *
 * This file says what the two sides tell each other, and hears it.  writer.h and reader.h are the two ends of a channel,
 * pair.h makes both. */
#ifndef HK_CUDA_IPC_PROTOCOL_H
#define HK_CUDA_IPC_PROTOCOL_H

#include <string.h>

#include "system/cuda/mark.h"
#include "transports/channel.h"
#include "transports/cuda_ipc/registered.h"

enum {
    HK_C_SLOTS = 4,                       /* of each pair ... */
    HK_C_SHARED = 8,                      /* ... and of the communicator */
    HK_C_ALL = HK_C_SLOTS + HK_C_SHARED,  /* that one peer can be told of: its own come first */
    HK_C_WORDS = 2 * HK_C_ALL,            /* of each member in a window, behind the slots: its ready, then its done */
    HK_C_OUTBOX = 256,                    /* packets that wait for the host channel: fewer than this, see hk_c_post */
    HK_C_PIECE = 1,  /* kinds of packets: a slot has been written */
    HK_C_DIRECT = 2, /* a piece lies in registered memory; the slot lends its marks */
    HK_C_DONE = 3,   /* the piece has been read */
    HK_C_MEMORY = 4, /* a handle of registered memory, in two packets: `slot` says which half */
    HK_C_MAPPED = 5, /* the peer has mapped it (`slot`: 1) or cannot (0) */
    HK_C_BYE = 6     /* the peer has let go of our window */
};
#define HK_C_SLOT_BYTES ((size_t)8 << 20)
_Static_assert(HK_C_ALL <= 32, "bits of a word");
_Static_assert(2 * HK_C_ALL + 3 * HK_R_MOST + 1 < HK_C_OUTBOX, "see hk_c_post");
/* Of all messages on the host channel. */
static const hk_call hk_c_packets = {.tag = 0x686b63756461, .traffic = HK_ONE_WAY};

typedef struct hk_c_packet {
    uint64_t tag, length; /* of the message, as in channel.h ... */
    uint64_t bytes;       /* ... of the piece */
    uint64_t offset;      /* ... in registered memory.  Of HK_C_MEMORY all four are half of the handle */
    uint32_t memory;
    uint16_t kind, slot;
} hk_c_packet;
_Static_assert(4 * sizeof(uint64_t) == HK_R_HALF, "half of a handle");

typedef struct hk_c_pair hk_c_pair;

/* What all pairs of a communicator share. */
typedef struct hk_c_common {
    hk_device *device;
    char *window;               /* size * HK_C_SLOTS slots, then HK_C_SHARED */
    int size;
    hk_c_pair **pair;           /* by member; NULL: not opened */
    int readers[HK_C_SHARED];   /* of each shared slot, that have not said that they are done */
    uint32_t next_shared;
    hk_r_ours registered;
} hk_c_common;

typedef struct hk_c_end {
    hk_channel base;
    hk_c_pair *pair;
} hk_c_end;

struct hk_c_pair {
    hk_c_end tx, rx;
    hk_c_common *common;
    hk_channel *out, *in; /* the host channels */
    int ended;            /* HK_LOST or HK_FAULT: why nothing more will come */
    hk_c_packet outbox[HK_C_OUTBOX];
    uint32_t out_head, out_tail;

    char *slots;                     /* to write: our own in the window */
    hk_mark ready[HK_C_ALL];         /* ours to set, when a slot has been written ... */
    hk_mark peer_done[HK_C_ALL];     /* ... the reader's, when it has been read */
    uint32_t busy;                   /* bits: slots that the reader has not said to be done with ... */
    uint32_t due;                    /* ... it has, and its mark must be waited for before they are used again */
    uint32_t direct;                 /* bits: slots whose piece lies in the caller's memory, until it is settled ... */
    uint32_t empty;                  /* ... whose piece has no bytes, and so no marks */
    uint32_t next;

    hk_r_peer registered;            /* what it knows of ours, and its own */
    const char *theirs, *their_shared; /* to read: the peer's slots for us, as mapped here */
    hk_mark peer_ready[HK_C_ALL];
    hk_mark done[HK_C_ALL];
    hk_c_packet piece[HK_C_ALL];     /* that have come, oldest first */
    uint32_t first, came;
    int open;                        /* a message is under way ... */
    uint64_t tag, length, left;      /* ... this one */
    size_t taken;                    /* bytes of the piece in front */
    int awaited;                     /* ... is there, or the stream waits for it */
    int bye;
};

/* The driver has refused something: the channel's last words. */
static inline int hk_c_refused(hk_c_end *e) {
    e->pair->ended = HK_FAULT;
    e->base.words = e->pair->common->device->words;
    return HK_FAULT;
}

static inline int hk_c_wrong(hk_c_pair *p, const char *words) {
    p->ended = HK_FAULT;
    p->tx.base.words = p->rx.base.words = words;
    return HK_FAULT;
}

/* The host channel has ended, with its last words. */
static inline void hk_c_host_ended(hk_c_pair *p, const hk_channel *host, int why) {
    p->ended = why;
    p->tx.base.error = p->rx.base.error = host->error;
    p->tx.base.words = p->rx.base.words = host->words;
}

/* There is always room: a slot has one packet under way at most, ours and the peer's, memory is offered once, in two, and
 * answered once, and there is one goodbye. */
static inline void hk_c_post(hk_c_pair *p, hk_c_packet k) { p->outbox[p->out_tail++ % HK_C_OUTBOX] = k; }

static inline void hk_c_flush(hk_c_pair *p) {
    while (p->out_head != p->out_tail && p->ended == 0) {
        const hk_c_packet *next = &p->outbox[p->out_head % HK_C_OUTBOX];
        const long n = p->out->ops->send(p->out, &hk_c_packets, sizeof *next, 0, next, sizeof *next);
        if (n == HK_AGAIN) return;
        if (n != (long)sizeof *next) {
            hk_c_host_ended(p, p->out, n < 0 ? (int)n : HK_FAULT);
            return;
        }
        p->out_head++;
    }
}

/* What is said of registered memory. */
static inline void hk_c_hear_of_memory(hk_c_pair *p, const hk_c_packet *k) {
    hk_r_peer *r = &p->registered;
    if (k->memory >= HK_R_MOST || k->slot > 1 || (k->kind == HK_C_MEMORY && r->heard >> k->memory & 1)) {
        hk_c_wrong(p, "the peer names memory that does not exist");
    } else if (k->kind == HK_C_MAPPED) {
        r->knows[k->memory] = k->slot ? HK_R_IS_MAPPED : HK_R_REFUSED;
    } else {
        const int mapped = hk_r_hear(r, p->common->device, k->memory, k->slot, k);
        if (mapped >= 0)
            hk_c_post(p, (hk_c_packet){.kind = HK_C_MAPPED, .memory = k->memory, .slot = (uint16_t)mapped});
    }
}

static inline int hk_c_is_sound(const hk_c_pair *p, const hk_c_packet *k) {
    if (p->came - p->first >= HK_C_ALL || (k->bytes == 0 && k->length)) return 0;
    if (k->kind == HK_C_PIECE) return k->bytes <= HK_C_SLOT_BYTES;
    return k->bytes && hk_r_is_there(&p->registered, k->memory, k->offset, k->bytes);
}

/* It is another process's word: nothing in it is believed. */
static inline void hk_c_hear(hk_c_pair *p, const hk_c_packet *k) {
    if (k->kind == HK_C_BYE) {
        p->bye = 1;
    } else if (k->kind == HK_C_MEMORY || k->kind == HK_C_MAPPED) {
        hk_c_hear_of_memory(p, k);
    } else if (k->slot >= HK_C_ALL) {
        hk_c_wrong(p, "the peer names a slot that does not exist");
    } else if (k->kind == HK_C_PIECE || k->kind == HK_C_DIRECT) {
        if (!hk_c_is_sound(p, k)) {
            hk_c_wrong(p, "the peer sends what the protocol does not allow");
            return;
        }
        if (k->bytes) hk_mark_expect(&p->peer_ready[k->slot]);
        p->piece[p->came++ % HK_C_ALL] = *k;
    } else if (k->kind != HK_C_DONE || !(p->busy >> k->slot & 1)) {
        hk_c_wrong(p, "the peer gives back a slot that it was not given");
    } else {
        p->busy &= ~(1u << k->slot);
        if (!(p->empty >> k->slot & 1)) p->due |= 1u << k->slot, hk_mark_expect(&p->peer_done[k->slot]);
        p->empty &= ~(1u << k->slot);
        if (k->slot >= HK_C_SLOTS) p->common->readers[k->slot - HK_C_SLOTS]--;
    }
}

/* Send what waits, hear what has come. */
static inline void hk_c_pump(hk_c_pair *p) {
    hk_view v;
    hk_c_packet k;
    hk_c_flush(p);
    while (p->ended == 0) {
        const int rc = p->in->ops->peek(p->in, &hk_c_packets, &v, sizeof k);
        if (rc == HK_AGAIN) return;
        if (rc != 1) {
            hk_c_host_ended(p, p->in, rc);
            return;
        }
        if (v.tag != hk_c_packets.tag || v.length != sizeof k) {
            hk_c_wrong(p, "the peer sends what the protocol does not allow");
            return;
        }
        if (v.avail < sizeof k) return;
        memcpy(&k, v.data, sizeof k);
        const int dropped = p->in->ops->consume(p->in, &hk_c_packets, sizeof k, 1);
        hk_c_hear(p, &k);
        if (dropped < 0) hk_c_host_ended(p, p->in, dropped);
    }
}

#endif
