"""The work of hocket's own threads without the GIL."""

cdef int there                  # threads that lead or follow just now; under the GIL
cdef void forked() noexcept
