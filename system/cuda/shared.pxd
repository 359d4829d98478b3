"""For transports/cuda_ipc: memory that processes share."""

from libc.stdint cimport uint64_t

from hocket.system.cuda.driver cimport Device

cdef int unpack(str handle, char* to) except -1


cdef class Shared:
    cdef Device device
    cdef readonly uint64_t address


cdef class Mapped:
    cdef Device device
    cdef readonly uint64_t address
