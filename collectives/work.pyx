"""Asynchronous calls: `Work`, and the one thread per process that makes them progress.

Queued runs of an engine go one after the other (collectives), or side by side (send and recv); engines progress
independently, so two communicators may be used in different order on different ranks.  Whoever holds the lock
drives all of them: the progress thread, or a caller in `wait`, who so runs his own operation without a hand-off.
"""

import threading

from cpython.ref cimport PyObject
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from hocket.collectives.drive cimport CHECK_NS, advance, failed_before, has_failed, run_free, slow_check
from hocket.collectives.engine cimport Engine
from hocket.collectives.plan cimport SCRATCH, Plan
from hocket.collectives.run cimport (ABORTED, BLOCKED, DONE, MOVED, RAISED, TIMED_OUT, Core, Run, hk_ladder, hk_load32,
                                     hk_now, hk_store32, hk_wait, hk_wait_reset, hk_wait_step)
from hocket.kernels.reduce cimport find_scale, scale_fn

from hocket.errors import Error


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
    int pthread_cond_wait(pthread_cond_t*, pthread_mutex_t*)

cdef enum: MAX_ENGINES = 1024

cdef struct Node:
    Run run
    Core* core
    Node* next
    uint32_t status             # BLOCKED: queued or running; DONE; or an error code.  Released with the result
    scale_fn scale              # afterwards, of the result (avg); NULL: not
    double factor
    char* result
    size_t count

cdef pthread_mutex_t lock       # guards everything below, and the queued engines' cores
cdef pthread_cond_t filled
cdef Core* queued[MAX_ENGINES]
cdef int nqueued = 0
cdef volatile bint stopping = False
pthread_mutex_init(&lock, NULL)
pthread_cond_init(&filled, NULL)

PENDING = {}                    # works the progress thread may touch, kept alive whether or not the caller keeps them
thread = None


# ------------------------------------------------------------------------------------- progress, lock held

cdef int settle(Node* n, int rc) noexcept nogil:
    if rc == DONE and n.scale != NULL:
        n.scale(n.result, n.result, n.count, n.factor)
    hk_store32(&n.status, <uint32_t>rc)
    return MOVED


cdef inline int ended(Node* n) noexcept nogil:
    return <int>hk_load32(&n.status)


cdef int progress_one(Core* e) noexcept nogil:
    """Advance the queued runs of one engine, unless a blocking call does."""
    if hk_load32(&e.busy):
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
    cdef Node* n
    cdef int rc, moved = BLOCKED
    while link[0] != NULL:
        n = link[0]
        rc = ABORTED if e.aborted else failed_before(e, &n.run) if e.failed else advance(e, &n.run)
        if rc == BLOCKED and n.run.deadline and hk_now() > n.run.deadline:
            rc = TIMED_OUT
        if rc < 0:
            has_failed(e, &n.run, rc)
        if rc == DONE or rc < 0:
            link[0] = n.next
            if e.head == NULL:      # whoever sees the last run ended may drop the engine: not touched after that
                unlist(e)
                hk_store32(&e.pending, 0)
                return settle(n, rc)
            moved = settle(n, rc)
            continue
        moved |= rc
        if not e.concurrent:
            break
        link = &n.next
    return moved


cdef int progress() noexcept nogil:
    """One pass over everything that is queued in this process."""
    cdef int i = 0, moved = BLOCKED
    cdef Core* e
    while i < nqueued:
        e = queued[i]
        moved |= progress_one(e)
        i += i < nqueued and queued[i] == e     # else another has taken its place
    return moved


cdef void serve() noexcept nogil:
    """The progress thread: asleep while nothing is queued, and never in the way of ranks that compute."""
    cdef hk_wait w
    cdef hk_ladder ladder
    cdef int moved
    memset(&w, 0, sizeof(w))
    ladder.spins = ladder.spins_now = 100
    ladder.yield_ns, ladder.slow_ns = 100000, 50000
    pthread_mutex_lock(&lock)
    while not stopping:
        if nqueued == 0:
            hk_wait_reset(&w, &ladder, NULL)
            pthread_cond_wait(&filled, &lock)
            continue
        moved = progress()
        pthread_mutex_unlock(&lock)
        if moved:
            hk_wait_reset(&w, &ladder, NULL)
        else:
            hk_wait_step(&w, &ladder, NULL, NULL, 0)
        pthread_mutex_lock(&lock)
    pthread_mutex_unlock(&lock)


def _serve():
    with nogil:
        serve()


def _start():
    global thread, stopping
    if thread is None:
        stopping = False
        thread = threading.Thread(target=_serve, name="hocket-progress", daemon=True)
        thread.start()


def stop():
    """End the progress thread (at exit, and before the last communicator goes)."""
    global thread, stopping
    if thread is not None:
        with nogil:
            pthread_mutex_lock(&lock)
            stopping = True
            pthread_cond_signal(&filled)
            pthread_mutex_unlock(&lock)
        thread.join(2)
        thread = None


def forked():
    """In a forked child: the thread and the queue belong to the parent."""
    global thread, nqueued
    pthread_mutex_init(&lock, NULL)
    pthread_cond_init(&filled, NULL)
    nqueued = 0
    thread = None
    for work in PENDING.values():
        hk_store32(<uint32_t*>&(<Queued>work).node.status, <uint32_t>ABORTED)   # nobody here will run it
    PENDING.clear()


