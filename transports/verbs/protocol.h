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
 * One thread at a time uses a channel.  hk_pins is shared between channels and has a lock. */
#ifndef HK_VERBS_H
#define HK_VERBS_H

#include <arpa/inet.h>
#include <fcntl.h>
#include <stdlib.h>

#include "system/atomics.h"
#include "transports/channel.h"
#include "transports/verbs/ibverbs.h"
#include "system/wait.h"

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

/* ------------------------------------------------------------------------------- registered memory */

typedef struct hk_pin {
    struct ibv_mr *mr; /* NULL: a free entry */
    char *at;
    size_t len;
    int uses;
    uint64_t age;
} hk_pin;

/* The caller's arrays that are registered: as long as they live (rdma.pyx takes care), or until others need the room. */
typedef struct hk_pins {
    pthread_mutex_t lock;
    hk_pin pin[HK_V_PINS];
    uint64_t clock;
} hk_pins;

/* The entry that holds these bytes, in use from now on; NULL: they are not registered. */
static inline hk_pin *hk_pins_use(hk_pins *p, const char *at, size_t len) {
    hk_pin *found = NULL;
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < HK_V_PINS && found == NULL; i++) {
        hk_pin *e = &p->pin[i];
        if (e->mr && at >= e->at && len <= e->len && (size_t)(at - e->at) <= e->len - len) found = e;
    }
    if (found) {
        found->uses++;
        found->age = ++p->clock;
    }
    pthread_mutex_unlock(&p->lock);
    return found;
}

/* Take the registration out of the cache, if nobody uses it (or `anyway`: its memory goes): to deregister it. */
static inline struct ibv_mr *hk_pins_take(hk_pins *p, int i, int anyway) {
    struct ibv_mr *mr = NULL;
    pthread_mutex_lock(&p->lock);
    if (p->pin[i].uses == 0 || anyway) {
        mr = p->pin[i].mr;
        p->pin[i].mr = NULL;
    }
    pthread_mutex_unlock(&p->lock);
    return mr;
}

static inline void hk_pins_end_use(hk_pins *p, hk_pin *e) {
    pthread_mutex_lock(&p->lock);
    e->uses--;
    pthread_mutex_unlock(&p->lock);
}

/* ------------------------------------------------------------- one end: queue pairs, and what completes on them */

typedef struct hk_v_end {
    const hk_ibv *v;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_comp_channel *events;
    struct ibv_qp *qp[HK_V_QPS];
    int nqp;
    uint32_t max_inline;
    uint32_t sends[HK_V_QPS];      /* work requests posted ... */
    uint32_t sends_done[HK_V_QPS]; /* ... and known to be over: they end in order */
    uint32_t vain;                 /* looks that found nothing */
    int armed;                     /* an event will come with the next completion */
    int events_due;                /* events that were asked for and not yet taken */
    int status;                    /* of the completion that broke this end */
    uint32_t gone;                 /* the peer's process has ended (set by another thread) ... */
    uint32_t lost;                 /* ... before the last look, which has seen all that came before */
    int bye;                       /* the peer has ended in order */
    int ended;                     /* this side has let go */
    uint64_t asked;                /* when, whether the peer's device is there, by ... */
    uint32_t question;             /* ... this request */
} hk_v_end;

typedef void (*hk_v_take)(void *, const struct ibv_wc *);

static inline void hk_v_completed(hk_v_end *e, const struct ibv_wc *wc, hk_v_take take, void *who) {
    e->vain = 0;
    e->armed = 0;
    if (wc->status != 0 && (e->status == 0 || e->status == HK_V_FLUSHED)) e->status = wc->status;
    if (!(wc->wr_id & HK_V_IS_RECV)) {
        e->sends_done[wc->wr_id >> 32] = (uint32_t)wc->wr_id; /* over, even if it failed: no opcode is known then */
    } else if (wc->status == 0) {
        take(who, wc);
    }
}

/* Take what has completed.  After many vain looks an event is asked for, as the waiter will soon sleep. */
static inline void hk_v_poll(hk_v_end *e, hk_v_take take, void *who) {
    struct ibv_wc wc[16];
    struct ibv_cq *cq;
    void *context;
    int n;
    if (e->ended) return;
    e->lost = hk_load32(&e->gone);
    for (;;) {
        n = e->cq->context->ops.poll_cq(e->cq, 16, wc);
        if (n < 0) e->status = HK_V_OVERRUN;
        if (n > 0)
            for (int i = 0; i < n; i++) hk_v_completed(e, &wc[i], take, who);
        if (n == 16) continue;
        if (n != 0 || ++e->vain < HK_V_ARM_AFTER) return;
        while (e->events_due > 0 && e->v->ibv_get_cq_event(e->events, &cq, &context) == 0) {
            e->v->ibv_ack_cq_events(cq, 1);
            e->events_due--;
        }
        if (e->armed || e->cq->context->ops.req_notify_cq(e->cq, 0) != 0) return;
        e->armed = 1;
        e->events_due++; /* and look again: what came before the request makes no event */
    }
}

