"""The asynchronous runs under way in this process, and how they go forward.

Queued runs of an engine go one after the other (collectives), or side by side (send and recv); engines progress
independently, so two communicators may be used in different order on different ranks.  Whoever claims an engine
(`Core.claimed`) drives it: hocket's own thread (lead.pyx), or a caller that waits, which so runs its own operation without
a hand-off.  Who issues a message or a short call tries it once, so that it leaves before another thread is awake.  Two
threads drive two engines at once.  One lock guards the lists and the claims, and is held for moments: never while data
moves, and never by a thread that wants the GIL.  sleep.pyx: how they wait.
"""

from libc.limits cimport INT_MIN
from libc.stdint cimport uint32_t, uint64_t

from hocket.collectives.engine.drive cimport advance, elsewhere, failed_before, has_failed, overdue, tell_waits
from hocket.collectives.engine.events cimport TOLD_NS, call_begins, call_ends, call_moves, call_waits, time_now
from hocket.collectives.engine.run cimport (ABORTED, ANY_THREAD, BLOCKED, DONE, MOVED, Core, Run, hk_load32, hk_now, hk_store32, may_drive,
                                     run_stopped)
from hocket.collectives.recording.recorder cimport HK_NOBODY, HK_SAW_SUBMIT, hk_put
from hocket.collectives.waiting.news cimport tell


cdef extern from "pthread.h" nogil:
    ctypedef struct pthread_cond_t:
        pass
    int pthread_mutex_init(pthread_mutex_t*, void*)
    int pthread_cond_init(pthread_cond_t*, void*)
    int pthread_cond_signal(pthread_cond_t*)
    int pthread_cond_broadcast(pthread_cond_t*)
    int pthread_cond_wait(pthread_cond_t*, pthread_mutex_t*)

cdef enum:
    LOOKS = 16                  # vain tries of a run after which the clock tells how long that takes
    HOLD_NS = 50000000          # how long a lane holds lower ones after it has moved

cdef struct Holder:             # a blocking call that holds lower lanes while it moves
    Core* core
    Run* run

cdef Holder holders[MAX_ENGINES]    # in no order
cdef uint32_t nholders

nqueued = drivers = ends = nholders = 0
waits = 1
held_below = INT_MIN
led = False
cdef pthread_cond_t vacant      # told when a follower is to lead
pthread_mutex_init(&lock, NULL)
pthread_cond_init(&vacant, NULL)


# --------------------------------------------------------------------------------- progress, engine claimed

cdef int others(Core* e) noexcept nogil:
    """For the blocking call that drives this engine: the runs that other threads have queued behind it."""
    return advance_queued(e, True)


cdef int advance_queued(Core* e, bint in_call) noexcept nogil:
    """Try the queued runs once; drop those that ended.

    The claim ends with the last of them, unless it is a blocking call's (`in_call`): the engine may then be gone.
    """
    cdef Node* before = NULL
    cdef Node* n
    cdef Node* next
    cdef Node* last
    cdef int rc, moved = BLOCKED
    pthread_mutex_lock(&lock)
    n, last = <Node*>e.head, <Node*>e.tail      # behind it others may queue meanwhile
    pthread_mutex_unlock(&lock)
    while n != NULL:
        next = n.next if n != last else NULL
        rc = advance_node(e, n)
        if rc == DONE or rc < 0:
            moved = MOVED
            if drop(e, n, before, rc, in_call):
                return MOVED
        else:
            moved |= rc
            if not e.concurrent:
                break
            before = n
        n = next
    if not in_call:
        hk_store32(&e.claimed, 0)
    return moved


