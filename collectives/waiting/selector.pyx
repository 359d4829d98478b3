"""The next message to any of several communicators of two: by one thread, which looks at all their channels.

A receive from each would be a run for each, and a thread, or a list of works that is built anew for each message.  Here
nothing is posted: who asks learns whose message is there, and receives it by an ordinary call.
"""

import os
import time

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from hocket.collectives.engine.engine cimport Engine
from hocket.collectives.engine.run cimport (TAG_SLOTS, Aside, Core, Stash, hk_ladder, hk_load32, hk_now, hk_ring_bell, hk_store32,
                                     hk_wait, hk_wait_reset, hk_wait_sleeps, hk_wait_step, pollfd)
from hocket.collectives.waiting cimport progress
from hocket.transports.channel cimport HK_AGAIN, hk_call, hk_channel, hk_view

from hocket.errors import ArgumentError

cdef extern from "system/atomics.h" nogil:
    void hk_fence()

cdef extern from *:
    """
    #include <errno.h>

    #include "system/wait.h"

    #ifndef SYS_futex_waitv
    #define SYS_futex_waitv 449 /* of all architectures; Linux 5.16 */
    #endif

    enum {
        HK_BELLS = 128,   /* that the system looks at at once */
        HK_LOOK_NS = 50000 /* between two looks where it cannot */
    };
    /* As the system has it; older headers do not. */
    typedef struct hk_waited_word {
        uint64_t seen, address;
        uint32_t flags, reserved;
    } hk_waited_word;
    /* Be counted among the sleepers of each bell, and remember how often it has rung.  Look once more before the sleep. */
    static inline void hk_arm_bells(hk_waited_word *words, int n) {
        for (int i = 0; i < n; i++) {
            uint32_t *bell = (uint32_t *)(uintptr_t)words[i].address;
            hk_add32(bell + 1, 1);
            words[i].seen = hk_load32(bell);
            words[i].flags = 2; /* 32 bits, and shared between processes */
            words[i].reserved = 0;
        }
    }
    /* Sleep until one of them rings, `ns` at most. */
    static inline void hk_sleep_on_any(hk_waited_word *words, int n, uint64_t ns) {
        const uint64_t until = hk_now() + ns;
        struct timespec end = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)}, look = {0, HK_LOOK_NS};
        if (n > HK_BELLS || (syscall(SYS_futex_waitv, words, n, 0, &end, CLOCK_MONOTONIC) < 0 && errno == ENOSYS))
            nanosleep(&look, NULL);
    }

    static inline void hk_disarm_bells(hk_waited_word *words, int n) {
        for (int i = 0; i < n; i++) hk_add32((uint32_t *)(uintptr_t)words[i].address + 1, (uint32_t)-1);
    }
    """
    uint64_t LOOK_NS "HK_LOOK_NS"
    ctypedef struct hk_waited_word:
        uint64_t address
    void hk_arm_bells(hk_waited_word*, int n) nogil
    void hk_sleep_on_any(hk_waited_word*, int n, uint64_t ns) nogil
    void hk_disarm_bells(hk_waited_word*, int n) nogil

cdef extern from "poll.h" nogil:
    enum: POLLIN
    int poll(pollfd*, unsigned long, int)

cdef enum:
    TOGETHER = 4096             # bytes of a message that a channel lays together (channel.h)
    SPINS = 1000
    YIELD_NS = 200000           # how long it yields before it sleeps
    SLOW_NS = 1000000           # a yield that takes longer found a stranger on this core: workers' turns take less
    NAP_MS = 1                  # a sleep, at most, in the first second ...
    LONG_NAP_MS = 10            # ... and later

cdef uint64_t AWHILE_NS = 1000000000
cdef uint64_t USERS_TAG = 0x7fffffff


cdef struct Sight:              # what a look saw besides messages
    bint queued                 # calls are under way on some of the communicators
    bint claimed                # a thread drives one of them just now, so it could not be looked at


