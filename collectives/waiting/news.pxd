"""An eventfd that wakes sleeping threads of this process."""

from libc.stdint cimport uint32_t, uint64_t

cdef int news               # an eventfd, readable when there is some; -1: nobody has queued a run yet
cdef uint32_t told         # calls of `tell` so far, atomic: who read it before its last look, and reads the same again, may sleep
cdef uint32_t* slept_on     # the bell that one of them sleeps on instead; under the lock of progress.pyx

cdef int open_news() except -1
cdef void close_news() noexcept
cdef void tell() noexcept nogil             # under the lock too
cdef void before_sleep() noexcept nogil     # what is told from here on ends the sleep
cdef bint after_sleep(bint heard) noexcept nogil    # False: it was told what others have not seen yet, and `news` stays readable
cdef uint32_t before_nap() noexcept nogil   # the same for hocket's own threads: how often the bell has rung
cdef void nap(uint32_t rung, uint64_t ns) noexcept nogil
cdef void after_nap() noexcept nogil
cdef void forked() noexcept
