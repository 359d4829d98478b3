/* The sending end: it copies short pieces into the ring, offers long ones, and writes where the reader invites it. */
#ifndef HK_VERBS_WRITER_H
#define HK_VERBS_WRITER_H

#include <arpa/inet.h>
#include <string.h>

#include "transports/verbs/end.h"
#include "transports/verbs/pins.h"

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

static long hk_v_send(hk_channel *ch, const hk_call *call, uint64_t length, uint64_t done, const void *src, size_t len) {
    hk_v_writer *w = (hk_v_writer *)ch;
    hk_v_head head = {call->tag, length, 0, 0, 0};
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

static int hk_v_settled(hk_channel *ch, const hk_call *call) {
    hk_v_writer *w = (hk_v_writer *)ch;
    (void)call;
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

static const hk_channel_ops hk_v_writer_ops = {
    .send = hk_v_send, .settled = hk_v_settled, .forget = hk_v_writer_forget};

#endif
