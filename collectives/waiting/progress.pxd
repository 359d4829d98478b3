"""The queue of this process, and what makes it go forward."""

from libc.stdint cimport uint32_t, uint64_t

from hocket.collectives.engine.run cimport Core, Run, hk_load32
from hocket.collectives.plans.plan cimport SEND

cdef extern from "system/atomics.h" nogil:
    void hk_add32(uint32_t*, uint32_t)

cdef extern from "pthread.h" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_lock(pthread_mutex_t*)
    int pthread_mutex_unlock(pthread_mutex_t*)

cdef enum:
    MAX_ENGINES = 1024
    FEW = 64                    # messages under way that a new one is compared with

cdef pthread_mutex_t lock           # guards the queue, the lists of runs in its engines, and who claims these
cdef Core* queued[MAX_ENGINES]
cdef uint32_t nqueued               # engines in it: written under the lock, looked at without
cdef int held_below                 # the highest priority of blocking calls that hold lower lanes, or INT_MIN
cdef uint32_t drivers               # threads that wait and drive what is queued; atomic
cdef bint led                       # does a thread of hocket's own drive?  Under the lock
cdef uint32_t ends                  # runs that have ended in this process, and other news, as a clock: it only grows; atomic
cdef uint32_t waits                 # waits for runs that have begun in this process, as a clock, from 1 on; atomic


cdef struct Node:               # one queued run
    Run run
    Core* core
    Node* next
    size_t nbytes               # of its plan ...
    bint small, counted         # ...; and is it counted yet?
    uint64_t submitted          # in a trace: when, ns; else 0
    uint32_t vain               # tries, one after the other, in which nothing moved
    bint unknown                # its owner has no handle of it yet: its end is no news to anybody
    uint32_t unwanted           # its owner wants it no more: it ends at its next turn, if it has taken no message
    uint32_t later              # it is put off until the next wait: `waits` when it was; else 0
    uint32_t status             # BLOCKED: queued or running; DONE; or an error code.  Released with the result


cdef struct Walk:               # over the engines in the queue, from the first
    Core* engine                # where it has come to
    uint32_t place              # ... in the queue
    int priority                # ... and of which lane: lower ones are held, or not
    int moved                   # has something moved in this pass?
    bint claimed                # by this thread, to be driven, or looked at until 0 is stored in `Core.claimed`


# What is put off goes forward in waits alone.  Where no core is free, what hocket's own thread does beside a computation
# takes from it more than it hides, as ranks that exchange pieces need each other on a core at once.

cdef inline bint all_put_off(Core* e) noexcept nogil:
    """Is there nothing else in this engine's queue?  The lock is held."""
    cdef uint32_t now = hk_load32(&waits)
    cdef Node* n = <Node*>e.head
    while n != NULL and n.later == now and now != 0:
        n = n.next
    return n == NULL


cdef inline void awake() noexcept nogil:
    """Somebody waits: nothing that is queued now is put off any more."""
    hk_add32(&waits, 1)


cdef inline bint sends_to(Run* r, int peer) noexcept nogil:
    cdef int i
    for i in range(r.steps.count if r.nsteps else 0):       # a message is one step, of a send, a recv or both
        if r.instrs[i].kind == SEND and r.instrs[i].peers[0] == peer:
            return True
    return False


cdef inline bint overtakes(Node* n) noexcept nogil:
    """Is it a send, and do those before it send nothing to its peer?"""
    cdef Node* other = <Node*>n.core.head
    cdef int seen = 0
    if n.run.nsteps != 1 or n.run.steps.count != 1 or n.run.instrs.kind != SEND:
        return False
    while other != n and seen < FEW and not sends_to(&other.run, n.run.instrs.peers[0]):
        other, seen = other.next, seen + 1
    return other == n


cdef bint next_queued(Walk* w, bint caller) noexcept nogil      # go on to the next engine; False: there is none
cdef void rouse() noexcept nogil                # lock held: wake those who sleep until there is news, and have a leader
cdef void wake() noexcept nogil                 # ... without the lock
cdef void dismiss() noexcept nogil              # wake all of hocket's own threads, as they are to end
cdef bint has_room(Core* e) noexcept nogil      # for this engine's runs; as long as the GIL is kept
cdef bint submit(Node* n) noexcept nogil        # queue it behind its engine's others; under the GIL.  True: `begin` it
cdef void begin(Node* n) noexcept nogil         # try it at once, in the thread that issues it, which has claimed its engine
cdef bint claim_beside(Core* e) noexcept nogil  # take it though runs are queued, to look at what has come; not to drive it
cdef void release_beside(Core* e) noexcept nogil
cdef int try_progress(bint caller) noexcept nogil   # everything that this thread (a caller's, or our own) may drive and
                                                # nobody else drives, once
cdef void follow(uint32_t* leaves) noexcept nogil       # lock held: sleep until nobody leads, and lead
cdef void waiting(int change) noexcept nogil    # a thread begins (+1) or ends (-1) to call try_progress
cdef void forked() noexcept
