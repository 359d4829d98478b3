"""The collectives of a communicator."""

from hocket.collectives.calls.ask cimport Ask
from hocket.collectives.quick.shortcut cimport ShortWay


cdef class Collectives(ShortWay):
    cdef object _added(self, object x, object out, Ask* ask, object axis)
