"""Asynchronous calls: a run that is queued, and the wait for its end.  progress.pyx makes it go forward."""

from cpython.ref cimport PyObject
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from hocket.collectives.waiting cimport lead, news, progress, sleep
from hocket.collectives.engine.drive cimport CHECK_NS, FOLLOWED, MAX_FDS, begun, count_one, place_residuals, run_free, slow_check
from hocket.collectives.engine.run cimport run_init
from hocket.collectives.engine.engine cimport NO_LABEL, Engine, no_scratch
from hocket.collectives.engine.placed cimport Placed
from hocket.collectives.plans.plan cimport IN, OUT, SCRATCH, Plan
from hocket.collectives.waiting.progress cimport Node
from hocket.collectives.engine.run cimport (ABORTED, ANY_THREAD, BLOCKED, DONE, EXACT, LONGEST, RAISED, TAG_SLOTS, Core, Stash,
                                            hk_ladder, hk_ladder_learn, hk_load32, hk_now, hk_store32, hk_wait, hk_wait_behind,
                                            hk_wait_reset, label, match, may_drive, nanoseconds, pollfd)
from hocket.kernels.cpu.reduce cimport find_reduce, reduce_fn
from hocket.transports.channel cimport hk_call, hk_view

from hocket.collectives.base.callsite import caller, shown_site
from hocket.collectives.waiting.pool import pool
from hocket.errors import ArgumentError, Error

cdef extern from "collectives/waiting/computed.h" nogil:
    void hk_wait_left(uint32_t begun)
    uint64_t hk_computed(uint64_t now, uint32_t begun)

TURN = 0.001        # seconds between two looks at whether a recv that is cancelled has taken a message
cdef enum: MOVES = 4096         # passes that moved something, after which a waiting thread looks at signals

PENDING = {}    # works that hocket's own threads may touch, kept alive whether or not the caller keeps them
cdef uint32_t reaped = 0        # progress.ends, when those that had ended were let go


cdef inline int ended(Node* n) noexcept nogil:
    return <int>hk_load32(&n.status)


