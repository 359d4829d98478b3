/* Events.  One of this process alone is a place in a stream; an interprocess one numbers its records in a file. */
#include "fake.h"

#include <sys/mman.h>

static struct CUevent_st *events;

struct CUevent_st *new_event(unsigned flags) {
    struct CUevent_st *e = calloc(1, sizeof *e);
    e->context = current(), e->flags = flags;
    e->next = events; /* never freed, as streams */
    is.events++;
    return events = e;
}

struct CUevent_st *event_of(CUevent handle) {
    for (struct CUevent_st *e = events; e; e = e->next) {
        if (e != handle || e->dead) continue;
        if (e->shared && __atomic_load_n(&e->shared->destroyed, __ATOMIC_ACQUIRE))
            misuse(&is.early_destroy, "an event is used that its owner has destroyed");
        return e;
    }
    misuse(&is.bad_handle, "an event is used that is not there");
    return NULL;
}

CUresult cuEventCreate(CUevent *event, unsigned int flags) {
    ENTER(IN_CONTEXT);
    const int between = flags & CU_EVENT_INTERPROCESS;
    if (flags > 7 || (between && !(flags & CU_EVENT_DISABLE_TIMING))) return leave(CUDA_ERROR_INVALID_VALUE);
    if (between && !is.ipc_events) return leave(CUDA_ERROR_NOT_SUPPORTED);
    struct CUevent_st *e = new_event(flags);
    if (between) {
        e->file = next_number();
        const int fd = open_file("event", my_pid, my_cookie, e->file, 1);
        if (fd < 0 || ftruncate(fd, sizeof *e->shared) != 0) abort();
        e->shared = mmap(NULL, sizeof *e->shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (e->shared == MAP_FAILED) abort();
        close(fd);
    }
    *event = e;
    return leave(CUDA_SUCCESS);
}

static int has_waiters(const struct shared *s) {
    for (int i = 0; i < WAITERS; i++) {
        const int pid = __atomic_load_n(&s->waiters[i], __ATOMIC_ACQUIRE);
        if (pid && alive(pid)) return 1;
    }
    return 0;
}

CUresult cuEventDestroy_v2(CUevent event) {
    ENTER(IN_CONTEXT);
    struct CUevent_st *e = event_of(event);
    if (e == NULL) return leave(CUDA_ERROR_INVALID_HANDLE);
    if (e->shared && !e->imported) {
        if (has_waiters(e->shared)) misuse(&is.early_destroy, "an event is destroyed while a stream waits for it");
        __atomic_store_n(&e->shared->destroyed, 1, __ATOMIC_RELEASE);
        remove_file("event", e->file);
    }
    if (e->imported) is.ipc_events_open--;
    e->dead = 1; /* its file stays mapped: operations of it may be in a queue */
    is.events--;
    return leave(CUDA_SUCCESS);
}

static void mark(struct op *o) {
    __atomic_store_n(&o->shared->done[o->generation % SLOTS], o->generation, __ATOMIC_RELEASE);
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
    ENTER(IN_CONTEXT);
    struct CUevent_st *e = event_of(event);
    struct CUstream_st *s = stream_of(stream);
    if (e == NULL || s == NULL || s->context != e->context) return leave(CUDA_ERROR_INVALID_HANDLE);
    struct op *o = submit(s, e->shared ? mark : NULL);
    e->stream = s, e->number = o->number;
    if (e->shared) {
        o->shared = e->shared;
        o->generation = __atomic_add_fetch(&e->shared->submitted, 1, __ATOMIC_ACQ_REL);
    }
    is.records++;
    return leave(CUDA_SUCCESS);
}

static int reached(const struct shared *s, uint64_t n) {
    return n == 0 || __atomic_load_n(&s->done[n % SLOTS], __ATOMIC_ACQUIRE) >= n;
}

static void await(struct op *o) {
    while (!reached(o->shared, o->generation) && !dead()) usleep(20);
    if (o->slot >= 0) __atomic_store_n(&o->shared->waiters[o->slot], 0, __ATOMIC_RELEASE);
}

static int take_slot(struct shared *s) {
    for (int i = 0; i < WAITERS; i++) {
        int32_t free = 0;
        if (__atomic_compare_exchange_n(&s->waiters[i], &free, my_pid, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return i;
    }
    return -1;
}

/* Waits for the latest record there is now; for none, if there is none. */
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
    ENTER(IN_CONTEXT);
    struct CUevent_st *e = event_of(event);
    struct CUstream_st *s = stream_of(stream);
    if (e == NULL || s == NULL) return leave(CUDA_ERROR_INVALID_HANDLE);
    if (flags) return leave(CUDA_ERROR_INVALID_VALUE);
    is.event_waits++;
    if (e->shared) {
        const uint64_t latest = __atomic_load_n(&e->shared->submitted, __ATOMIC_ACQUIRE);
        if (reached(e->shared, latest)) return leave(CUDA_SUCCESS);
        struct op *o = submit(s, await);
        o->shared = e->shared, o->generation = latest, o->slot = take_slot(e->shared);
    } else if (e->stream && e->stream->done < e->number) {
        need(submit(s, NULL), e->stream, e->number);
    }
    return leave(CUDA_SUCCESS);
}

static int is_done(const struct CUevent_st *e) {
    if (e->shared) return reached(e->shared, __atomic_load_n(&e->shared->submitted, __ATOMIC_ACQUIRE));
    return e->stream == NULL || e->stream->done >= e->number;
}

CUresult cuEventQuery(CUevent event) {
    ENTER(IN_CONTEXT);
    const struct CUevent_st *e = event_of(event);
    if (e == NULL) return leave(CUDA_ERROR_INVALID_HANDLE);
    return leave(is_done(e) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

CUresult cuEventSynchronize(CUevent event) {
    ENTER(IN_CONTEXT);
    const struct CUevent_st *e = event_of(event);
    if (e == NULL) return leave(CUDA_ERROR_INVALID_HANDLE);
    is.waits++;
    if (e->shared == NULL && e->stream) return leave(until_done(e->stream, e->number));
    const uint64_t latest = e->shared ? __atomic_load_n(&e->shared->submitted, __ATOMIC_ACQUIRE) : 0;
    const struct shared *shared = e->shared;
    pthread_mutex_unlock(&lock);
    while (shared && !reached(shared, latest) && !dead()) usleep(20);
    pthread_mutex_lock(&lock);
    return leave(dead());
}
