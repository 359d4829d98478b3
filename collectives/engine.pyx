"""The engine: runs plans over channels, in the caller's thread, without the GIL.

A run walks merged steps: in merged step t, segment k of every piece is in the plan's step t - k, so a pipeline
is nothing but several segments in flight at once.  All instructions of a merged step are in flight together;
`advance` tries each once and never blocks; `drive` decides how to wait.

Order on a channel is the order of the instructions in the step (lowest segment first): an unfinished message
holds its channel, and what comes behind it waits.
"""

from cpython.exc cimport PyErr_CheckSignals
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from hocket.collectives.matching cimport matched_recv, stash_free
from hocket.collectives.moves cimport copy, recv, reduce, send
from hocket.collectives.plan cimport COPY, IN, OUT, RECV, REDUCE, SCRATCH, SEND, Instr, Piece, Plan
from hocket.collectives.run cimport (ABORTED, BLOCKED, BUSY, DONE, MISMATCH, MOVED, RAISED, TIMED_OUT, Core, PyObject,
                                     Run, Stash, State, hk_load32, hk_now, hk_store32, hk_wait, hk_wait_reset,
                                     hk_wait_step, piece_length, pollfd)
from hocket.kernels.reduce cimport find_reduce
from hocket.transports.channel cimport HK_CAPSULE, HK_FAULT, HK_LOST, hk_channel, hk_view


cdef extern from "poll.h" nogil:
    enum: POLLIN
    enum: POLLOUT

cdef enum:
    MAX_FDS = 64
    RECENT = 16                 # calls that can be asked for when ranks disagree; a rank is never further ahead by much
    CHECK_NS = 50000000         # how often a long wait looks at signals, deadlines and its owner

CODES = {"lost": HK_LOST, "fault": HK_FAULT, "mismatch": MISMATCH, "aborted": ABORTED, "timeout": TIMED_OUT,
         "raised": RAISED, "done": DONE, "busy": BUSY}


cdef int run_init(Run* r, Plan plan) except -1:
    """Point `r` at `plan`; its arrays grow and are kept."""
    r.steps, r.instrs = plan.steps, plan.instrs
    r.nsteps, r.nsegments = plan.nsteps, plan.nsegments
    r.segment, r.itemsize = plan.segment, plan.itemsize
    if plan.ninstrs > r.capacity:
        free(r.states)
        free(r.active)
        r.capacity = plan.ninstrs
        r.states = <State*>calloc(r.capacity, sizeof(State))
        r.active = <int*>calloc(r.capacity, sizeof(int))
        if r.states == NULL or r.active == NULL:
            r.capacity = 0
            raise MemoryError
    return 0


cdef void run_free(Run* r) noexcept:
    free(r.states)
    free(r.active)
    r.states, r.active, r.capacity = NULL, NULL, 0


cdef int begin(Core* e, Run* r) noexcept nogil:
    """Open merged step r.t: collect the instructions that have something to do."""
    cdef int s, k, i, j
    cdef State* st
    cdef Instr* x
    cdef Piece* p
    r.nactive = r.remaining = r.sends_left = 0
    for s in range(min(r.nsteps - 1, r.t), max(-1, r.t - r.nsegments), -1):
        k = r.t - s
        for i in range(r.steps[s].first, r.steps[s].first + r.steps[s].count):
            x = &r.instrs[i]
            st = &r.states[i]
            memset(st, 0, sizeof(State))
            st.segment = k
            p = x.dst if x.dst != NULL else x.src
            for j in range(x.npieces):
                st.total += piece_length(r, &p[j], k)
            if st.total == 0 and k > 0:
                continue                        # this segment is past the end of these pieces, for both sides
            while st.piece < x.npieces and piece_length(r, &p[st.piece], k) == 0:
                st.piece += 1
            if x.kind == COPY:
                copy(r, x, st)
                continue
            r.active[r.nactive] = i
            r.nactive += 1
            r.remaining += 1
            r.sends_left += x.kind == SEND
    return r.nactive