/* Room for one more work request on this queue pair? */
static inline int hk_v_has_room(const hk_v_end *e, int qp) {
    return e->sends[qp] - e->sends_done[qp] < (qp ? HK_V_MORE_SENDS : HK_V_SENDS) - HK_V_SIGNAL;
}

static inline int hk_v_post(hk_v_end *e, int qp, struct ibv_send_wr *wr, int report) {
    struct ibv_send_wr *bad;
    const uint32_t n = e->sends[qp] + 1;
    wr->wr_id = (uint64_t)qp << 32 | n;
    if (report || n % HK_V_SIGNAL == 0) wr->send_flags |= IBV_SEND_SIGNALED;
    const int rc = e->qp[qp]->context->ops.post_send(e->qp[qp], wr, &bad);
    if (rc == 0) {
        e->sends[qp] = n;
    } else if (e->status == 0) {
        e->status = HK_V_REFUSED;
    }
    return rc;
}

static inline int hk_v_is_over(const hk_v_end *e, int qp, uint32_t n) { return (int32_t)(e->sends_done[qp] - n) >= 0; }

/* Why nothing more will come of this end: HK_LOST or HK_FAULT; or HK_AGAIN, there is no reason. */
static inline int hk_v_verdict(hk_v_end *e, hk_channel *ch) {
    const int status = e->status;
    if (status == 0 && !e->ended && !e->bye && !e->lost) return HK_AGAIN;
    ch->error = status ? EIO : 0;
    ch->words = status == 0                ? NULL
                : status == HK_V_REFUSED ? "the device refused a work request"
                : status == HK_V_SILENT  ? "the peer's device has acknowledged nothing for 10 s"
                                         : e->v->ibv_wc_status_str(status);
    const int lost =
        status == 0 || status == HK_V_SILENT || status == HK_V_FLUSHED || status == HK_V_RETRY || status == HK_V_RNR || status == HK_V_ABORTED;
    return lost ? HK_LOST : HK_FAULT;
}

/* No peer reaches this side's memory over these queue pairs any more. */
static inline void hk_v_stop(hk_v_end *e) {
    struct ibv_qp_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.qp_state = IBV_QPS_ERR;
    for (int i = 0; i < e->nqp; i++) e->v->ibv_modify_qp(e->qp[i], &attr, IBV_QP_STATE);
    e->ended = 1;
}

/* The last thing that this end says is posted: wait, a second at most, until the peer has it, as then the queue pairs may
 * go.  1 if it has. */
static inline int hk_v_drain(hk_v_end *e) {
    struct ibv_wc wc[16];
    for (const uint64_t until = hk_now() + HK_V_CANCEL_NS; !hk_v_is_over(e, 0, e->sends[0]) && hk_now() < until;) {
        const int n = e->cq->context->ops.poll_cq(e->cq, 16, wc);
        for (int i = 0; i < n; i++) {
            if (wc[i].status) e->status = wc[i].status;
            if (!(wc[i].wr_id & HK_V_IS_RECV)) e->sends_done[wc[i].wr_id >> 32] = (uint32_t)wc[i].wr_id;
        }
        if (hk_load32(&e->gone)) return 0; /* it was faster */
    }
    return e->status == 0 && hk_v_is_over(e, 0, e->sends[0]);
}

/* ------------------------------------------------------------------------------------------------ the writer */

typedef struct hk_v_offer {
    enum { HK_V_FREE, HK_V_MADE, HK_V_WRITING } state;
    hk_pin *pin;
    const char *at;
    size_t len;
    uint32_t lkey;
    int qp;           /* that it is written by */
    uint32_t request; /* ... which */
} hk_v_offer;

typedef struct hk_v_writer {
    hk_channel base;
    hk_v_end end;
    hk_pins *pins;
    char *ring; /* the copy, and behind it the reader's words */
    uint32_t lkey, rkey;
    uint64_t remote;
    uint64_t head, freed;       /* bytes of the ring ever used, and given back */
    uint32_t packets, finished; /* counted */
    uint64_t until[HK_V_DEPTH]; /* head after each packet under way */
    hk_v_offer offer[HK_V_OFFERS];
    int offers;                 /* not free */
} hk_v_writer;
#define HK_V_WRITER_BYTES (HK_V_RING + HK_V_WORDS * sizeof(hk_v_word))

