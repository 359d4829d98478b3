"""The queue of asynchronous runs, and the one thread per process that makes them progress.

Queued runs of an engine go one after the other (collectives), or side by side (send and recv); engines progress
independently, so two communicators may be used in different order on different ranks.  Whoever holds the lock
drives all of them: the progress thread, or a caller that waits, which runs its own call without a hand-off.

To wake a sleeping thread takes longer than all the rest of starting a run, so the thread stays awake for a while after
its last work, and looks for more by itself.  It yields to computing threads and to waiting ones.

A long file: all of it is what one lock guards.
"""

import threading

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from hocket.collectives.engine.count cimport count_begin, count_blocked, count_end, count_moved
from hocket.collectives.engine.drive cimport advance, elsewhere, failed_before, has_failed
from hocket.collectives.engine.run cimport (ABORTED, BLOCKED, DONE, MOVED, TIMED_OUT, Core, hk_ladder, hk_load32, hk_now,
                                     Run, hk_store32, hk_wait, hk_wait_reset, hk_wait_step, may_drive, run_stopped)


cdef extern from "system/atomics.h" nogil:
    void hk_add32(uint32_t*, uint32_t)

cdef extern from "time.h" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    enum: CLOCK_REALTIME
    int clock_gettime(int, timespec*)
    int nanosleep(const timespec*, timespec*)

cdef extern from "pthread.h" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_mutex_init(pthread_mutex_t*, void*)
    int pthread_mutex_lock(pthread_mutex_t*)
    int pthread_mutex_trylock(pthread_mutex_t*)
    int pthread_mutex_unlock(pthread_mutex_t*)
    int pthread_cond_init(pthread_cond_t*, void*)
    int pthread_cond_signal(pthread_cond_t*)
    int pthread_cond_broadcast(pthread_cond_t*)
    int pthread_cond_wait(pthread_cond_t*, pthread_mutex_t*)
    int pthread_cond_timedwait(pthread_cond_t*, pthread_mutex_t*, const timespec*)

cdef extern from "sched.h" nogil:
    struct sched_param:
        int sched_priority
    enum: SCHED_BATCH
    int sched_setscheduler(int, int, const sched_param*)

cdef extern from "sys/prctl.h" nogil:
    enum: PR_SET_TIMERSLACK
    int prctl(int, unsigned long)

cdef enum:
    MAX_ENGINES = 1024
    NAP_NS = 50000              # of the thread, when it has nothing to do but may soon have
    SLACK_NS = 1000             # by how much a nap may be longer
    LINGER_NS = 20000000        # how long it naps before it sleeps on `filled`

cdef pthread_mutex_t lock       # guards everything below, and the queued engines' cores
cdef pthread_cond_t filled
cdef Core* queued[MAX_ENGINES]
cdef uint32_t nqueued = 0       # written under the lock, looked at without
cdef bint asleep = False        # the thread sleeps on `filled`
cdef uint32_t drivers = 0       # threads in `wait`; atomic
cdef uint32_t nended = 0        # runs that ended since the last reaping; atomic
cdef uint32_t stopping = 0      # atomic
cdef pthread_cond_t one_ended
cdef uint64_t ends = 1          # 1 + the runs that ended, ever, + nudges
pthread_mutex_init(&lock, NULL)
pthread_cond_init(&filled, NULL)
pthread_cond_init(&one_ended, NULL)

thread = None


# ------------------------------------------------------------------------------------- progress, lock held

cdef int settle(Node* n, int rc) noexcept nogil:
    global ends
    hk_store32(&n.status, <uint32_t>rc)         # from here on its owner may free it
    hk_add32(&nended, 1)
    ends += 1
    pthread_cond_broadcast(&one_ended)          # costs nothing if nobody waits
    return MOVED


cdef int progress_one(Core* e, bint caller) noexcept nogil:
    """Advance the queued runs of one engine, unless a blocking call does, or this thread may not."""
    if hk_load32(&e.busy) or not may_drive(e, caller):
        return BLOCKED
    e.pass_number += 1
    return advance_queued(e)


