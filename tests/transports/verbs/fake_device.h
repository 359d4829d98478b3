/* What a device does: it carries out work requests, and tells of their completions. */
#include "fake_state.h"

/* ------------------------------------------------------------------------------------------------- completions */

static void event(struct cq *c) {
    struct channel *ch = (struct channel *)c->cq.channel;
    if (!c->asked || ch == NULL) return;
    c->asked = 0;
    is.events++;
    if (write(ch->out, &c, sizeof c) != sizeof c) misuse("nobody takes the events");
}

static void complete(struct qp *q, struct ibv_wc wc, int is_recv, uint32_t sends) {
    struct cq *c = (struct cq *)(is_recv ? q->qp.recv_cq : q->qp.send_cq);
    if (c->tail - c->head == c->room) {
        is.overflows++;
        return;
    }
    is.completions++;
    wc.qp_num = q->qp.qp_num;
    if (wc.status) wc.opcode = 0x5a5a, wc.byte_len = wc.imm_data = 0xa5a5a5a5; /* undefined then */
    c->ring[c->tail++ % c->room] = (struct wcs){wc, q, sends, is_recv};
    event(c);
}

static void flush(struct qp *q) {
    q->state = IBV_QPS_ERR;
    for (; q->done != q->posted; q->done++) {
        struct send *s = &q->sq[q->done % q->sq_room];
        complete(q, (struct ibv_wc){.wr_id = s->wr.wr_id, .status = 5}, 0, q->done + 1);
        free(s->inlined);
        s->inlined = NULL;
    }
    for (; q->rq_done != q->rq_posted; q->rq_done++)
        complete(q, (struct ibv_wc){.wr_id = q->rq[q->rq_done % q->rq_room].wr_id, .status = 5}, 1, 0);
}

static int injected(void) { return is.fail_at > 0 && --is.fail_at == 0 ? (int)is.fail_status : 0; }

/* ------------------------------------------------------------------------------------------- carrying out a request */

static struct qp *peer_of(struct qp *q) {
    struct qp *p = q->dest < QPS ? qps[q->dest] : NULL;
    const int there = p && (p->state == IBV_QPS_RTR || p->state == IBV_QPS_RTS);
    return there && p->dest == q->qp.qp_num && p->rq_psn == q->sq_psn ? p : NULL;
}

static int within(uint64_t addr, uint64_t len, uint64_t from, uint64_t size) {
    return addr >= from && len <= size && addr - from <= size - len;
}

static int may_read(struct qp *q, const struct ibv_sge *part, int write) {
    const uint32_t i = part->lkey >> 8;
    struct mr *m = i < KEYS && !keys[i].is_window && keys[i].key == part->lkey ? keys[i].what : NULL;
    return m && m->mr.pd == q->qp.pd && (!write || m->access & IBV_ACCESS_LOCAL_WRITE)
        && within(part->addr, part->length, (uint64_t)(uintptr_t)m->mr.addr, m->mr.length);
}

static int may_write_from_afar(struct qp *p, uint64_t addr, uint64_t len, uint32_t rkey) {
    const uint32_t i = rkey >> 8;
    if (!(p->access & IBV_ACCESS_REMOTE_WRITE) || i >= KEYS || keys[i].what == NULL) return 0;
    if (keys[i].is_window) {
        struct mw *w = keys[i].what;
        return w->bound && w->key == rkey && w->qp == p && w->access & IBV_ACCESS_REMOTE_WRITE
            && within(addr, len, w->addr, w->length);
    }
    struct mr *m = keys[i].what;
    return keys[i].key == rkey && m->mr.pd == p->qp.pd && m->access & IBV_ACCESS_REMOTE_WRITE
        && within(addr, len, (uint64_t)(uintptr_t)m->mr.addr, m->mr.length);
}

static void unbind(struct mw *w) {
    if (w->bound) w->on->windows--;
    w->bound = 0;
}

