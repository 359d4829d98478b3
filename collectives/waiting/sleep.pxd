"""A thread's wait for all that is queued."""

from libc.stdint cimport uint32_t, uint64_t

from hocket.collectives.engine.run cimport Core, hk_ladder, hk_wait, pollfd

cdef uint64_t wait_step(hk_wait*, hk_ladder*, Core* mine, pollfd* fds, int nfds) noexcept nogil
cdef void sleep_until_told(uint32_t seen, bint idle, uint32_t* leaves, int ms) noexcept nogil
