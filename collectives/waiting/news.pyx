"""Threads that sleep until a transport has something for them: what wakes them for this process's own reasons.

A new run, or an end that another thread has brought about: `tell`.  It costs a barrier while nobody sleeps.  Callers
sleep on an eventfd beside the descriptors of their channels, hocket's own threads on a bell: an eventfd stays readable
until the last of its sleepers has run, and a caller that has descriptors to look at would spin until then.
"""

import os

from libc.errno cimport EMFILE, ENFILE, errno
from libc.stdint cimport uint32_t, uint64_t

from hocket.collectives.engine.run cimport hk_load32, hk_ring_bell, hk_store32

from hocket.errors import Error


cdef extern from "system/atomics.h" nogil:
    void hk_add32(uint32_t*, uint32_t)
    void hk_fence()

cdef extern from "system/wait.h" nogil:
    void hk_sleep_on(uint32_t*, uint32_t seen, uint64_t ns)

cdef extern from "sys/eventfd.h" nogil:
    enum: EFD_NONBLOCK
    enum: EFD_CLOEXEC
    int eventfd(unsigned int, int)

cdef extern from "unistd.h" nogil:
    long c_read "read" (int, void*, size_t)
    long c_write "write" (int, const void*, size_t)
    int c_close "close" (int)

news = -1
slept_on = NULL
told = 0
cdef uint32_t sleepers = 0      # threads that look at `news`, or soon will; atomic
cdef uint32_t bell[2]           # ... and those that sleep on it: see wait.h
bell[0] = bell[1] = 0


cdef int open_news() except -1:
    """Make the eventfd, before the first run is queued."""
    global news
    if news < 0:
        news = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        if news < 0:
            hint = "raise the limit (ulimit -n)" if errno in (EMFILE, ENFILE) else "this system refuses eventfd"
            raise Error(f"an asynchronous call needs a file descriptor: {os.strerror(errno)}; {hint}")
    return 0


cdef void tell() noexcept nogil:
    global told
    cdef uint64_t one = 1
    hk_store32(&told, told + 1)
    hk_fence()                  # whoever counts itself as a sleeper later sees what is told
    hk_ring_bell(bell)
    if hk_load32(&sleepers) == 0:
        return
    c_write(news, &one, sizeof(one))
    if slept_on != NULL:
        hk_ring_bell(slept_on)


cdef void before_sleep() noexcept nogil:
    hk_add32(&sleepers, 1)
    hk_fence()


cdef bint after_sleep(bint heard) noexcept nogil:
    cdef uint64_t many
    hk_add32(&sleepers, <uint32_t>-1)
    if heard and hk_load32(&sleepers):           # the others, one of which may be about to sleep, are to see it too
        return False
    if heard:
        c_read(news, &many, sizeof(many))
    return True


cdef uint32_t before_nap() noexcept nogil:
    hk_add32(bell + 1, 1)
    hk_fence()
    return hk_load32(bell)


cdef void nap(uint32_t rung, uint64_t ns) noexcept nogil:
    hk_sleep_on(bell, rung, ns)


cdef void after_nap() noexcept nogil:
    hk_add32(bell + 1, <uint32_t>-1)


cdef void close_news() noexcept:
    global news
    if news >= 0:
        c_close(news)
        news = -1


cdef void forked() noexcept:
    """In a forked child: the parent's threads read the parent's news."""
    global slept_on, sleepers
    sleepers = bell[1] = 0
    slept_on = NULL
    close_news()
