"""Calls that one kernel of each rank carries out."""

from libc.stdint cimport int32_t, uint32_t, uint64_t

from hocket.system.cuda.driver cimport Device


cdef struct hk_pointers:    # kernels/gpu/cuda.cuh
    uint64_t at[8]


cdef struct hk_peers:       # kernels/gpu/flags.cuh
    uint64_t flags[8]
    uint64_t status
    uint64_t host
    uint64_t limit_ns
    uint32_t epoch
    int32_t rank
    int32_t world


cdef struct Meet:
    hk_peers* peers         # parameters of the next launch ...
    hk_pointers* windows    # ... those of its parity ...
    hk_pointers both[2]     # ... among these
    uint64_t sets, bytes    # the flags of calls in graphs, from the others on, and the bytes of each of three sets
    uint32_t* host          # [0], not 0: kernels give up; [1]: why one has


cdef void next_call(Meet* m, uint64_t limit_ns) noexcept nogil
cdef int gave_up(Meet* m, const char* which, char* words, size_t room) noexcept nogil


cdef class Meeting:
    cdef Device device
    cdef Meet meet
    cdef readonly object peers, windows, scratch
    cdef readonly int multiprocessors
