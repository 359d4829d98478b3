/* The receiving end: it takes packets from its ring in order, invites the pieces that are offered, and gives room back. */
#ifndef HK_VERBS_READER_H
#define HK_VERBS_READER_H

#include <arpa/inet.h>
#include <string.h>

#include "transports/verbs/places.h"

static inline int hk_v_reader_post_recv(hk_v_end *e, int qp) {
    struct ibv_recv_wr wr = {.wr_id = HK_V_IS_RECV}, *bad;
    return e->qp[qp]->context->ops.post_recv(e->qp[qp], &wr, &bad);
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
        /* Not among those that have come (the counters wrap), or not what was invited. */
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

/* `n` bytes of the packet in front have been used.  0, or HK_FAULT: its place in the ring cannot be used again.  (That
 * the writer cannot be told of it shows when all that it has sent is read.) */
static inline int hk_v_use(hk_v_reader *r, size_t n) {
    hk_v_packet *p = hk_v_at(r, r->finished);
    r->taken += n;
    r->done += n;
    if (r->taken < hk_v_len(p)) return 0;
    if (p->pin) hk_pins_end_use(r->pins, p->pin);
    r->taken = 0;
    r->finished++;
    r->bytes_finished += p->head.len & HK_V_OFFER ? 0 : hk_v_len(p);
    if (hk_v_reader_post_recv(&r->end, 0) != 0) return hk_v_reader_failed(r, EIO, "the device refused a work request");
    if (r->finished - r->told >= HK_V_CREDIT || r->bytes_finished >= HK_V_RING / 4) hk_v_say(r, HK_V_NOBODY, 0, 0, NULL);
    return 0;
}

static int hk_v_peek(hk_channel *ch, const hk_call *call, hk_view *v, size_t want) {
    hk_v_reader *r = (hk_v_reader *)ch;
    (void)call;
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

static int hk_v_consume(hk_channel *ch, const hk_call *call, size_t len, int end) {
    hk_v_reader *r = (hk_v_reader *)ch;
    (void)call;
    if (end) r->open = 0;
    return len || r->length == 0 ? hk_v_use(r, len) : 0;
}

static long hk_v_recv(hk_channel *ch, const hk_call *call, void *dst, size_t len) {
    hk_v_reader *r = (hk_v_reader *)ch;
    (void)call;
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
    rc = hk_v_use(r, n);
    return rc < 0 ? rc : (long)n;
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

static const hk_channel_ops hk_v_reader_ops = {
    .peek = hk_v_peek, .consume = hk_v_consume, .recv = hk_v_recv, .forget = hk_v_reader_forget};

#endif
