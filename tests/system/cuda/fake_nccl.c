/* A stand-in for libnccl.so.2, over the one for the driver: ranks meet in a file of FAKE_CUDA_DIR, and a collective is
 * three operations of its stream: a copy out of the GPU, a meeting of the hosts, a copy back.
 *
 * Its communicators do not block: until all ranks have come, and for some looks after the first call, the state is "in
 * progress".  It says what NCCL would not forgive: a call meanwhile, and one after the end, as a misuse of the driver's
 * ("fake cuda:").  FAKE_NCCL="version=22803,refuse=2,fails=3": its version; the call that is refused; the call after
 * which the state is an error; stuck=1: nobody comes.  fake_nccl_log tells the calls, one a line: name, elements,
 * type, op, root, stream; and "id" for each number, which leaves a thread and a port of NCCL's. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "system/cuda/driver.h"

enum { RANKS = 8, MOST = 2 << 20, REFUSED = 3, INVALID = 4, USAGE = 5, REMOTE = 6, PROGRESS = 7 };
enum { SUM, PROD, MAX, MIN, NONE };
#define DECLARE(name, arguments) CUresult name arguments;
DECLARE(cuMemcpyAsync, (CUdeviceptr, CUdeviceptr, size_t, CUstream))
DECLARE(cuLaunchHostFunc, (CUstream, CUhostFn, void *))
DECLARE(cuCtxGetDevice, (CUdevice *))
DECLARE(cuDeviceGetUuid_v2, (CUuuid *, CUdevice))

typedef struct { char internal[128]; } id;
struct room { uint32_t joined[RANKS]; char uuid[RANKS][16]; uint64_t came[RANKS], left[RANKS], kind[RANKS]; char slot[RANKS][MOST]; };
typedef struct comm { struct room *room; int rank, size, shares, calls, looks, state, ended; uint64_t turn; } comm;
struct call { comm *c; uint64_t kind; size_t in, each; int type, op, root, blocks, joins; char *from, *to; };

static char log_[1 << 16], last_[128];
static int width(int type) { return (const int[]){1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1}[type]; }

static int setting(const char *name, int usual) {
    const char *all = getenv("FAKE_NCCL"), *at = all ? strstr(all, name) : NULL;
    return at ? atoi(at + strlen(name) + 1) : usual;
}

const char *fake_nccl_log(void) { return log_; }
const char *ncclGetErrorString(int code) {
    return (const char *[]){"no error", "unhandled cuda error", "unhandled system error", "internal error", "invalid argument",
                            "invalid usage", "remote process exited or there was a network error", "in progress"}[code];
}
const char *ncclGetLastError(comm *c) { return (void)c, last_; }
int ncclGetVersion(int *version) { return *version = setting("version", 23004), 0; }

int ncclGetUniqueId(id *made) {
    static unsigned n;
    strcat(log_, "id\n");
    memset(made, 0, sizeof *made);
    snprintf(made->internal, sizeof made->internal, "nccl-%d-%u", getpid(), n++);
    return 0;
}

static int all(const comm *c, const uint64_t *marks, uint64_t at) {
    for (int r = 0; r < c->size; r++)
        if (__atomic_load_n(&marks[r], __ATOMIC_ACQUIRE) < at) return 0;
    return 1;
}

int ncclCommInitRankConfig(comm **made, int size, id told, int rank, const void *config) {
    const unsigned magic = ((const unsigned *)config)[2], version = ((const unsigned *)config)[3];
    char path[300];
    CUdevice device;
    if (magic != 0xcafebeef || version < 21400 || ((const int *)config)[4] != 0 || size > RANKS) return INVALID;
    if (cuCtxGetDevice(&device) != CUDA_SUCCESS) return 1;
    comm *c = *made = calloc(1, sizeof *c);
    snprintf(path, sizeof path, "%s/%s", getenv("FAKE_CUDA_DIR"), told.internal);
    const int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(struct room)) != 0) abort();
    c->room = mmap(NULL, sizeof(struct room), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    c->rank = rank, c->size = size;
    c->shares = setting("version", 23004) >= 23000 && getenv("NCCL_MULTI_RANK_GPU_ENABLE") != NULL;
    cuDeviceGetUuid_v2((CUuuid *)c->room->uuid[rank], device);
    __atomic_store_n(&c->room->joined[rank], 1, __ATOMIC_RELEASE);
    return PROGRESS;
}

static int misused(const comm *c, const char *what) {
    if (c->ended) fprintf(stderr, "fake cuda: NCCL's communicator is %s after its end\n", what);
    return c->ended;
}

int ncclCommGetAsyncError(comm *c, int *state) {
    if (misused(c, "looked at")) return USAGE;
    *state = PROGRESS;
    if (setting("stuck", 0)) return 0;
    for (int r = 0; r < c->size; r++) {
        if (!__atomic_load_n(&c->room->joined[r], __ATOMIC_ACQUIRE)) return 0;
        for (int s = 0; s < r; s++)
            if (!c->shares && memcmp(c->room->uuid[r], c->room->uuid[s], 16) == 0) {
                snprintf(last_, sizeof last_, "Multiple Ranks are using the same GPU");
                return *state = USAGE, 0;
            }
    }
    if (c->looks > 0) return c->looks--, 0;
    *state = c->state;
    return 0;
}

static int ended(comm *c, int how) {
    if (misused(c, "ended")) return USAGE;
    __atomic_store_n(&c->ended, how, __ATOMIC_RELEASE);
    return 0;
}
int ncclCommAbort(comm *c) { return strcat(log_, "abort\n"), ended(c, 2); }
int ncclCommDestroy(comm *c) { return strcat(log_, "destroy\n"), ended(c, 1); }

/* ---- what a stream carries out */