cdef class Queued:
    """One queued run.  `Work` wraps it.

    `keep`: what must stay alive until it ends (arrays).  A coroutine may await the `Work`, not this.
    """

    def __init__(self, Engine engine, Plan plan, uintptr_t src, uintptr_t dst, int op=-1, user=None,
                 double timeout=0, tag=None, keep=None, Placed placed=None, tuple residuals=()):
        cdef Node* n = &self.node
        self.ready(engine, plan, <char*>src, <char*>dst, nanoseconds(timeout), (keep, placed), placed is None)
        if placed is not None:
            placed.place(&n.run, plan.scratch)
        place_residuals(&n.run, residuals)
        engine.label = NO_LABEL if tag is None else tag
        n.run.reduce = find_reduce(plan.dtype, op) if op >= 0 and user is None else NULL
        if user is not None:
            self.user = user
            n.run.user = <PyObject*>user
        if tag is not None:
            match(&n.run, engine.label)
        self.enqueue(tag is None)

    cdef int ready(self, Engine engine, Plan plan, char* src, char* dst, uint64_t limit, object keep,
                   bint in_host_memory=True) except -1:
        cdef Node* n = &self.node
        self.engine, self.plan, self.keep, self.made = engine, plan, keep, caller()
        engine.latest, engine.repeated, engine.label = plan, NULL, NO_LABEL
        run_init(&n.run, plan)
        n.run.base[IN], n.run.base[OUT] = src, dst
        if plan.scratch and in_host_memory:     # the engine's own scratch may be in use by a run before us
            self.own_scratch = <char*>malloc(plan.scratch)
            if self.own_scratch == NULL:
                raise no_scratch(plan)
            n.run.base[SCRATCH] = self.own_scratch
        n.run.limit = limit
        n.core, n.status = &engine.core, BLOCKED
        n.nbytes, n.small, n.counted, n.vain, n.unknown = plan.nbytes, plan.small, False, 0, True
        n.unwanted = n.later = 0
        n.submitted = hk_now() if engine.core.trace != NULL else 0
        return 0

    cdef int enqueue(self, bint numbered) except -1:
        reap_ended()
        if not progress.has_room(self.node.core):
            raise Error("too many communicators have asynchronous calls under way; wait for some of them first")
        if not lead.there:
            pool.begin()
        PENDING[id(self)] = self
        if numbered:            # counted and queued in one go, under the GIL: other threads may call at once
            self.engine.number(&self.node.run, self.plan)
        self.seq = self.engine.seq
        if progress.submit(&self.node):
            if self.plan.small:         # over before another thread could have used the GIL
                progress.begin(&self.node)
            else:
                with nogil:
                    progress.begin(&self.node)
            if ended(&self.node) == DONE:
                PENDING.pop(id(self), None)
        return 0

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
    def followed(self):
        """Has it failed only because another run of its engine had?"""
        return self.node.run.came == FOLLOWED

    @property
    def limit(self):
        """Seconds that it may wait while nothing moves."""
        return self.node.run.limit * 1e-9

    @property
    def words(self):
        """The call, for people."""
        return self.plan.words(label(&self.node.run) if self.node.run.matched else None)

    @property
    def source(self):
        """The rank whose message a recv has taken; None before it has ended, and where it has taken none."""
        return None if ended(&self.node) == BLOCKED or self.node.run.source < 0 else self.node.run.source

    @property
    def tag(self):
        """The tag of that message."""
        return None if self.source is None else self.node.run.call.tag & EXACT

    @property
    def site(self):
        """Where the user made it, for people."""
        return shown_site(*self.made)

    @property
    def needs_callers(self):
        """Does it go forward in calls only, as hocket's own thread may not drive it?"""
        return self.engine.core.thread != ANY_THREAD

    def wait(self, double timeout=-1, double still=-1):
        """Drive everything that is queued until this ended.

        False: `timeout` seconds passed, or nothing moved for `still` seconds (< 0: any).
        """
        cdef Node* node = &self.node
        cdef int broken = -1
        self.check_thread()
        drive_until(&node, 1, timeout, still, &broken)
        self.interrupted = self.interrupted or broken == 0
        if ended(&self.node) == DONE:
            PENDING.pop(id(self), None)
        return self.status != BLOCKED

    def put_off(self, double threads):
        """Let it go forward in waits alone, if ranks that compute with so many threads leave no core free.

        Not where it leaves the host: a network needs no core.
        """
        if threads >= self.engine.room and not self.engine.core.leads_out and not self.needs_callers:
            progress.pthread_mutex_lock(&progress.lock)
            self.node.later = hk_load32(&progress.waits)
            progress.pthread_mutex_unlock(&progress.lock)

    def cancel(self):
        """Take no message, if none has come.  True: it has ended so; False: it has taken one, or failed."""
        if self.plan.collective != "recv":
            raise ArgumentError(f"only a recv can be cancelled, and this is {self.words}: the other ranks count on it")
        if ended(&self.node) == BLOCKED:
            hk_store32(&self.node.unwanted, 1)
            while self.node.run.source < 0 and not self.wait(TURN):
                pass
        return ended(&self.node) == DONE and self.node.run.source < 0

    cdef int check_thread(self) except -1:
        """Raise ArgumentError if this thread may not drive it, though it has not ended."""
        if ended(&self.node) == BLOCKED and not may_drive(&self.engine.core, True):
            raise ArgumentError(
                "this work goes over MPI, which was started so that only one thread may call it: wait in that thread, or "
                "start MPI with MPI_THREAD_MULTIPLE")
        return 0

    def look(self, double seconds):
        """Look after a thread in `wait` now and then: see whether the wait must end."""
        if ended(&self.node) == BLOCKED and slow_check(&self.engine.core, <uint64_t>(seconds * 1e9)) < 0:
            hk_store32(&self.engine.core.aborted, 1)
            self.interrupted = True

    def let_go(self):
        """It has ended well and its result is out: its arrays are their owner's again (a bytearray may be resized)."""
        self.keep = None

    def __dealloc__(self):
        run_free(&self.node.run)
        free(self.own_scratch)


cdef int first_ended(Node** nodes, int n) noexcept nogil:
    """The place of the first run that has ended, or -1."""
    cdef int i
    for i in range(n):
        if ended(nodes[i]) != BLOCKED:
            return i
    return -1


cdef int drive_until(Node** nodes, int n, double timeout, double still, int* broken) except -1:
    """Drive everything that is queued until one of these has ended, `timeout` seconds passed, or nothing moved for `still`
    seconds (< 0: any).  `broken`: the place of the one during which a signal or `on_wait` raised; kept in engine.error.
    """
    cdef hk_wait w
    cdef Core* e = nodes[0].core
    cdef hk_ladder ladder = e.queued        # a copy: several threads may wait
    cdef uint64_t now, waited, checks = 0, until = 0, moves = 0
    cdef bint looks, moved, slow = False
    cdef int i
    cdef pollfd fds[MAX_FDS]
    count_one()
    if first_ended(nodes, n) >= 0:
        return 0
    now = hk_now()
    hk_wait_behind(&ladder, now, hk_computed(now, begun))
    if 0 <= timeout < LONGEST:
        until = now + <uint64_t>(timeout * 1e9)
    with nogil:
        progress.awake()
        progress.waiting(1)
        memset(&w, 0, sizeof(w))
        while first_ended(nodes, n) < 0 and broken[0] < 0:
            moved = progress.try_progress(True)
            if until and hk_now() >= until:     # also while something moves: it may be others' runs
                break
            if moved:
                hk_wait_reset(&w, &ladder, e.bell)
                moves += 1
                waited, looks = 0, moves % MOVES == 0
            else:
                waited = sleep.wait_step(&w, &ladder, e, fds, 0)
                slow |= waited != 0
                looks = waited // CHECK_NS != checks
                if 0 <= still and waited >= <uint64_t>(still * 1e9):
                    break
            if looks:
                checks = waited // CHECK_NS
                progress.waiting(-1)        # this thread waits for the GIL, and meanwhile drives nothing
                for i in range(n):
                    if slow_check(nodes[i].core, waited) < 0:
                        hk_store32(&nodes[i].core.aborted, 1)   # as in a blocking call: the communicator ends
                        broken[0] = i
                        break
                progress.waiting(1)
        progress.waiting(-1)
        hk_wait_reset(&w, &ladder, e.bell)
        if slow:
            hk_wait_left(begun)
    hk_ladder_learn(&e.queued, &ladder)     # under the GIL
    return 0


