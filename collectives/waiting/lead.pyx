"""The work of hocket's own threads (pool.py) without the GIL: one leads, the others follow.

The leader drives what is queued while nobody waits for it.  When an awaited run ends, the
leader runs its callback, and a follower leads: so data moves on while Python is busy.

To wake a sleeping thread takes longer than all the rest of starting a run, so the leader stays awake for a while after
its last work, and looks for more by itself.  It stands back for computing threads and for waiting ones.

It looks every 50 us.  To sleep on descriptors was tried: each segment then woke it, on a core where a thread computes
(`hocket.lab.overlap`, 16 MiB over TCP beside arithmetic, 3 runs each: loss 6 to 43 %, else -16 to 23 %).
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from hocket.collectives.engine.run cimport (hk_ladder, hk_load32, hk_now, hk_store32, hk_wait, hk_wait_reset,
                                     hk_wait_step)
from hocket.collectives.waiting cimport news, progress, sleep
from hocket.collectives.waiting.progress cimport pthread_mutex_lock, pthread_mutex_unlock


cdef extern from "system/atomics.h" nogil:
    void hk_add32(uint32_t*, uint32_t)

cdef extern from "time.h" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int nanosleep(const timespec*, timespec*)
    enum: CLOCK_PROCESS_CPUTIME_ID
    int clock_gettime(int, timespec*)

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
    QUIET_NS = 1000000000       # nothing has ended for so long: somebody waits for what may take hours
    QUIET_NAP_NS = 20000000     # ... while others drive
    SLACK_NS = 1000             # by how much a nap may be longer
    LINGER_NS = 20000000        # how long it naps before it sleeps
    IDLE_MS = 3600000           # how long it sleeps when it has nothing to do, unless it is told
    LOOK_MS = 500               # how long it leads, while somebody is to be told, before a look at what does not end
    REST_NS = 1000000000        # how long it lets be what was put off ...
    IDLE_NS = 20000000          # ... unless this process has computed for less than a tenth of so long

there = 0
cdef uint32_t awaited = 0       # somebody is to be told of ends; atomic
cdef uint32_t leaves = 0        # all are to end; atomic
cdef uint32_t taken = 0         # progress.ends, of which a leader has gone to tell; the leader's


cdef void nap(uint64_t ns) noexcept nogil:
    cdef timespec t
    t.tv_sec, t.tv_nsec = 0, <long>ns
    nanosleep(&t, NULL)


cdef bint may_tell(uint32_t ends, uint64_t since) noexcept nogil:
    """Has something ended that somebody awaits, or is it time for a look?"""
    global taken
    if not hk_load32(&awaited) or ends == taken and hk_now() - since < LOOK_MS * <uint64_t>1000000:
        return False
    taken = ends
    return True


cdef bint rests() noexcept nogil:
    """Is all that is queued put off?"""
    cdef uint32_t i = 0
    cdef bint all_of_it
    pthread_mutex_lock(&progress.lock)
    while i < progress.nqueued and progress.all_put_off(progress.queued[i]):
        i += 1
    all_of_it = 0 < progress.nqueued == i
    pthread_mutex_unlock(&progress.lock)
    return all_of_it


cdef struct Rest:               # all that is queued is put off; the leader's
    uint64_t last               # when that was seen last
    uint64_t began
    uint64_t looked, used       # when the process's CPU time was read, and what it was

cdef Rest resting
resting.last = 0


cdef uint64_t cpu_time() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t)
    return <uint64_t>t.tv_sec * 1000000000 + <uint64_t>t.tv_nsec


cdef void rest() noexcept nogil:
    """Nap.  The wait that is to come may not: its thread sleeps elsewhere, or looks for the end in vain."""
    cdef Rest* r = &resting
    cdef uint64_t now = hk_now(), used = cpu_time()
    if now - r.last > 5 * IDLE_NS:
        r.began, r.looked, r.used = now, now, used
    r.last = now
    if now - r.looked >= IDLE_NS:
        if 10 * (used - r.used) < now - r.looked:
            progress.awake()
        r.looked, r.used = now, used
    if now - r.began >= REST_NS:
        progress.awake()
        r.last = 0
    nap(LONG_NAP_NS)


cdef void drive_queued() noexcept nogil:
    """The leader: asleep while nothing is queued for long, and never in the way of those who compute or wait."""
    cdef hk_wait w
    cdef hk_ladder ladder
    cdef uint32_t ends, seen = 0
    cdef uint64_t since = hk_now(), idle_since = 0, napped = NAP_NS, quiet_since = since, most
    memset(&w, 0, sizeof(w))
    memset(&ladder, 0, sizeof(ladder))
    ladder.spins = ladder.spins_now = 100
    ladder.yield_ns, ladder.slow_ns = 100000, 50000
    ladder.home = -1
    while not hk_load32(&leaves):
        ends = hk_load32(&progress.ends)
        if may_tell(ends, since):
            return
        if ends != seen:
            seen, quiet_since = ends, hk_now()
        if hk_load32(&progress.nqueued) == 0:
            hk_wait_reset(&w, &ladder, NULL)
            if idle_since == 0:
                idle_since = hk_now()
            if hk_now() - idle_since < LINGER_NS:
                nap(NAP_NS)
            else:
                sleep.sleep_until_told(ends, True, &leaves, LOOK_MS if hk_load32(&awaited) else IDLE_MS)
            continue
        idle_since = 0
        if hk_load32(&progress.drivers):
            if hk_load32(&awaited):             # what they bring to an end is to be told at once
                sleep.sleep_until_told(ends, False, &leaves, <int>(LONG_NAP_NS / 1000000))
            else:
                nap(napped)
                most = LONG_NAP_NS if hk_now() - quiet_since < QUIET_NS else QUIET_NAP_NS
                napped = min(2 * napped, most)
            continue
        napped = NAP_NS
        if progress.try_progress(False):
            hk_wait_reset(&w, &ladder, NULL)
        elif rests():
            rest()
        else:
            hk_wait_step(&w, &ladder, NULL, NULL, 0)


def stand_back():
    """For a new thread: when it wakes, it does not take a computing thread's core at once."""
    cdef sched_param none
    memset(&none, 0, sizeof(none))
    sched_setscheduler(0, SCHED_BATCH, &none)
    prctl(PR_SET_TIMERSLACK, SLACK_NS)


def lead():
    """Follow, then lead until somebody may have to be told, or all are to leave."""
    global there
    there += 1
    with nogil:
        pthread_mutex_lock(&progress.lock)
        progress.follow(&leaves)
        pthread_mutex_unlock(&progress.lock)
        drive_queued()
        pthread_mutex_lock(&progress.lock)
        progress.led = False
        if progress.nqueued or hk_load32(&progress.ends) != taken:      # else whoever comes next rouses one
            progress.rouse()
        pthread_mutex_unlock(&progress.lock)
    there -= 1


def awaits(bint some):
    """Is anybody to be told of ends?  True also lets the leader look at once: what they await may have ended."""
    hk_store32(&awaited, some)
    if some:
        hk_add32(&progress.ends, 1)
        progress.wake()


def stay():
    """Threads may lead, and sleep on a descriptor.  Raises Error if there is none to be had."""
    news.open_news()
    hk_store32(&leaves, 0)


def leave():
    """They are to end."""
    hk_store32(&leaves, 1)
    progress.dismiss()


def gone():
    """They have ended: give back the descriptor that they slept on."""
    news.close_news()


cdef void forked() noexcept:
    """In a forked child: the threads are the parent's."""
    global there, awaited, leaves
    there = awaited = leaves = 0
