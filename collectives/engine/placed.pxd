"""Where a call's arrays lie."""

from libc.stdint cimport uintptr_t

from hocket.collectives.engine.run cimport DeviceOps, Kernels, Run


cdef class Placed:
    cdef DeviceOps* device
    cdef readonly uintptr_t stream
    cdef Kernels kernels
    cdef void* meeting
    cdef char* memory(self, size_t nbytes) except NULL
    cdef int place(self, Run* r, size_t scratch) except -1
    cdef bint follow(self, uintptr_t stream) except -1
