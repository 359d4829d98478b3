"""The collectives of a communicator."""

from hocket.collectives.quick.shortcut cimport ShortWay


cdef class Collectives(ShortWay):
    pass
