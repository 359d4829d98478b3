"""For channels.pyx: one end of a channel as end.h declares it, and what becomes of it."""

from libc.stdint cimport uint32_t

from hocket.transports.verbs.device cimport Device
from hocket.transports.verbs.ibverbs cimport hk_ibv, ibv_comp_channel, ibv_cq, ibv_pd, ibv_qp

cdef extern from "transports/verbs/end.h" nogil:
    struct hk_v_end:
        const hk_ibv* v
        ibv_pd* pd
        ibv_cq* cq
        ibv_comp_channel* events
        ibv_qp* qp[4]
        int nqp
        uint32_t max_inline
        uint32_t gone
        int status, bye, ended


cdef class Path:
    cdef readonly int port, gid_index, lid, mtu
    cdef readonly bytes gid

cdef int end_open(hk_v_end* e, Device device, int nqp) except -1
cdef int end_connect(
    hk_v_end* e, Device device, Path path, list numbers, uint32_t mine, uint32_t theirs, int access
) except -1
cdef void end_close(hk_v_end* e) noexcept
cdef list numbers_of(hk_v_end* e, int nqp)