cdef int advance_node(Core* e, Node* n) noexcept nogil:
    """Try one queued run once, and count what it did."""
    cdef int rc
    if not n.counted:           # its turn has come
        n.counted = True
        if e.trace != NULL and n.submitted:
            hk_put(e.trace, n.submitted, HK_SAW_SUBMIT, n.run.number, n.run.what, n.nbytes, HK_NOBODY, HK_NOBODY, HK_NOBODY)
        call_begins(e, &n.run, n.nbytes, n.small)
    if hk_load32(&n.unwanted) and n.run.source < 0:
        n.run.count.calls -= 1  # it is no call, and what it waited was not for one
        n.run.count.bytes -= n.nbytes
        n.run.weight = 0
        rc = DONE
    else:
        rc = ABORTED if run_stopped(e, &n.run) else failed_before(e, &n.run) if e.failed else advance(e, &n.run)
    if n.run.limit and rc >= 0:
        rc = limited(&n.run, rc)
    if rc == BLOCKED:
        blocked(e, n)
        return rc
    n.vain = 0
    call_moves(e, &n.run)
    if rc == DONE:
        call_ends(e, &n.run, n.nbytes)
    elif rc < 0:
        has_failed(e, &n.run, rc)
    return rc


cdef inline void blocked(Core* e, Node* n) noexcept nogil:
    """Nothing moves: since when.  A run that is not timed reads no clock for it before LOOKS tries were in vain."""
    n.vain += 1
    if n.run.weight or n.vain == LOOKS:
        call_waits(e, &n.run)
    if e.record != NULL and n.vain % LOOKS == 0 and not n.run.told and time_now(e) - n.run.blocked_at > TOLD_NS:
        tell_waits(e, &n.run, n.run.blocked_at)


cdef bint drop(Core* e, Node* n, Node* before, int rc, bint in_call) noexcept nogil:
    """It has ended.  Was it the last?  Then a thread that sees that may drop the engine, which is not touched again."""
    cdef bint last, news
    pthread_mutex_lock(&lock)
    news = not n.unknown
    if before == NULL:
        e.head = n.next
    else:
        before.next = n.next
    if n.next == NULL:
        e.tail = before
    last = e.head == NULL
    if last:
        unlist(e)
        if not in_call:
            hk_store32(&e.claimed, 0)
        hk_store32(&e.pending, 0)
    hk_store32(&n.status, <uint32_t>rc)         # from here on its owner may free it
    if news:
        hk_add32(&ends, 1)
        rouse()
    pthread_mutex_unlock(&lock)
    return last


cdef inline int limited(Run* r, int rc) noexcept nogil:
    """Is the time limit over?  It counts while nothing moves, and not before the run's turn has come."""
    if rc == BLOCKED:
        return overdue(r, 0)
    r.deadline = 0
    return rc


cdef bint next_queued(Walk* w, bint caller) noexcept nogil:
    """The lock is held for the look alone: what may be driven is claimed, and driven without it."""
    cdef bint more
    pthread_mutex_lock(&lock)
    w.place += w.place < nqueued and queued[w.place] == w.engine        # else another has taken its place
    more = w.place < nqueued and (queued[w.place].priority >= w.priority or may_follow(w, queued[w.place]))
    if more:
        w.engine, w.priority = queued[w.place], queued[w.place].priority
        w.claimed = not hk_load32(&w.engine.claimed) and may_drive(w.engine, caller) and (caller or not all_put_off(w.engine))
        if w.claimed:
            hk_store32(&w.engine.claimed, 1)
    pthread_mutex_unlock(&lock)
    return more


cdef bint claim_beside(Core* e) noexcept nogil:
    cdef bint free
    pthread_mutex_lock(&lock)
    free = not hk_load32(&e.claimed) and may_drive(e, True)
    if free:
        hk_store32(&e.claimed, 1)
    pthread_mutex_unlock(&lock)
    return free


cdef void release_beside(Core* e) noexcept nogil:
    """Nobody is woken: a thread that drives what is queued, and found the claim, looks again within a millisecond."""
    hk_store32(&e.claimed, 0)


