/* A stand-in for libibverbs.so.1: two RoCE devices, fake0 and fake1, whose queue pairs reach each other in one process.
 *
 * It does what a driver and a device do and our protocol relies on, and checks what they check: keys, ranges, access,
 * windows and the queue pair they are bound to, queue depths, inline limits, the states of a queue pair; completions in
 * order, events only after a request, everything flushed when a queue pair fails.  What a device leaves undefined is
 * filled with rubbish.  A work request is carried out when it is posted (or, with `delay`, later, by a thread that
 * chooses among the queue pairs), and one that finds no receive waits for it, as with rnr_retry 7.
 *
 * fake_set and fake_get change and tell its numbers; FAKE_VERBS="windows=0,delay=50" sets them at the start.
 *
 * fake_state.h has what there is, and the numbers; fake_device.h carries work requests out; this file is libibverbs'
 * functions, which make things and unmake them.  They are one file, as they are one library's table. */
#define _GNU_SOURCE
#include "fake_device.h"

static void *make(size_t size, long *count, long *in) {
    pthread_mutex_lock(&lock);
    void *made = refused(in) ? NULL : calloc(1, size);
    if (made) ++*count;
    pthread_mutex_unlock(&lock);
    return made;
}

static uint32_t new_key(void *what, int is_window) {
    static uint32_t at;
    for (uint32_t n = 0; n < KEYS; n++) {
        at = at % (KEYS - 1) + 1;
        if (keys[at].what) continue;
        keys[at].what = what, keys[at].is_window = is_window;
        return keys[at].key = at << 8 | (++generation & 0xff);
    }
    abort();
}

/* Give back `what`, if `still` (uses of it) is none; else EBUSY, and a misuse if there are words for it. */
static int unmake(void *what, long *count, long still, const char *words) {
    if (still) {
        if (words) misuse(words);
        return EBUSY;
    }
    --*count;
    free(what);
    return 0;
}

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, int type) {
    if (!is.windows || type != IBV_MW_TYPE_2) return errno = ENOTSUP, NULL;
    struct mw *w = make(sizeof *w, &is.mws, &is.refuse_mw);
    if (w == NULL) return NULL;
    pthread_mutex_lock(&lock);
    w->key = new_key(w, 1); /* `mw.rkey` is the caller's, who changes it as he posts */
    w->mw = (struct ibv_mw){pd->context, pd, w->key, 0, type};
    pd->handle++;
    pthread_mutex_unlock(&lock);
    return &w->mw;
}

static int dealloc_mw(struct ibv_mw *mw) {
    struct mw *w = (struct mw *)mw;
    pthread_mutex_lock(&lock);
    unbind(w);
    keys[w->key >> 8].what = NULL;
    mw->pd->handle--;
    const int code = unmake(w, &is.mws, 0, "");
    pthread_mutex_unlock(&lock);
    return code;
}

struct ibv_device **ibv_get_device_list(int *n) {
    struct ibv_device **list = calloc(3, sizeof *list);
    for (int i = 0; i < is.devices; i++) list[i] = &devices[i];
    *n = (int)is.devices;
    if (is.devices < 0) return free(list), errno = ENOSYS, NULL;
    return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }
const char *ibv_get_device_name(struct ibv_device *d) { return d->name; }
int ibv_fork_init(void) { return 0; }

struct ibv_context *ibv_open_device(struct ibv_device *d) {
    long never = 0;
    struct ibv_context *c = make(sizeof *c, &is.contexts, &never);
    c->device = d;
    c->ops.alloc_mw = alloc_mw, c->ops.dealloc_mw = dealloc_mw, c->ops.poll_cq = poll_cq;
    c->ops.req_notify_cq = req_notify_cq, c->ops.post_send = post_send, c->ops.post_recv = post_recv;
    return c;
}

int ibv_close_device(struct ibv_context *c) {
    pthread_mutex_lock(&lock);
    const int code = unmake(c, &is.contexts, c->num_comp_vectors, "a device is closed before what was made with it");
    pthread_mutex_unlock(&lock);
    return code;
}

int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *a) {
    (void)c;
    memset(a, 0, sizeof *a);
    a->device_cap_flags = is.windows ? MEM_MW : 0;
    a->max_qp_rd_atom = a->max_qp_init_rd_atom = 128;
    a->phys_port_cnt = 1;
    return 0;
}

int ibv_query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *a) {
    memset(a, 0, sizeof *a);
    if (port != 1) return EINVAL;
    a->state = is.down >> (c->device - devices) & 1 ? 1 : IBV_PORT_ACTIVE;
    a->active_mtu = 3, a->gid_tbl_len = 4, a->max_msg_sz = MAX_MSG;
    return 0;
}

