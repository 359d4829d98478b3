"""The collectives of a communicator."""

from hocket.collectives.engine.shortcut cimport ShortWay


cdef class Collectives(ShortWay):
    pass
