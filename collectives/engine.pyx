"""The engine: runs plans over channels, in the caller's thread, without the GIL.

A run walks merged steps: in merged step t, segment k of every piece is in the plan's step t - k, so a pipeline
is nothing but several segments in flight at once.  All instructions of a merged step are in flight together;
`advance` tries each once and never blocks; `drive` decides how to wait.

Order on a channel is the order of the instructions in the step (lowest segment first): an unfinished message
holds its channel, and what comes behind it waits.
"""

from cpython.exc cimport PyErr_CheckSignals
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from hocket.collectives.plan cimport COPY, IN, OUT, RECV, REDUCE, SCRATCH, SEND, Piece
from hocket.kernels.reduce cimport find_reduce, find_scale, scale_fn
from hocket.transports.channel cimport HK_AGAIN, HK_CAPSULE, HK_FAULT, HK_LOST, hk_channel_ops


cdef extern from "poll.h" nogil:
    enum: POLLIN
    enum: POLLOUT

cdef enum:
    MAX_WAYS = 64               # operands of one k-way reduction; more are taken in several rounds
    MAX_FDS = 64
    RECENT = 16                 # calls that can be asked for when ranks disagree; a rank is never further ahead by much
    CUT_BYTES = 65536           # no channel cuts less than this, if it is not full
    BIG_BYTES = 65536           # after moving so much, let the other messages of the step have a turn
    CHECK_NS = 50000000         # how often a long wait looks at signals, deadlines and its owner

CODES = {"lost": HK_LOST, "fault": HK_FAULT, "mismatch": MISMATCH, "aborted": ABORTED, "timeout": TIMED_OUT,
         "raised": RAISED, "done": DONE, "busy": BUSY}


# ---------------------------------------------------------------- one message, or one reduction, as far as it goes

cdef inline size_t piece_length(Run* r, Piece* p, int k) noexcept nogil:
    """Bytes of piece `p` that belong to segment `k`."""
    cdef size_t first
    if r.segment == 0:
        return p.length
    first = <size_t>k * r.segment
    if first >= p.length:
        return 0
    return min(r.segment, p.length - first)


cdef inline char* piece_at(Run* r, Piece* p, State* s) noexcept nogil:
    return r.base[p.space] + p.offset + <size_t>s.segment * r.segment + s.at


cdef inline void step_on(Run* r, Piece* pieces, int n, State* s, size_t moved) noexcept nogil:
    s.done += moved
    s.at += moved
    while s.piece < n and s.at >= piece_length(r, &pieces[s.piece], s.segment):
        s.piece += 1
        s.at = 0


cdef int send(Core* e, Run* r, Instr* x, State* s) noexcept nogil:
    cdef hk_channel* ch = e.tx[x.peers[0]]
    cdef hk_channel* several[MAX_WAYS]
    cdef const hk_channel_ops* ops = ch.ops
    cdef int i, moved = BLOCKED
    cdef long n
    cdef size_t left
    cdef char* at
    while s.done < s.total or not s.opened:
        left, at = 0, NULL
        if s.piece < x.npieces:
            at = piece_at(r, &x.src[s.piece], s)
            left = piece_length(r, &x.src[s.piece], s.segment) - s.at
            if r.user != NULL and left > CUT_BYTES:
                left = CUT_BYTES - CUT_BYTES % r.itemsize   # packets of whole elements, however odd their size
        if x.npeers == 1:
            n = ops.send(ch, r.tag, s.total, s.done, at, left)
        else:
            for i in range(x.npeers):
                several[i] = e.tx[x.peers[i]]
            n = ops.multicast(several, x.npeers, r.tag, s.total, s.done, at, left)
        if n < 0:
            r.culprit = x.peers[0]
            return moved if n == HK_AGAIN else <int>n
        s.opened = True
        moved = MOVED
        step_on(r, x.src, x.npieces, s, n)
        if n >= BIG_BYTES and s.done < s.total:
            return moved
    if ops.settled != NULL:
        for i in range(x.npeers):
            if not ops.settled(e.tx[x.peers[i]]):
                return moved
    return DONE


cdef inline int open_message(Run* r, int peer, hk_channel* ch, State* s, hk_view* v, size_t want) noexcept nogil:
    """Look at the head of the channel; the first time, prove that this message is ours."""
    cdef int n = ch.ops.peek(ch, v, want)
    if n < 0:
        r.culprit = peer
        return BLOCKED if n == HK_AGAIN else n
    if v.tag != r.tag or v.length != s.total:
        r.culprit, r.foreign = peer, <uint32_t>(v.tag >> 32)
        return MISMATCH
    return MOVED


