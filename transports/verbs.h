/* One direction between two ranks over RDMA: a ring in the reader's memory that the writer fills from afar.
 *
 * The writer keeps a copy of the ring, puts a packet (a header and its payload) into it and writes that by RDMA write
 * with immediate to the same place of the reader's; the immediate says where, and the completion that it is whole.
 * Short packets are inlined into the work request.  The reader reduces or copies straight from the ring, and gives
 * room back by the number of packets it has finished, in the immediate of an empty write.  Nobody ever waits in the
 * network: the writer has a packet under way only if the reader has room and a posted receive for it.
 *
 * Long pieces of registered memory (`hk_pins`) are not copied: the packet names them, with a key that opens just
 * these bytes, and the reader fetches them by RDMA read, into place if the place is registered too.  The key is
 * invalidated when the reader says that it has finished.  Pieces alternate between the queue pairs; the first one
 * carries the packets.  The protocol is ring.h's, at a distance.
 *
 * One thread at a time uses a channel.  hk_pins is shared between channels and has a lock. */
#ifndef HK_VERBS_H
#define HK_VERBS_H

#include <arpa/inet.h>
#include <fcntl.h>
#include <stdlib.h>

#include "transports/atomics.h"
#include "transports/channel.h"
#include "transports/ibverbs.h"
#include "transports/wait.h"

enum {
    HK_V_PACKET = 65536,     /* payload of a packet, at most */
    HK_V_ALIGN = 64,         /* packets begin at multiples */
    HK_V_DEPTH = 256,        /* packets under way */
    HK_V_QPS = 4,            /* queue pairs of a channel, at most */
    HK_V_SENDS = 1024,       /* work requests of the queue pair that carries packets ... */
    HK_V_MORE_SENDS = 128,   /* ... and of the others */
    HK_V_SIGNAL = 32,        /* every so many sends are reported: who never asks never frees the send queue */
    HK_V_CREDIT = 64,        /* packets after which the reader gives room back */
    HK_V_NAMED_MIN = 131072, /* shorter pieces are copied: to open and close a key takes longer */
    HK_V_PIECE = 262144,     /* of a named piece: what is reduced while the next one comes */
    HK_V_NAMED = 16,         /* named pieces under way */
    HK_V_STAGES = 8,         /* ... of which so many may be fetched ahead */
    HK_V_ARM_AFTER = 256,    /* vain looks before an event is asked for: the waiter will soon sleep */
    HK_V_PINS = 256,
    HK_V_BYE = 0x7fffffff,   /* as an immediate: no more will come */
    HK_V_COUNT = 0x3fffffff, /* packets are counted modulo this and one */
    HK_V_LEN = 0xffffff,     /* in `len`: the bytes; above them the queue pair to fetch them by, and ... */
    HK_V_NAMES = 1 << 30     /* ... whether they lie in the writer's memory */
};
#define HK_V_RING ((size_t)1 << 20)
#define HK_V_IS_RECV ((uint64_t)1 << 63) /* in wr_id */
#define HK_V_CANCEL_NS ((uint64_t)1000000000) /* that cancelling, or a goodbye, may take */

enum { /* of a completion; ibv_wc_status(3) has them all */
    HK_V_FLUSHED = 5, /* the consequence of another */
    HK_V_BAD = 7,     /* a response that the protocol does not allow; also said by us, of what a packet says */
    HK_V_RETRY = 12,  /* no answer */
    HK_V_RNR = 13,
    HK_V_ABORTED = 16,
    HK_V_OVERRUN = 21,
    HK_V_REFUSED = 1000 /* not a status: a request could not even be posted */
};

typedef struct hk_v_head { /* of a packet */
    uint64_t tag, length;  /* of the message */
    uint32_t len;          /* of the payload; HK_V_NAMES */
    uint32_t rkey;
    uint64_t where;
} hk_v_head;

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
    uint32_t gone;                 /* the peer's process has ended (set by another thread) */
    int bye;                       /* the peer has ended in order */
    int ended;                     /* this side has let go */
} hk_v_end;

typedef void (*hk_v_take)(void *, uint32_t immediate);

static inline void hk_v_completed(hk_v_end *e, const struct ibv_wc *wc, hk_v_take take, void *who) {
    e->vain = 0;
    e->armed = 0;
    if (wc->status != 0) {
        if (e->status == 0 || e->status == HK_V_FLUSHED) e->status = wc->status;
    } else if (wc->opcode & IBV_WC_RECV) {
        take(who, ntohl(wc->imm_data));
    } else {
        e->sends_done[wc->wr_id >> 32] = (uint32_t)wc->wr_id;
    }
}

