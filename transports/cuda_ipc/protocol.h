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
 * A slot of the lane's shared ones may be named to several readers (multicast).  All calls work on the stream that the
 * engine has left in the channel.
 *
 * What lies in registered memory (registered.h), and is long, is not copied into a slot: the packet names the place, and
 * the reader uses it there.  A slot's turn is taken all the same, for its marks.  The message is settled when the reader
 * has said that it is done, and the writer then waits for that mark: whoever changes the memory in stream order does it
 * after the reader.  Peers learn of it when the first message from it is sent, which still goes through slots; once they
 * have mapped it, those go without.  (After a failure nobody waits for readers: what they compute then belongs to a call
 * that has failed, or to a communicator that has.) */
#ifndef HK_CUDA_IPC_H
#define HK_CUDA_IPC_H

#include <string.h>

#include "transports/channel.h"
#include "system/cuda/mark.h"
#include "transports/cuda_ipc/registered.h"

enum {
    HK_C_SLOTS = 4,                       /* of each pair ... */
    HK_C_SHARED = 8,                      /* ... and of the lane */
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
#define HK_C_SLOT_BYTES ((size_t)4 << 20)
_Static_assert(HK_C_ALL <= 32, "bits of a word");
_Static_assert(2 * HK_C_ALL + 3 * HK_R_MOST + 1 < HK_C_OUTBOX, "see hk_c_post");
#define HK_C_TAG ((uint64_t)0x686b63756461) /* of all messages on the host channel */

typedef struct hk_c_packet {
    uint64_t tag, length; /* of the message, as in channel.h ... */
    uint64_t bytes;       /* ... of the piece */
    uint64_t offset;      /* ... in registered memory.  Of HK_C_MEMORY all four are half of the handle */
    uint32_t memory;
    uint16_t kind, slot;
} hk_c_packet;
_Static_assert(4 * sizeof(uint64_t) == HK_R_HALF, "half of a handle");

typedef struct hk_c_pair hk_c_pair;

/* What all pairs of a lane share. */
typedef struct hk_c_lane {
    hk_device *device;
    char *window;               /* size * HK_C_SLOTS slots, then HK_C_SHARED */
    int size;
    hk_c_pair **pair;           /* by member; NULL: not opened */
    int readers[HK_C_SHARED];   /* of each shared slot, that have not said that they are done */
    uint32_t next_shared;
    hk_r_ours registered;
} hk_c_lane;

typedef struct hk_c_end {
    hk_channel base;
    hk_c_pair *pair;
} hk_c_end;

struct hk_c_pair {
    hk_c_end tx, rx;
    hk_c_lane *lane;
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

static inline const char *hk_c_from(const hk_c_pair *p, const hk_c_packet *k) {
    if (k->kind == HK_C_DIRECT) return (const char *)(uintptr_t)(p->registered.at[k->memory] + k->offset);
    return k->slot < HK_C_SLOTS ? p->theirs + k->slot * HK_C_SLOT_BYTES
                                : p->their_shared + (k->slot - HK_C_SLOTS) * HK_C_SLOT_BYTES;
}

/* The driver has refused something: the channel's last words. */
static inline int hk_c_refused(hk_c_end *e) {
    e->pair->ended = HK_FAULT;
    e->base.words = e->pair->lane->device->words;
    return HK_FAULT;
}

static inline int hk_c_wrong(hk_c_pair *p, const char *words) {
    p->ended = HK_FAULT;
    p->tx.base.words = p->rx.base.words = words;
    return HK_FAULT;
}

/* ------------------------------------------------------------------------------------------- packets */

/* There is always room: a slot has one packet under way at most, ours and the peer's, memory is offered once, in two, and
 * answered once, and there is one goodbye. */
static inline void hk_c_post(hk_c_pair *p, hk_c_packet k) { p->outbox[p->out_tail++ % HK_C_OUTBOX] = k; }

static inline void hk_c_flush(hk_c_pair *p) {
    while (p->out_head != p->out_tail && p->ended == 0) {
        const hk_c_packet *next = &p->outbox[p->out_head % HK_C_OUTBOX];
        const long n = p->out->ops->send(p->out, HK_C_TAG, sizeof *next, 0, next, sizeof *next);
        if (n == HK_AGAIN) return;
        if (n != (long)sizeof *next) {
            p->ended = n < 0 ? (int)n : HK_FAULT;
            p->tx.base.error = p->rx.base.error = p->out->error;
            p->tx.base.words = p->rx.base.words = p->out->words;
            return;
        }
        p->out_head++;
    }
}

/* What is said of registered memory. */
static inline void hk_c_hear_of_memory(hk_c_pair *p, const hk_c_packet *k) {
    hk_r_peer *r = &p->registered;
    if (k->memory >= HK_R_MOST || k->slot > 1 || (k->kind == HK_C_MEMORY && r->heard >> k->memory & 1)) {
        hk_c_wrong(p, "the peer names memory that there is not");
    } else if (k->kind == HK_C_MAPPED) {
        r->knows[k->memory] = k->slot ? HK_R_IS_MAPPED : HK_R_REFUSED;
    } else {
        const int mapped = hk_r_hear(r, p->lane->device, k->memory, k->slot, k);
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
        hk_c_wrong(p, "the peer names a slot that there is not");
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
        if (k->slot >= HK_C_SLOTS) p->lane->readers[k->slot - HK_C_SLOTS]--;
    }
}

/* Send what waits, hear what has come. */
static inline void hk_c_pump(hk_c_pair *p) {
    hk_view v;
    hk_c_packet k;
    hk_c_flush(p);
    while (p->ended == 0) {
        const int rc = p->in->ops->peek(p->in, &v, sizeof k);
        if (rc == HK_AGAIN) return;
        if (rc != 1) {
            p->ended = rc;
            p->tx.base.error = p->rx.base.error = p->in->error;
            p->tx.base.words = p->rx.base.words = p->in->words;
            return;
        }
        if (v.tag != HK_C_TAG || v.length != sizeof k) {
            hk_c_wrong(p, "the peer sends what the protocol does not allow");
            return;
        }
        if (v.avail < sizeof k) return;
        memcpy(&k, v.data, sizeof k);
        p->in->ops->consume(p->in, sizeof k, 1);
        hk_c_hear(p, &k);
    }
}

/* ------------------------------------------------------------------------------------------- writing */

/* Before a slot is written: is this reader's stream through with it, or does ours wait for that?  1, 0 not yet, or -1. */
static inline int hk_c_reclaim(hk_c_pair *p, void *stream, unsigned slot) {
    if (!(p->due >> slot & 1)) return 1;
    const int rc = hk_mark_await(&p->peer_done[slot], p->lane->device, stream);
    if (rc != 1) return rc;
    p->due &= ~(1u << slot);
    p->direct &= ~(1u << slot);
    return 1;
}

/* Has the peer mapped it?  If it has not heard of it, it does now. */
static inline int hk_c_can_read(hk_c_pair *p, int memory) {
    if (memory < 0) return 0;
    uint8_t *knows = &p->registered.knows[memory];
    if (*knows == HK_R_UNKNOWN) {
        const char *handle = p->lane->registered.memory[memory].handle.reserved;
        for (uint16_t half = 0; half < 2; half++) {
            hk_c_packet k = {.kind = HK_C_MEMORY, .memory = (uint32_t)memory, .slot = half};
            memcpy(&k, handle + half * HK_R_HALF, HK_R_HALF);
            hk_c_post(p, k);
        }
        *knows = HK_R_OFFERED;
        hk_c_flush(p);
    }
    return *knows == HK_R_IS_MAPPED;
}

/* The packet goes to the reader, who has its slot from now on. */
static inline void hk_c_hand_over(hk_c_pair *p, hk_c_packet k) {
    p->busy |= 1u << k.slot;
    if (k.bytes == 0) p->empty |= 1u << k.slot;
    hk_c_post(p, k);
    hk_c_flush(p);
}

/* Name a piece that lies in registered memory to its reader.  1, 0 not yet, or -1. */
static inline int hk_c_name(hk_c_pair *p, void *stream, uint64_t tag, uint64_t length, int memory, const void *src,
                            size_t len) {
    const unsigned slot = p->next % HK_C_SLOTS;
    const uint64_t offset = (CUdeviceptr)(uintptr_t)src - p->lane->registered.memory[memory].at;
    const int rc = hk_c_reclaim(p, stream, slot);
    if (rc != 1) return rc;
    if (hk_mark_set(&p->ready[slot], p->lane->device, stream) != 0) return -1;
    p->next++;
    p->direct |= 1u << slot;
    hk_c_hand_over(p, (hk_c_packet){tag, length, len, offset, (uint32_t)memory, HK_C_DIRECT, (uint16_t)slot});
    return 1;
}

/* Put a piece into the slot whose turn it is.  1, 0 not yet, or -1. */
static inline int hk_c_put(hk_c_pair *p, void *stream, uint64_t tag, uint64_t length, const void *src, size_t len) {
    hk_device *d = p->lane->device;
    const unsigned slot = p->next % HK_C_SLOTS;
    if (len) {
        const int rc = hk_c_reclaim(p, stream, slot);
        if (rc != 1) return rc;
        if (hk_device_copy(d, stream, p->slots + slot * HK_C_SLOT_BYTES, src, len) != 0) return -1;
        if (hk_mark_set(&p->ready[slot], d, stream) != 0) return -1;
    }
    p->next++;
    hk_c_hand_over(p, (hk_c_packet){tag, length, len, .kind = HK_C_PIECE, .slot = (uint16_t)slot});
    return 1;
}

static long hk_c_send(hk_channel *ch, uint64_t tag, uint64_t length, uint64_t done, const void *src, size_t len) {
    hk_c_end *e = (hk_c_end *)ch;
    hk_c_pair *p = e->pair;
    hk_device *d = p->lane->device;
    (void)done;
    hk_c_pump(p);
    if (p->ended) return p->ended;
    if (p->busy >> p->next % HK_C_SLOTS & 1) return HK_AGAIN;
    const int memory = hk_r_find(&p->lane->registered, src, len), direct = hk_c_can_read(p, memory);
    if (!direct && len > HK_C_SLOT_BYTES) len = HK_C_SLOT_BYTES;
    const int entered = hk_device_enter(d);
    int rc = -1;
    if (entered >= 0)
        rc = direct ? hk_c_name(p, ch->stream, tag, length, memory, src, len)
                    : hk_c_put(p, ch->stream, tag, length, src, len);
    hk_device_leave(d, entered);
    return rc == 1 ? (long)len : rc == 0 ? HK_AGAIN : hk_c_refused(e);
}

/* Stream order keeps the caller's memory until it has been copied; but what was taken must also be told of, and what is
 * read in place must have been read, in stream order too. */
static int hk_c_settled(hk_channel *ch) {
    hk_c_end *e = (hk_c_end *)ch;
    hk_c_pair *p = e->pair;
    hk_device *d = p->lane->device;
    int rc = 1;
    hk_c_pump(p);
    if (p->ended) return p->ended;
    if (p->out_head != p->out_tail || (p->direct & p->busy)) return 0;
    if (p->direct == 0) return 1;
    const int entered = hk_device_enter(d);
    for (unsigned slot = 0; slot < HK_C_SLOTS && rc == 1; slot++)
        if (p->direct >> slot & 1) rc = entered < 0 ? -1 : hk_c_reclaim(p, ch->stream, slot);
    hk_device_leave(d, entered);
    return rc < 0 ? hk_c_refused(e) : rc;
}

/* Can all these peers read this memory in place, and have they all a free slot?  1; or 0. */
static inline int hk_c_all_can_read(hk_channel *const *chs, int n, int memory) {
    int can = 1;
    for (int j = 0; j < n; j++) {
        hk_c_pair *p = ((hk_c_end *)chs[j])->pair;
        can &= hk_c_can_read(p, memory) && !(p->busy >> p->next % HK_C_SLOTS & 1);
    }
    return can;
}

/* 1, 0 not yet: then nothing was named, or -1. */
static inline int hk_c_name_to_all(hk_channel *const *chs, int n, void *stream, uint64_t tag, uint64_t length,
                                   int memory, const void *src, size_t len) {
    int rc = 1;
    for (int j = 0; j < n && rc == 1; j++) {
        hk_c_pair *p = ((hk_c_end *)chs[j])->pair;
        rc = hk_c_reclaim(p, stream, p->next % HK_C_SLOTS);
    }
    for (int j = 0; j < n && rc == 1; j++)
        rc = hk_c_name(((hk_c_end *)chs[j])->pair, stream, tag, length, memory, src, len);
    return rc;
}

/* Put a piece into the lane's shared slot whose turn it is, for these readers.  1, 0 not yet, or -1. */
static inline int hk_c_put_for_all(hk_c_lane *lane, hk_channel *const *chs, int n, void *stream, uint64_t tag,
                                   uint64_t length, const void *src, size_t len) {
    hk_device *d = lane->device;
    const unsigned i = lane->next_shared % HK_C_SHARED, slot = HK_C_SLOTS + i;
    int rc = 1;
    if (len) {
        for (int j = 0; j < lane->size && rc == 1; j++)
            if (lane->pair[j]) rc = hk_c_reclaim(lane->pair[j], stream, slot);
        if (rc != 1) return rc;
        char *to = lane->window + ((size_t)lane->size * HK_C_SLOTS + i) * HK_C_SLOT_BYTES;
        if (hk_device_copy(d, stream, to, src, len) != 0) return -1;
        for (int j = 0; j < n; j++) {
            hk_mark *ready = &((hk_c_end *)chs[j])->pair->ready[slot];
            if ((j == 0 || ready->word) && hk_mark_set(ready, d, stream) != 0) return -1; /* an event is all readers' */
        }
    }
    lane->next_shared++;
    lane->readers[i] = n;
    for (int j = 0; j < n; j++)
        hk_c_hand_over(((hk_c_end *)chs[j])->pair,
                       (hk_c_packet){tag, length, len, .kind = HK_C_PIECE, .slot = (uint16_t)slot});
    return 1;
}

/* Has everybody who was named the shared slot said that it is done? */
static inline int hk_c_is_free(hk_c_lane *lane) {
    const unsigned i = lane->next_shared % HK_C_SHARED;
    for (int j = 0; j < lane->size && lane->readers[i]; j++) /* perhaps one who is not asked now: hear it */
        if (lane->pair[j] && lane->pair[j]->busy >> (HK_C_SLOTS + i) & 1) hk_c_pump(lane->pair[j]);
    return lane->readers[i] == 0;
}

static long hk_c_multicast(hk_channel *const *chs, int n, uint64_t tag, uint64_t length, uint64_t done, const void *src,
                           size_t len) {
    hk_c_end *e = (hk_c_end *)chs[0];
    hk_c_lane *lane = e->pair->lane;
    hk_device *d = lane->device;
    void *stream = chs[0]->stream;
    (void)done;
    for (int j = 0; j < n; j++) {
        hk_c_pump(((hk_c_end *)chs[j])->pair);
        if (((hk_c_end *)chs[j])->pair->ended) return ((hk_c_end *)chs[j])->pair->ended;
    }
    const int memory = hk_r_find(&lane->registered, src, len), direct = hk_c_all_can_read(chs, n, memory);
    if (!direct && !hk_c_is_free(lane)) return HK_AGAIN;
    if (!direct && len > HK_C_SLOT_BYTES) len = HK_C_SLOT_BYTES;
    const int entered = hk_device_enter(d);
    int rc = -1;
    if (entered >= 0)
        rc = direct ? hk_c_name_to_all(chs, n, stream, tag, length, memory, src, len)
                    : hk_c_put_for_all(lane, chs, n, stream, tag, length, src, len);
    hk_device_leave(d, entered);
    return rc == 1 ? (long)len : rc == 0 ? HK_AGAIN : hk_c_refused(e);
}

/* ------------------------------------------------------------------------------------------- reading */

/* 1: the piece in front belongs to the open message; or HK_AGAIN, HK_LOST, HK_FAULT. */
static inline int hk_c_front(hk_c_pair *p) {
    hk_c_pump(p);
    if (p->came == p->first) return p->ended ? p->ended : HK_AGAIN;
    const hk_c_packet *k = &p->piece[p->first % HK_C_ALL];
    if (!p->open) {
        p->open = 1;
        p->tag = k->tag;
        p->length = p->left = k->length;
    }
    if (k->tag != p->tag || k->length != p->length || k->bytes - p->taken > p->left)
        return hk_c_wrong(p, "a message begins in the middle of another, or is too long");
    return 1;
}

/* The piece in front is there, or the stream waits for it.  1, 0 not yet, or -1. */
static inline int hk_c_await(hk_c_pair *p, void *stream) {
    hk_device *d = p->lane->device;
    if (p->awaited) return 1;
    const int entered = hk_device_enter(d);
    const int rc = entered < 0 ? -1 : hk_mark_await(&p->peer_ready[p->piece[p->first % HK_C_ALL].slot], d, stream);
    hk_device_leave(d, entered);
    p->awaited = rc == 1;
    return rc;
}

/* `n` bytes of the piece in front have been used: at its end the slot is given back. */
static inline int hk_c_use(hk_c_pair *p, void *stream, size_t n) {
    hk_device *d = p->lane->device;
    const hk_c_packet *k = &p->piece[p->first % HK_C_ALL];
    int rc = 0;
    p->taken += n;
    p->left -= n;
    if (p->taken < k->bytes) return 0;
    if (k->bytes) {
        const int entered = hk_device_enter(d);
        rc = entered < 0 ? -1 : hk_mark_set(&p->done[k->slot], d, stream);
        hk_device_leave(d, entered);
    }
    if (rc == 0) hk_c_post(p, (hk_c_packet){.kind = HK_C_DONE, .slot = k->slot});
    p->first++;
    p->taken = 0;
    p->awaited = 0;
    hk_c_flush(p);
    return rc;
}

static int hk_c_peek(hk_channel *ch, hk_view *v, size_t want) {
    hk_c_end *e = (hk_c_end *)ch;
    hk_c_pair *p = e->pair;
    int rc = hk_c_front(p);
    if (rc != 1) return rc;
    const hk_c_packet *k = &p->piece[p->first % HK_C_ALL];
    if (want && k->bytes && (rc = hk_c_await(p, ch->stream)) != 1) return rc == 0 ? HK_AGAIN : hk_c_refused(e);
    v->tag = p->tag;
    v->length = p->length;
    v->data = hk_c_from(p, k) + p->taken;
    v->avail = k->bytes - p->taken;
    return 1;
}

static void hk_c_consume(hk_channel *ch, size_t len, int end) {
    hk_c_end *e = (hk_c_end *)ch;
    if ((len || e->pair->length == 0) && hk_c_use(e->pair, ch->stream, len) != 0) hk_c_refused(e);
    if (end) e->pair->open = 0;
}

static long hk_c_recv(hk_channel *ch, void *dst, size_t len) {
    hk_c_end *e = (hk_c_end *)ch;
    hk_c_pair *p = e->pair;
    hk_device *d = p->lane->device;
    int rc = hk_c_front(p);
    if (rc != 1) return rc;
    const hk_c_packet *k = &p->piece[p->first % HK_C_ALL];
    if (len > k->bytes - p->taken) len = k->bytes - p->taken;
    if ((rc = hk_c_await(p, ch->stream)) != 1) return rc == 0 ? HK_AGAIN : hk_c_refused(e);
    const int entered = hk_device_enter(d);
    rc = entered < 0 ? -1 : hk_device_copy(d, ch->stream, dst, hk_c_from(p, k) + p->taken, len);
    hk_device_leave(d, entered);
    if (rc != 0 || hk_c_use(p, ch->stream, len) != 0) return hk_c_refused(e);
    return (long)len;
}

static const hk_channel_ops hk_c_tx_ops = {.send = hk_c_send, .settled = hk_c_settled, .multicast = hk_c_multicast};
static const hk_channel_ops hk_c_rx_ops = {.peek = hk_c_peek, .consume = hk_c_consume, .recv = hk_c_recv};

/* Nothing more will come of this peer: let our streams go on that wait for it, in `stream`, which is none of them.  0 or
 * -1.  A peer that is alive sets its marks still, so this may have to be said again. */
static inline int hk_c_release(hk_c_pair *p, void *stream) {
    int rc = 0;
    for (int i = 0; i < HK_C_ALL && rc == 0; i++) {
        rc = hk_mark_release(&p->peer_ready[i], p->lane->device, stream);
        if (rc == 0) rc = hk_mark_release(&p->peer_done[i], p->lane->device, stream);
    }
    return rc;
}

/* Put the two ends on their host channels; their waiting is that of these. */
static inline void hk_c_open(hk_c_pair *p, hk_c_lane *lane, int peer, hk_channel *out, hk_channel *in) {
    p->lane = lane;
    p->out = out;
    p->in = in;
    p->slots = lane->window + (size_t)peer * HK_C_SLOTS * HK_C_SLOT_BYTES;
    p->tx.pair = p->rx.pair = p;
    p->tx.base = (hk_channel){.ops = &hk_c_tx_ops, .fd = in->fd, .events = in->fd < 0 ? 0 : 1 /* POLLIN */, .bell = in->bell};
    p->rx.base = (hk_channel){.ops = &hk_c_rx_ops, .fd = in->fd, .bell = in->bell};
    lane->pair[peer] = p;
}

#endif
