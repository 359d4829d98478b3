"""The progress thread, one per process: it drives what is queued while nobody waits for it.

To wake a sleeping thread takes longer than all the rest of starting a run, so the thread stays awake for a while after
its last work, and looks for more by itself.  It stands back for computing threads and for waiting ones.

It looks every 50 us.  To sleep on descriptors was tried: each segment then woke it, on a core where a thread computes
(`hocket.bench.overlap`, 16 MiB over TCP beside arithmetic, 3 runs each: loss 6 to 43 %, else -16 to 23 %).
"""

import threading

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from hocket.collectives.engine.run cimport (hk_ladder, hk_load32, hk_now, hk_store32, hk_wait, hk_wait_reset,
                                     hk_wait_step)
from hocket.collectives.waiting cimport news, progress, sleep


cdef extern from "time.h" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int nanosleep(const timespec*, timespec*)

cdef extern from "sched.h" nogil:
    struct sched_param:
        int sched_priority
    enum: SCHED_BATCH
    int sched_setscheduler(int, int, const sched_param*)

cdef extern from "sys/prctl.h" nogil:
    enum: PR_SET_TIMERSLACK
    int prctl(int, unsigned long)

cdef enum:
    NAP_NS = 50000              # when it has nothing to do but may soon have
    LONG_NAP_NS = 1000000       # while others drive; they may end at any time
    SLACK_NS = 1000             # by how much a nap may be longer
    LINGER_NS = 20000000        # how long it naps before it sleeps

thread = None
_beginning = threading.Lock()
cdef uint32_t leaves = 0        # it is to end; atomic


cdef void nap(uint64_t ns) noexcept nogil:
    cdef timespec t
    t.tv_sec, t.tv_nsec = 0, <long>ns
    nanosleep(&t, NULL)


cdef void serve() noexcept nogil:
    """Asleep while nothing is queued for long, and never in the way of those who compute or wait."""
    cdef hk_wait w
    cdef hk_ladder ladder
    cdef sched_param none
    cdef uint64_t idle_since = 0, napped = NAP_NS
    memset(&w, 0, sizeof(w))
    memset(&ladder, 0, sizeof(ladder))
    memset(&none, 0, sizeof(none))
    ladder.spins = ladder.spins_now = 100
    ladder.yield_ns, ladder.slow_ns = 100000, 50000
    ladder.home = -1
    sched_setscheduler(0, SCHED_BATCH, &none)   # when it wakes it does not take a computing thread's core at once
    prctl(PR_SET_TIMERSLACK, SLACK_NS)
    while not hk_load32(&leaves):
        if hk_load32(&progress.nqueued) == 0:
            hk_wait_reset(&w, &ladder, NULL)
            if idle_since == 0:
                idle_since = hk_now()
            if hk_now() - idle_since < LINGER_NS:
                nap(NAP_NS)
                continue
            sleep.sleep_until_told(&leaves)
        idle_since = 0
        if hk_load32(&progress.drivers):
            nap(napped)
            napped = min(2 * napped, <uint64_t>LONG_NAP_NS)
            continue
        napped = NAP_NS
        if progress.try_progress(False):
            hk_wait_reset(&w, &ladder, NULL)
        else:
            hk_wait_step(&w, &ladder, NULL, NULL, 0)


def _serve():
    with nogil:
        serve()


cdef int start() except -1:
    """Start it, unless it runs."""
    if thread is None:
        begin()
    return 0


cdef int begin() except -1:
    """To start a thread lets the GIL go, so others may come here meanwhile."""
    global thread
    with _beginning:
        if thread is None:
            hk_store32(&progress.stopping, 0)
            hk_store32(&leaves, 0)
            made = threading.Thread(target=_serve, name="hocket-progress", daemon=True)
            made.start()
            thread = made


def rest():
    """End it while nobody can queue a run, and give its descriptor back; the next run starts it again."""
    global thread
    with _beginning:
        if thread is not None:
            hk_store32(&leaves, 1)
            progress.wake()
            thread.join(2)
            thread = None
            news.close_news()


def stop():
    """The process ends: so do this thread, and those that sleep until a run ends."""
    with nogil:
        progress.end()
    rest()


cdef void forked() noexcept:
    """In a forked child: it runs in the parent."""
    global thread, _beginning
    thread, _beginning = None, threading.Lock()