/* Take what has completed.  After many vain looks an event is asked for, as the waiter will soon sleep. */
static inline void hk_v_poll(hk_v_end *e, hk_v_take take, void *who) {
    struct ibv_wc wc[16];
    struct ibv_cq *cq;
    void *context;
    int n;
    if (e->ended) return;
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

static inline int hk_v_post_recv(hk_v_end *e) {
    struct ibv_recv_wr wr = {.wr_id = HK_V_IS_RECV}, *bad;
    return e->qp[0]->context->ops.post_recv(e->qp[0], &wr, &bad);
}

/* An empty message with a number: room given back, or goodbye.  It needs no key to anybody's memory, and wakes. */
static inline int hk_v_tell(hk_v_end *e, uint32_t number, int report) {
    struct ibv_send_wr wr = {.opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl(number)};
    return hk_v_post(e, 0, &wr, report);
}

/* Why nothing more will come of this end: HK_LOST or HK_FAULT; or HK_AGAIN, there is no reason. */
static inline int hk_v_verdict(hk_v_end *e, hk_channel *ch) {
    const int status = e->status;
    if (status == 0 && !e->ended && !e->bye && !hk_load32(&e->gone)) return HK_AGAIN;
    ch->error = status ? EIO : 0;
    ch->words = status == HK_V_REFUSED ? "the device refused a work request" : status ? e->v->ibv_wc_status_str(status) : NULL;
    return status == 0 || status == HK_V_FLUSHED || status == HK_V_RETRY || status == HK_V_RNR || status == HK_V_ABORTED
        ? HK_LOST : HK_FAULT;
}

/* No peer reaches this side's memory over these queue pairs any more. */
static inline void hk_v_stop(hk_v_end *e) {
    struct ibv_qp_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.qp_state = IBV_QPS_ERR;
    for (int i = 0; i < e->nqp; i++) e->v->ibv_modify_qp(e->qp[i], &attr, IBV_QP_STATE);
    e->ended = 1;
}

/* Tell the peer that no more will come; it reads that behind all that was sent before.  Waits, a second at most, until it
 * has it: afterwards the queue pair may go.  1 if it has. */
static inline int hk_v_say_goodbye(hk_v_end *e) {
    struct ibv_wc wc[16];
    if (e->status != 0 || hk_load32(&e->gone) || e->bye || hk_v_tell(e, HK_V_BYE, 1) != 0) return 0;
    for (const uint64_t until = hk_now() + HK_V_CANCEL_NS; !hk_v_is_over(e, 0, e->sends[0]) && hk_now() < until;) {
        const int n = e->cq->context->ops.poll_cq(e->cq, 16, wc);
        for (int i = 0; i < n; i++) {
            if (!(wc[i].wr_id & HK_V_IS_RECV)) {
                e->sends_done[wc[i].wr_id >> 32] = (uint32_t)wc[i].wr_id;
                if (wc[i].status) e->status = wc[i].status;
            } else if (wc[i].status == 0 && ntohl(wc[i].imm_data) == HK_V_BYE) {
                e->bye = 1; /* it may be gone before it has ours */
                return 0;
            }
        }
    }
    return e->status == 0 && hk_v_is_over(e, 0, e->sends[0]);
}

/* ------------------------------------------------------------------------------------------------ the writer */

static inline struct ibv_mw *hk_v_alloc_window(struct ibv_pd *pd) { return pd->context->ops.alloc_mw(pd, IBV_MW_TYPE_2); }
static inline void hk_v_free_window(struct ibv_mw *window) { window->context->ops.dealloc_mw(window); }

typedef struct hk_v_name { /* of a piece of the caller's memory, for the reader */
    enum { HK_V_FREE, HK_V_OPENING, HK_V_OPEN, HK_V_TOLD, HK_V_CLOSING } state;
    const char *at;
    size_t len;
    hk_pin *pin;       /* the registration that the window opens a part of; or */
    struct ibv_mr *mr; /* a registration of just these bytes */
    struct ibv_mw *window;
    uint32_t rkey;
    int qp;            /* which it is bound to */
    uint32_t request;  /* that opens or closes it */
} hk_v_name;

typedef struct hk_v_writer {
    hk_channel base;
    hk_v_end end;
    hk_pins *pins;
    char *ring; /* the copy */
    uint32_t lkey, rkey;
    uint64_t remote;
    uint64_t head, freed;       /* bytes of the ring ever used, and given back */
    uint32_t packets, released; /* counted */
    uint64_t until[HK_V_DEPTH]; /* head after each packet under way */
    int8_t named[HK_V_DEPTH];   /* its name, or -1 */
    hk_v_name name[HK_V_NAMED];
    int naming;                 /* the name that is being opened, or -1 */
    int names_out;
    int next_qp;
} hk_v_writer;

static inline void hk_v_close_name(hk_v_writer *w, hk_v_name *n) {
    if (n->window) {
        struct ibv_send_wr wr = {.opcode = IBV_WR_LOCAL_INV, .imm_data = n->rkey};
        hk_v_post(&w->end, n->qp, &wr, 1);
        n->request = w->end.sends[n->qp];
        n->state = HK_V_CLOSING;
        return;
    }
    w->end.v->ibv_dereg_mr(n->mr);
    n->mr = NULL;
    n->state = HK_V_FREE;
    w->names_out--;
}

/* Room given back, by the number of packets that the reader has finished; or goodbye. */
static void hk_v_credit(void *who, uint32_t number) {
    hk_v_writer *w = (hk_v_writer *)who;
    if (number == HK_V_BYE) {
        w->end.bye = 1;
        return;
    }
    const uint32_t n = (number - w->released) & HK_V_COUNT;
    if (n > w->packets - w->released) {
        w->end.status = HK_V_BAD;
        return;
    }
    for (uint32_t i = 0; i < n; i++, w->released++) {
        const uint32_t k = w->released % HK_V_DEPTH;
        w->freed = w->until[k];
        if (w->named[k] >= 0) hk_v_close_name(w, &w->name[(int)w->named[k]]);
    }
    hk_v_post_recv(&w->end);
}

static inline void hk_v_writer_poll(hk_v_writer *w) {
    hk_v_poll(&w->end, hk_v_credit, w);
    for (int i = 0; w->names_out && i < HK_V_NAMED; i++) {
        hk_v_name *n = &w->name[i];
        if (n->state == HK_V_OPENING && hk_v_is_over(&w->end, n->qp, n->request)) n->state = HK_V_OPEN;
        if (n->state == HK_V_CLOSING && hk_v_is_over(&w->end, n->qp, n->request)) {
            hk_pins_end_use(w->pins, n->pin);
            n->state = HK_V_FREE;
            w->names_out--;
        }
    }
}

/* Make a key to these bytes, and to no others: its index, or HK_AGAIN; HK_V_NAMED if they must be copied. */
static inline int hk_v_open_name(hk_v_writer *w, const char *at, size_t len) {
    hk_v_end *e = &w->end;
    hk_v_name *n;
    int i = w->naming;
    if (i >= 0) return w->name[i].state == HK_V_OPEN ? i : HK_AGAIN;
    for (i = 0; i < HK_V_NAMED && w->name[i].state != HK_V_FREE; i++) {}
    if (i == HK_V_NAMED) return HK_AGAIN;
    n = &w->name[i];
    n->at = at;
    n->len = len;
    n->qp = w->next_qp;
    if (n->window == NULL) {
        n->mr = e->v->ibv_reg_mr(e->pd, (void *)(uintptr_t)at, len, IBV_ACCESS_REMOTE_READ);
        if (n->mr == NULL) return HK_V_NAMED;
        n->rkey = n->mr->rkey;
        n->state = HK_V_OPEN;
    } else {
        if (!hk_v_has_room(e, n->qp)) return HK_AGAIN;
        n->pin = hk_pins_use(w->pins, at, len);
        if (n->pin == NULL) return HK_V_NAMED;
        struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW};
        n->rkey = (n->window->rkey & ~0xffu) | ((n->window->rkey + 1) & 0xff); /* a key is never used twice in a row */
        wr.bind_mw.mw = n->window;
        wr.bind_mw.rkey = n->rkey;
        wr.bind_mw.bind_info.mr = n->pin->mr;
        wr.bind_mw.bind_info.addr = (uint64_t)(uintptr_t)at;
        wr.bind_mw.bind_info.length = len;
        wr.bind_mw.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_READ;
        if (hk_v_post(e, n->qp, &wr, 1) != 0) {
            hk_pins_end_use(w->pins, n->pin);
            return HK_AGAIN; /* the verdict says why */
        }
        n->window->rkey = n->rkey;
        n->request = e->sends[n->qp];
        n->state = HK_V_OPENING;
    }
    w->next_qp = (w->next_qp + 1) % e->nqp;
    w->naming = i;
    w->names_out++;
    hk_v_writer_poll(w);
    return n->state == HK_V_OPEN ? i : HK_AGAIN;
}