cdef int recv(Core* e, Run* r, Instr* x, State* s) noexcept nogil:
    cdef int peer = x.peers[0], rc, moved = BLOCKED
    cdef hk_channel* ch = e.rx[peer]
    cdef hk_view v
    cdef size_t left
    cdef long n
    if not s.opened:
        rc = open_message(r, peer, ch, s, &v, 0)
        if rc != MOVED:
            return rc
        s.opened = True
        moved = MOVED
    while s.done < s.total:
        left = piece_length(r, &x.dst[s.piece], s.segment) - s.at
        if ch.ops.recv != NULL:
            n = ch.ops.recv(ch, piece_at(r, &x.dst[s.piece], s), left)
        else:
            n = ch.ops.peek(ch, &v, 1)
            if n == 1:
                if v.tag != r.tag and not r.matched:
                    r.culprit = peer
                    return MISMATCH
                if v.avail == 0:
                    return moved
                n = <long>min(left, v.avail)
                memcpy(piece_at(r, &x.dst[s.piece], s), v.data, n)
                ch.ops.consume(ch, n, s.done + n == s.total)
        if n < 0:
            r.culprit = peer
            return moved if n == HK_AGAIN else <int>n
        moved = MOVED
        step_on(r, x.dst, x.npieces, s, n)
        if n >= BIG_BYTES and s.done < s.total:
            return moved
    if s.total == 0 or ch.ops.recv != NULL:
        ch.ops.consume(ch, 0, 1)
    return DONE