/* 0: link-local; 1, 2: IPv4 (the test says that 1 is RoCE v1); 3: unused */
int ibv_query_gid(struct ibv_context *c, uint8_t port, int index, uint8_t *gid) {
    const uint8_t local[16] = {0xfe, 0x80, [15] = 1}, four[16] = {[10] = 0xff, [11] = 0xff, 10, 77, 0, 1};
    memset(gid, 0, 16);
    if (port != 1 || index > 3) return EINVAL;
    if (index == 3) return 0;
    memcpy(gid, index ? four : local, 16);
    gid[15] = (uint8_t)(1 + (c->device - devices));
    return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *c) {
    long never = 0;
    struct ibv_pd *pd = make(sizeof *pd, &is.pds, &never);
    pd->context = c;
    c->num_comp_vectors++;
    return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd) {
    pthread_mutex_lock(&lock);
    struct ibv_context *c = pd->context;
    const int code = unmake(pd, &is.pds, pd->handle, NULL /* as the kernel says it */);
    if (code == 0) c->num_comp_vectors--;
    pthread_mutex_unlock(&lock);
    return code;
}

/* Memory of this process that may be read, and written? */
static int mapped(uintptr_t at, size_t len, int writable) {
    FILE *maps = fopen("/proc/self/maps", "r");
    const uintptr_t end = at + len;
    uintptr_t from, to;
    char may[8];
    while (at < end && fscanf(maps, "%lx-%lx %7s%*[^\n]", &from, &to, may) == 3)
        if (from <= at && at < to && may[0] == 'r' && (may[1] == 'w' || !writable)) at = to;
    fclose(maps);
    return at >= end;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t len, int access) {
    if (!mapped((uintptr_t)addr, len, access & IBV_ACCESS_LOCAL_WRITE)) return errno = EFAULT, NULL;
    if (access & IBV_ACCESS_REMOTE_WRITE && !(access & IBV_ACCESS_LOCAL_WRITE)) return errno = EINVAL, NULL;
    struct mr *m = make(sizeof *m, &is.mrs, &is.refuse_mr);
    if (m == NULL) return NULL;
    pthread_mutex_lock(&lock);
    const uint32_t key = new_key(m, 0);
    m->mr = (struct ibv_mr){pd->context, pd, addr, len, 0, key, key};
    m->access = access;
    is.pinned += (long)len;
    pd->handle++;
    pthread_mutex_unlock(&lock);
    return &m->mr;
}