/* Put a packet into the ring: 0, or HK_AGAIN. */
static inline int hk_v_put(hk_v_writer *w, const hk_v_head *head, const void *payload, size_t len, int name) {
    hk_v_end *e = &w->end;
    const size_t need = (sizeof *head + len + HK_V_ALIGN - 1) & ~(size_t)(HK_V_ALIGN - 1);
    size_t at = (size_t)(w->head % HK_V_RING), skip = at + need > HK_V_RING ? HK_V_RING - at : 0;
    if (w->packets - w->released >= HK_V_DEPTH || w->head + skip + need - w->freed > HK_V_RING) return HK_AGAIN;
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
    w->named[w->packets % HK_V_DEPTH] = (int8_t)name;
    w->packets++;
    return 0;
}

static long hk_v_send(hk_channel *ch, uint64_t tag, uint64_t length, uint64_t done, const void *src, size_t len) {
    hk_v_writer *w = (hk_v_writer *)ch;
    hk_v_head head = {tag, length, 0, 0, 0};
    (void)done;
    hk_v_writer_poll(w);
    int rc = hk_v_verdict(&w->end, ch);
    if (rc != HK_AGAIN) return rc;
    if (len >= HK_V_NAMED_MIN) {
        const size_t piece = len < HK_V_PIECE ? len : HK_V_PIECE;
        const int i = hk_v_open_name(w, (const char *)src, piece);
        if (i == HK_AGAIN) return HK_AGAIN;
        if (i < HK_V_NAMED) {
            hk_v_name *n = &w->name[i];
            head.len = (uint32_t)n->len | (uint32_t)n->qp << 24 | HK_V_NAMES;
            head.rkey = n->rkey;
            head.where = (uint64_t)(uintptr_t)n->at;
            if (hk_v_put(w, &head, NULL, 0, i) != 0) return HK_AGAIN;
            n->state = HK_V_TOLD;
            w->naming = -1;
            return (long)n->len;
        }
    }
    if (len > HK_V_PACKET) len = HK_V_PACKET;
    head.len = (uint32_t)len;
    return hk_v_put(w, &head, src, len, -1) == 0 ? (long)len : HK_AGAIN;
}

