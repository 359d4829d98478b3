/* A stand-in for libibverbs.so.1: two RoCE devices, fake0 and fake1, whose queue pairs reach each other in one process.
 *
 * It does what a driver and a device do and our protocol relies on, and checks what they check: keys, ranges, access,
 * windows and the queue pair they are bound to, queue depths, inline limits, the states of a queue pair; completions in
 * order, events only after a request, everything flushed when a queue pair fails.  What a device leaves undefined is
 * filled with rubbish.  A work request is carried out when it is posted (or, with `delay`, later, by a thread that
 * chooses among the queue pairs), and one that finds no receive waits for it, as with rnr_retry 7.
 *
 * fake_set and fake_get change and tell the numbers below; FAKE_VERBS="windows=0,delay=50" sets them at the start. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>

#include "transports/verbs/ibverbs.h"

#define KNOBS(X) \
    X(devices) X(windows) X(max_inline) X(down) /* a bit for each device whose port is down */ \
    X(delay)           /* microseconds at most before a work request is carried out */ \
    X(hold)            /* writes of NAMED bytes or more wait */ \
    X(mute)            /* no request is carried out, nor ends */ \
    X(fail_at)         /* so many completions from now, one fails ... */ \
    X(fail_status)     /* ... with this status */ \
    X(refuse_mr) X(refuse_qp) X(refuse_cq) X(refuse_channel) X(refuse_mw) X(refuse_modify) \
    X(refuse_post)     /* so many ... */ \
    X(refuse_errno)    /* ... from now, one call is refused with this; with a negative number, it and all after it */
#define COUNTS(X) \
    X(contexts) X(pds) X(mrs) X(mws) X(channels) X(cqs) X(qps) X(pinned) /* that are there */ \
    X(completions) X(events) X(binds) X(invalidated) X(long_writes) /* so far; of NAMED bytes or more */ \
    X(bad_keys)        /* writes refused for their key */ \
    X(overflows)       /* of a queue */ \
    X(misuses)         /* what a driver may answer with a crash, or would not notice; said on stderr */
#define MEMBER(name) long name;
static struct { KNOBS(MEMBER) COUNTS(MEMBER) } is = {.devices = 2, .windows = 1, .max_inline = 256};
#undef MEMBER
enum { NAMED = 131072, KEYS = 8192, QPS = 4096, MAX_MSG = 8 << 20, MEM_MW = 1 << 24 };

struct ibv_device { const char *name; };
static struct ibv_device devices[2] = {{"fake0"}, {"fake1"}};
struct mr { struct ibv_mr mr; int access, windows; };
struct mw { struct ibv_mw mw; uint32_t key; struct mr *on; struct qp *qp; uint64_t addr, length; int access, bound; };
struct channel { struct ibv_comp_channel c; int out; };
struct wcs { struct ibv_wc wc; struct qp *retires; uint32_t sends; int is_recv; };
struct cq { struct ibv_cq cq; struct wcs *ring; uint32_t room, head, tail; int asked, users; long unacked; };
struct send { struct ibv_send_wr wr; struct ibv_sge part; char *inlined; };
struct recv { uint64_t wr_id; struct ibv_sge part; int parts; };
struct qp {
    struct ibv_qp qp;
    int state, access;
    uint32_t dest, sq_psn, rq_psn, max_inline, sq_room, rq_room;
    struct send *sq; /* [done, posted) wait; [retired, posted) hold their places */
    struct recv *rq;
    uint32_t posted, done, retired, rq_posted, rq_done, rq_retired;
};
static struct { void *what; int is_window; uint32_t key; } keys[KEYS];
static struct qp *qps[QPS];
static uint32_t generation;
static struct { uint64_t addr, len; uint32_t rkey, qp; } last; /* write of NAMED bytes or more */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void misuse(const char *what) {
    is.misuses++;
    fprintf(stderr, "fake verbs: %s\n", what);
}

static int refused(long *in) {
    if (*in == 0 || (*in > 0 && --*in > 0)) return 0;
    return errno = is.refuse_errno ? (int)is.refuse_errno : ENOMEM;
}

static long *number(const char *name) {
#define FIND(each) if (strcmp(name, #each) == 0) return &is.each;
    KNOBS(FIND) COUNTS(FIND)
#undef FIND
    return NULL;
}

long fake_get(const char *name) {
    pthread_mutex_lock(&lock);
    const long *n = number(name), value = n ? *n : -1;
    pthread_mutex_unlock(&lock);
    return value;
}

int fake_set(const char *name, long value) {
    pthread_mutex_lock(&lock);
    long *n = number(name);
    if (n) *n = value;
    pthread_mutex_unlock(&lock);
    return n ? 0 : -1;
}

__attribute__((constructor)) static void settings(void) {
    char text[256], *at = text, *one;
    snprintf(text, sizeof text, "%s", getenv("FAKE_VERBS") ? getenv("FAKE_VERBS") : "");
    while ((one = strsep(&at, ",")) != NULL && *one) {
        char *value = strchr(one, '=');
        if (value == NULL) abort();
        *value = 0;
        if (fake_set(one, atol(value + 1)) != 0) abort();
    }
}

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

/* ------------------------------------------------------------------------------------------ what is made and unmade */

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