int ibv_dereg_mr(struct ibv_mr *mr) {
    struct mr *m = (struct mr *)mr;
    struct ibv_pd *pd = mr->pd;
    pthread_mutex_lock(&lock);
    const uint32_t i = mr->lkey >> 8;
    const long len = (long)mr->length;
    const int code = unmake(m, &is.mrs, m->windows, "memory is let go under an open window");
    if (code == 0) keys[i].what = NULL, keys[i].key = 0, is.pinned -= len, pd->handle--;
    pthread_mutex_unlock(&lock);
    return code;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c) {
    int fds[2];
    struct channel *ch = make(sizeof *ch, &is.channels, &is.refuse_channel);
    if (ch == NULL) return NULL;
    if (pipe(fds) != 0) abort();
    ch->c = (struct ibv_comp_channel){c, fds[0], 0};
    ch->out = fds[1];
    __atomic_fetch_add(&c->num_comp_vectors, 1, __ATOMIC_RELAXED);
    return &ch->c;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *c) {
    struct ibv_context *context = c->context;
    const int in = c->fd, out = ((struct channel *)c)->out;
    pthread_mutex_lock(&lock);
    const int code = unmake(c, &is.channels, c->refcnt, "a completion channel goes before its queue");
    if (code == 0) close(in), close(out), __atomic_fetch_sub(&context->num_comp_vectors, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
    return code;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *c, int cqe, void *who, struct ibv_comp_channel *channel, int vector) {
    (void)who, (void)vector;
    struct cq *q = make(sizeof *q, &is.cqs, &is.refuse_cq);
    if (q == NULL) return NULL;
    pthread_mutex_lock(&lock);
    q->cq = (struct ibv_cq){c, channel};
    q->room = (uint32_t)cqe;
    q->ring = calloc(q->room, sizeof *q->ring);
    if (channel) channel->refcnt++;
    pthread_mutex_unlock(&lock);
    return &q->cq;
}

int ibv_destroy_cq(struct ibv_cq *cq) {
    struct cq *q = (struct cq *)cq;
    pthread_mutex_lock(&lock);
    struct ibv_comp_channel *channel = cq->channel;
    struct wcs *ring = q->ring;
    if (q->unacked) misuse("a queue with an event that was not acknowledged: the library would wait for ever");
    const int code = unmake(q, &is.cqs, q->users, "a completion queue goes before its queue pairs");
    if (code == 0) free(ring);
    if (code == 0 && channel) channel->refcnt--;
    pthread_mutex_unlock(&lock);
    return code;
}

int ibv_get_cq_event(struct ibv_comp_channel *c, struct ibv_cq **cq, void **who) {
    if (read(c->fd, cq, sizeof *cq) != sizeof *cq) return -1;
    *who = NULL;
    pthread_mutex_lock(&lock);
    ((struct cq *)*cq)->unacked++;
    pthread_mutex_unlock(&lock);
    return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n) {
    pthread_mutex_lock(&lock);
    ((struct cq *)cq)->unacked -= n;
    pthread_mutex_unlock(&lock);
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a) {
    if (a->cap.max_inline_data > is.max_inline || a->qp_type != IBV_QPT_RC) return errno = EINVAL, NULL;
    struct qp *q = make(sizeof *q, &is.qps, &is.refuse_qp);
    if (q == NULL) return NULL;
    pthread_mutex_lock(&lock);
    static uint32_t at;
    do at = at % (QPS - 1) + 1; while (qps[at]);
    qps[at] = q;
    q->qp = (struct ibv_qp){pd->context, NULL, pd, a->send_cq, a->recv_cq, NULL, at, at};
    q->max_inline = a->cap.max_inline_data;
    q->sq_room = a->cap.max_send_wr, q->rq_room = a->cap.max_recv_wr;
    q->sq = calloc(q->sq_room, sizeof *q->sq), q->rq = calloc(q->rq_room, sizeof *q->rq);
    ((struct cq *)a->send_cq)->users++;
    pd->handle++;
    pthread_mutex_unlock(&lock);
    return &q->qp;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask) {
    struct qp *q = (struct qp *)qp;
    const int way = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER;
    const int sends = IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    pthread_mutex_lock(&lock);
    int code = refused(&is.refuse_modify);
    mask &= ~IBV_QP_STATE;
    if (code) {
    } else if (a->qp_state == IBV_QPS_ERR) {
        flush(q);
    } else if (a->qp_state == IBV_QPS_INIT && q->state == 0
               && mask == (IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) && a->port_num == 1) {
        q->state = IBV_QPS_INIT, q->access = (int)a->qp_access_flags;
    } else if (a->qp_state == IBV_QPS_RTR && q->state == IBV_QPS_INIT && mask == way && a->ah_attr.is_global
               && a->ah_attr.grh.sgid_index < 3 && a->ah_attr.grh.hop_limit && a->ah_attr.port_num == 1) {
        q->state = IBV_QPS_RTR, q->dest = a->dest_qp_num, q->rq_psn = a->rq_psn & 0xffffff;
        if (a->ah_attr.grh.dgid[15] - 1u > 1) code = ENETUNREACH; /* neither of our two addresses */
    } else if (a->qp_state == IBV_QPS_RTS && q->state == IBV_QPS_RTR && mask == sends) {
        q->state = IBV_QPS_RTS, q->sq_psn = a->sq_psn & 0xffffff;
    } else {
        code = EINVAL;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

int ibv_destroy_qp(struct ibv_qp *qp) {
    struct qp *q = (struct qp *)qp;
    pthread_mutex_lock(&lock);
    struct cq *c = (struct cq *)qp->send_cq;
    uint32_t to = c->head; /* what it has in the completion queue goes with it */
    for (uint32_t i = c->head; i != c->tail; i++)
        if (c->ring[i % c->room].retires != q) c->ring[to++ % c->room] = c->ring[i % c->room];
    c->tail = to;
    for (uint32_t i = 0; i < KEYS; i++)
        if (keys[i].is_window && keys[i].what && ((struct mw *)keys[i].what)->qp == q) unbind(keys[i].what);
    for (; q->done != q->posted; q->done++) free(q->sq[q->done % q->sq_room].inlined);
    c->users--;
    qp->pd->handle--;
    qps[qp->qp_num] = NULL;
    free(q->sq), free(q->rq);
    const int code = unmake(q, &is.qps, 0, "");
    pthread_mutex_unlock(&lock);
    return code;
}

const char *ibv_wc_status_str(int status) {
    static const char *const words[] = {
        "success", "local length error", "local QP operation error", "local EE context operation error",
        "local protection error", "Work Request Flushed Error", "memory bind operation error", "bad response error",
        "local access error", "remote invalid request error", "remote access error", "remote operation error",
        "transport retry counter exceeded", "RNR retry counter exceeded", "local RDD violation error",
        "remote invalid RD request", "aborted error", "invalid EE context number", "invalid EE context state",
        "fatal error", "response timeout error", "general error", "TM error", "TM software rendezvous"};
    return status >= 0 && status < 24 ? words[status] : "unknown";
}
