"""The engine: one ordered queue of plans, run over its channels, in the caller's thread, without the GIL.

How a run goes forward is in drive.pyx, what an instruction does in instructions.pyx; asynchronous runs are in waiting/,
where progress.pyx drives them.
"""

import os
import weakref

from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc

from hocket.collectives.engine.events cimport call_begins, call_returns
from hocket.collectives.engine.drive cimport drive, elsewhere, place_residuals, run_free
from hocket.collectives.engine.run cimport run_init, run_reset
from hocket.collectives.engine.matching cimport aside_free
from hocket.collectives.engine.placed cimport Placed
from hocket.collectives.plans.plan cimport IN, OUT, SCRATCH, Plan
from hocket.collectives.engine.run cimport (ABORTED, BLOCKED, BUSY, DONE, HELPS, HOLDS, MISMATCH, RAISED, TIMED_OUT, Aside, PyObject, Run,
                                     hk_load32, hk_now, hk_packed, hk_packed_free, hk_packed_new, hk_store32, match, may_drive, nanoseconds, stopped, this_thread)
from hocket.collectives.recording.recorder cimport Writer, hk_record
from hocket.kernels.cpu.reduce cimport find_reduce, reduce_fn
from hocket.transports.channel cimport HK_FAULT, HK_LOST, channel_of, hk_channel

from hocket.errors import MemoryError as NoMemory

CODES = {"lost": HK_LOST, "fault": HK_FAULT, "mismatch": MISMATCH, "aborted": ABORTED, "timeout": TIMED_OUT,
         "raised": RAISED, "done": DONE, "busy": BUSY}

cdef enum:
    IDLE_SPINS = 20             # of a wait for news that may not come for hours
    IDLE_YIELD_NS = 300000
    SLOW_NS = 100000
    SLOW_COMPUTING_NS = 500000  # of works, whose ranks compute: under the kernel's slices of 0.7 to 3 ms


cdef object no_scratch(Plan plan):
    """The error of a call that has no room to work in."""
    return NoMemory(f"{plan.text} needs {plan.scratch} bytes to work in, for which there is not enough memory")