def wait_any(list works, double timeout):
    """Drive everything that is queued until one of these has ended, or `timeout` seconds passed (< 0: any)."""
    cdef int broken = -1, n = len(works)
    cdef Node** nodes = <Node**>malloc(n * sizeof(Node*))
    if nodes == NULL:
        raise MemoryError
    try:
        for i in range(n):
            (<Queued>works[i]).check_thread()
            nodes[i] = &(<Queued>works[i]).node
        drive_until(nodes, n, timeout, -1, &broken)
    finally:
        free(nodes)
    if broken >= 0:
        (<Queued>works[broken]).interrupted = True


cdef Queued queue_run(Engine engine, Plan plan, char* src, char* dst, reduce_fn reduce, uint64_t limit, object keep):
    """A run of a plan that was run before; not queued yet."""
    cdef Queued queued = Queued.__new__(Queued)
    queued.ready(engine, plan, src, dst, limit, keep)
    queued.node.run.reduce = reduce
    return queued


cdef int reap_ended() except -1:
    """Let go of the works that ended.  A failed one stays until its communicator is stopped: others ask about it."""
    global reaped
    cdef uint32_t ends = hk_load32(&progress.ends)
    if ends == reaped:
        return 0
    reaped = ends
    for work in list(PENDING.values()):     # values alone: pairs are made one by one, and then the collector may run
        status = ended(&(<Queued>work).node)
        if status == DONE or status != BLOCKED and (<Queued>work).engine.core.aborted:
            if status != DONE:
                (<Queued>work).engine.hold((<Queued>work).keep)
            PENDING.pop(id(work), None)
    return 0


def oldest(Engine engine):
    """The call that this engine's queue is at: the first that has not ended well; None if all have."""
    for work in list(PENDING.values()):
        if (<Queued>work).engine is engine and ended(&(<Queued>work).node) != DONE:
            return work
    return None


def unended(Engine engine):
    """The calls of this engine's queue that have not ended well, the oldest first."""
    return [work for work in list(PENDING.values())
            if (<Queued>work).engine is engine and ended(&(<Queued>work).node) != DONE]


def first_failed(Engine engine):
    """The run of this engine's queue with which its failure began; None: it was a blocking call, or nothing failed here."""
    for work in list(PENDING.values()):
        if (<Queued>work).engine is engine and ended(&(<Queued>work).node) not in (BLOCKED, DONE, ABORTED):
            if not (<Queued>work).followed:
                return work
    return None


def unreceived(Engine engine):
    """(rank, tag) of the first message from each rank that has come to this idle engine, and that no recv has taken."""
    cdef Core* e = &engine.core
    cdef hk_view v
    cdef hk_call none
    cdef Stash* m
    cdef int peer
    cdef size_t slot
    tags = {}
    memset(&none, 0, sizeof(none))
    if engine.driven or e.failed or e.aborted:
        return tags
    for peer in range(e.size):
        if e.rx[peer] == NULL:
            continue
        if e.rx[peer].ops.peek(e.rx[peer], &none, &v, 0) == 1:
            tags[peer] = v.tag & 0xffffffff
        for slot in range(TAG_SLOTS if e.aside[peer] != NULL else 0):
            m = e.aside[peer].first[slot]
            if m != NULL:
                tags[peer] = m.tag & 0xffffffff
    return tags


def under_way(engine):
    """The plans of all calls that are in this engine's queue."""
    return [(<Queued>work).plan for work in list(PENDING.values())
            if (<Queued>work).engine is engine and ended(&(<Queued>work).node) == BLOCKED]


def forked():
    """In a forked child: the runs under way are the parent's."""
    progress.forked()
    news.forked()
    lead.forked()
    for work in list(PENDING.values()):
        hk_store32(<uint32_t*>&(<Queued>work).node.status, <uint32_t>ABORTED)   # nobody here will run it
    PENDING.clear()