static int hk_v_settled(hk_channel *ch) {
    hk_v_writer *w = (hk_v_writer *)ch;
    if (w->names_out) hk_v_writer_poll(w);
    return w->names_out == 0 || w->end.ended;
}

static void hk_v_writer_forget(hk_channel *ch) {
    hk_v_writer *w = (hk_v_writer *)ch;
    hk_v_stop(&w->end); /* a window is closed with its queue pair */
    for (int i = 0; i < HK_V_NAMED; i++) {
        hk_v_name *n = &w->name[i];
        if (n->state != HK_V_FREE && n->window) hk_pins_end_use(w->pins, n->pin);
        if (n->mr) w->end.v->ibv_dereg_mr(n->mr);
        n->mr = NULL;
        n->state = HK_V_FREE;
    }
    w->names_out = 0;
}

/* ------------------------------------------------------------------------------------------------ the reader */

typedef struct hk_v_packet { /* that has come and is not finished */
    hk_v_head head;
    const char *data; /* NULL: still with the writer */
    uint32_t asked;   /* it is being fetched: by this request ... */
    int fetching;
    int direct;       /* ... into the caller's memory */
    hk_pin *pin;
} hk_v_packet;

typedef struct hk_v_reader {
    hk_channel base;
    hk_v_end end;
    hk_pins *pins;
    char *ring;
    char *stage; /* HK_V_STAGES of HK_V_PIECE, made when first needed */
    struct ibv_mr *stage_mr;
    uint32_t arrived, finished, credited; /* packets */
    uint64_t bytes_finished;              /* since room was given back */
    size_t taken;                         /* bytes of the packet in front */
    int open;                             /* a message is under way ... */
    uint64_t tag, length, done;           /* ... this one, with so many bytes taken */
    hk_v_packet packet[HK_V_DEPTH];
} hk_v_reader;

static inline hk_v_packet *hk_v_at(hk_v_reader *r, uint32_t n) { return &r->packet[n % HK_V_DEPTH]; }
static inline size_t hk_v_len(const hk_v_packet *p) { return p->head.len & HK_V_LEN; }