cdef class Selector:
    """Whose message comes next?  For communicators of two (`hocket.connect`, `Pairs.accept`), by one thread.

    `register` and `unregister` may be called by any thread.  Cost: 20 ns a communicator and look.

    >>> import hocket, numpy as np, threading
    >>> with hocket.listen() as pairs, hocket.Selector() as selector:
    ...     def work(number):
    ...         with hocket.connect(pairs.address) as comm:
    ...             comm.send(np.full(2, number), 0, tag=number)
    ...             comm.recv(np.zeros(1), 0)
    ...     workers = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
    ...     for worker in workers:
    ...         worker.start()
    ...         selector.register(pairs.accept())
    ...     came = []
    ...     for _ in workers:
    ...         comm, tag, nbytes, whole = selector.select()
    ...         came.append(comm.recv(np.zeros(2, int), 1, tag).tolist())
    ...         comm.send(np.zeros(1), 1)
    ...     for worker in workers:
    ...         worker.join()
    >>> sorted(came)
    [[1, 1], [2, 2]]
    """

    cdef list comms, engines
    cdef int turn               # where it looks first: nobody starves
    cdef int wakes              # an eventfd ...
    cdef uint32_t bell[2]       # ... and a bell (wait.h), for this process's own reasons
    cdef uint32_t asleep        # on what the communicators have
    cdef hk_ladder ladder       # select's alone: it waits on it without the GIL
    cdef uint32_t spins         # the ladder's from the next look on
    cdef pollfd* fds
    cdef hk_waited_word* words
    cdef int room               # in both

    def __cinit__(self):
        self.comms, self.engines = [], []
        self.wakes = -1
        self.spins = self.ladder.spins = self.ladder.spins_now = SPINS
        self.ladder.yield_ns, self.ladder.slow_ns, self.ladder.home = YIELD_NS, SLOW_NS, -1
        self.wakes = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def register(self, comm):
        """Look at this communicator, too.  Returns when the other rank has opened its side."""
        cdef Engine engine
        if comm.size != 2:
            raise ArgumentError(f"{comm!r} has {comm.size} ranks; a Selector is for communicators of two")
        comm.probe(1 - comm.rank, None, timeout=0)      # opens the channel
        engine = comm.runner.queue("messages", None).engine
        self.spins = min(self.spins, engine.core.ladder.spins)
        self.comms.append(comm)
        self.engines.append(engine)
        self.wake()

    def unregister(self, comm):
        """Look at it no more.  When this returns, `select` does not use it."""
        place = self.comms.index(comm)
        del self.comms[place], self.engines[place]
        while hk_load32(&self.asleep):
            self.wake()
            time.sleep(0)

    def wake(self):
        """Let `select` look again, at what `register` has changed; if nobody is there, the next one."""
        hk_fence()
        hk_ring_bell(self.bell)
        if self.wakes >= 0:
            os.eventfd_write(self.wakes, 1)

    def select(self, timeout=None):
        """(comm, tag, nbytes, whole) of the next message that a recv of that communicator would take; None: `timeout`
        seconds were over before.  One thread at a time.

        `whole`: all of it is there, so that a recv does not wait.  It is told of when its first 4 KiB are there, or all.
        Where a communicator has failed, tag is None: its next call says why.
        """
        cdef hk_wait w
        cdef uint64_t began = 0, until = 0 if timeout is None else hk_now() + <uint64_t>(timeout * 1e9)
        cdef Sight sight
        memset(&w, 0, sizeof(w))
        try:
            while True:
                message = self.look(&sight)
                if message is not None:
                    return message
                if until and hk_now() >= until:
                    return None
                with nogil:
                    if sight.queued:                    # calls go before the next look
                        progress.try_progress(True)
                    if sight.claimed or not hk_wait_sleeps(&w, &self.ladder):
                        hk_wait_step(&w, &self.ladder, NULL, NULL, 0)
                        continue
                began = began or hk_now()
                message = self.sleep(LONG_NAP_MS if hk_now() - began > AWHILE_NS else NAP_MS)
                if message is not None:
                    return message
                PyErr_CheckSignals()
        finally:
            hk_wait_reset(&w, &self.ladder, NULL)

    cdef object look(self, Sight* sight):
        """The first that has something, in turn."""
        cdef int i, place, n = len(self.engines)
        cdef Engine engine
        sight.queued = sight.claimed = False
        if self.ladder.spins != self.spins:
            self.ladder.spins = self.ladder.spins_now = self.spins
        for i in range(n):
            place = (self.turn + i) % n
            engine = <Engine>self.engines[place]
            if engine.core.failed or hk_load32(&engine.core.aborted):
                message = (None, 0, False)
            elif engine.claim():
                message = head(&engine.core)
                engine.release()
            else:
                sight.queued = True
                message = beside(&engine.core, sight)
            if message is not None:
                self.turn = place + 1
                return (self.comms[place], *message)
        return None

    cdef object sleep(self, int ms):
        """Until a bell rings, or a descriptor is readable; at most `ms`, as a ring may be missed.  What a last look finds."""
        cdef int i, nfds = 1, nwords = 1
        cdef hk_channel* ch
        cdef Sight sight
        self.make_room(len(self.engines) + 1)
        hk_store32(&self.asleep, 1)
        for i in range(len(self.engines)):
            ch = channel(&(<Engine>self.engines[i]).core)
            if ch.fd >= 0:
                self.fds[nfds].fd, self.fds[nfds].events = ch.fd, ch.events or POLLIN
                nfds += 1
            elif ch.bell != NULL:
                self.words[nwords].address = <uint64_t><uintptr_t>ch.bell
                nwords += 1
            else:
                ms = 0
        self.fds[0].fd, self.fds[0].events = self.wakes, POLLIN
        self.words[0].address = <uint64_t><uintptr_t>self.bell
        if nfds > 1:                    # nobody sleeps on descriptors and on bells at once
            ms = min(ms, NAP_MS) if nwords > 1 else ms
            with nogil:
                poll(self.fds, nfds, ms)
            if self.fds[0].revents:
                os.eventfd_read(self.wakes)
            message = None
        else:
            hk_arm_bells(self.words, nwords)
            try:
                message = self.look(&sight)
                if message is None and not sight.claimed:
                    with nogil:
                        hk_sleep_on_any(self.words, nwords, max(ms * <uint64_t>1000000, LOOK_NS))
            finally:
                hk_disarm_bells(self.words, nwords)
        hk_store32(&self.asleep, 0)
        return message

    cdef int make_room(self, int n) except -1:
        """For what a sleep waits for."""
        if n <= self.room:
            return 0
        free(self.fds)
        free(self.words)
        self.fds, self.words = <pollfd*>malloc(n * sizeof(pollfd)), <hk_waited_word*>malloc(n * sizeof(hk_waited_word))
        self.room = n if self.fds != NULL and self.words != NULL else 0
        if not self.room:
            raise MemoryError
        return 0

    def close(self):
        """Forget all of them."""
        if self.wakes >= 0:
            os.close(self.wakes)
            self.wakes = -1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __dealloc__(self):
        free(self.fds)
        free(self.words)


