"""The table of messages that were sent before, and the short way that it opens."""

from libc.stdint cimport uint64_t

from hocket.collectives.engine.engine cimport Engine


cdef class ShortMessages:
    cdef Engine engine
    cdef list entries
    cdef uint64_t limit
    cdef object reporter

    cdef object take(self, object x, object dest, object out, object source, object tag)