static inline hk_v_word *hk_v_word_at(hk_v_writer *w, uint32_t i) {
    return (hk_v_word *)(void *)(w->ring + HK_V_RING) + i;
}

static inline int hk_v_writer_post_recv(hk_v_writer *w, uint32_t i) {
    struct ibv_sge part = {(uint64_t)(uintptr_t)hk_v_word_at(w, i), sizeof(hk_v_word), w->lkey};
    struct ibv_recv_wr wr = {.wr_id = HK_V_IS_RECV | i, .sg_list = &part, .num_sge = 1}, *bad;
    return w->end.qp[0]->context->ops.post_recv(w->end.qp[0], &wr, &bad);
}

/* The reader has said something.  It is another process's word: nothing in it is believed. */
static void hk_v_hear(void *who, const struct ibv_wc *wc) {
    hk_v_writer *w = (hk_v_writer *)who;
    hk_v_end *e = &w->end;
    const uint32_t i = (uint32_t)wc->wr_id;
    hk_v_word word;
    memcpy(&word, hk_v_word_at(w, i), sizeof word);
    if (wc->byte_len != sizeof word) {
        e->status = HK_V_BAD;
        return;
    }
    hk_v_writer_post_recv(w, i);
    if (word.finished == HK_V_BYE) {
        e->bye = 1;
        return;
    }
    const uint32_t n = (word.finished - w->finished) & HK_V_COUNT;
    if (n > w->packets - w->finished) {
        e->status = HK_V_BAD;
        return;
    }
    w->finished += n;
    if (n) w->freed = w->until[(w->finished - 1) % HK_V_DEPTH];
    if (word.invited == HK_V_NOBODY) return;
    hk_v_offer *o = &w->offer[word.invited % HK_V_OFFERS];
    if (o->state != HK_V_MADE || word.qp - 1 >= (uint32_t)e->nqp - 1 || !hk_v_has_room(e, (int)word.qp)) {
        e->status = HK_V_BAD;
        return;
    }
    struct ibv_sge part = {(uint64_t)(uintptr_t)o->at, (uint32_t)o->len, o->lkey};
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .sg_list = &part, .num_sge = 1};
    wr.imm_data = htonl(HK_V_PIECE_CAME | (word.invited % HK_V_OFFERS));
    wr.wr.rdma.remote_addr = word.place;
    wr.wr.rdma.rkey = word.rkey;
    if (hk_v_post(e, (int)word.qp, &wr, 1) != 0) return; /* the verdict says why */
    o->qp = (int)word.qp;
    o->request = e->sends[o->qp];
    o->state = HK_V_WRITING;
}

static inline void hk_v_writer_poll(hk_v_writer *w) {
    hk_v_poll(&w->end, hk_v_hear, w);
    for (int i = 0; w->offers && i < HK_V_OFFERS; i++) {
        hk_v_offer *o = &w->offer[i];
        if (o->state == HK_V_WRITING && hk_v_is_over(&w->end, o->qp, o->request)) {
            hk_pins_end_use(w->pins, o->pin);
            o->state = HK_V_FREE;
            w->offers--;
        }
    }
}

/* After a long wait: is the peer's device there?  A write of nothing is acknowledged whatever the peer's process does, and
 * needs no receive.  A device ends a request that nobody acknowledges, but cannot be trusted to: Soft-RoCE may try for
 * ever to send over a link that has gone down. */
static inline void hk_v_ask(hk_v_writer *w) {
    hk_v_end *e = &w->end;
    if (e->vain < HK_V_ARM_AFTER || e->status || e->ended || e->nqp == 0) return;
    const uint64_t now = hk_now();
    if (e->asked && !hk_v_is_over(e, 0, e->question)) {
        if (now - e->asked > HK_V_SILENT_NS) e->status = HK_V_SILENT;
        return;
    }
    if (e->asked && now - e->asked < HK_V_ASK_NS) return;
    e->asked = now;
    if (hk_v_has_room(e, 0)) {
        struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE};
        wr.wr.rdma.remote_addr = w->remote;
        wr.wr.rdma.rkey = w->rkey;
        hk_v_post(e, 0, &wr, 1);
        e->question = e->sends[0];
    } else {
        e->question = e->sends_done[0] + 1; /* any end will do */
    }
}