cdef inline hk_channel* channel(Core* e) noexcept:
    return e.rx[1 - e.rank]


cdef object beside(Core* e, Sight* sight):
    """Likewise, while calls are under way: if none of them is in the middle of a message of the peer's."""
    if not progress.claim_beside(e):
        sight.claimed = True
        return None
    try:
        return head(e) if e.rx_owner[1 - e.rank] == NULL else None
    finally:
        progress.release_beside(e)


cdef object head(Core* e):
    """(tag, nbytes, whole) of the message that comes next; None: none has come so far.  The engine is claimed."""
    cdef hk_channel* ch = channel(e)
    cdef Aside* aside = e.aside[1 - e.rank]
    cdef hk_call none
    cdef hk_view v
    cdef int rc
    memset(&none, 0, sizeof(none))
    if aside != NULL and aside.came != aside.gone:
        return oldest_aside(aside)
    rc = ch.ops.peek(ch, &none, &v, 0)
    if rc == 1 and v.avail < v.length and v.avail < TOGETHER:
        rc = ch.ops.peek(ch, &none, &v, min(v.length, <uint64_t>TOGETHER))
        if rc == 1 and v.avail < v.length and v.avail < TOGETHER:
            return None
    if rc == HK_AGAIN:
        return None
    return (None, 0, False) if rc < 0 else (v.tag & USERS_TAG, v.length, v.avail == v.length)


cdef object oldest_aside(Aside* a):
    """The oldest message that was set aside while a recv with another tag waited: the oldest."""
    cdef size_t slot
    cdef Stash* first = NULL
    for slot in range(TAG_SLOTS):
        if a.first[slot] != NULL and (first == NULL or a.first[slot].number < first.number):
            first = a.first[slot]
    return first.tag & USERS_TAG, first.length, first.done == first.length