cdef int others(Core* e) noexcept nogil:
    """For the blocking call that drives this engine: the runs that other threads have queued behind it."""
    cdef int moved
    if pthread_mutex_trylock(&lock) != 0:       # never waits: its holder may want the GIL, which we may have
        return BLOCKED
    moved = advance_queued(e)
    pthread_mutex_unlock(&lock)
    return moved


cdef int advance_queued(Core* e) noexcept nogil:
    """Try the queued runs once; drop those that ended."""
    cdef Node** link = <Node**>&e.head
    cdef Node* before = NULL
    cdef Node* n
    cdef int rc, moved = BLOCKED
    while link[0] != NULL:
        n = link[0]
        if not n.counted:           # its turn has come
            n.counted = True
            count_begin(&n.run, n.nbytes, n.small)
        rc = ABORTED if run_stopped(e, &n.run) else failed_before(e, &n.run) if e.failed else advance(e, &n.run)
        if n.run.limit and rc >= 0:
            rc = limited(&n.run, rc)
        if n.run.weight:
            if rc == BLOCKED:
                count_blocked(&n.run)
            elif rc == DONE:
                count_end(&n.run)
            else:
                count_moved(&n.run)
        if rc < 0:
            has_failed(e, &n.run, rc)
        if rc == DONE or rc < 0:
            link[0] = n.next
            if n.next == NULL:
                e.tail = before
            if e.head == NULL:      # a thread that sees the last run ended may drop the engine: not touched after that
                unlist(e)
                hk_store32(&e.pending, 0)
                return settle(n, rc)
            moved = settle(n, rc)
            continue
        moved |= rc
        if not e.concurrent:
            break
        before, link = n, &n.next
    return moved


cdef inline int limited(Run* r, int rc) noexcept nogil:
    """Is the time limit over?  It counts while nothing moves, and not before the run's turn has come."""
    cdef uint64_t now
    if rc != BLOCKED:
        r.deadline = 0
        return rc
    now = hk_now()
    if r.deadline == 0:
        r.deadline = now + r.limit
    return TIMED_OUT if now > r.deadline else rc


cdef int progress(bint caller) noexcept nogil:
    """One pass over everything that is queued in this process; not over lower lanes, if a higher one moved."""
    cdef uint32_t i = 0
    cdef int moved = BLOCKED, priority = 0
    cdef Core* e
    while i < nqueued:
        e = queued[i]
        if moved == MOVED and e.priority < priority:
            break
        priority = e.priority
        moved |= progress_one(e, caller)
        i += i < nqueued and queued[i] == e     # else another has taken its place
    return moved


cdef void enlist(Core* e) noexcept nogil:
    """Behind those of its priority and above."""
    cdef uint32_t i = nqueued
    e.listed = True
    while i > 0 and queued[i - 1].priority < e.priority:
        queued[i] = queued[i - 1]
        i -= 1
    queued[i] = e
    hk_store32(&nqueued, nqueued + 1)


cdef void unlist(Core* e) noexcept nogil:
    cdef uint32_t i
    cdef bint found = False
    for i in range(nqueued):
        if found:
            queued[i - 1] = queued[i]
        found |= queued[i] == e
    if found:
        hk_store32(&nqueued, nqueued - 1)
    e.listed = False


cdef bint has_room(Core* e) noexcept nogil:
    return e.listed or nqueued < MAX_ENGINES


cdef void submit(Node* n) noexcept nogil:
    if n.core.head == NULL:
        n.core.head = n
    else:
        (<Node*>n.core.tail).next = n
    n.core.tail = n
    n.core.others = others
    hk_store32(&n.core.pending, 1)
    if not n.core.listed:
        enlist(n.core)
    if asleep:
        pthread_cond_signal(&filled)


# --------------------------------------------------------------------------------------------- from outside

cdef int take() except -1:
    while pthread_mutex_trylock(&lock) != 0:    # its holder may want the GIL
        with nogil:
            pthread_mutex_lock(&lock)
            pthread_mutex_unlock(&lock)
    return 0


cdef void give() noexcept nogil:
    pthread_mutex_unlock(&lock)


cdef int try_progress(bint caller) noexcept nogil:
    cdef int moved
    if pthread_mutex_trylock(&lock) != 0:
        return BLOCKED
    moved = progress(caller)
    pthread_mutex_unlock(&lock)
    return moved


