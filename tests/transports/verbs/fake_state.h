/* What the stand-in for libibverbs keeps: its numbers, and what programs have made. */
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
    X(refuse_post) X(refuse_recv)     /* so many ... */ \
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
