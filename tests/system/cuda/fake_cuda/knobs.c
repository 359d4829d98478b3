/* What a test sets and reads; how every call begins and ends. */
#include "fake.h"

struct numbers is = {.devices = 1, .peers = 1, .version = 13000, .room = 1L << 40, .ipc = 1, .ipc_events = 1,
                     .memops = 1, .fault_status = CUDA_ERROR_ILLEGAL_ADDRESS};
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
_Thread_local int in_host_call;
const char *folder;
int my_pid;
static int died; /* as is.dead, for those who do not hold the lock */
static struct { char function[64]; long nth; int status; } refusal;

static long *number(const char *name) {
#define FIND(each) if (strcmp(name, #each) == 0) return &is.each;
    KNOBS(FIND) COUNTS(FIND)
#undef FIND
    return NULL;
}

static void settings(void);
static pthread_once_t once = PTHREAD_ONCE_INIT;

long fake_get(const char *name) {
    pthread_once(&once, settings);
    pthread_mutex_lock(&lock);
    is.dead = dead();
    const long *n = number(name), value = n ? *n : -1;
    pthread_mutex_unlock(&lock);
    return value;
}

static int set(const char *name, long value) {
    pthread_mutex_lock(&lock);
    long *n = number(name);
    if (n == &is.dead && value == 0 && dead()) drain(); /* else what waits might not notice that all was over */
    if (n) *n = value;
    if (n == &is.dead) __atomic_store_n(&died, (int)value, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&lock);
    return n ? 0 : -1;
}

int fake_set(const char *name, long value) {
    pthread_once(&once, settings);
    return set(name, value);
}

static int refuse(const char *function, long nth, int status) {
    pthread_mutex_lock(&lock);
    snprintf(refusal.function, sizeof refusal.function, "%s", function);
    refusal.nth = nth, refusal.status = status;
    pthread_mutex_unlock(&lock);
    return 0;
}

/* So many calls of this function from now, one gives `status`; nth < 0: that one and all after it. */
int fake_refuse(const char *function, long nth, int status) {
    pthread_once(&once, settings);
    return refuse(function, nth, status);
}

/* A child that is forked must find the lock free, whatever our threads were at. */
static void hold(void) { pthread_mutex_lock(&lock); }
static void let_go(void) { pthread_mutex_unlock(&lock); }

__attribute__((constructor)) static void loaded(void) { pthread_atfork(hold, let_go, let_go); }

/* name=value,...; and refuse=function:nth:status.  They are read at the first call, which may be long after this library
 * was loaded. */
static void settings(void) {
    char text[512], *at = text, *one;
    snprintf(text, sizeof text, "%s", getenv("FAKE_CUDA") ? getenv("FAKE_CUDA") : "");
    while ((one = strsep(&at, ",")) != NULL && *one) {
        char *value = strchr(one, '='), function[64];
        long nth;
        int status;
        if (value == NULL) abort();
        *value++ = 0;
        if (strcmp(one, "refuse") == 0) {
            if (sscanf(value, "%63[^:]:%ld:%d", function, &nth, &status) != 3) abort();
            refuse(function, nth, status);
        } else if (set(one, atol(value)) != 0) {
            abort();
        }
    }
}

void misuse(long *kind, const char *what) {
    ++*kind;
    is.misuses++;
    fprintf(stderr, "fake cuda: %s\n", what);
}

int dead(void) { return __atomic_load_n(&died, __ATOMIC_ACQUIRE); }

void die(CUresult status) {
    int none = 0;
    __atomic_compare_exchange_n(&died, &none, (int)status, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    pthread_cond_broadcast(&moved); /* nobody waits for what will not come */
}

static CUresult refused(const char *function) {
    if (refusal.nth == 0 || strcmp(function, refusal.function) != 0) return CUDA_SUCCESS;
    if (refusal.nth > 1) return refusal.nth--, CUDA_SUCCESS;
    if (refusal.nth < -1) return refusal.nth++, CUDA_SUCCESS;
    if (refusal.nth == 1) refusal.nth = 0;
    if (is.refuse_sticky) die(refusal.status);
    return refusal.status;
}

CUresult enter(const char *function, int needs) {
    pthread_once(&once, settings);
    pthread_mutex_lock(&lock);
    is.calls++;
    is.dead = dead();
    CUresult code = refused(function);
    const struct CUctx_st *c = current();
    /* A child that was forked has nothing of CUDA's. */
    if (code == CUDA_SUCCESS && needs >= INITIALISED && my_pid != getpid()) code = CUDA_ERROR_NOT_INITIALIZED;
    if (code == CUDA_SUCCESS && needs >= INITIALISED && in_host_call) code = CUDA_ERROR_NOT_PERMITTED;
    if (code == CUDA_SUCCESS && needs >= INITIALISED) code = is.dead;
    if (code == CUDA_SUCCESS && needs == IN_CONTEXT && c == NULL) code = CUDA_ERROR_INVALID_CONTEXT;
    if (code == CUDA_SUCCESS && needs == IN_CONTEXT && !c->alive) code = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (code != CUDA_SUCCESS) pthread_mutex_unlock(&lock);
    return code;
}

CUresult leave(CUresult code) {
    is.dead = dead();
    pthread_mutex_unlock(&lock);
    return code;
}
