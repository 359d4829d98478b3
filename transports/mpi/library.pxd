"""The MPI library that mpi4py has loaded, for Cython; library.h is its documentation."""

from libc.stdint cimport uint32_t, uint64_t, uintptr_t


cdef extern from "pthread.h" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t*, void*)

cdef extern from "transports/mpi/library.h" nogil:
    struct hk_mpi:
        uintptr_t byte, request_null, in_place
        pthread_mutex_t* turns
        uint32_t over
    struct hk_mpi_request:
        uint64_t cell
        int busy


cdef class Mpi:
    cdef hk_mpi* table          # never freed: a request that cannot end may outlive everything
    cdef readonly object MPI    # mpi4py's module
    cdef object library
    cdef uintptr_t find(self, str name) except? 0