cdef int try_progress(bint caller) noexcept nogil:
    """One pass over everything that is queued in this process; not over lower lanes, if a higher one moved or holds."""
    cdef Walk w = Walk(NULL, 0, held_below, BLOCKED, False)
    while next_queued(&w, caller):
        if w.claimed:
            w.engine.pass_number += 1
            w.moved |= advance_queued(w.engine, False)
    return w.moved


# ------------------------------------------------------------------------------- lower lanes are held, lock held
#
# Below the engine nobody knows priorities for sure: what a lower lane has handed to the system stays ahead of a higher
# lane's bytes, and in each gap of the higher one, between any two steps of its schedule, it would hand on more.  So:
#
#   The law.  A lane gets no turn while a higher one has an unfinished run here and has moved in the last HOLD_NS.
#
# No deadlock.  Take any moment at which nothing moves any more, on any rank, though some run is unfinished.  After
# HOLD_NS no lane holds another, anywhere, so each rank tries all that it has issued, and none of that can move: it is
# the same without the law.  So what ends without it ends with it.  Nothing is asked of the order in which ranks issue.
#
# No rank waits long for nothing.  A wait by this law points upwards only, from a lower lane to a higher one.  Where
# all ranks issue the runs of all lanes, whatever the order (training/overlap/), take the highest lane with an
# unfinished run: nothing holds it, on any rank, so it ends, and each of its moves brings it nearer to that; then the
# next one.  HOLD_NS is only waited for where a rank is late, or issues the higher run after the lower one has ended.
#
# One credit for all lanes would point downwards, too: rank 0 spends it on lane A, rank 1 on lane B, and both wait.
# (tests/collectives/waiting/test_holding.py tries all orders of small cases, of this and of the law.)

cdef bint holds(Core* higher, Run* r, uint64_t now) noexcept nogil:
    """Has this unfinished run moved in the last HOLD_NS?  (One that only some threads may drive may stand still.)"""
    return higher.thread == ANY_THREAD and (r.blocked_at == 0 or now - r.blocked_at < HOLD_NS)


cdef bint in_the_way(Core* higher, Core* lower) noexcept nogil:
    """Inside a host lanes do not meet."""
    return higher.priority > lower.priority and higher.leads_out and lower.leads_out


cdef bint may_follow(Walk* w, Core* lower) noexcept nogil:
    """May this lane have a turn, though higher ones have unfinished runs?"""
    cdef uint64_t now = hk_now()
    cdef uint32_t i
    cdef Node* n
    if w.moved == MOVED:
        return False
    for i in range(nholders):
        if in_the_way(holders[i].core, lower) and holds(holders[i].core, holders[i].run, now):
            return False
    for i in range(w.place):
        n = <Node*>queued[i].head if in_the_way(queued[i], lower) else NULL
        while n != NULL:                # several of messages, which go side by side
            if n.counted and holds(queued[i], &n.run, now):
                return False
            n = n.next if queued[i].concurrent else NULL
    return True


cdef void hold(Core* e, Run* r) noexcept nogil:
    global nholders, held_below
    pthread_mutex_lock(&lock)
    if nholders < MAX_ENGINES:          # more threads than that are too many to hold anything
        holders[nholders] = Holder(e, r)
        nholders += 1
        held_below = max(held_below, e.priority)
    pthread_mutex_unlock(&lock)


cdef void let_go(Run* r) noexcept nogil:
    global nholders, held_below
    cdef uint32_t i, kept = 0
    pthread_mutex_lock(&lock)
    held_below = INT_MIN
    for i in range(nholders):
        if holders[i].run != r:
            holders[kept] = holders[i]
            kept += 1
            held_below = max(held_below, holders[i].core.priority)
    nholders = kept
    pthread_mutex_unlock(&lock)


# ----------------------------------------------------------------------------------------- the list, lock held

