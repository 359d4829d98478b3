"""One end of a channel: its completion queue and queue pairs, from the making to the end, and the path to the peer."""

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy, memset

from hocket.transports.verbs.device cimport Device, ibv, refused
from hocket.transports.verbs.ibverbs cimport (
    IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC,
    IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY,
    IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPT_RC,
    ibv_qp_attr, ibv_qp_init_attr,
)

from hocket.errors import TransportError

cdef extern from "fcntl.h" nogil:
    int fcntl(int, int, ...)
    enum: F_GETFL, F_SETFL, O_NONBLOCK

cdef extern from "system/atomics.h" nogil:
    void hk_store32(uint32_t*, uint32_t)

cdef extern from "transports/verbs/protocol.h" nogil:
    enum:
        HK_V_QPS, HK_V_OFFERS, HK_V_WORDS, HK_V_SENDS, HK_V_MORE_SENDS

INLINE = 220        # bytes asked for in a work request; all devices have that, some more
ACK_TIMEOUT = 14    # 4.096 us * 2^14 = 67 ms, then a request is sent again ...
RETRIES = 7         # ... so often


cdef class Path:
    """The way of packets to a peer: our port and address, the peer's address, and the MTU (a verbs code) of both."""

    def __init__(self, int port, int gid_index, bytes gid, int lid, int mtu):
        """`gid`, `lid`: the peer's; lid 0 on Ethernet."""
        if len(gid) != 16:
            raise ValueError(f"a GID must have 16 bytes, got {len(gid)}")
        self.port, self.gid_index, self.gid, self.lid, self.mtu = port, gid_index, gid, lid, mtu


cdef int end_open(hk_v_end* e, Device device, int nqp) except -1:
    """A completion queue, and queue pairs that can be connected."""
    cdef ibv_qp_init_attr attr
    cdef int i, most = HK_V_WORDS + HK_V_SENDS + (HK_V_OFFERS + HK_V_MORE_SENDS) * (nqp - 1)
    if device.closed:
        raise TransportError(f"{device.name} is closed")
    e.v, e.pd = &ibv, device.pd
    e.events = ibv.ibv_create_comp_channel(device.context)
    if e.events == NULL:
        raise refused(f"{device.name} gives no completion channel")
    fcntl(e.events.fd, F_SETFL, fcntl(e.events.fd, F_GETFL) | O_NONBLOCK)
    e.cq = ibv.ibv_create_cq(device.context, most, NULL, e.events, 0)
    if e.cq == NULL:
        raise refused(f"{device.name} gives no completion queue")
    for i in range(nqp):
        memset(&attr, 0, sizeof(attr))
        attr.send_cq = attr.recv_cq = e.cq
        attr.qp_type = IBV_QPT_RC
        attr.cap.max_send_wr = HK_V_MORE_SENDS if i else HK_V_SENDS
        attr.cap.max_recv_wr = HK_V_OFFERS if i else HK_V_WORDS
        attr.cap.max_send_sge = attr.cap.max_recv_sge = 1
        attr.cap.max_inline_data = 0 if i else INLINE
        e.qp[i] = ibv.ibv_create_qp(device.pd, &attr)
        if e.qp[i] == NULL:
            raise refused(f"{device.name} gives no queue pair")
        if i == 0:
            e.max_inline = attr.cap.max_inline_data
    return 0


cdef int end_connect(
    hk_v_end* e, Device device, Path path, list numbers, uint32_t mine, uint32_t theirs, int access
) except -1:
    """Each queue pair to the peer's of the same place; `mine`, `theirs`: the first packet numbers."""
    cdef ibv_qp_attr a
    cdef int i, code
    cdef const uint8_t* gid = path.gid
    for i in range(len(numbers)):
        memset(&a, 0, sizeof(a))
        a.qp_state, a.port_num, a.qp_access_flags = IBV_QPS_INIT, path.port, access
        code = ibv.ibv_modify_qp(e.qp[i], &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
        if code != 0:
            raise refused("a queue pair cannot be set up", code)
        memset(&a, 0, sizeof(a))
        a.qp_state, a.path_mtu, a.dest_qp_num, a.rq_psn = IBV_QPS_RTR, path.mtu, numbers[i], theirs
        a.max_dest_rd_atomic, a.min_rnr_timer = 1, 12    # nothing reads; it must be said
        a.ah_attr.port_num, a.ah_attr.dlid = path.port, path.lid
        if path.gid_index >= 0:
            a.ah_attr.is_global, a.ah_attr.grh.sgid_index, a.ah_attr.grh.hop_limit = 1, path.gid_index, 64
            memcpy(a.ah_attr.grh.dgid, gid, 16)
        code = ibv.ibv_modify_qp(e.qp[i], &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN
                                 | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
        if code != 0:
            raise refused("a queue pair cannot be connected to the peer's (is there a route to its address?)", code)
        memset(&a, 0, sizeof(a))
        a.qp_state, a.sq_psn, a.timeout, a.retry_cnt, a.rnr_retry = IBV_QPS_RTS, mine, ACK_TIMEOUT, RETRIES, 7
        a.max_rd_atomic = 1
        code = ibv.ibv_modify_qp(e.qp[i], &a, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT
                                 | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC)
        if code != 0:
            raise refused("a queue pair cannot start to send", code)
    return 0


cdef void end_close(hk_v_end* e) noexcept:
    cdef int i
    e.ended = 1
    hk_store32(<uint32_t*>&e.nqp, 0)
    for i in range(HK_V_QPS):
        if e.qp[i] != NULL:
            ibv.ibv_destroy_qp(e.qp[i])
            e.qp[i] = NULL
    if e.cq != NULL:
        ibv.ibv_destroy_cq(e.cq)
        e.cq = NULL
    if e.events != NULL:
        ibv.ibv_destroy_comp_channel(e.events)
        e.events = NULL


cdef list numbers_of(hk_v_end* e, int nqp):
    return [e.qp[i].qp_num for i in range(nqp)]