# ------------------------------------------------------------------------------------------------- Work

cdef class Queued:
    """One queued run.  `Work` (communicator side) wraps it.

    `keep`: what must stay alive until it ends (arrays).  A coroutine may await the `Work`, not this.
    """

    cdef Node node
    cdef Engine engine
    cdef readonly Plan plan
    cdef readonly uint32_t seq          # its number among the engine's calls
    cdef readonly str site              # where the user made it
    cdef bint interrupted               # by a signal, or what `on_wait` raised: kept in engine.error
    cdef object keep, user
    cdef char* own_scratch

    def __init__(self, Engine engine, Plan plan, uintptr_t src, uintptr_t dst, int op=-1, user=None,
                 double timeout=0, tag=None, keep=None, double factor=0, size_t count=0,
                 str site=None):
        cdef Node** link
        cdef Node* n = &self.node
        self.engine, self.plan, self.keep, self.user, self.site = engine, plan, keep, user, site
        engine.plan, engine.tag = plan, tag
        engine.prepare(&n.run, plan, src, dst, op, user)
        if plan.scratch:                        # the engine's own scratch may be in use by a run before us
            self.own_scratch = <char*>malloc(plan.scratch)
            if self.own_scratch == NULL:
                raise MemoryError
            n.run.base[SCRATCH] = self.own_scratch
        if tag is not None:
            n.run.tag, n.run.matched = tag, True
        if timeout > 0:
            n.run.deadline = hk_now() + <uint64_t>(timeout * 1e9)
        n.core, n.status = &engine.core, BLOCKED
        n.scale = find_scale(plan.dtype) if factor else NULL
        n.factor, n.result, n.count = factor, <char*>dst, count
        reap()
        PENDING[id(self)] = self
        while pthread_mutex_trylock(&lock) != 0:    # its holder may want the GIL
            with nogil:
                pthread_mutex_lock(&lock)
                pthread_mutex_unlock(&lock)
        if not n.core.listed and nqueued >= MAX_ENGINES:
            pthread_mutex_unlock(&lock)
            del PENDING[id(self)]
            raise Error(f"{MAX_ENGINES} communicators have asynchronous calls under way; wait for some of them first")
        if tag is None:         # counted and queued in one go, under the GIL: other threads may call at once
            engine.number(&n.run, plan)
        self.seq = engine.seq
        link = <Node**>&n.core.head
        while link[0] != NULL:
            link = &link[0].next
        link[0] = n
        n.core.others = others
        hk_store32(&n.core.pending, 1)
        if not n.core.listed:
            enlist(n.core)
        pthread_cond_signal(&filled)
        pthread_mutex_unlock(&lock)
        _start()

    @property
    def status(self):
        """0 while under way, DONE or an error code (engine.CODES)."""
        return RAISED if self.interrupted else ended(&self.node)

    @property
    def culprit(self):
        return self.node.run.culprit

    @property
    def foreign(self):
        return self.node.run.foreign

    @property
    def came(self):
        return self.node.run.came

    @property
    def words(self):
        """The call, for people."""
        return self.plan.words(self.node.run.tag if self.node.run.matched else None)

    def wait(self, double timeout=-1):
        """Drive everything that is queued until this ended.  False: `timeout` seconds (< 0: any) passed."""
        cdef hk_wait w
        cdef hk_ladder ladder = self.engine.core.ladder     # a copy: several threads may wait
        cdef uint64_t waited, checks = 0, until = 0
        cdef int moved
        if timeout >= 0:
            until = hk_now() + <uint64_t>(timeout * 1e9)
        with nogil:
            memset(&w, 0, sizeof(w))
            while ended(&self.node) == BLOCKED:
                moved = BLOCKED
                if pthread_mutex_trylock(&lock) == 0:
                    moved = progress()
                    pthread_mutex_unlock(&lock)
                if moved:
                    hk_wait_reset(&w, &ladder, NULL)
                    continue
                if until and hk_now() >= until:
                    break
                waited = hk_wait_step(&w, &ladder, NULL, NULL, 0)
                if waited // CHECK_NS != checks:
                    checks = waited // CHECK_NS
                    if slow_check(&self.engine.core, waited) < 0:   # as in a blocking call: the communicator ends
                        self.engine.core.aborted = 1
                        self.interrupted = True
                        break
        reap()
        return self.status != BLOCKED

    def __dealloc__(self):
        run_free(&self.node.run)
        free(self.own_scratch)


cdef void enlist(Core* e) noexcept nogil:
    global nqueued
    e.listed = True
    queued[nqueued] = e
    nqueued += 1


cdef void unlist(Core* e) noexcept nogil:
    global nqueued
    cdef int i
    for i in range(nqueued):
        if queued[i] == e:
            nqueued -= 1
            queued[i] = queued[nqueued]
            break
    e.listed = False


cdef reap():
    """Let go of the works that ended; one that failed is what its rank was doing until its communicator is stopped."""
    for key, work in list(PENDING.items()):
        status = ended(&(<Queued>work).node)
        if status == DONE or status != BLOCKED and (<Queued>work).engine.core.aborted:
            PENDING.pop(key, None)


def oldest(Engine engine):
    """The call that this engine's queue is at: the first that has not ended well; None if all have."""
    for work in list(PENDING.values()):
        if (<Queued>work).engine is engine and ended(&(<Queued>work).node) != DONE:
            return work
    return None
