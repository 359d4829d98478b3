"""What only this process knows, for its threads that sleep."""

from libc.stdint cimport uint32_t

cdef int news               # an eventfd, readable when there is some; -1: nobody has queued a run yet
cdef uint32_t* slept_on     # the bell that one of them sleeps on instead; under the lock of progress.pyx

cdef int open_news() except -1
cdef void close_news() noexcept
cdef void tell() noexcept nogil             # under the lock too
cdef void before_sleep() noexcept nogil     # what is told from here on ends the sleep
cdef void after_sleep(bint told) noexcept nogil
cdef void forked() noexcept