cdef void enlist(Core* e) noexcept nogil:
    """Behind those of its priority and above."""
    cdef uint32_t i = nqueued
    while i > 0 and queued[i - 1].priority < e.priority:
        queued[i] = queued[i - 1]
        i -= 1
    queued[i] = e
    hk_store32(&nqueued, nqueued + 1)


cdef void unlist(Core* e) noexcept nogil:
    cdef uint32_t i
    cdef bint passed = False
    for i in range(nqueued):
        if passed:
            queued[i - 1] = queued[i]
        passed |= queued[i] == e
    if passed:
        hk_store32(&nqueued, nqueued - 1)


# --------------------------------------------------------------------------------------------- from outside

cdef bint has_room(Core* e) noexcept nogil:
    return hk_load32(&e.pending) or hk_load32(&nqueued) < MAX_ENGINES


cdef bint submit(Node* n) noexcept nogil:
    cdef bint now
    pthread_mutex_lock(&lock)
    if n.core.head == NULL:
        n.core.head = n
    else:
        (<Node*>n.core.tail).next = n
    n.core.tail = n
    n.core.others = others
    if not n.core.pending:
        hk_store32(&n.core.pending, 1)
        enlist(n.core)
    now = goes_now(n)
    if now:
        hk_store32(&n.core.claimed, 1)
    else:
        n.unknown = False
        rouse()
    pthread_mutex_unlock(&lock)
    return now


cdef bint goes_now(Node* n) noexcept nogil:
    """May the thread that issues this run try it at once, and does it gain by that?  The lock is held.

    Not behind others that it would have to wait for, nor in a lane that may be held; a long collective not, as it is not
    away soon; nor what calls a user's function or issues to a device, which are for hocket's own thread.
    """
    cdef Core* e = n.core
    if hk_load32(&e.claimed) or n.run.user != NULL or n.run.device != NULL or not may_drive(e, True):
        return False
    if e.priority < held_below or queued[0].priority > e.priority:
        return False
    return n == e.head and (e.concurrent or n.small) or e.concurrent and overtakes(n)


cdef void begin(Node* n) noexcept nogil:
    cdef Node* before = NULL
    cdef Node* other = <Node*>n.core.head       # while we have the claim none goes, and more come behind `n` alone
    cdef int rc
    while other != n:
        before, other = other, other.next
    n.core.pass_number += 1
    rc = advance_node(n.core, n)
    if rc == DONE or rc < 0:
        drop(n.core, n, before, rc, True)
    hk_store32(&n.core.claimed, 0)
    pthread_mutex_lock(&lock)
    n.unknown = False
    if hk_load32(&n.core.pending):      # it is not over, or others are queued, whose thread found our claim
        rouse()
    pthread_mutex_unlock(&lock)


cdef void follow(uint32_t* leaves) noexcept nogil:
    global led
    while led and not hk_load32(leaves):
        pthread_cond_wait(&vacant, &lock)
    led = True


cdef void rouse() noexcept nogil:
    if not led:
        pthread_cond_signal(&vacant)            # costs nothing if none follows
    tell()


cdef void dismiss() noexcept nogil:
    pthread_mutex_lock(&lock)
    pthread_cond_broadcast(&vacant)
    tell()
    pthread_mutex_unlock(&lock)


cdef void wake() noexcept nogil:
    pthread_mutex_lock(&lock)
    rouse()
    pthread_mutex_unlock(&lock)


cdef void waiting(int change) noexcept nogil:
    hk_add32(&drivers, <uint32_t>change)


elsewhere.engines, elsewhere.advance, elsewhere.waiting, elsewhere.hold = &nqueued, try_progress, waiting, hold
elsewhere.let_go = let_go


cdef void forked() noexcept:
    """In a forked child: the runs under way are the parent's."""
    global nqueued, nholders, held_below, drivers, led
    pthread_mutex_init(&lock, NULL)
    pthread_cond_init(&vacant, NULL)
    nqueued = nholders = drivers = 0
    held_below = INT_MIN
    led = False