cdef class Engine:
    """One ordered queue of plans, over the channels to each member.

    `spins`: polls before the first yield; `home`: this rank's own core, or -1; see wait.h.  `concurrent`: queued runs
    progress side by side (send and recv), not one after the other.  `polls_with_gil`: how often to poll before the GIL
    is released.  `priority`: of its lane; `helps`: its blocking calls drive what is queued on other engines while they
    wait.  `leads_out`: some of its channels leave the host.
    """

    def __cinit__(self, int rank, int size, int spins=2000, bint concurrent=False, int polls_with_gil=0, int home=-1,
                  int priority=0, bint helps=False, bint leads_out=False):
        self.polls_with_gil, self.label = polls_with_gil, NO_LABEL
        self.core.rank, self.core.size = rank, size
        self.core.self = <PyObject*>self
        self.core.concurrent = concurrent
        self.core.tx = <hk_channel**>calloc(size, sizeof(hk_channel*))
        self.core.rx = <hk_channel**>calloc(size, sizeof(hk_channel*))
        self.core.tx_mark = <uint32_t*>calloc(size, sizeof(uint32_t))
        self.core.rx_mark = <uint32_t*>calloc(size, sizeof(uint32_t))
        self.core.aside = <Aside**>calloc(size, sizeof(Aside*))
        self.core.rx_owner = <Run**>calloc(size, sizeof(Run*))
        if not (self.core.tx and self.core.rx and self.core.tx_mark and self.core.rx_mark and self.core.aside and self.core.rx_owner):
            raise MemoryError
        self.core.ladder.spins = self.core.ladder.spins_now = spins
        self.core.ladder.yield_ns = 2000000
        self.core.ladder.slow_ns = SLOW_NS
        self.core.ladder.home = home
        self.core.queued = self.core.ladder
        self.core.queued.slow_ns = SLOW_COMPUTING_NS
        self.core.priority, self.core.leads_out = priority, leads_out
        self.core.attends = (HELPS if helps else 0) | (HOLDS if leads_out else 0)
        self.keep = []
        self.recent = [None] * RECENT
        self.plans = {}

    def record(self, Writer writer):
        """Record its calls here; None: nowhere, and its ring is given back."""
        self.core.record = NULL if writer is None else &writer.writer
        self.core.trace = self.core.record if writer is not None and writer.writer.traces else NULL
        if writer is not None:
            self.writer = writer
        elif self.writer is not None:   # which stays: another thread may still write
            self.writer.give_back()

    def sleep_soon(self):
        """From now on its waits neither spin nor yield for long, but sleep: they are long, and others need the core.

        A reply of another process that is not asleep comes before that.
        """
        self.core.ladder.spins = self.core.ladder.spins_now = IDLE_SPINS
        self.core.ladder.yield_ns = IDLE_YIELD_NS
        self.core.queued = self.core.ladder

    def connect(self, int peer, send, recv, owner):
        """Use these channels to and from `peer`; `owner` is kept alive as long as they may be used."""
        cdef hk_channel* tx = channel_of(send)
        cdef hk_channel* rx = channel_of(recv)
        self.core.tx[peer], self.core.rx[peer] = tx, rx
        self.keep.append((send, recv, owner))
        if self.core.rx[peer].bell != NULL:
            self.core.bell = self.core.rx[peer].bell

    def connected(self, int peer):
        return self.core.tx[peer] != NULL

    def pack(self, peers):
        """Make what packs messages to and from these peers, if it is not there."""
        cdef int peer, i
        if self.core.packed == NULL:
            self.core.packed = <hk_packed**>calloc(2 * self.core.size, sizeof(hk_packed*))
            if self.core.packed == NULL:
                raise MemoryError
        for peer in peers:
            for i in (peer, self.core.size + peer):
                if self.core.packed[i] == NULL:
                    self.core.packed[i] = hk_packed_new()
                    if self.core.packed[i] == NULL:
                        raise MemoryError

    def descriptors(self):
        """(peer, file descriptor) of each open channel to a peer that has one."""
        return [(peer, self.core.tx[peer].fd) for peer in range(self.core.size)
                if self.core.tx[peer] != NULL and self.core.tx[peer].fd >= 0]

    def multicasts(self, int peer):
        """0, or which multicast the channel to `peer` offers: channels with the same one can share a write."""
        if self.core.tx[peer] == NULL:
            return 0
        return <uintptr_t>self.core.tx[peer].ops.multicast

    def abort(self, uint32_t first=0):
        """End every wait of this engine, now and later.  Calls before number `first` get EARLIER_CALLS_NS to finish.

        The other ranks are past those calls, so all that they need is on its way.  From any thread.
        """
        if not self.core.aborted:
            self.core.aborted_at, self.core.aborted_from = hk_now(), first
        self.core.aborted_from = min(first, self.core.aborted_from)
        hk_store32(&self.core.aborted, 1)

    @property
    def owner(self):
        """Told of long waits: owner.on_wait(engine, seconds).  None when it has gone; it is not kept alive."""
        return self.owner_ref() if self.owner_ref is not None else None

    @owner.setter
    def owner(self, value):
        self.owner_ref = None if value is None else weakref.ref(value)

    @property
    def spares_next(self):
        """Is it aborted, but not for the call that comes next?"""
        return bool(self.core.aborted) and not stopped(&self.core, self.seq + 1)

    @property
    def rank(self):
        return self.core.rank

    @property
    def size(self):
        return self.core.size

    def made(self, uint32_t number):
        """The plan of call `number`; None if it is too long ago or has not come."""
        if not 0 < number <= self.seq or self.seq - number >= RECENT:
            return None
        if self.again[number % RECENT] != NULL:
            return <Plan>self.again[number % RECENT]
        return self.recent[number % RECENT]

    def call(self, uint32_t number):
        """Call `number` in words; "" if it is too long ago or has not come."""
        cdef Plan plan = self.made(number)
        if plan is None:
            return ""
        return f"{plan.text}, first made at {plan.site}" if plan.site not in ("", "?") else plan.text

    @property
    def words(self):
        """The latest call, for people."""
        plan = self.plan
        return "" if plan is None else plan.words(None if self.label == NO_LABEL else self.label)

    @property
    def plan(self):
        """That of the latest call; None: there was none."""
        return self.latest if self.repeated == NULL else <Plan>self.repeated

    @property
    def driven(self):
        """Is a thread in this engine, or a run queued?"""
        return bool(hk_load32(&self.core.claimed)) or bool(hk_load32(&self.core.pending))

    def help(self):
        """Drive once what is queued in this process, if some of it is ours: hocket's own thread may be held up."""
        if hk_load32(&self.core.pending):
            with nogil:
                elsewhere.advance(True)

    @property
    def sequence(self):
        """The number of calls that this engine has begun."""
        return self.seq + self.opening

    cdef int prepare(self, Run* r, Plan plan, uintptr_t src, uintptr_t dst, int op, object user,
                     tuple residuals) except -1:
        run_init(r, plan)
        r.base[IN], r.base[OUT] = <char*>src, <char*>dst
        place_residuals(r, residuals)
        r.reduce = find_reduce(plan.dtype, op) if op >= 0 and user is None else NULL
        if user is not None:
            r.user = <PyObject*>user
        return 0

    cdef void number(self, Run* r, Plan plan) noexcept:
        """Make `r` this engine's next call: its messages carry the number, and what all ranks must agree on."""
        if self.counter is None:
            self.seq += 1
        else:
            self.counter.seq += 1
            self.seq = self.counter.seq
            self.counter.recent[self.seq % RECENT], self.counter.again[self.seq % RECENT] = plan, NULL
        r.call.tag, r.number = (<uint64_t>self.seq << 32) | plan.fingerprint, self.seq
        self.recent[self.seq % RECENT], self.again[self.seq % RECENT] = plan, NULL

    def count_with(self, Engine other) -> None:
        """Number the calls of both in one row, so that ranks which are in a call on either can be compared."""
        self.counter = other

    @property
    def failed(self):
        """Has a run ended with an error?"""
        return self.core.failed != 0

    @property
    def thread(self):
        """The thread that may drive this engine: 0, any thread; 1, any that calls hocket, but not hocket's own; else
        the one thread with this identifier (threading.get_ident)."""
        return self.core.thread

    @thread.setter
    def thread(self, uint64_t value):
        self.core.thread = value

    @property
    def is_ours(self):
        """May the calling thread drive it?"""
        return may_drive(&self.core, True)

    cdef bint claim(self) noexcept:
        """Take the engine for a blocking call (under the GIL).  False: another thread has it, calls are queued, or this
        thread may not."""
        if hk_load32(&self.core.pending) or hk_load32(&self.core.claimed) or not may_drive(&self.core, True):
            return False
        hk_store32(&self.core.claimed, 1)
        return True

    cdef void release(self) noexcept:
        hk_store32(&self.core.claimed, 0)

    cdef int make_room(self, Plan plan) except -1:
        """Memory for the plan to work in.  MemoryError: the call has no number yet, so it may be made again."""
        if plan.scratch > self.scratch_bytes and self.core.failed == 0:     # a failed run's may still be in use
            free(self.scratch)
            self.scratch = <char*>malloc(plan.scratch)
            self.scratch_bytes = plan.scratch if self.scratch != NULL else 0
            if self.scratch == NULL:
                raise no_scratch(plan)
        return 0

    cdef int perform(self, Run* r, Plan plan) except -1000:
        """Run what has been prepared, in this thread, which has claimed the engine; the claim ends here.

        The GIL is kept for the first microseconds: a small call is over before another thread could have used it.
        """
        cdef int rc = BLOCKED
        cdef hk_record* record
        if r.device == NULL:
            r.base[SCRATCH] = self.scratch
        r.waits = True
        self.latest, self.repeated = plan, NULL
        self.in_call, self.caller = True, this_thread()
        record = call_begins(&self.core, r, plan.nbytes, plan.small)
        if self.polls_with_gil and plan.small:
            rc = drive(&self.core, r, min(self.polls_with_gil, <int>self.core.ladder.spins_now))
        if rc == BLOCKED:
            with nogil:
                rc = drive(&self.core, r, 0)
        if rc == DONE:
            call_returns(&self.core, r, plan.nbytes, record)
            self.in_call = False       # after an error it stays True: until the verdict, others ask what it was doing
        else:
            self.culprit, self.foreign, self.came = r.culprit, r.foreign, r.came
        self.release()
        return rc

    cdef int repeat(self, Plan plan, char* src, char* dst, reduce_fn reduce, uint64_t limit) noexcept nogil:
        """A blocking call by a plan that ran here before, without the GIL: DONE, an error, or BUSY, when nothing was done
        and the call wants the GIL.  The caller keeps the plan for ever, and other threads from calling here.
        """
        cdef Run* r = &self.run
        cdef hk_record* record
        cdef int rc
        if (self.counter is not None or self.core.failed or plan.ninstrs > r.capacity or plan.scratch > self.scratch_bytes
                or stopped(&self.core, self.seq + 1) or hk_load32(&self.core.pending) or hk_load32(&self.core.claimed)
                or not may_drive(&self.core, True)):
            return BUSY
        hk_store32(&self.core.claimed, 1)
        run_reset(r, plan)
        r.base[IN], r.base[OUT], r.base[SCRATCH] = src, dst, self.scratch
        r.reduce, r.limit, r.waits = reduce, limit, True
        self.seq += 1
        r.call.tag, r.number = (<uint64_t>self.seq << 32) | plan.fingerprint, self.seq
        self.again[self.seq % RECENT] = self.repeated = <PyObject*>plan
        self.label, self.in_call, self.caller = NO_LABEL, True, this_thread()
        record = call_begins(&self.core, r, plan.nbytes, plan.small)
        rc = drive(&self.core, r, 0)
        if rc == DONE:
            call_returns(&self.core, r, plan.nbytes, record)
            self.in_call = False
        else:
            self.culprit, self.foreign, self.came = r.culprit, r.foreign, r.came
        hk_store32(&self.core.claimed, 0)
        return rc

    def begin(self, Plan plan, tag=None):
        """Count a call as under way before it can run: its channels are being opened.  `ready` ends that."""
        self.latest, self.repeated, self.in_call, self.caller = plan, NULL, True, this_thread()
        self.label = NO_LABEL if tag is None else tag
        self.opening += tag is None

    def ready(self):
        self.in_call = False
        self.opening -= self.label == NO_LABEL

    def execute(self, Plan plan, uintptr_t src, uintptr_t dst, int op=-1, user=None, double timeout=0, tag=None,
                Placed placed=None, tuple residuals=()):
        """Run `plan` now, in this thread.  Returns DONE or an error code (CODES); `culprit` names the peer.

        BUSY: nothing was done, as another thread is at it, or calls are queued; this one must queue too.
        `placed`: where the arrays are, if not in host memory; then DONE means that all has been issued.
        `residuals`: the addresses of the spaces from BEFORE on, where the plan has them.
        """
        cdef Run* r = &self.run
        if not self.claim():
            return BUSY
        try:
            self.prepare(r, plan, src, dst, op, user, residuals)
            if placed is not None:
                placed.place(r, plan.scratch)
            else:
                self.make_room(plan)
        except BaseException:
            self.release()
            raise
        self.label = NO_LABEL if tag is None else tag
        if tag is None:
            self.number(r, plan)
        else:
            match(r, self.label)
        r.limit = nanoseconds(timeout)
        return self.perform(r, plan)

    def hold(self, object arrays):
        """Keep the arrays of a failed run: a channel may still use them."""
        self.keep.append(arrays)

    def channel_error(self, int peer):
        """The error of a lost or faulty channel: its own words, else errno."""
        cdef hk_channel* ends[2]
        cdef int i
        ends[0], ends[1] = self.core.tx[peer], self.core.rx[peer]
        for i in range(2):
            if ends[i] != NULL and ends[i].words != NULL:
                return ends[i].words.decode(errors="replace")
        for i in range(2):
            if ends[i] != NULL and ends[i].error:
                return f"{os.strerror(ends[i].error)} (errno {ends[i].error})"
        return "no more is known"

    def __dealloc__(self):
        cdef int i
        if self.core.aside != NULL:
            for i in range(self.core.size):
                aside_free(self.core.aside[i])
        if self.core.packed != NULL:
            for i in range(2 * self.core.size):
                hk_packed_free(self.core.packed[i])
            free(self.core.packed)
        free(self.core.tx)
        free(self.core.rx)
        free(self.core.tx_mark)
        free(self.core.rx_mark)
        free(self.core.aside)
        free(self.core.rx_owner)
        free(self.scratch)
        run_free(&self.run)