/* Put a packet into the ring: 0, or HK_AGAIN. */
static inline int hk_v_put(hk_v_writer *w, const hk_v_head *head, const void *payload, size_t len) {
    hk_v_end *e = &w->end;
    const size_t need = (sizeof *head + len + HK_V_ALIGN - 1) & ~(size_t)(HK_V_ALIGN - 1);
    size_t at = (size_t)(w->head % HK_V_RING), skip = at + need > HK_V_RING ? HK_V_RING - at : 0;
    if (w->packets - w->finished >= HK_V_DEPTH || w->head + skip + need - w->freed > HK_V_RING) return HK_AGAIN;
    if (!hk_v_has_room(e, 0)) return HK_AGAIN;
    if (skip) at = 0;
    memcpy(w->ring + at, head, sizeof *head);
    if (len) memcpy(w->ring + at + sizeof *head, payload, len);
    struct ibv_sge part = {(uint64_t)(uintptr_t)(w->ring + at), (uint32_t)(sizeof *head + len), w->lkey};
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .sg_list = &part, .num_sge = 1};
    wr.imm_data = htonl((uint32_t)(at / HK_V_ALIGN));
    wr.wr.rdma.remote_addr = w->remote + at;
    wr.wr.rdma.rkey = w->rkey;
    if (part.length <= e->max_inline) wr.send_flags = IBV_SEND_INLINE;
    if (hk_v_post(e, 0, &wr, 0) != 0) return HK_AGAIN;
    w->head += skip + need;
    w->until[w->packets % HK_V_DEPTH] = w->head;
    w->packets++;
    return 0;
}

/* Offer a piece, instead of copying it: its bytes, or HK_AGAIN; 0 if it must be copied. */
static inline long hk_v_make_offer(hk_v_writer *w, hk_v_head *head, const char *at, size_t len) {
    int i = 0;
    while (i < HK_V_OFFERS && w->offer[i].state != HK_V_FREE) i++;
    if (i == HK_V_OFFERS) return HK_AGAIN;
    if (len > HK_V_PIECE) len = HK_V_PIECE;
    hk_pin *pin = hk_pins_use(w->pins, at, len);
    if (pin == NULL) return 0;
    const uint32_t lkey = pin->mr->lkey;
    head->len = (uint32_t)len | HK_V_OFFER;
    head->offer = (uint32_t)i;
    if (hk_v_put(w, head, NULL, 0) != 0) {
        hk_pins_end_use(w->pins, pin);
        return HK_AGAIN;
    }
    w->offer[i] = (hk_v_offer){HK_V_MADE, pin, at, len, lkey, 0, 0};
    w->offers++;
    return (long)len;
}

static long hk_v_send(hk_channel *ch, uint64_t tag, uint64_t length, uint64_t done, const void *src, size_t len) {
    hk_v_writer *w = (hk_v_writer *)ch;
    hk_v_head head = {tag, length, 0, 0, 0};
    (void)done;
    hk_v_writer_poll(w);
    hk_v_ask(w);
    const int rc = hk_v_verdict(&w->end, ch);
    if (rc != HK_AGAIN) return rc;
    if (len >= HK_V_OFFER_MIN) {
        const long n = hk_v_make_offer(w, &head, (const char *)src, len);
        if (n != 0) return n;
    }
    if (len > HK_V_PACKET) len = HK_V_PACKET;
    head.len = (uint32_t)len;
    return hk_v_put(w, &head, src, len) == 0 ? (long)len : HK_AGAIN;
}

static int hk_v_settled(hk_channel *ch) {
    hk_v_writer *w = (hk_v_writer *)ch;
    if (w->offers == 0) return 1;
    hk_v_writer_poll(w);
    if (w->offers == 0 && w->end.status == 0) return 1;
    hk_v_ask(w);
    const int rc = hk_v_verdict(&w->end, ch);
    return rc == HK_AGAIN ? 0 : rc;
}

static void hk_v_writer_forget(hk_channel *ch) {
    hk_v_writer *w = (hk_v_writer *)ch;
    if (w->end.nqp == 0 || w->end.ended) return;
    hk_v_stop(&w->end);
    /* What was being written is cancelled, or has been: each request says which. */
    for (const uint64_t until = hk_now() + HK_V_CANCEL_NS; w->offers && hk_now() < until;) {
        struct ibv_wc wc[16];
        const int n = w->end.cq->context->ops.poll_cq(w->end.cq, 16, wc);
        for (int i = 0; i < n; i++)
            if (!(wc[i].wr_id & HK_V_IS_RECV)) w->end.sends_done[wc[i].wr_id >> 32] = (uint32_t)wc[i].wr_id;
        for (int i = 0; i < HK_V_OFFERS; i++) {
            hk_v_offer *o = &w->offer[i];
            if (o->state == HK_V_FREE || (o->state == HK_V_WRITING && !hk_v_is_over(&w->end, o->qp, o->request))) continue;
            hk_pins_end_use(w->pins, o->pin);
            o->state = HK_V_FREE;
            w->offers--;
        }
    }
}

