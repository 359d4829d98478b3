/* Streams: queues of operations, each with a thread that carries them out, after a while and in their order. */
#include "fake.h"

static struct CUstream_st *streams;
static _Thread_local struct CUstream_st *own[DEVICES];

static struct CUstream_st *new_stream(struct CUctx_st *c, unsigned flags) {
    static unsigned made;
    struct CUstream_st *s = calloc(1, sizeof *s);
    s->context = c, s->flags = flags, s->dice = (unsigned)(is.seed ? is.seed : my_pid) * 7919u + ++made;
    s->next = streams; /* never freed: handles may be used after their end, and that must be noticed */
    return streams = s;
}

static struct CUstream_st *legacy(struct CUctx_st *c) {
    if (c->legacy == NULL) c->legacy = new_stream(c, CU_STREAM_DEFAULT);
    return c->legacy;
}

struct CUstream_st *stream_of(CUstream handle) {
    struct CUctx_st *c = current();
    if (handle == NULL || handle == CU_STREAM_LEGACY) return legacy(c);
    if (handle == CU_STREAM_PER_THREAD) {
        struct CUstream_st **mine = &own[c->device];
        return *mine ? *mine : (*mine = new_stream(c, CU_STREAM_DEFAULT));
    }
    for (struct CUstream_st *s = streams; s; s = s->next)
        if (s == handle && !s->destroyed) return s;
    misuse(&is.bad_handle, "a stream is used that is not there");
    return NULL;
}

/* ---- what is queued */

void need(struct op *o, struct CUstream_st *s, uint64_t upto) {
    if (s->done >= upto) return;
    o->needs = realloc(o->needs, (size_t)(o->n_needs + 1) * sizeof *o->needs);
    o->needs[o->n_needs++] = (struct need){s, upto};
}

static int ready(const struct op *o) {
    for (int i = 0; i < o->n_needs; i++)
        if (o->needs[i].stream->done < o->needs[i].upto) return 0;
    return 1;
}

static void *work(void *stream) {
    struct CUstream_st *s = stream;
    pthread_mutex_lock(&lock);
    while (s->first || !s->destroyed) {
        struct op *o = s->first;
        if (o == NULL || (!ready(o) && !dead())) {
            pthread_cond_wait(&moved, &lock);
            continue;
        }
        const useconds_t late = is.delay ? (useconds_t)(rand_r(&s->dice) % (is.delay + 1)) : 0;
        is.operations++;
        if (is.fault_at > 0 && --is.fault_at == 0) die(is.fault_status);
        pthread_mutex_unlock(&lock);
        if (late) usleep(late);
        if (o->run && !dead()) o->run(o);
        else if (!o->captured) free(o->launch);
        pthread_mutex_lock(&lock);
        s->first = o->next;
        s->done = o->number;
        free(o->needs);
        free(o);
        pthread_cond_broadcast(&moved);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static int is_capturing(const struct CUstream_st *s) { return is.capturing == 1 || is.capturing == (long)(uintptr_t)s; }

/* Queue an operation; its fields may be filled in until the lock is let go. */
struct op *submit(struct CUstream_st *s, void (*run)(struct op *)) {
    struct op *o = calloc(1, sizeof *o);
    pthread_t thread;
    if (is_capturing(s)) {
        o->run = run, o->next = s->graph, o->captured = 1;
        return s->graph = o;
    }
    o->number = ++s->submitted;
    o->run = run;
    struct CUstream_st *const null = legacy(s->context);
    if (s == null) {
        for (struct CUstream_st *t = streams; t; t = t->next)
            if (t != s && t->context == s->context && !(t->flags & CU_STREAM_NON_BLOCKING)) need(o, t, t->submitted);
    } else if (!(s->flags & CU_STREAM_NON_BLOCKING)) {
        need(o, null, null->submitted);
    }
    if (s->first == NULL) s->first = o;
    else s->last->next = o;
    s->last = o;
    if (!s->running) {
        s->running = 1;
        if (pthread_create(&thread, NULL, work, s) != 0) abort();
        pthread_detach(thread);
    }
    pthread_cond_broadcast(&moved);
    return o;
}

CUresult until_done(struct CUstream_st *s, uint64_t number) {
    while (s->done < number) pthread_cond_wait(&moved, &lock);
    return dead();
}

void settle(struct CUctx_st *c) {
    for (struct CUstream_st *s = streams; s; s = s->next)
        if (s->context == c) until_done(s, s->submitted);
}

void drain(void) {
    for (struct CUstream_st *s = streams; s; s = s->next) until_done(s, s->submitted);
}

/* ---- the calls */

static CUresult create(CUstream *stream, unsigned int flags) {
    if (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    *stream = new_stream(current(), flags);
    is.streams++;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    ENTER(IN_CONTEXT);
    return leave(create(stream, flags));
}

/* All are alike here: any priority will do, as CUDA takes the nearest that it has. */
CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
    (void)priority;
    ENTER(IN_CONTEXT);
    return leave(create(stream, flags));
}

/* Returns at once; what it was given is still carried out. */
CUresult cuStreamDestroy_v2(CUstream stream) {
    ENTER(IN_CONTEXT);
    struct CUstream_st *s = (uintptr_t)stream > 2 ? stream_of(stream) : NULL;
    if (s == NULL) return leave(CUDA_ERROR_INVALID_HANDLE);
    s->destroyed = 1;
    is.streams--;
    pthread_cond_broadcast(&moved);
    return leave(CUDA_SUCCESS);
}

CUresult cuStreamQuery(CUstream stream) {
    ENTER(IN_CONTEXT);
    struct CUstream_st *s = stream_of(stream);
    if (s == NULL) return leave(CUDA_ERROR_INVALID_HANDLE);
    if (is_capturing(s)) return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    return leave(s->done == s->submitted ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

CUresult cuStreamSynchronize(CUstream stream) {
    ENTER(IN_CONTEXT);
    struct CUstream_st *s = stream_of(stream);
    if (s == NULL) return leave(CUDA_ERROR_INVALID_HANDLE);
    if (is_capturing(s)) return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    is.waits++;
    return leave(until_done(s, s->submitted));
}

/* Where a stand-in for a library of kernels finds this memory, as the stream has left it: what it does there is done in the order
 * of that stream, and no wait of the host's. */
void *fake_reach(CUdeviceptr at, CUstream stream) {
    pthread_mutex_lock(&lock);
    struct CUstream_st *s = stream_of(stream);
    void *there = s && until_done(s, s->submitted) == CUDA_SUCCESS ? reach(at, 1) : NULL;
    pthread_mutex_unlock(&lock);
    return there;
}

static int replay(const struct op *o, struct CUstream_st *s) {
    if (o == NULL) return 0;
    const int before = replay(o->next, s);
    struct op *again = submit(s, o->run), copy = *o;
    copy.next = again->next, copy.number = again->number, copy.needs = again->needs, copy.n_needs = again->n_needs;
    *again = copy;
    return before + 1;
}

/* Carry out in `stream` what was captured in the other one; so many operations. */
int fake_replay(CUstream captured, CUstream stream) {
    pthread_mutex_lock(&lock);
    const int n = replay(stream_of(captured)->graph, stream_of(stream));
    pthread_mutex_unlock(&lock);
    return n;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    ENTER(IN_CONTEXT);
    const struct CUstream_st *s = stream_of(stream);
    if (s == NULL) return leave(CUDA_ERROR_INVALID_HANDLE);
    *status = is_capturing(s) ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return leave(CUDA_SUCCESS);
}