/* A packet has come.  It is another process's word: nothing in it is believed. */
static void hk_v_arrive(void *who, uint32_t at) {
    hk_v_reader *r = (hk_v_reader *)who;
    if (at == HK_V_BYE) {
        r->end.bye = 1;
        return;
    }
    const size_t offset = (size_t)at * HK_V_ALIGN;
    hk_v_packet *p = hk_v_at(r, r->arrived);
    if (r->arrived - r->finished >= HK_V_DEPTH || at >= HK_V_RING / HK_V_ALIGN) {
        r->end.status = HK_V_BAD;
        return;
    }
    memset(p, 0, sizeof *p);
    memcpy(&p->head, r->ring + offset, sizeof p->head);
    const size_t len = hk_v_len(p);
    if (p->head.len & HK_V_NAMES) {
        if (len == 0 || len > HK_V_PIECE || (int)(p->head.len >> 24 & 0x3f) >= r->end.nqp) r->end.status = HK_V_BAD;
    } else {
        if (p->head.len > HK_V_PACKET || offset + sizeof p->head + len > HK_V_RING) r->end.status = HK_V_BAD;
        p->data = r->ring + offset + sizeof p->head;
    }
    if (len > p->head.length || (len == 0 && p->head.length)) r->end.status = HK_V_BAD;
    if (r->end.status != HK_V_BAD) r->arrived++;
}

static inline int hk_v_reader_failed(hk_v_reader *r, int error, const char *words) {
    r->base.error = error;
    r->base.words = words;
    return HK_FAULT;
}

/* The packet in front, of the message that is open: 1, or HK_AGAIN, HK_LOST, HK_FAULT. */
static inline int hk_v_front(hk_v_reader *r) {
    if (r->end.ended) return hk_v_verdict(&r->end, &r->base);
    if (!hk_load32((uint32_t *)&r->end.nqp)) return HK_AGAIN; /* the writer has not come yet */
    hk_v_poll(&r->end, hk_v_arrive, r);
    if (r->arrived == r->finished) return hk_v_verdict(&r->end, &r->base);
    const hk_v_head *head = &hk_v_at(r, r->finished)->head;
    if (!r->open) {
        r->open = 1;
        r->tag = head->tag;
        r->length = head->length;
        r->done = 0;
    } else if (head->tag != r->tag || head->length != r->length) {
        return hk_v_reader_failed(r, EPROTO, "a message begins in the middle of another");
    }
    return 1;
}

/* Ask for the bytes of a named packet: 0, or -1 for now. */
static inline int hk_v_fetch(hk_v_reader *r, hk_v_packet *p, char *to, uint32_t lkey) {
    const int qp = (int)(p->head.len >> 24 & 0x3f);
    struct ibv_sge part = {(uint64_t)(uintptr_t)to, (uint32_t)hk_v_len(p), lkey};
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_READ, .sg_list = &part, .num_sge = 1};
    wr.wr.rdma.remote_addr = p->head.where;
    wr.wr.rdma.rkey = p->head.rkey;
    if (!hk_v_has_room(&r->end, qp) || hk_v_post(&r->end, qp, &wr, 1) != 0) return -1;
    p->asked = r->end.sends[qp];
    p->fetching = 1;
    p->data = to;
    return 0;
}

static inline int hk_v_fetch_direct(hk_v_reader *r, hk_v_packet *p, char *to) {
    hk_pin *pin = hk_pins_use(r->pins, to, hk_v_len(p));
    if (pin == NULL) return -1;
    if (hk_v_fetch(r, p, to, pin->mr->lkey) != 0) {
        hk_pins_end_use(r->pins, pin);
        return -1;
    }
    p->pin = pin;
    p->direct = 1;
    return 0;
}

static inline int hk_v_fetch_staged(hk_v_reader *r, uint32_t n) {
    if (n - r->finished >= HK_V_STAGES) return -1;
    if (r->stage_mr == NULL) {
        const size_t size = (size_t)HK_V_STAGES * HK_V_PIECE;
        if (r->stage == NULL && posix_memalign((void **)&r->stage, 4096, size) != 0) return -1;
        r->stage_mr = r->end.v->ibv_reg_mr(r->end.pd, r->stage, size, IBV_ACCESS_LOCAL_WRITE);
        if (r->stage_mr == NULL) return -2;
    }
    return hk_v_fetch(r, hk_v_at(r, n), r->stage + (size_t)(n % HK_V_STAGES) * HK_V_PIECE, r->stage_mr->lkey);
}