/* Say goodbye behind all that was sent: did it arrive? */
static inline int hk_v_writer_goodbye(hk_v_writer *w) {
    struct ibv_send_wr wr = {.opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl(HK_V_BYE)};
    hk_v_poll(&w->end, hk_v_hear, w);
    if (w->end.status || hk_load32(&w->end.gone) || w->end.bye || hk_v_post(&w->end, 0, &wr, 1) != 0) return 0;
    return hk_v_drain(&w->end);
}

/* ------------------------------------------------------------------------------------------------ the reader */

static inline struct ibv_mw *hk_v_alloc_window(struct ibv_pd *pd) {
    return pd->context->ops.alloc_mw(pd, IBV_MW_TYPE_2);
}
static inline void hk_v_free_window(struct ibv_mw *window) { window->context->ops.dealloc_mw(window); }

typedef struct hk_v_packet { /* that has come and is not finished */
    hk_v_head head;
    const char *data; /* NULL: offered, and not yet invited */
    enum { HK_V_HERE, HK_V_OFFERED, HK_V_OPENING, HK_V_INVITED, HK_V_CLOSING } state;
    hk_pin *pin;      /* of the caller's memory that it comes to; NULL: it comes to the stage */
    struct ibv_mr *mr; /* ... opened by a registration of just these bytes, or */
    int window;       /* ... by this window, or -1 */
    int qp;
    uint32_t request; /* that opens or closes it */
} hk_v_packet;

typedef struct hk_v_reader {
    hk_channel base;
    hk_v_end end;
    hk_pins *pins;
    char *ring;
    /* To the same peer, or NULL: what it sent may be lost while we wait for the answer.  It is of the same lane, so no
     * other thread uses it meanwhile. */
    hk_v_writer *beside;
    char *stage; /* HK_V_STAGES of HK_V_PIECE, made when first needed */
    struct ibv_mr *stage_mr;
    struct ibv_mw *window[HK_V_OFFERS]; /* NULL: the device has none */
    uint32_t windows_used;             /* bits */
    uint32_t arrived, finished, told;  /* packets */
    uint64_t bytes_finished;           /* since room was given back */
    size_t taken;                      /* bytes of the packet in front */
    int open;                          /* a message is under way ... */
    uint64_t tag, length, done;        /* ... this one, with so many bytes taken */
    uint32_t pieces;                   /* invited */
    hk_v_packet packet[HK_V_DEPTH];
    uint32_t offered[HK_V_OFFERS];      /* which packet an offer is */
} hk_v_reader;

static inline hk_v_packet *hk_v_at(hk_v_reader *r, uint32_t n) { return &r->packet[n % HK_V_DEPTH]; }
static inline size_t hk_v_len(const hk_v_packet *p) { return p->head.len & ~(uint32_t)HK_V_OFFER; }

/* The queue pair of the next piece. */
static inline int hk_v_turn(const hk_v_reader *r) { return 1 + (int)(r->pieces % (uint32_t)(r->end.nqp - 1)); }

static inline int hk_v_reader_post_recv(hk_v_end *e, int qp) {
    struct ibv_recv_wr wr = {.wr_id = HK_V_IS_RECV}, *bad;
    return e->qp[qp]->context->ops.post_recv(e->qp[qp], &wr, &bad);
}

static inline void hk_v_say(hk_v_reader *r, uint32_t offer, uint32_t rkey, int qp, const void *place) {
    hk_v_word word = {r->finished & HK_V_COUNT, offer, rkey, (uint32_t)qp, (uint64_t)(uintptr_t)place};
    struct ibv_sge part = {(uint64_t)(uintptr_t)&word, sizeof word, 0};
    struct ibv_send_wr wr = {.opcode = IBV_WR_SEND, .sg_list = &part, .num_sge = 1, .send_flags = IBV_SEND_INLINE};
    if (hk_v_post(&r->end, 0, &wr, 0) != 0) return;
    r->told = r->finished;
    r->bytes_finished = 0;
}

/* The piece is whole: close its place, if it is the caller's. */
static inline void hk_v_close_place(hk_v_reader *r, hk_v_packet *p) {
    p->state = HK_V_HERE;
    if (p->window >= 0) {
        struct ibv_send_wr wr = {.opcode = IBV_WR_LOCAL_INV, .imm_data = r->window[p->window]->rkey /* the key */};
        if (hk_v_post(&r->end, p->qp, &wr, 1) != 0) return;
        p->request = r->end.sends[p->qp];
        p->state = HK_V_CLOSING;
    } else if (p->mr) {
        r->end.v->ibv_dereg_mr(p->mr);
        p->mr = NULL;
    }
}

