/* Where the pieces come to that a writer offers: the reader's side of an offer.
 *
 * A place is in the caller's memory if that is registered, and then it is opened for just these bytes (by a memory window,
 * or a registration of its own) and closed when they are there; else it is on the reader's own stage. */
#ifndef HK_VERBS_PLACES_H
#define HK_VERBS_PLACES_H

#include <stdlib.h>
#include <string.h>

#include "transports/verbs/writer.h"

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
    /* To the same peer, or NULL: what it sent may be lost while we wait for the answer.  It is of the same channels, so no
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

static inline struct ibv_mw *hk_v_alloc_window(struct ibv_pd *pd) {
    return pd->context->ops.alloc_mw(pd, IBV_MW_TYPE_2);
}
static inline void hk_v_free_window(struct ibv_mw *window) { window->context->ops.dealloc_mw(window); }

static inline hk_v_packet *hk_v_at(hk_v_reader *r, uint32_t n) { return &r->packet[n % HK_V_DEPTH]; }
static inline size_t hk_v_len(const hk_v_packet *p) { return p->head.len & ~(uint32_t)HK_V_OFFER; }

/* The queue pair of the next piece. */
static inline int hk_v_turn(const hk_v_reader *r) { return 1 + (int)(r->pieces % (uint32_t)(r->end.nqp - 1)); }

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

#endif
