"""The thread that drives while nobody waits."""

cdef int start() except -1
cdef void forked() noexcept
