"""Driving a run: its steps one after the other, until it is done or nothing moves; and how to wait then.

A run walks merged steps: in merged step t, segment k of every piece is in the plan's step t - k, so a pipeline
is nothing but several segments in flight at once.  All instructions of a merged step are in flight together;
`advance` tries each once and never blocks; `drive` decides how to wait.

Order on a channel is the order of the instructions in the step (lowest segment first): an unfinished message
holds its channel, and what comes behind it waits.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from hocket.collectives.engine.events cimport TOLD_NS, call_fails, call_moves, call_waits, message, step_opens, was_away
from hocket.collectives.engine.matching cimport matched_recv, probe
from hocket.collectives.engine.instructions cimport apply, call, changes, copy, copy_own, device_failed, let_go, recv, reduce, send
from hocket.collectives.plans.plan cimport (APPLY, BEFORE, CALL, COPY, PROBE, RECV, REDUCE, SEND, Instr, Piece, Plan,
                                            hk_weigh_done, hk_weigh_next)
from hocket.collectives.engine.run cimport (ABORTED, BLOCKED, DONE, HELPS, HOLDS, MOVED, NOTED, RAISED, TIMED_OUT, Core,
                                            Run, State, hk_load32, hk_now, hk_wait, hk_wait_reset, hk_wait_sleeps,
                                            hk_wait_step, piece_length, pollfd, run_stopped, way_in)
from hocket.collectives.recording.recorder cimport (HK_NOBODY, HK_SAW_RECV_END, HK_SAW_RECV_READY,
                                                    HK_SAW_WAIT_RECV, HK_SAW_WAIT_SEND, hk_clock_now, hk_put)
from hocket.transports.channel cimport HK_LOST, hk_channel, hk_view


cdef extern from "system/run_delay.h" nogil:
    uint64_t hk_run_delay() noexcept

cdef extern from "poll.h" nogil:
    enum: POLLIN
    enum: POLLOUT

cdef enum:
    MOST_TOLD = 8               # peers of a wait that are recorded
    HELP_AFTER_NS = 5000        # the awaited may come at once (hocket.lab.lanes, shm: 1.0 x alone; without, 2.3)


cdef int place_residuals(Run* r, tuple addresses) except -1:
    """The spaces from BEFORE on; 0 where there is no such array."""
    cdef int i
    for i in range(len(addresses)):
        r.base[BEFORE + i] = <char*><uintptr_t>addresses[i]
    return 0


cdef void run_free(Run* r) noexcept:
    free(r.states)
    free(r.active)
    r.states, r.active, r.capacity = NULL, NULL, 0


cdef int open_step(Core* e, Run* r) noexcept nogil:
    """Open merged step r.t: collect the instructions that have something to do.  Their number, or an error."""
    cdef int s, k, i, j
    cdef State* st
    cdef Instr* x
    cdef Piece* p
    cdef uint64_t began
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
                st.total += piece_length(x, &p[j], k)
            if st.total == 0 and k > 0:
                continue                        # this segment is past the end of these pieces, for both sides
            while st.piece < x.npieces and piece_length(x, &p[st.piece], k) == 0:
                st.piece += 1
            if (x.kind == COPY and not x.after_sends) or x.kind == APPLY:
                if x.changes and r.nlate:
                    changes(e, r, x, st)            # an error is told again by what is sent next
                began = hk_clock_now(&e.trace.clock) if e.trace != NULL else 0
                if (copy(e, r, x, st) if x.kind == COPY else apply(e, r, x, st)) < 0:
                    return RAISED
                if began:
                    r.kernel_ns += hk_clock_now(&e.trace.clock) - began
                    r.kernel_bytes += st.total
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
        if r.t == 0 and begin(e, r) < 0:
            return RAISED
        if r.t >= r.nsteps + r.nsegments - 1:
            return done(e, r)
        if e.trace != NULL:
            step_opens(e, r)
        if open_step(e, r) < 0:
            return RAISED
        r.t += 1
    for i in range(r.nactive):
        x = &r.instrs[r.active[i]]
        s = &r.states[r.active[i]]
        if s.complete:
            continue
        mark = e.tx_mark if x.kind == SEND else e.rx_mark
        held = x.after_sends and r.sends_left > 0 and x.kind != COPY
        by_tag = r.matched and x.kind != SEND           # not held up by other tags: matched_recv keeps the order
        if not by_tag:
            for j in range(x.npeers):
                held |= mark[x.peers[j]] == now
        rc = BLOCKED
        if not held:
            if e.trace != NULL and not s.ready:
                s.ready = True
                message(e, r, r.active[i], HK_SAW_RECV_READY)
            if x.kind == SEND:
                rc = send(e, r, x, s)
            elif x.kind == REDUCE:
                rc = reduce(e, r, x, s)
            elif x.kind == CALL:
                rc = call(e, r, x, s)
            elif x.kind == PROBE:
                rc = probe(e, r, x, s)
            elif x.kind == COPY:            # early, or while nothing else moves
                rc = BLOCKED if moved and not x.early else copy_own(e, r, x, s)
            elif by_tag:
                rc = matched_recv(e, r, x, s)
            else:
                rc = recv(e, r, x, s, x.peers[0])
            if rc < 0:
                return rc
            if e.trace != NULL and rc == DONE:
                message(e, r, r.active[i], HK_SAW_RECV_END)
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
        return done(e, r)
    return moved


cdef inline int begin(Core* e, Run* r) noexcept nogil:
    """Before the first step.  Not when the run is queued, as earlier calls may still work on its arrays."""
    if r.weigh != NULL:
        weigh(r)
    return device_failed(e, r) if r.device != NULL and r.device.begin(r.device, r) < 0 else 0


cdef void weigh(Run* r) noexcept nogil:
    """Which way do its messages go?  Time counts from when the first one has come: before, this rank waits for another.
    To whom nothing comes counts from the begin, until the others have all: by slots it may go sooner, and they not."""
    cdef int timed = 0
    r.way = hk_weigh_next(r.weigh, &timed)
    r.call.traffic = r.weigh.way[r.way]
    r.call.took, r.counts = r.weigh.took, timed
    r.call.whole = timed and r.weigh.alone
    r.came_first = hk_now() if r.call.whole else 0
    if not timed and r.call.took == 0:
        r.weigh = NULL


cdef inline int done(Core* e, Run* r) noexcept nogil:
    cdef int rc = let_go(e, r, NULL, 0) if r.nlate else 1
    if rc != 1:
        return rc
    if r.weigh != NULL:
        hk_weigh_done(r.weigh, r.call.took != 0, r.way, hk_now() - r.came_first if r.counts and r.came_first else 0)
    return device_failed(e, r) if r.device != NULL and r.device.end(r.device, r) < 0 else DONE


cdef int drive(Core* e, Run* r, int polls) noexcept nogil:
    """Advance until done, waiting by the ladder; BLOCKED after so many vain `polls` (0: never)."""
    cdef hk_wait w
    cdef pollfd fds[MAX_FDS]
    cdef uint64_t waited, checked = 0, now, idle_since = 0
    cdef int rc, attends, nfds = 0
    cdef bint helps = False, holds = False
    if run_stopped(e, r):
        return ABORTED
    if e.failed:
        return failed_before(e, r)
    count_one()
    memset(&w, 0, sizeof(w))
    while True:
        e.pass_number += 1
        rc = advance(e, r)
        if rc == DONE or rc < 0:
            break
        if run_stopped(e, r):
            rc = ABORTED
            break
        if e.concurrent and hk_load32(&e.pending):
            rc |= e.others(e)               # same pass: our own messages go first on their channels
            r.weight |= NOTED
            if e.failed:                    # a queued run broke off in a message, and the channels have let go of ours
                rc = failed_before(e, r)
                break
        if rc == MOVED:
            idle_since = 0
            if w.polls:
                if e.trace != NULL:
                    was_away(e, r, w.away)
                hk_wait_reset(&w, &e.ladder, e.bell)
                checked = r.deadline = 0
                call_moves(e, r)
            continue
        attends = e.attends if e.attends and hk_load32(elsewhere.engines) else 0
        if r.weight or attends & HOLDS:
            call_waits(e, r)
        if attends:
            now = hk_now()
            if idle_since == 0:
                idle_since = now
            if attends & HOLDS and not holds:
                holds = True
                elsewhere.hold(e, r)
            if attends & HELPS and not helps:
                helps = True
                elsewhere.waiting(1)
            if helps and now - idle_since > HELP_AFTER_NS and elsewhere.advance(True) == MOVED:
                rc = look(e, r, now - idle_since, &checked)
                if rc < 0:
                    break
                continue                    # one pass over the queued runs, then our own turn again
        w.asks = NULL
        if e.trace != NULL:
            w.asks = &hk_run_delay
        if helps:
            waited = elsewhere.wait_step(&w, &e.ladder, e, fds, nfds)
        else:
            if nfds == 0 and hk_wait_sleeps(&w, &e.ladder):
                nfds = collect(e, r, fds, MAX_FDS)
            waited = hk_wait_step(&w, &e.ladder, e.bell, fds, nfds)
        if polls and w.polls >= <uint32_t>polls:
            if helps:
                elsewhere.waiting(-1)
            if holds:
                elsewhere.let_go(r)
            return BLOCKED
        if waited:
            nfds = collect(e, r, fds, MAX_FDS)
            if (waited > TOLD_NS or e.trace != NULL) and not r.told:
                tell_waits(e, r, hk_now() - waited)
            rc = look(e, r, waited, &checked)
            if rc < 0:
                break
    if helps:
        elsewhere.waiting(-1)
    if holds:
        elsewhere.let_go(r)
    if e.trace != NULL:
        was_away(e, r, w.away)
    hk_wait_reset(&w, &e.ladder, e.bell)
    return has_failed(e, r, rc) if rc < 0 else rc


cdef inline int look(Core* e, Run* r, uint64_t waited, uint64_t* checked) noexcept nogil:
    """In a long wait, now and then: should it end?  `checked`: when this was asked last."""
    cdef int rc
    if waited // CHECK_NS == checked[0]:
        return BLOCKED
    checked[0] = waited // CHECK_NS
    rc = slow_check(e, waited)
    return overdue(r, waited) if rc == BLOCKED else rc


cdef int has_failed(Core* e, Run* r, int rc) noexcept nogil:
    """A run ends with an error: no later run may go on behind the message that it left in the middle.

    Its arrays are the caller's again, so the channels let go of them.
    """
    cdef int peer
    call_fails(e, r, rc)
    if e.failed == 0:
        e.failed, e.failed_culprit = rc, r.culprit
        for peer in range(e.size):
            forget(e.tx[peer])
            forget(e.rx[peer])
    return rc


cdef inline void forget(hk_channel* ch) noexcept nogil:
    if ch != NULL and ch.ops.forget != NULL:
        ch.ops.forget(ch)


cdef int failed_before(Core* e, Run* r) noexcept nogil:
    """The error of a run on an engine where another one failed before."""
    r.culprit, r.came = e.failed_culprit, FOLLOWED
    return ABORTED if e.failed == RAISED else e.failed


cdef int overdue(Run* r, uint64_t waited) noexcept nogil:
    """Is the time limit over?  It counts from the beginning of this wait, and anew whenever data moves.

    `waited`: nanoseconds of it by now; 0 if it has just begun, or has been asked about before.
    """
    cdef uint64_t now
    if r.limit == 0:
        return BLOCKED
    now = hk_now()
    if r.deadline == 0:
        r.deadline = now - waited + r.limit
    return TIMED_OUT if now > r.deadline else BLOCKED


cdef int slow_check(Core* e, uint64_t waited) noexcept nogil:
    """In a long wait, now and then: signals, and the owner (which tells the control plane that this rank is stuck)."""
    with gil:
        engine = <object>e.self
        try:
            PyErr_CheckSignals()
            owner = engine.owner
            if owner is not None:
                owner.on_wait(engine, waited * 1e-9)
            return 0
        except BaseException as error:
            engine.error = error
            return RAISED


cdef bint awaited(Core* e, Run* r, int i, int j) noexcept nogil:
    """Does this unfinished instruction wait for its peer `j`?  A reduction not for one whose data it has while it waits
    for another, nor before its turn, when it would look at another's message; and a recv from any rank not for those
    that have left, nor, once it has its message, for all others."""
    cdef hk_view v
    cdef Instr* x = &r.instrs[i]
    cdef hk_channel* ch = e.tx[x.peers[j]] if x.kind == SEND else way_in(e, r, x, x.peers[j])
    if x.kind == REDUCE and (not r.states[i].opened or ch.ops.peek(ch, &r.call, &v, x.itemsize) == 1
                             and v.avail >= min(x.itemsize, v.length)):
        return False
    return x.kind == SEND or x.npeers == 1 or not r.matched or not (
        r.source >= 0 and r.source != x.peers[j] or ch.ops.peek(ch, &r.call, &v, 0) == HK_LOST)


cdef int collect(Core* e, Run* r, pollfd* fds, int room) noexcept nogil:
    """The descriptors that unfinished instructions wait for; else poll would return at once."""
    cdef int i, j, n = 0
    cdef Instr* x
    cdef hk_channel* ch
    for i in range(r.nactive):
        x = &r.instrs[r.active[i]]
        if r.states[r.active[i]].complete or x.after_sends and r.sends_left > 0:
            continue
        for j in range(x.npeers):
            ch = e.tx[x.peers[j]] if x.kind == SEND else e.rx[x.peers[j]]
            if ch.fd >= 0 and n < room and awaited(e, r, r.active[i], j):
                fds[n].fd = ch.fd
                fds[n].events = ch.events if ch.events else POLLOUT if x.kind == SEND else POLLIN
                n += 1
    return n


cdef void tell_waits(Core* e, Run* r, uint64_t since) noexcept nogil:
    """Record a wait: a record for each of the first peers that it waits for, with the number of all."""
    cdef int i, j, n = 0
    cdef int[MOST_TOLD] peers
    cdef uint32_t[MOST_TOLD] kinds
    cdef uint32_t kind
    cdef Instr* x
    if e.record == NULL:
        return
    for i in range(r.nactive):
        x = &r.instrs[r.active[i]]
        if r.states[r.active[i]].complete or x.after_sends and r.sends_left > 0:
            continue
        for j in range(x.npeers):
            kind = HK_SAW_WAIT_SEND if x.kind == SEND else HK_SAW_WAIT_RECV
            if n and kinds[min(n, <int>MOST_TOLD) - 1] == kind and peers[min(n, <int>MOST_TOLD) - 1] == x.peers[j]:
                continue                # another message of the same peer
            if awaited(e, r, r.active[i], j):
                if n < MOST_TOLD:
                    peers[n], kinds[n] = x.peers[j], kind
                n += 1
    for i in range(min(n, <int>MOST_TOLD)):
        hk_put(e.record, since, kinds[i], r.number, r.what, 0, <uint32_t>peers[i], r.t - 1, n)
    if n == 0:
        hk_put(e.record, since, HK_SAW_WAIT_RECV, r.number, r.what, 0, HK_NOBODY, r.t - 1, 0)
    r.told, r.weight = True, r.weight | NOTED
    if r.blocked_at == 0:
        r.blocked_at = since