/* Something has come.  It is another process's word: nothing in it is believed. */
static void hk_v_arrive(void *who, const struct ibv_wc *wc) {
    hk_v_reader *r = (hk_v_reader *)who;
    hk_v_end *e = &r->end;
    const uint32_t word = ntohl(wc->imm_data);
    if (word == HK_V_BYE) {
        e->bye = 1;
        return;
    }
    if (word & HK_V_PIECE_CAME) {
        const uint32_t n = r->offered[word % HK_V_OFFERS];
        hk_v_packet *p = hk_v_at(r, n);
        if (n - r->finished >= r->arrived - r->finished || p->state != HK_V_INVITED || wc->byte_len != hk_v_len(p)) {
            e->status = HK_V_BAD;
            return;
        }
        hk_v_reader_post_recv(e, p->qp);
        hk_v_close_place(r, p);
        return;
    }
    const size_t offset = (size_t)word * HK_V_ALIGN;
    hk_v_packet *p = hk_v_at(r, r->arrived);
    if (r->arrived - r->finished >= HK_V_DEPTH || word >= HK_V_RING / HK_V_ALIGN) {
        e->status = HK_V_BAD;
        return;
    }
    memset(p, 0, sizeof *p);
    memcpy(&p->head, r->ring + offset, sizeof p->head);
    p->window = -1;
    const size_t len = hk_v_len(p);
    if (p->head.len & HK_V_OFFER) {
        if (len == 0 || len > HK_V_PIECE || p->head.offer >= HK_V_OFFERS) e->status = HK_V_BAD;
        p->state = HK_V_OFFERED;
        r->offered[p->head.offer % HK_V_OFFERS] = r->arrived;
    } else {
        if (len > HK_V_PACKET || offset + sizeof p->head + len > HK_V_RING) e->status = HK_V_BAD;
        p->data = r->ring + offset + sizeof p->head;
    }
    if (len > p->head.length || (len == 0 && p->head.length)) e->status = HK_V_BAD;
    if (e->status != HK_V_BAD) r->arrived++;
}

static inline int hk_v_reader_failed(hk_v_reader *r, int error, const char *words) {
    r->base.error = error;
    r->base.words = words;
    return HK_FAULT;
}

/* Nothing comes: did what we sent get lost? */
static inline int hk_v_nothing(hk_v_reader *r, int rc) {
    if (r->beside == NULL || r->beside->end.ended) return rc;
    hk_v_writer_poll(r->beside);
    hk_v_ask(r->beside);
    return r->beside->end.status ? hk_v_verdict(&r->beside->end, &r->base) : rc;
}

/* The packet in front, of the message that is open: 1, or HK_AGAIN, HK_LOST, HK_FAULT. */
static inline int hk_v_front(hk_v_reader *r) {
    if (r->end.ended) return hk_v_verdict(&r->end, &r->base);
    if (!hk_load32((uint32_t *)&r->end.nqp)) return hk_v_nothing(r, HK_AGAIN); /* the writer has not come yet */
    hk_v_poll(&r->end, hk_v_arrive, r);
    if (r->arrived == r->finished) {
        const int rc = hk_v_verdict(&r->end, &r->base);
        return rc != HK_AGAIN || r->end.vain < HK_V_ARM_AFTER ? rc : hk_v_nothing(r, rc);
    }
    const hk_v_packet *p = hk_v_at(r, r->finished);
    const hk_v_head *head = &p->head;
    if (!r->open) {
        r->open = 1;
        r->tag = head->tag;
        r->length = head->length;
        r->done = 0;
    } else if (head->tag != r->tag || head->length != r->length) {
        return hk_v_reader_failed(r, EPROTO, "a message begins in the middle of another");
    }
    if (hk_v_len(p) - r->taken > r->length - r->done)
        return hk_v_reader_failed(r, EPROTO, "a packet is longer than its message");
    return 1;
}

