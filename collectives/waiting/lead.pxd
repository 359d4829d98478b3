"""What hocket's own threads do without the GIL."""

cdef int there                  # threads that lead or follow just now; under the GIL
cdef void forked() noexcept
