/* What both ends of a channel do: post requests to their queue pairs, take what completes, say why an end is broken.
 *
 * The completions of all queue pairs of an end come to one queue.  After vain looks an event is asked for. */
#ifndef HK_VERBS_END_H
#define HK_VERBS_END_H

#include <errno.h>
#include <string.h>

#include "system/atomics.h"
#include "system/wait.h"
#include "transports/channel.h"
#include "transports/verbs/ibverbs.h"
#include "transports/verbs/protocol.h"

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

#endif