/* Invite the writer to the caller's memory: 0, or -1 if it cannot be registered or opened now. */
static inline int hk_v_open_place(hk_v_reader *r, hk_v_packet *p, char *to) {
    hk_v_end *e = &r->end;
    const size_t len = hk_v_len(p);
    int i = 0;
    while (i < HK_V_OFFERS && r->windows_used >> i & 1) i++;
    if (i == HK_V_OFFERS || !hk_v_has_room(e, hk_v_turn(r))) return -1;
    p->pin = hk_pins_use(r->pins, to, len);
    if (p->pin == NULL) return -1;
    p->qp = hk_v_turn(r);
    if (r->window[i] == NULL) {
        p->mr = e->v->ibv_reg_mr(e->pd, to, len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
        if (p->mr != NULL) hk_v_say(r, p->head.offer, p->mr->rkey, p->qp, to);
        p->state = HK_V_INVITED;
    } else {
        struct ibv_mw *window = r->window[i];
        struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW};
        wr.bind_mw.mw = window;
        wr.bind_mw.rkey = (window->rkey & ~0xffu) | ((window->rkey + 1) & 0xff); /* no key is used twice in a row */
        wr.bind_mw.bind_info.mr = p->pin->mr;
        wr.bind_mw.bind_info.addr = (uint64_t)(uintptr_t)to;
        wr.bind_mw.bind_info.length = len;
        wr.bind_mw.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_WRITE;
        if (hk_v_post(e, p->qp, &wr, 1) == 0) {
            window->rkey = wr.bind_mw.rkey;
            p->window = i;
            p->request = e->sends[p->qp];
            p->state = HK_V_OPENING;
            r->windows_used |= 1u << i;
        }
    }
    if (p->mr == NULL && p->window < 0) {
        hk_pins_end_use(r->pins, p->pin);
        p->pin = NULL;
        p->state = HK_V_OFFERED;
        return -1;
    }
    r->pieces++;
    p->data = to;
    return 0;
}