#define FOLD(T) \
    for (size_t i = 0; i < n / sizeof(T); i++) { \
        T *a = (T *)to + i, b = ((const T *)from)[i]; \
        *a = op == SUM ? (T)(*a + b) : op == PROD ? (T)(*a * b) : op == MAX ? (*a > b ? *a : b) : (*a < b ? *a : b); \
    } break;
static void fold(char *to, const char *from, size_t n, int type, int op) {
    switch (type) {
    case 1: FOLD(uint8_t) case 2: FOLD(int32_t) case 4: FOLD(int64_t) case 7: FOLD(float) case 8: FOLD(double)
    default: abort();
    }
}

static int waits(comm *c, const uint64_t *marks, uint64_t at) {
    while (!all(c, marks, at)) {
        if (__atomic_load_n(&c->ended, __ATOMIC_ACQUIRE)) return 0;
        usleep(20);
    }
    return 1;
}

static void meet(void *with) {
    struct call *m = with;
    comm *c = m->c;
    struct room *r = c->room;
    const uint64_t turn = ++c->turn;
    if (!waits(c, r->left, turn - 1)) return;
    memcpy(r->slot[c->rank], m->from, m->in);
    r->kind[c->rank] = m->kind;
    __atomic_store_n(&r->came[c->rank], turn, __ATOMIC_RELEASE);
    if (!waits(c, r->came, turn)) return;
    for (int p = 0; p < c->size; p++)
        if (r->kind[p] != m->kind) fprintf(stderr, "fake cuda: ranks call NCCL in different orders\n");
    const size_t each = m->each, begin = m->blocks ? each * (size_t)c->rank : 0;
    if (m->op != NONE) {
        memcpy(m->to, r->slot[0] + begin, each);
        for (int p = 1; p < c->size; p++) fold(m->to, r->slot[p] + begin, each, m->type, m->op);
    } else if (!m->joins) {
        memcpy(m->to, r->slot[m->root] + begin, each);
    } else {
        for (int p = 0; p < c->size; p++) memcpy(m->to + each * (size_t)p, r->slot[p] + begin, each);
    }
    __atomic_store_n(&r->left[c->rank], turn, __ATOMIC_RELEASE);
}