/* Have the packet in front fetched, and the next ones of its message, so that they come meanwhile: into place while `to`
 * has room (to == NULL: into the stage). */
static inline int hk_v_fetch_ahead(hk_v_reader *r, char *to, size_t room) {
    size_t at = 0; /* of each packet, from the one in front */
    const size_t left = (size_t)(r->length - r->done) + r->taken;
    const int direct = to != NULL && r->taken == 0;
    for (uint32_t n = r->finished; n != r->arrived && at < left; n++) {
        hk_v_packet *p = hk_v_at(r, n);
        const size_t len = hk_v_len(p);
        if (!(p->head.len & HK_V_NAMES)) break;
        if (p->data == NULL && !(direct && at + len <= room && hk_v_fetch_direct(r, p, to + at) == 0)) {
            if (direct && n != r->finished) break; /* it goes to its place when it is in front */
            const int rc = hk_v_fetch_staged(r, n);
            if (rc == -2) return hk_v_reader_failed(r, errno, "memory to receive into cannot be registered");
            if (rc != 0) break;
        }
        at += len;
    }
    return 0;
}

/* Are the bytes of the packet in front here? */
static inline int hk_v_is_here(hk_v_reader *r) {
    hk_v_packet *p = hk_v_at(r, r->finished);
    if (p->data == NULL) return 0;
    return !p->fetching || hk_v_is_over(&r->end, (int)(p->head.len >> 24 & 0x3f), p->asked);
}

static inline void hk_v_give_credit(hk_v_reader *r) {
    if (hk_v_tell(&r->end, r->finished & HK_V_COUNT, 0) != 0) return;
    r->credited = r->finished;
    r->bytes_finished = 0;
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
    r->bytes_finished += hk_v_len(p);
    hk_v_post_recv(&r->end);
    if (p->head.len & HK_V_NAMES || r->finished - r->credited >= HK_V_CREDIT || r->bytes_finished >= HK_V_RING / 4)
        hk_v_give_credit(r);
}

static int hk_v_peek(hk_channel *ch, hk_view *v, size_t want) {
    hk_v_reader *r = (hk_v_reader *)ch;
    int rc = hk_v_front(r);
    if (rc != 1) return rc;
    hk_v_packet *p = hk_v_at(r, r->finished);
    if (want && p->head.len & HK_V_NAMES) {
        rc = hk_v_fetch_ahead(r, NULL, 0);
        if (rc < 0) return rc;
    }
    v->tag = r->tag;
    v->length = r->length;
    v->data = p->data + r->taken;
    v->avail = hk_v_is_here(r) ? hk_v_len(p) - r->taken : 0;
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
    if (p->head.len & HK_V_NAMES) {
        rc = hk_v_fetch_ahead(r, (char *)dst, len);
        if (rc < 0) return rc;
        if (!hk_v_is_here(r)) return HK_AGAIN;
    }
    size_t n = hk_v_len(p) - r->taken;
    if (n > len) n = len;
    if (!p->direct) memcpy(dst, p->data + r->taken, n);
    hk_v_use(r, n);
    return (long)n;
}

static void hk_v_reader_forget(hk_channel *ch) {
    hk_v_reader *r = (hk_v_reader *)ch;
    struct ibv_wc wc[16];
    if (!hk_load32((uint32_t *)&r->end.nqp) || r->end.ended) return;
    hk_v_stop(&r->end);
    /* What was asked for is cancelled, or comes: each request says which. */
    for (const uint64_t until = hk_now() + HK_V_CANCEL_NS; r->finished != r->arrived; r->finished++) {
        hk_v_packet *p = hk_v_at(r, r->finished);
        while (p->fetching && !hk_v_is_here(r) && hk_now() < until) {
            const int n = r->end.cq->context->ops.poll_cq(r->end.cq, 16, wc);
            for (int i = 0; i < n; i++)
                if (!(wc[i].wr_id & HK_V_IS_RECV)) r->end.sends_done[wc[i].wr_id >> 32] = (uint32_t)wc[i].wr_id;
        }
        if (p->pin) hk_pins_end_use(r->pins, p->pin);
    }
}

static const hk_channel_ops hk_v_writer_ops = {
    .send = hk_v_send, .settled = hk_v_settled, .forget = hk_v_writer_forget};
static const hk_channel_ops hk_v_reader_ops = {
    .peek = hk_v_peek, .consume = hk_v_consume, .recv = hk_v_recv, .forget = hk_v_reader_forget};

#endif
