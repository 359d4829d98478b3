"""The table of messages that were sent before, and the short way that it opens."""

from libc.stdint cimport int64_t, uint64_t, uintptr_t

from hocket.collectives.engine.engine cimport Engine
from hocket.collectives.quick.shortcut cimport Shape
from hocket.collectives.plans.plan cimport Plan


cdef enum:
    SENDS = 1
    RECEIVES = 2


cdef class Entry:               # what the general way resolved for one kind of message
    cdef Plan plan
    cdef object dtype           # keeps a NumPy descriptor
    cdef uintptr_t dtype_id
    cdef uint64_t label         # of its messages, but for the tag
    cdef int64_t dest, source           # or ANY, or NOBODY
    cdef Shape x, out


cdef class ShortMessages:
    cdef Engine engine
    cdef list entries
    cdef uint64_t limit
    cdef object messenger

    cdef object take(self, int ends, object x, object dest, object out, object source, object tag, bint later)
    cdef object queue(self, Entry e, char* src, char* dst, uint64_t label, object x, object out)
