"""For channels.pyx: the library's functions, and a device with the memory that is registered with it."""

from libc.stdint cimport uint64_t

from hocket.transports.verbs.ibverbs cimport hk_ibv, ibv_context, ibv_mr, ibv_pd

cdef extern from "pthread.h" nogil:
    ctypedef struct pthread_mutex_t:
        pass

cdef extern from "transports/verbs/pins.h" nogil:
    struct hk_pin:
        ibv_mr* mr
        char* at
        size_t len
        int uses
        uint64_t age
    struct hk_pins:
        pthread_mutex_t lock
        hk_pin pin[256]
        uint64_t clock

cdef hk_ibv ibv

cdef refused(str what, int code=?)


cdef class Device:
    cdef ibv_context* context
    cdef ibv_pd* pd
    cdef hk_pins pins
    cdef readonly str name
    cdef readonly int ports             # how many
    cdef readonly bint windows          # has memory windows of type 2B
    cdef bint closed
    cdef dict owners                    # index in pins -> what lets go of a registration when its owner dies
    cdef object __weakref__
