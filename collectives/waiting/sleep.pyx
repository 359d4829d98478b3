"""How a caller waits for all that is queued: on the descriptors of every run under way, and on news.pyx's.

Where a run has none (its transport must be looked at) or another thread drives it, this one looks every 50 us.
"""

from libc.stdint cimport uint32_t, uint64_t

from hocket.collectives.engine.drive cimport MAX_FDS, collect, elsewhere
from hocket.collectives.engine.run cimport (Core, hk_ladder, hk_load32, hk_wait, hk_wait_sleeps, hk_wait_step, may_drive,
                                     pollfd)
from hocket.collectives.waiting cimport news, progress
from hocket.collectives.waiting.progress cimport pthread_mutex_lock, pthread_mutex_unlock


cdef extern from "poll.h" nogil:
    enum: POLLIN
    int poll(pollfd*, unsigned long, int)


cdef int gather(Core* mine, pollfd* fds, int nfds, uint32_t** bell) noexcept nogil:
    """What the queued runs wait for: more descriptors behind the first `nfds`, or the bell of `mine`.

    How many descriptors there are then; -1 where some run can only be looked at.  No other engine's bell is slept on: it
    may go meanwhile, with its memory.
    """
    cdef uint32_t i
    cdef int n = nfds
    pthread_mutex_lock(&progress.lock)          # while it is held, nobody claims an engine that has none
    for i in range(progress.nqueued):
        n = gather_one(progress.queued[i], mine, fds, n)
        if n < 0:
            break
    if n >= 0 and mine.bell != NULL:
        if n > nfds:
            n = -1
        else:
            bell[0] = mine.bell
            if n == 0:
                news.slept_on = mine.bell
    pthread_mutex_unlock(&progress.lock)
    return n


cdef int gather_one(Core* e, Core* mine, pollfd* fds, int n) noexcept nogil:
    cdef int before
    cdef progress.Node* node = <progress.Node*>e.head
    # A busy one is driven by a blocking call, perhaps another thread's: nobody else may look into its channels.
    if hk_load32(&e.busy) or e != mine and e.bell != NULL or not may_drive(e, True):
        return -1
    while node != NULL:
        if node.run.t == 0:                     # it has not begun
            return -1
        before = n
        n += collect(e, &node.run, fds + n, MAX_FDS - n)
        if n == MAX_FDS or n == before and e.bell == NULL:
            return -1
        node = node.next if e.concurrent else NULL
    return n


cdef uint64_t wait_step(hk_wait* w, hk_ladder* ladder, Core* mine, pollfd* fds, int nfds) noexcept nogil:
    """One step of waiting for all that is queued, and for what `mine` waits for: `nfds` descriptors and its bell.

    `fds` has room for MAX_FDS.
    """
    cdef uint64_t waited
    cdef uint32_t* bell = NULL
    cdef int n
    cdef bint told
    if not hk_wait_sleeps(w, ladder):
        return hk_wait_step(w, ladder, NULL, NULL, 0)
    news.before_sleep()
    n = gather(mine, fds, nfds, &bell)
    if 0 < n < MAX_FDS:
        fds[n].fd, fds[n].events, fds[n].revents = news.news, POLLIN, 0
        n += 1
    waited = hk_wait_step(w, ladder, bell, fds, n)
    told = n > 0 and fds[n - 1].fd == news.news and fds[n - 1].revents != 0
    news.after_sleep(told)
    if n == 0 and bell != NULL:
        pthread_mutex_lock(&progress.lock)
        news.slept_on = NULL
        pthread_mutex_unlock(&progress.lock)
    return waited


cdef void sleep_until_told(uint32_t* leaves) noexcept nogil:
    """Until a run is queued, while none is; not if `leaves` is set."""
    cdef pollfd fd
    fd.fd, fd.events, fd.revents = news.news, POLLIN, 0
    news.before_sleep()
    if hk_load32(&progress.nqueued) == 0 and not hk_load32(leaves):
        poll(&fd, 1, -1)
    news.after_sleep(fd.revents != 0)


elsewhere.wait_step = wait_step
