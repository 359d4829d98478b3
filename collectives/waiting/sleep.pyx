"""A caller's wait for all that is queued: on the descriptors of every run under way, and on news.pyx's.

Where a run has none (its transport must be looked at) or another thread drives it, this one looks every 50 us.
"""

from libc.stdint cimport uint32_t, uint64_t

from hocket.collectives.engine.drive cimport MAX_FDS, collect, elsewhere
from hocket.collectives.engine.run cimport (Core, hk_ladder, hk_load32, hk_now, hk_store32, hk_wait, hk_wait_sleeps,
                                     hk_wait_step, pollfd)
from hocket.collectives.waiting cimport news, progress
from hocket.collectives.waiting.progress cimport pthread_mutex_lock, pthread_mutex_unlock


cdef extern from "poll.h" nogil:
    enum: POLLIN


cdef int gather(Core* mine, pollfd* fds, int nfds, uint32_t** bell) noexcept nogil:
    """Gather the descriptors that queued runs wait for, but for held lanes: more descriptors behind the first `nfds`,
    or the bell of `mine`.

    How many descriptors there are then; -1 where some run can only be looked at.  No other engine's bell is slept on: it
    may go meanwhile, with its memory.
    """
    cdef progress.Walk w = progress.Walk(NULL, 0, progress.held_below, 0, False)
    cdef int n = nfds
    while n >= 0 and progress.next_queued(&w, True):
        if not w.claimed:               # somebody else drives it
            return -1
        n = gather_one(w.engine, mine, fds, n)
        hk_store32(&w.engine.claimed, 0)
    if n >= 0 and mine.bell != NULL:
        if n > nfds:                    # nobody sleeps on a bell and on descriptors at once
            return -1
        bell[0] = mine.bell
        if n == 0:
            pthread_mutex_lock(&progress.lock)
            news.slept_on = mine.bell
            pthread_mutex_unlock(&progress.lock)
    return n


cdef int gather_one(Core* e, Core* mine, pollfd* fds, int n) noexcept nogil:
    """For one engine that this thread has claimed."""
    cdef int before
    cdef progress.Node* node
    cdef progress.Node* last
    if e != mine and e.bell != NULL:
        return -1
    pthread_mutex_lock(&progress.lock)
    node, last = <progress.Node*>e.head, <progress.Node*>e.tail
    pthread_mutex_unlock(&progress.lock)
    while node != NULL:
        if node.run.t == 0:                     # it has not begun
            return -1
        before = n
        n += collect(e, &node.run, fds + n, MAX_FDS - n)
        if n == MAX_FDS or n == before and e.bell == NULL:
            return -1
        node = node.next if e.concurrent and node != last else NULL
    return n


cdef uint64_t wait_step(hk_wait* w, hk_ladder* ladder, Core* mine, pollfd* fds, int nfds) noexcept nogil:
    """One step of waiting for all that is queued, and for what `mine` waits for: `nfds` descriptors and its bell.

    `fds` has room for MAX_FDS.
    """
    cdef uint64_t waited
    cdef uint32_t* bell = NULL
    cdef int n
    cdef uint32_t now
    cdef bint heard = False, looks
    if not hk_wait_sleeps(w, ladder):
        return hk_wait_step(w, ladder, NULL, NULL, 0)
    news.before_sleep()
    n = gather(mine, fds, nfds, &bell)
    looks = 0 < n < MAX_FDS and not w.told
    w.told = False
    if looks:
        fds[n].fd, fds[n].events, fds[n].revents = news.news, POLLIN, 0
        n += 1
    now = hk_load32(&news.told)
    if now == w.news:
        waited = hk_wait_step(w, ladder, bell, fds, n)
        heard = looks and fds[n - 1].revents != 0
    else:                           # told before it was a sleeper: the caller looks once more
        w.news, waited = now, hk_now() - w.since
    w.told = not news.after_sleep(heard)    # it would return at once: the next sleep, which is short, is without it
    if n == 0 and bell != NULL:
        pthread_mutex_lock(&progress.lock)
        news.slept_on = NULL
        pthread_mutex_unlock(&progress.lock)
    return waited


cdef void sleep_until_told(uint32_t seen, bint idle, uint32_t* leaves, int ms) noexcept nogil:
    """Until more than `seen` runs have ended or one is queued, at most `ms` milliseconds.

    `idle`: only if none is queued.  Not if `leaves` is set.
    """
    cdef uint32_t rung = news.before_nap()
    if hk_load32(&progress.ends) == seen and not hk_load32(leaves) and not (idle and hk_load32(&progress.nqueued)):
        news.nap(rung, ms * <uint64_t>1000000)
    news.after_nap()


elsewhere.wait_step = wait_step