static int bind_window(struct qp *q, const struct ibv_send_wr *wr) {
    struct mw *w = (struct mw *)wr->bind_mw.mw;
    struct mr *m = (struct mr *)wr->bind_mw.bind_info.mr;
    const uint64_t addr = wr->bind_mw.bind_info.addr, len = wr->bind_mw.bind_info.length;
    const int may = (int)wr->bind_mw.bind_info.mw_access_flags;
    if (w->bound || w->mw.pd != q->qp.pd || m->mr.pd != q->qp.pd || !(m->access & IBV_ACCESS_MW_BIND)
        || !within(addr, len, (uint64_t)(uintptr_t)m->mr.addr, m->mr.length)
        || (may & IBV_ACCESS_REMOTE_WRITE && !(m->access & IBV_ACCESS_LOCAL_WRITE))
        || wr->bind_mw.rkey >> 8 != w->key >> 8 || wr->bind_mw.rkey == w->key)
        return 6;
    w->key = wr->bind_mw.rkey, w->on = m, w->qp = q, w->addr = addr, w->length = len, w->access = may, w->bound = 1;
    m->windows++;
    is.binds++;
    return 0;
}

static int invalidate(struct qp *q, uint32_t rkey) {
    struct mw *w = rkey >> 8 < KEYS && keys[rkey >> 8].is_window ? keys[rkey >> 8].what : NULL;
    if (w == NULL || !w->bound || w->key != rkey || w->qp != q) return 2;
    unbind(w);
    is.invalidated++;
    return 0;
}

/* A send, or a write with immediate: its status; -1: the peer has no receive for it yet. */
static int carry(struct qp *q, const struct send *s) {
    const int is_write = s->wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    const uint32_t len = s->wr.num_sge ? s->part.length : 0;
    const void *from = s->inlined ? s->inlined : (void *)(uintptr_t)s->part.addr;
    struct qp *p = peer_of(q);
    if (len && !s->inlined && !may_read(q, &s->part, 0)) return 4;
    if (len > MAX_MSG) return 1;
    if (p == NULL) return 12;
    if (s->wr.opcode == IBV_WR_RDMA_WRITE) return len ? 9 : 0; /* all that ours may ask for: is somebody there? */
    if (is_write && len >= NAMED) {
        last.addr = s->wr.wr.rdma.remote_addr, last.len = len, last.rkey = s->wr.wr.rdma.rkey, last.qp = q->dest;
        if (is.hold) return -1;
    }
    if (p->rq_done == p->rq_posted) return -1;
    if (is_write && !may_write_from_afar(p, s->wr.wr.rdma.remote_addr, len, s->wr.wr.rdma.rkey)) {
        is.bad_keys++;
        flush(p);
        return 10;
    }
    struct recv *r = &p->rq[p->rq_done % p->rq_room];
    struct ibv_wc wc = {.wr_id = r->wr_id, .opcode = is_write ? 129 : 128, .byte_len = len, .imm_data = 0xa5a5a5a5};
    if (s->wr.opcode != IBV_WR_SEND) wc.imm_data = s->wr.imm_data, wc.wc_flags = 2;
    if (is_write) {
        if (len) memcpy((void *)(uintptr_t)s->wr.wr.rdma.remote_addr, from, len);
        is.long_writes += len >= NAMED;
    } else if (len > (r->parts ? r->part.length : 0)) {
        wc.status = 1;
    } else if (len && !may_read(p, &r->part, 1)) {
        wc.status = 4;
    } else if (len) {
        memcpy((void *)(uintptr_t)r->part.addr, from, len);
    }
    p->rq_done++;
    const int failed = wc.status;
    if (!failed) wc.status = injected();
    complete(p, wc, 1, 0);
    if (wc.status) flush(p);
    return failed ? 9 : 0;
}

/* Carry out the next request: 0 if there is none that can be. */
static int step(struct qp *q) {
    if (is.mute || q->state != IBV_QPS_RTS || q->done == q->posted) return 0;
    struct send *s = &q->sq[q->done % q->sq_room];
    int status = s->wr.opcode == IBV_WR_BIND_MW ? bind_window(q, &s->wr)
        : s->wr.opcode == IBV_WR_LOCAL_INV ? invalidate(q, s->wr.imm_data) : carry(q, s);
    if (status < 0 || q->state == IBV_QPS_ERR) return 0;
    if (!status && s->wr.send_flags & IBV_SEND_SIGNALED) status = injected();
    q->done++;
    free(s->inlined);
    s->inlined = NULL;
    if (status || s->wr.send_flags & IBV_SEND_SIGNALED)
        complete(q, (struct ibv_wc){.wr_id = s->wr.wr_id, .status = status, .opcode = 1}, 0, q->done);
    if (status) flush(q);
    return 1;
}