cdef int advance(Core* e, Run* r) noexcept nogil:
    """Try everything that is in flight once."""
    cdef int i, j, k, rc, moved = BLOCKED
    cdef uint32_t now = e.pass_number
    cdef uint32_t* mark
    cdef Instr* x
    cdef State* s
    cdef bint held, by_tag
    while r.remaining == 0:
        if r.t >= r.nsteps + r.nsegments - 1:
            return DONE
        begin(e, r)
        r.t += 1
    for i in range(r.nactive):
        x = &r.instrs[r.active[i]]
        s = &r.states[r.active[i]]
        if s.complete:
            continue
        mark = e.tx_mark if x.kind == SEND else e.rx_mark
        held = x.after_sends and r.sends_left > 0
        by_tag = r.matched and x.kind == RECV           # not held up by other tags: matched_recv keeps the order
        if not by_tag:
            for j in range(x.npeers):
                held |= mark[x.peers[j]] == now
        rc = BLOCKED
        if not held:
            if x.kind == SEND:
                rc = send(e, r, x, s)
            elif x.kind == REDUCE:
                rc = reduce(e, r, x, s)
            elif by_tag:
                rc = matched_recv(e, r, x, s)
            else:
                rc = recv(e, r, x, s)
            if rc < 0:
                return rc
        if rc == DONE:
            s.complete = True
            r.remaining -= 1
            r.sends_left -= x.kind == SEND
            moved = MOVED
        else:
            moved |= rc
            if not by_tag:
                for j in range(x.npeers):
                    mark[x.peers[j]] = now
    if r.remaining == 0 and r.t >= r.nsteps + r.nsegments - 1:
        return DONE
    return moved


cdef int drive(Core* e, Run* r, int polls) noexcept nogil:
    """Advance until done, waiting by the ladder; BLOCKED after so many vain `polls` (0: never)."""
    cdef hk_wait w
    cdef pollfd fds[MAX_FDS]
    cdef uint64_t waited, checked = 0, now
    cdef int rc, nfds = 0
    if e.aborted:
        return ABORTED
    if e.failed:
        return failed_before(e, r)
    memset(&w, 0, sizeof(w))
    while True:
        e.pass_number += 1
        rc = advance(e, r)
        if rc == DONE or rc < 0:
            break
        if e.aborted:
            rc = ABORTED
            break
        if e.concurrent and hk_load32(&e.pending):
            rc |= e.others(e)               # same pass: our own messages go first on their channels
        if rc == MOVED:
            if w.polls:
                hk_wait_reset(&w, &e.ladder, e.bell)
                checked = 0
            continue
        waited = hk_wait_step(&w, &e.ladder, e.bell, fds, nfds)
        if polls and w.polls >= <uint32_t>polls:
            return BLOCKED
        if waited:
            nfds = collect(e, r, fds, MAX_FDS)
            now = waited // CHECK_NS
            if now != checked:
                checked = now
                rc = slow_check(e, waited)
                if rc == BLOCKED:
                    rc = overdue(r, waited)
                if rc < 0:
                    break
    hk_wait_reset(&w, &e.ladder, e.bell)
    return has_failed(e, r, rc) if rc < 0 else rc


cdef int has_failed(Core* e, Run* r, int rc) noexcept nogil:
    """A run ends with an error: no later one may go on over the message that it left in the middle."""
    if e.failed == 0:
        e.failed, e.failed_culprit = rc, r.culprit
    return rc


cdef int failed_before(Core* e, Run* r) noexcept nogil:
    """The error of a run on an engine where another one failed before."""
    r.culprit = e.failed_culprit
    return ABORTED if e.failed == RAISED else e.failed


cdef int overdue(Run* r, uint64_t waited) noexcept nogil:
    """Is the time limit over?  Starts counting when the first long wait began."""
    cdef uint64_t now
    if r.limit == 0:
        return BLOCKED
    now = hk_now()
    if r.deadline == 0:
        r.deadline = now - waited + r.limit
    return TIMED_OUT if now > r.deadline else BLOCKED


cdef int slow_check(Core* e, uint64_t waited) noexcept nogil:
    """In a long wait, now and then: signals, and the owner (who tells the control plane that we are stuck)."""
    with gil:
        try:
            PyErr_CheckSignals()
            if (<Engine>e.self).owner is not None:
                (<Engine>e.self).owner.on_wait(<Engine>e.self, waited * 1e-9)
            return 0
        except BaseException as error:
            (<Engine>e.self).error = error
            return RAISED