cdef void waiting(int change) noexcept nogil:
    hk_add32(&drivers, <uint32_t>change)


elsewhere.engines, elsewhere.advance, elsewhere.waiting = &nqueued, try_progress, waiting


cdef uint32_t ended_since_reaped() noexcept nogil:
    return hk_load32(&nended)


cdef void reaped() noexcept nogil:
    hk_store32(&nended, 0)


# ------------------------------------------------------------------------------------------------- the thread

cdef void nap() noexcept nogil:
    cdef timespec t
    t.tv_sec, t.tv_nsec = 0, NAP_NS
    nanosleep(&t, NULL)


cdef void serve() noexcept nogil:
    """The progress thread: asleep when nothing is queued for long, never in the way of threads that compute or wait."""
    cdef hk_wait w
    cdef hk_ladder ladder
    cdef sched_param none
    cdef uint64_t idle_since = 0
    memset(&w, 0, sizeof(w))
    memset(&none, 0, sizeof(none))
    ladder.spins = ladder.spins_now = 100
    ladder.yield_ns, ladder.slow_ns = 100000, 50000
    ladder.home = -1
    sched_setscheduler(0, SCHED_BATCH, &none)   # when it wakes it does not take a computing thread's core at once
    prctl(PR_SET_TIMERSLACK, SLACK_NS)
    while not hk_load32(&stopping):
        if hk_load32(&nqueued) == 0:
            hk_wait_reset(&w, &ladder, NULL)
            if idle_since == 0:
                idle_since = hk_now()
            if hk_now() - idle_since < LINGER_NS:
                nap()
                continue
            lie_down()
            idle_since = 0
        idle_since = 0
        if hk_load32(&drivers):
            nap()
        elif try_progress(False):
            hk_wait_reset(&w, &ladder, NULL)
        else:
            hk_wait_step(&w, &ladder, NULL, NULL, 0)


cdef void lie_down() noexcept nogil:
    global asleep
    pthread_mutex_lock(&lock)
    asleep = True
    while nqueued == 0 and not hk_load32(&stopping):
        pthread_cond_wait(&filled, &lock)
    asleep = False
    pthread_mutex_unlock(&lock)


def _serve():
    with nogil:
        serve()


cdef int start_thread() except -1:
    global thread
    if thread is None:
        hk_store32(&stopping, 0)
        thread = threading.Thread(target=_serve, name="hocket-progress", daemon=True)
        thread.start()
    return 0


def stop():
    """End the progress thread (at exit, and before the last communicator goes)."""
    global thread
    if thread is not None:
        with nogil:
            pthread_mutex_lock(&lock)
            hk_store32(&stopping, 1)
            pthread_cond_signal(&filled)
            pthread_cond_broadcast(&one_ended)
            pthread_mutex_unlock(&lock)
        thread.join(2)
        thread = None


def end_after(uint64_t seen, double limit):
    """Sleep until more than `seen` runs have ended in this process (or `nudge`, or `limit` seconds have passed).

    Returns the new number, 0 when the last communicator has gone.
    """
    cdef uint64_t found
    cdef timespec until
    clock_gettime(CLOCK_REALTIME, &until)
    until.tv_sec += <long>limit
    until.tv_nsec += <long>((limit - <long>limit) * 1e9)
    if until.tv_nsec >= 1000000000:
        until.tv_sec, until.tv_nsec = until.tv_sec + 1, until.tv_nsec - 1000000000
    with nogil:
        pthread_mutex_lock(&lock)
        while ends == seen and not hk_load32(&stopping):
            if pthread_cond_timedwait(&one_ended, &lock, &until) != 0:
                break
        found = ends
        pthread_mutex_unlock(&lock)
    return 0 if hk_load32(&stopping) else found


def nudge():
    """Wake the threads in `end_after`: there is something else to look at."""
    global ends
    take()
    ends += 1
    pthread_cond_broadcast(&one_ended)
    give()


cdef void forked() noexcept:
    """In a forked child: the thread and the queue belong to the parent."""
    global thread, nqueued, drivers, asleep
    pthread_mutex_init(&lock, NULL)
    pthread_cond_init(&filled, NULL)
    pthread_cond_init(&one_ended, NULL)
    nqueued = drivers = 0
    asleep = False
    thread = None