static void *late(void *unused) {
    unsigned dice = 1;
    for (;;) {
        pthread_mutex_lock(&lock);
        const int at = rand_r(&dice) % QPS;
        int moved = 0;
        for (int i = 0; i < QPS && !moved; i++)
            if (qps[(at + i) % QPS]) moved = step(qps[(at + i) % QPS]);
        const long most = is.delay;
        pthread_mutex_unlock(&lock);
        usleep((useconds_t)(moved ? rand_r(&dice) % (most + 1) : 50));
    }
    return unused;
}

static void go(struct qp *q) {
    static int started;
    pthread_t thread;
    if (is.delay == 0) {
        while (step(q)) continue;
    } else if (!started) {
        started = 1;
        pthread_create(&thread, NULL, late, NULL);
        pthread_detach(thread);
    }
}

/* Let go of what was held. */
void fake_release(void) {
    pthread_mutex_lock(&lock);
    is.hold = 0;
    for (int i = 0; i < QPS; i++)
        if (qps[i]) go(qps[i]);
    pthread_mutex_unlock(&lock);
}

/* Would the last long write be allowed once more? */
int fake_replay(void) {
    pthread_mutex_lock(&lock);
    struct qp *p = qps[last.qp];
    const int may = last.qp && p && p->state == IBV_QPS_RTS && may_write_from_afar(p, last.addr, last.len, last.rkey);
    pthread_mutex_unlock(&lock);
    return may;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    struct qp *q = (struct qp *)qp;
    const int flags = (int)wr->send_flags;
    int code = 0;
    *bad = wr;
    pthread_mutex_lock(&lock);
    if ((code = refused(&is.refuse_post)) == 0) {
        if (wr->next || wr->num_sge > 1 || (q->state != IBV_QPS_RTS && q->state != IBV_QPS_ERR)) code = EINVAL;
        if (flags & IBV_SEND_INLINE && wr->sg_list->length > q->max_inline) code = EINVAL;
        if (q->posted - q->retired == q->sq_room) code = ENOMEM, is.overflows++;
    }
    if (code == 0) {
        struct send *s = &q->sq[q->posted++ % q->sq_room];
        *s = (struct send){.wr = *wr};
        if (wr->num_sge) s->part = *wr->sg_list;
        if (flags & IBV_SEND_INLINE) {
            s->inlined = malloc(s->part.length + 1);
            memcpy(s->inlined, (void *)(uintptr_t)s->part.addr, s->part.length);
        }
        if (q->state == IBV_QPS_ERR) flush(q);
        else go(q);
    }
    pthread_mutex_unlock(&lock);
    return code;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    struct qp *q = (struct qp *)qp;
    int code = 0;
    *bad = wr;
    pthread_mutex_lock(&lock);
    if (q->state == 0 || wr->next || wr->num_sge > 1) code = EINVAL;
    if (code == 0) code = refused(&is.refuse_recv);
    if (q->rq_posted - q->rq_retired == q->rq_room) code = ENOMEM, is.overflows++;
    if (code == 0) {
        struct recv *r = &q->rq[q->rq_posted++ % q->rq_room];
        *r = (struct recv){.wr_id = wr->wr_id, .parts = wr->num_sge};
        if (wr->num_sge) r->part = *wr->sg_list;
        struct qp *p = peer_of(q);
        if (q->state == IBV_QPS_ERR) flush(q);
        else if (p && p->state == IBV_QPS_RTS) go(p);
    }
    pthread_mutex_unlock(&lock);
    return code;
}

static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *wc) {
    struct cq *c = (struct cq *)cq;
    int n = 0;
    pthread_mutex_lock(&lock);
    for (; n < most && c->head != c->tail; n++) {
        const struct wcs *w = &c->ring[c->head++ % c->room];
        wc[n] = w->wc;
        if (w->is_recv) w->retires->rq_retired++;
        else w->retires->retired = w->sends;
    }
    pthread_mutex_unlock(&lock);
    return n;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited) {
    pthread_mutex_lock(&lock);
    ((struct cq *)cq)->asked = !solicited;
    pthread_mutex_unlock(&lock);
    return 0;
}