cdef int reduce(Core* e, Run* r, Instr* x, State* s) noexcept nogil:
    """Take what all the peers have sent so far, and combine it with our own operand in rank order."""
    cdef hk_view v
    cdef const void* ways[MAX_WAYS]
    cdef int i, k, rc, moved = BLOCKED
    cdef size_t n, left
    cdef hk_channel* ch
    while True:
        left = 0
        if s.done < s.total:
            left = piece_length(r, &x.dst[s.piece], s.segment) - s.at
        n, k = left, 0
        for i in range(x.npeers):
            if i == x.own:
                ways[k] = piece_at(r, &x.src[s.piece], s) if left else NULL
                k += 1
            ch = e.rx[x.peers[i]]
            rc = open_message(r, x.peers[i], ch, s, &v, r.itemsize)
            if rc != MOVED:
                return moved if rc == BLOCKED else rc
            ways[k] = v.data
            k += 1
            n = min(n, v.avail)
        if x.own == x.npeers:
            ways[k] = piece_at(r, &x.src[s.piece], s) if left else NULL
            k += 1
        n -= n % r.itemsize
        if n == 0 and left:
            return moved
        if n:
            if r.user != NULL:
                if call_user(e, r.user, piece_at(r, &x.dst[s.piece], s), ways, k, n) < 0:
                    return RAISED
            else:
                r.reduce(piece_at(r, &x.dst[s.piece], s), ways, k, n // r.itemsize)
        for i in range(x.npeers):
            ch = e.rx[x.peers[i]]
            ch.ops.consume(ch, n, s.done + n == s.total)
        moved = MOVED
        step_on(r, x.dst, x.npieces, s, n)
        if s.done == s.total:
            return DONE
        if n >= BIG_BYTES:
            return moved


cdef int call_user(Core* e, PyObject* user, void* out, const void** ways, int k, size_t n) noexcept nogil:
    with gil:
        try:
            (<object>user)([(<const char[:n]>(<const char*>ways[i])) for i in range(k)], <char[:n]>(<char*>out))
            return 0
        except BaseException as error:
            (<Engine>e.self).error = error
            return -1


cdef void copy(Run* r, Instr* x, State* s) noexcept nogil:
    cdef int i
    cdef size_t n, skip = <size_t>s.segment * r.segment
    for i in range(x.npieces):
        n = piece_length(r, &x.dst[i], s.segment)
        if n:
            memcpy(r.base[x.dst[i].space] + x.dst[i].offset + skip,
                   r.base[x.src[i].space] + x.src[i].offset + skip, n)


# ------------------------------------------------------------------------- send and recv, matched by tag

cdef enum: TAG_MASK = 0xffffffff    # above it, the dtype: checked, not matched

cdef int matched_recv(Core* e, Run* r, Instr* x, State* s) noexcept nogil:
    """Like `recv`, but a message with another tag is set aside until its own recv comes.

    Of several recvs that wait, only the first in a pass looks at the channel: what arrives between two looks
    would otherwise go to the later one, out of order.
    """
    cdef int peer = x.peers[0], rc
    cdef hk_channel* ch = e.rx[peer]
    cdef Stash** link = &e.stash[peer]
    cdef Stash* m
    cdef hk_view v
    if e.rx_owner[peer] == r:
        return finish_matched(e, r, x, s, peer)
    while link[0] != NULL:                                  # the oldest that fits
        m = link[0]
        if (m.tag & TAG_MASK) == (r.tag & TAG_MASK):
            if m.done < m.length:
                break                                       # still on its way in
            if m.tag != r.tag or m.length != s.total:
                r.culprit = peer
                return MISMATCH
            unpack(r, x, s, m.data)
            link[0] = m.next
            free(m.data)
            free(m)
            return DONE
        link = &m.next
    if e.rx_mark[peer] == e.pass_number:
        return BLOCKED                                      # an earlier recv has looked in this pass and waits: it goes first
    e.rx_mark[peer] = e.pass_number
    if e.rx_owner[peer] != NULL:
        return BLOCKED                                      # another recv is in the middle of a message
    rc = drain_stash(e, r, peer, ch)
    if rc != DONE:
        return rc
    if link[0] != NULL:
        return MOVED                                        # it is complete now: found on the next pass
    rc = ch.ops.peek(ch, &v, 0)
    if rc < 0:
        r.culprit = peer
        return BLOCKED if rc == HK_AGAIN else rc
    if (v.tag & TAG_MASK) != (r.tag & TAG_MASK):
        r.culprit = peer
        return set_aside(e, peer, &v)
    if v.tag != r.tag or v.length != s.total:
        r.culprit = peer
        return MISMATCH
    e.rx_owner[peer] = r
    e.rx_mark[peer] = e.pass_number - 1                     # it has its message: the next recv may look
    return finish_matched(e, r, x, s, peer)


cdef int finish_matched(Core* e, Run* r, Instr* x, State* s, int peer) noexcept nogil:
    cdef int rc = recv(e, r, x, s)
    if rc == DONE:
        e.rx_owner[peer] = NULL
    return rc


cdef void unpack(Run* r, Instr* x, State* s, const char* data) noexcept nogil:
    cdef size_t n
    while s.done < s.total:
        n = piece_length(r, &x.dst[s.piece], s.segment) - s.at
        memcpy(piece_at(r, &x.dst[s.piece], s), data + s.done, n)
        step_on(r, x.dst, x.npieces, s, n)


cdef int set_aside(Core* e, int peer, hk_view* v) noexcept nogil:
    cdef Stash** link = &e.stash[peer]
    cdef Stash* m = <Stash*>calloc(1, sizeof(Stash))
    while link[0] != NULL:
        link = &link[0].next
    if m != NULL:
        m.tag, m.length = v.tag, v.length
        m.data = <char*>malloc(max(<size_t>1, <size_t>v.length))
    if m == NULL or m.data == NULL:
        free(m)
        return HK_FAULT
    link[0] = m
    if m.length == 0:
        e.rx[peer].ops.consume(e.rx[peer], 0, 1)
    return MOVED


cdef int drain_stash(Core* e, Run* r, int peer, hk_channel* ch) noexcept nogil:
    """Take in the rest of the message that is being set aside.  DONE when there is none."""
    cdef Stash* m = e.stash[peer]
    cdef hk_view v
    cdef size_t n
    cdef int rc
    while m != NULL and m.done == m.length:
        m = m.next
    if m == NULL:
        return DONE
    while m.done < m.length:
        rc = ch.ops.peek(ch, &v, 1)
        if rc < 0 or v.avail == 0:
            r.culprit = peer
            return BLOCKED if rc == HK_AGAIN or rc == 1 else rc
        n = min(v.avail, m.length - m.done)
        memcpy(m.data + m.done, v.data, n)
        m.done += n
        ch.ops.consume(ch, n, m.done == m.length)
    return DONE


# ---------------------------------------------------------------------------------------------- the run

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

    def begin(self, Plan plan):
        """Count a call as under way before it can run: its channels are being opened.  `ready` ends that."""
        self.plan, self.busy = plan, True
        self.opening += plan.algorithm != "message"

    def ready(self, Plan plan):
        self.busy = False
        self.opening -= plan.algorithm != "message"

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
        r.limit = <uint64_t>(timeout * 1e9)
        rc = self.perform(r, plan)
        self.culprit, self.foreign = r.culprit, r.foreign
        return rc

    def channel_errors(self, int peer):
        """errno behind a lost or faulty channel, (to peer, from peer)."""
        return self.core.tx[peer].error if self.core.tx[peer] else 0, self.core.rx[peer].error if self.core.rx[peer] else 0

    def __dealloc__(self):
        cdef int i
        cdef Stash* m
        if self.core.stash != NULL:
            for i in range(self.core.size):
                while self.core.stash[i] != NULL:
                    m = self.core.stash[i]
                    self.core.stash[i] = m.next
                    free(m.data)
                    free(m)
        free(self.core.tx)
        free(self.core.rx)
        free(self.core.tx_mark)
        free(self.core.rx_mark)
        free(self.core.stash)
        free(self.core.rx_owner)
        free(self.scratch)
        run_free(&self.run)


cdef int scale_now(int dtype, void* dst, const void* src, size_t count, double factor) noexcept nogil:
    cdef scale_fn fn = find_scale(dtype)
    if fn == NULL:
        return -1
    fn(dst, src, count, factor)
    return 0


def scale(int dtype, uintptr_t dst, uintptr_t src, size_t count, double factor):
    """dst = src * factor, `count` elements: for avg and premul_sum.  False if the dtype cannot be scaled."""
    cdef int rc
    with nogil:
        rc = scale_now(dtype, <void*>dst, <const void*>src, count, factor)
    return rc == 0