cdef int collect(Core* e, Run* r, pollfd* fds, int room) noexcept nogil:
    """The descriptors that unfinished instructions wait for.

    Not those that have something already, of a reduction that waits for another peer: poll would return at once.
    """
    cdef int i, j, n = 0
    cdef Instr* x
    cdef hk_channel* ch
    cdef hk_view v
    for i in range(r.nactive):
        if r.states[r.active[i]].complete:
            continue
        x = &r.instrs[r.active[i]]
        if x.after_sends and r.sends_left > 0:
            continue
        for j in range(x.npeers):
            ch = e.tx[x.peers[j]] if x.kind == SEND else e.rx[x.peers[j]]
            if x.kind == REDUCE and ch.ops.peek(ch, &v, r.itemsize) == 1 and v.avail >= min(r.itemsize, v.length):
                continue
            if ch.fd >= 0 and n < room:
                fds[n].fd = ch.fd
                fds[n].events = POLLOUT if x.kind == SEND else POLLIN
                n += 1
    return n


cdef class Engine:
    """One ordered queue of plans over the channels of one lane.

    `spins`: polls before the first yield; see wait.h.  `concurrent`: queued runs progress side by side (send and
    recv), not one after the other.  `polls_with_gil`: how often to poll before the GIL is released.
    """

    def __cinit__(self, int rank, int size, int spins=2000, bint concurrent=False, int polls_with_gil=0):
        self.polls_with_gil = polls_with_gil
        self.core.rank, self.core.size = rank, size
        self.core.self = <PyObject*>self
        self.core.concurrent = concurrent
        self.core.tx = <hk_channel**>calloc(size, sizeof(hk_channel*))
        self.core.rx = <hk_channel**>calloc(size, sizeof(hk_channel*))
        self.core.tx_mark = <uint32_t*>calloc(size, sizeof(uint32_t))
        self.core.rx_mark = <uint32_t*>calloc(size, sizeof(uint32_t))
        self.core.stash = <Stash**>calloc(size, sizeof(Stash*))
        self.core.rx_owner = <Run**>calloc(size, sizeof(Run*))
        if not (self.core.tx and self.core.rx and self.core.tx_mark and self.core.rx_mark and self.core.stash and self.core.rx_owner):
            raise MemoryError
        self.core.ladder.spins = self.core.ladder.spins_now = spins
        self.core.ladder.yield_ns = 2000000
        self.core.ladder.slow_ns = 100000
        self.keep = []
        self.recent = [None] * RECENT
        self.plans = {}

    def connect(self, int peer, send, recv, owner):
        """Use these channels to and from `peer`; `owner` is kept alive as long as they may be used."""
        self.core.tx[peer] = <hk_channel*>PyCapsule_GetPointer(send, HK_CAPSULE)
        self.core.rx[peer] = <hk_channel*>PyCapsule_GetPointer(recv, HK_CAPSULE)
        self.keep.append((send, recv, owner))
        if self.core.rx[peer].bell != NULL:
            self.core.bell = self.core.rx[peer].bell

    def connected(self, int peer):
        return self.core.tx[peer] != NULL

    def multicasts(self, int peer):
        """0, or which multicast the channel to `peer` offers: channels with the same one can share a write."""
        if self.core.tx[peer] == NULL:
            return 0
        return <uintptr_t>self.core.tx[peer].ops.multicast

    def abort(self):
        """Make every wait of this engine end, now and later.  From any thread."""
        self.core.aborted = 1

    @property
    def rank(self):
        return self.core.rank

    @property
    def size(self):
        return self.core.size

    def call(self, uint32_t number):
        """What call `number` was, in words; "" if it is too long ago or has not come."""
        cdef Plan plan
        if not 0 < number <= self.seq or self.seq - number >= RECENT:
            return ""
        plan = self.recent[number % RECENT]
        return plan.text if plan is not None else ""

    @property
    def words(self):
        """The latest call, for people."""
        return self.plan.words(self.tag) if self.plan is not None else ""

    @property
    def driven(self):
        """Is a thread in this engine, or a run queued?"""
        return bool(hk_load32(&self.core.busy)) or bool(hk_load32(&self.core.pending))

    @property
    def sequence(self):
        """How many calls this engine has begun."""
        return self.seq + self.opening

    cdef int prepare(self, Run* r, Plan plan, uintptr_t src, uintptr_t dst, int op, object user) except -1:
        self.point(r, plan)
        r.base[IN], r.base[OUT] = <char*>src, <char*>dst
        r.reduce = find_reduce(plan.dtype, op) if op >= 0 and user is None else NULL
        if user is not None:
            r.user = <PyObject*>user
        return 0

    cdef int point(self, Run* r, Plan plan) except -1:
        """Make `r` a fresh run of `plan`."""
        run_init(r, plan)
        r.t, r.limit, r.deadline, r.matched, r.user = 0, 0, 0, False, NULL
        r.remaining = r.sends_left = r.nactive = 0
        return 0

    cdef bint claim(self) noexcept:
        """Take the engine for a blocking call (under the GIL).  False: another thread has it, or calls are queued."""
        if self.core.busy or hk_load32(&self.core.pending):
            return False
        self.core.busy = 1
        return True

    cdef void release(self) noexcept:
        hk_store32(&self.core.busy, 0)

    cdef int perform(self, Run* r, Plan plan) except -1000:
        """Run what has been prepared, in this thread, which has claimed the engine; the claim ends here.

        The GIL is kept for the first microseconds: a small call is over before another thread could have used it.
        """
        cdef int rc = BLOCKED
        if plan.scratch > self.scratch_bytes:
            free(self.scratch)
            self.scratch = <char*>malloc(plan.scratch)
            self.scratch_bytes = plan.scratch if self.scratch != NULL else 0
            if self.scratch == NULL:
                self.release()
                raise MemoryError
        r.base[SCRATCH] = self.scratch
        self.plan = plan
        self.recent[self.seq % RECENT] = plan
        self.busy = True
        if self.polls_with_gil and plan.small:
            rc = drive(&self.core, r, min(self.polls_with_gil, <int>self.core.ladder.spins_now))
        if rc == BLOCKED:
            with nogil:
                rc = drive(&self.core, r, 0)
        self.busy = rc != DONE      # after an error: what this rank was doing is asked for until the verdict is in
        self.release()
        return rc

    def begin(self, Plan plan, tag=None):
        """Count a call as under way before it can run: its channels are being opened.  `ready` ends that."""
        self.plan, self.tag, self.busy = plan, tag, True
        self.opening += tag is None

    def ready(self):
        self.busy = False
        self.opening -= self.tag is None

    def execute(self, Plan plan, uintptr_t src, uintptr_t dst, int op=-1, user=None, double timeout=0, tag=None):
        """Run `plan` now, in this thread.  Returns DONE or an error code (CODES); `culprit` names the peer.

        BUSY: nothing was done, as another thread is at it, or calls are queued; this one must queue too.
        """
        cdef Run* r = &self.run
        cdef int rc
        if not self.claim():
            return BUSY
        try:
            self.prepare(r, plan, src, dst, op, user)
        except BaseException:
            self.release()
            raise
        if tag is None:
            self.seq += 1
            r.tag = (<uint64_t>self.seq << 32) | plan.fingerprint
        else:
            r.tag, r.matched = tag, True
        self.tag = tag
        r.limit = <uint64_t>(timeout * 1e9)
        rc = self.perform(r, plan)
        self.culprit, self.foreign, self.came = r.culprit, r.foreign, r.came
        return rc

    def channel_errors(self, int peer):
        """errno behind a lost or faulty channel, (to peer, from peer)."""
        return self.core.tx[peer].error if self.core.tx[peer] else 0, self.core.rx[peer].error if self.core.rx[peer] else 0

    def __dealloc__(self):
        cdef int i
        if self.core.stash != NULL:
            for i in range(self.core.size):
                stash_free(self.core.stash[i])
        free(self.core.tx)
        free(self.core.rx)
        free(self.core.tx_mark)
        free(self.core.rx_mark)
        free(self.core.stash)
        free(self.core.rx_owner)
        free(self.scratch)
        run_free(&self.run)
