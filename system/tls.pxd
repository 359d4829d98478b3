"""A connected socket inside TLS 1.3; tls.h is its documentation."""

from libc.stdint cimport uint64_t


cdef extern from "system/tls.h" nogil:
    struct hk_tls:
        int fd
        int only
        int error
        size_t out_head
        size_t out_tail
        uint64_t renew
        char* words


cdef class Tls:
    cdef hk_tls tls
    cdef readonly object socket
    cdef size_t unsettled   # plain bytes that were sealed and not told to the caller of `write`
    cdef object failure(self, int rc)