static int call(const char *name, const void *in, void *out, size_t count, size_t many_in, size_t many_out, int type, int op,
                int root, comm *c, CUstream stream) {
    if (misused(c, "used")) return USAGE;
    if (c->looks > 0) return fprintf(stderr, "fake cuda: NCCL is called while it is in progress\n"), USAGE;
    const int number = ++c->calls, takes = op != NONE && (type == 0 || type == 3 || type == 5 || type == 6 || type > 8);
    snprintf(log_ + strlen(log_), 200, "%s %zu %d %d %d %p\n", name, count, type, op, root, (void *)stream);
    if (number == setting("refuse", 0)) return snprintf(last_, sizeof last_, "as it was told"), REFUSED;
    const size_t each = count * (size_t)width(type);
    if (takes || each * many_in > MOST) return INVALID;
    struct call *m = calloc(1, sizeof *m); /* never freed: a graph may be replayed */
    m->c = c, m->each = each, m->in = in ? each * many_in : 0;
    m->type = type, m->op = op, m->root = root, m->blocks = many_in > 1, m->joins = many_out > 1;
    m->kind = ((((uint64_t)count * 16 + (uint64_t)type) * 8 + (uint64_t)op) * 8 + (uint64_t)root) * 4 + many_in % 2 * 2 + many_out % 2;
    m->from = calloc(1, each * many_in + 1), m->to = calloc(1, each * many_out + 1);
    cuMemcpyAsync((CUdeviceptr)(uintptr_t)m->from, (CUdeviceptr)(uintptr_t)in, m->in, stream);
    cuLaunchHostFunc(stream, meet, m);
    cuMemcpyAsync((CUdeviceptr)(uintptr_t)out, (CUdeviceptr)(uintptr_t)m->to, out ? each * many_out : 0, stream);
    if (number == setting("fails", 0)) c->state = REMOTE;
    c->looks = number == 1 ? 3 : 0;
    return number == 1 ? PROGRESS : 0;
}

#define P ((size_t)c->size)
#define AT(root) (c->rank == (root))
int ncclAllReduce(const void *in, void *out, size_t n, int type, int op, comm *c, CUstream s) {
    return call(__func__, in, out, n, 1, 1, type, op, 0, c, s);
}
int ncclReduce(const void *in, void *out, size_t n, int type, int op, int root, comm *c, CUstream s) {
    return call(__func__, in, AT(root) ? out : NULL, n, 1, 1, type, op, root, c, s);
}
int ncclBroadcast(const void *in, void *out, size_t n, int type, int root, comm *c, CUstream s) {
    return call(__func__, in, out, n, 1, 1, type, NONE, root, c, s);
}
int ncclReduceScatter(const void *in, void *out, size_t n, int type, int op, comm *c, CUstream s) {
    return call(__func__, in, out, n, P, 1, type, op, 0, c, s);
}
int ncclAllGather(const void *in, void *out, size_t n, int type, comm *c, CUstream s) {
    return call(__func__, in, out, n, 1, P, type, NONE, 0, c, s);
}
#ifndef OLD_NCCL /* before 2.28 */
int ncclAlltoAll(const void *in, void *out, size_t n, int type, comm *c, CUstream s) {
    return call(__func__, in, out, n, P, P, type, NONE, 0, c, s);
}
int ncclGather(const void *in, void *out, size_t n, int type, int root, comm *c, CUstream s) {
    return call(__func__, in, AT(root) ? out : NULL, n, 1, P, type, NONE, root, c, s);
}
int ncclScatter(const void *in, void *out, size_t n, int type, int root, comm *c, CUstream s) {
    return call(__func__, AT(root) ? in : NULL, out, n, P, 1, type, NONE, root, c, s);
}
#endif