/* Invite it to our own memory: 0; -1: not now; -2: that cannot be registered. */
static inline int hk_v_invite_to_stage(hk_v_reader *r, uint32_t n) {
    hk_v_packet *p = hk_v_at(r, n);
    if (n - r->finished >= HK_V_STAGES) return -1;
    if (r->stage_mr == NULL) {
        const size_t size = (size_t)HK_V_STAGES * HK_V_PIECE;
        if (r->stage == NULL && posix_memalign((void **)&r->stage, 4096, size) != 0) return -2;
        r->stage_mr =
            r->end.v->ibv_reg_mr(r->end.pd, r->stage, size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
        if (r->stage_mr == NULL) return -2;
    }
    char *to = r->stage + (size_t)(n % HK_V_STAGES) * HK_V_PIECE;
    p->qp = hk_v_turn(r);
    r->pieces++;
    p->data = to;
    p->state = HK_V_INVITED;
    hk_v_say(r, p->head.offer, r->stage_mr->rkey, p->qp, to);
    return 0;
}

/* Go on with the offer: is the piece here, and its place closed? */
static inline int hk_v_is_here(hk_v_reader *r, hk_v_packet *p) {
    if (r->end.status) return p->state == HK_V_HERE; /* what is over may have failed: perhaps a place stays open */
    if (p->state == HK_V_OPENING && hk_v_is_over(&r->end, p->qp, p->request)) {
        p->state = HK_V_INVITED;
        hk_v_say(r, p->head.offer, r->window[p->window]->rkey, p->qp, p->data);
    }
    if (p->state == HK_V_CLOSING && hk_v_is_over(&r->end, p->qp, p->request)) {
        r->windows_used &= ~(1u << p->window);
        p->state = HK_V_HERE;
    }
    return p->state == HK_V_HERE;
}

/* Invite the piece in front, and the next ones of its message, so that they come meanwhile: to their place while `to` has
 * room (to == NULL: to our own memory). */
static inline int hk_v_invite(hk_v_reader *r, char *to, size_t room) {
    size_t at = 0; /* of each packet, from the one in front */
    const size_t left = (size_t)(r->length - r->done) + r->taken;
    const int direct = to != NULL && r->taken == 0;
    for (uint32_t n = r->finished; n != r->arrived && at < left; n++) {
        hk_v_packet *p = hk_v_at(r, n);
        const size_t len = hk_v_len(p);
        if (!(p->head.len & HK_V_OFFER)) break;
        if (p->state == HK_V_OFFERED && !(direct && at + len <= room && hk_v_open_place(r, p, to + at) == 0)) {
            if (direct && n != r->finished) break; /* it goes to its place when it is in front */
            const int rc = hk_v_invite_to_stage(r, n);
            if (rc == -2) return hk_v_reader_failed(r, ENOMEM, "memory to receive into cannot be registered");
            if (rc != 0) break;
        }
        hk_v_is_here(r, p);
        at += len;
    }
    return 0;
}

/* The piece in front is not here: will it ever be?  HK_AGAIN, or why not. */
static inline int hk_v_awaited(hk_v_reader *r, const hk_v_packet *p) {
    if (p->state == HK_V_CLOSING && r->end.status == 0) return HK_AGAIN; /* that needs no peer */
    const int rc = hk_v_verdict(&r->end, &r->base);
    return rc != HK_AGAIN || r->end.vain < HK_V_ARM_AFTER ? rc : hk_v_nothing(r, rc);
}

/* `n` bytes of the packet in front have been used. */
static inline void hk_v_use(hk_v_reader *r, size_t n) {
    hk_v_packet *p = hk_v_at(r, r->finished);
    r->taken += n;
    r->done += n;
    if (r->taken < hk_v_len(p)) return;
    if (p->pin) hk_pins_end_use(r->pins, p->pin);
    r->taken = 0;
    r->finished++;
    r->bytes_finished += p->head.len & HK_V_OFFER ? 0 : hk_v_len(p);
    hk_v_reader_post_recv(&r->end, 0);
    if (r->finished - r->told >= HK_V_CREDIT || r->bytes_finished >= HK_V_RING / 4) hk_v_say(r, HK_V_NOBODY, 0, 0, NULL);
}

static int hk_v_peek(hk_channel *ch, hk_view *v, size_t want) {
    hk_v_reader *r = (hk_v_reader *)ch;
    int rc = hk_v_front(r);
    if (rc != 1) return rc;
    hk_v_packet *p = hk_v_at(r, r->finished);
    if (want && p->head.len & HK_V_OFFER) {
        rc = hk_v_invite(r, NULL, 0);
        if (rc == 0 && p->state != HK_V_HERE) rc = hk_v_awaited(r, p);
        if (rc < 0 && rc != HK_AGAIN) return rc;
    }
    v->tag = r->tag;
    v->length = r->length;
    v->data = p->data + r->taken;
    v->avail = p->state == HK_V_HERE ? hk_v_len(p) - r->taken : 0;
    return 1;
}

static void hk_v_consume(hk_channel *ch, size_t len, int end) {
    hk_v_reader *r = (hk_v_reader *)ch;
    if (len || r->length == 0) hk_v_use(r, len);
    if (end) r->open = 0;
}

static long hk_v_recv(hk_channel *ch, void *dst, size_t len) {
    hk_v_reader *r = (hk_v_reader *)ch;
    int rc = hk_v_front(r);
    if (rc != 1) return rc;
    hk_v_packet *p = hk_v_at(r, r->finished);
    if (p->head.len & HK_V_OFFER) {
        rc = hk_v_invite(r, (char *)dst, len);
        if (rc < 0) return rc;
        if (p->state != HK_V_HERE) return hk_v_awaited(r, p);
    }
    size_t n = hk_v_len(p) - r->taken;
    if (n > len) n = len;
    if (p->pin == NULL) memcpy(dst, p->data + r->taken, n);
    hk_v_use(r, n);
    return (long)n;
}

static void hk_v_reader_forget(hk_channel *ch) {
    hk_v_reader *r = (hk_v_reader *)ch;
    if (!hk_load32((uint32_t *)&r->end.nqp) || r->end.ended) return;
    hk_v_stop(&r->end);
    for (int i = 0; i < HK_V_OFFERS; i++) { /* memory under an open window cannot be deregistered: it would stay pinned */
        if (!(r->windows_used >> i & 1)) continue;
        hk_v_free_window(r->window[i]);
        r->window[i] = NULL;
    }
    for (; r->finished != r->arrived; r->finished++) {
        hk_v_packet *p = hk_v_at(r, r->finished);
        if (p->mr) r->end.v->ibv_dereg_mr(p->mr);
        if (p->pin) hk_pins_end_use(r->pins, p->pin);
    }
}

/* Say goodbye: did it arrive? */
static inline int hk_v_reader_goodbye(hk_v_reader *r) {
    hk_v_word word = {HK_V_BYE, HK_V_NOBODY, 0, 0, 0};
    struct ibv_sge part = {(uint64_t)(uintptr_t)&word, sizeof word, 0};
    struct ibv_send_wr wr = {.opcode = IBV_WR_SEND, .sg_list = &part, .num_sge = 1, .send_flags = IBV_SEND_INLINE};
    hk_v_poll(&r->end, hk_v_arrive, r);
    if (r->end.status || hk_load32(&r->end.gone) || r->end.bye || hk_v_post(&r->end, 0, &wr, 1) != 0) return 0;
    return hk_v_drain(&r->end);
}

static const hk_channel_ops hk_v_writer_ops = {
    .send = hk_v_send, .settled = hk_v_settled, .forget = hk_v_writer_forget};
static const hk_channel_ops hk_v_reader_ops = {
    .peek = hk_v_peek, .consume = hk_v_consume, .recv = hk_v_recv, .forget = hk_v_reader_forget};

#endif
