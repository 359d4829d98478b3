"""RDMA devices, memory registered with them, and channels between them; ibverbs.h is the library, verbs.h the protocol.

Control path only: what is done once for a device, an array or a channel.  The data path is verbs.h, without the GIL.
"""

import os
import weakref

from cpython.pycapsule cimport PyCapsule_New
cimport cython
from libc.errno cimport ENOMEM, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from hocket.transports.channel cimport HK_CAPSULE, hk_channel, hk_channel_ops

from hocket.errors import TransportError

cdef extern from "fcntl.h" nogil:
    int fcntl(int, int, ...)
    enum: F_GETFL, F_SETFL, O_NONBLOCK

cdef extern from "poll.h" nogil:
    enum: POLLIN

cdef extern from "stdlib.h" nogil:
    int posix_memalign(void**, size_t, size_t)

cdef extern from "pthread.h" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t*, void*)
    int pthread_mutex_lock(pthread_mutex_t*)
    int pthread_mutex_unlock(pthread_mutex_t*)

cdef extern from "system/atomics.h" nogil:
    void hk_store32(uint32_t*, uint32_t)

cdef extern from "transports/verbs/protocol.h" nogil:
    struct ibv_device:
        pass
    struct ibv_context:
        pass
    struct ibv_pd:
        ibv_context* context
    struct ibv_mr:
        uint32_t lkey, rkey
    struct ibv_mw:
        pass
    struct ibv_comp_channel:
        int fd
    struct ibv_cq:
        pass
    struct ibv_qp:
        uint32_t qp_num
    struct ibv_qp_cap:
        uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data
    struct ibv_qp_init_attr:
        ibv_cq* send_cq
        ibv_cq* recv_cq
        ibv_qp_cap cap
        int qp_type
    struct ibv_global_route:
        uint8_t dgid[16]
        uint8_t sgid_index, hop_limit
    struct ibv_ah_attr:
        ibv_global_route grh
        uint8_t is_global, port_num
        int dlid
    struct ibv_qp_attr:
        int qp_state, path_mtu
        uint32_t rq_psn, sq_psn, dest_qp_num
        unsigned int qp_access_flags
        ibv_ah_attr ah_attr
        uint8_t max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry
    struct ibv_device_attr:
        unsigned int device_cap_flags
        uint8_t phys_port_cnt
    struct ibv_port_attr:
        int state, active_mtu, gid_tbl_len
        int lid
    enum:
        IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_PORT_ACTIVE
        IBV_QP_STATE, IBV_QP_ACCESS_FLAGS, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_TIMEOUT
        IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER
        IBV_QP_SQ_PSN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_DEST_QPN
        IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_MW_BIND
        IBV_MW_TYPE_2, IBV_DEVICE_MEM_WINDOW_TYPE_2B
    struct hk_ibv:
        ibv_device** (*ibv_get_device_list)(int*)
        void (*ibv_free_device_list)(ibv_device**)
        const char* (*ibv_get_device_name)(ibv_device*)
        ibv_context* (*ibv_open_device)(ibv_device*)
        int (*ibv_close_device)(ibv_context*)
        int (*ibv_query_device)(ibv_context*, ibv_device_attr*)
        int (*ibv_query_port)(ibv_context*, uint8_t, ibv_port_attr*)
        int (*ibv_query_gid)(ibv_context*, uint8_t, int, uint8_t*)
        ibv_pd* (*ibv_alloc_pd)(ibv_context*)
        int (*ibv_dealloc_pd)(ibv_pd*)
        ibv_mr* (*ibv_reg_mr)(ibv_pd*, void*, size_t, int)
        int (*ibv_dereg_mr)(ibv_mr*)
        ibv_comp_channel* (*ibv_create_comp_channel)(ibv_context*)
        int (*ibv_destroy_comp_channel)(ibv_comp_channel*)
        ibv_cq* (*ibv_create_cq)(ibv_context*, int, void*, ibv_comp_channel*, int)
        int (*ibv_destroy_cq)(ibv_cq*)
        ibv_qp* (*ibv_create_qp)(ibv_pd*, ibv_qp_init_attr*)
        int (*ibv_modify_qp)(ibv_qp*, ibv_qp_attr*, int)
        int (*ibv_destroy_qp)(ibv_qp*)
        int (*ibv_fork_init)()
        ibv_mr* (*ibv_reg_dmabuf_mr)(ibv_pd*, uint64_t, size_t, uint64_t, int, int)
    int hk_ibv_open(hk_ibv*, const char*, char*, size_t)
    ibv_mw* hk_v_alloc_window(ibv_pd*)
    void hk_v_free_window(ibv_mw*)
    enum:
        HK_V_QPS, HK_V_PINS, HK_V_OFFERS, HK_V_WORDS, HK_V_SENDS, HK_V_MORE_SENDS, HK_V_OFFER_MIN
    size_t HK_V_RING, HK_V_WRITER_BYTES
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
    struct hk_v_writer:
        hk_channel base
        hk_v_end end
        hk_pins* pins
        char* ring
        uint32_t lkey, rkey
        uint64_t remote
    struct hk_v_reader:
        hk_channel base
        hk_v_end end
        hk_pins* pins
        char* ring
        hk_v_writer* beside
        char* stage
        ibv_mr* stage_mr
        ibv_mw* window[16]
    const hk_channel_ops hk_v_writer_ops
    const hk_channel_ops hk_v_reader_ops
    ibv_mr* hk_pins_take(hk_pins*, int, int)
    int hk_v_writer_post_recv(hk_v_writer*, uint32_t)
    int hk_v_reader_post_recv(hk_v_end*, int)
    int hk_v_writer_goodbye(hk_v_writer*)
    int hk_v_reader_goodbye(hk_v_reader*)

OFFER_MIN = HK_V_OFFER_MIN
"""Bytes from which a piece of registered memory is not copied."""
LIBRARY = "libibverbs.so.1"
PAGE = 4096
INLINE = 220        # bytes asked for in a work request; all devices have that, some more
ACK_TIMEOUT = 14    # 4.096 us * 2^14 = 67 ms, then a request is sent again ...
RETRIES = 7         # ... so often
COPY_ON_FORK = (5, 12)
"""Linux that copies pinned pages for a child; before, libibverbs must keep them from it, at a price."""

cdef hk_ibv ibv
cdef bint opened = False
_why = None


def library() -> str | None:
    """Open libibverbs: None, or why there is none."""
    global opened, _why
    cdef char why[256]
    if not opened and _why is None:
        if hk_ibv_open(&ibv, LIBRARY.encode(), why, sizeof(why)) != 0:
            _why = why.decode(errors="replace")
        else:
            opened = True
            if tuple(int(n) for n in os.uname().release.split("-")[0].split(".")[:2]) < COPY_ON_FORK:
                ibv.ibv_fork_init()
    return _why


def registers_dma_bufs() -> bool:
    """Can this libibverbs register another device's memory?"""
    return opened and ibv.ibv_reg_dmabuf_mr != NULL


def devices():
    """The names of this machine's RDMA devices.  OSError where the kernel has none (ENOSYS) or refuses."""
    cdef int n = 0, i
    if library():
        raise TransportError(library())
    cdef ibv_device** found = ibv.ibv_get_device_list(&n)
    if found == NULL:
        raise OSError(errno, os.strerror(errno))
    try:
        return [ibv.ibv_get_device_name(found[i]).decode() for i in range(n)]
    finally:
        ibv.ibv_free_device_list(found)


cdef _refused(str what, int code=0):
    code = code or errno
    hint = "; raise `ulimit -l`: RDMA pins its buffers" if code == 12 else ""
    return TransportError(f"{what}: {os.strerror(code)} (errno {code}){hint}")


cdef class Device:
    """An open device: its protection domain, and the arrays that are registered with it."""

    cdef ibv_context* context
    cdef ibv_pd* pd
    cdef hk_pins pins
    cdef readonly str name
    cdef readonly int ports             # how many
    cdef readonly bint windows          # has memory windows of type 2B
    cdef bint closed
    cdef dict owners                    # index in pins -> what lets go of a registration when its owner dies
    cdef object __weakref__

    def __cinit__(self, str name):
        cdef int n = 0, i
        cdef ibv_device_attr attr
        pthread_mutex_init(&self.pins.lock, NULL)
        self.name, self.owners = name, {}
        if library():
            raise TransportError(library())
        cdef ibv_device** found = ibv.ibv_get_device_list(&n)
        if found == NULL:
            raise _refused("RDMA devices cannot be listed")
        for i in range(n):
            if ibv.ibv_get_device_name(found[i]).decode() == name:
                self.context = ibv.ibv_open_device(found[i])
        ibv.ibv_free_device_list(found)
        if self.context == NULL:
            raise _refused(f"the RDMA device {name} cannot be opened")
        memset(&attr, 0, sizeof(attr))
        if ibv.ibv_query_device(self.context, &attr) != 0:
            raise _refused(f"{name} does not say what it can do")
        self.pd = ibv.ibv_alloc_pd(self.context)
        if self.pd == NULL:
            raise _refused(f"{name} gives no protection domain")
        self.ports = attr.phys_port_cnt
        self.windows = bool(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B)

    def port(self, int number):
        """(active, mtu code, lid, gids) of a port."""
        cdef ibv_port_attr attr
        memset(&attr, 0, sizeof(attr))
        code = ibv.ibv_query_port(self.context, <uint8_t>number, &attr)
        if code != 0:
            raise _refused(f"{self.name} port {number}", code)
        return attr.state == IBV_PORT_ACTIVE, attr.active_mtu, attr.lid, attr.gid_tbl_len

    def gid(self, int port, int index):
        """16 bytes; zeros for an unused entry."""
        cdef uint8_t raw[16]
        memset(raw, 0, 16)
        ibv.ibv_query_gid(self.context, <uint8_t>port, index, raw)
        return bytes(raw[:16])

    def pin(self, uintptr_t address, size_t nbytes, owner, int dma_buf=-1, uint64_t offset=0) -> bool:
        """Register these bytes, which `owner` (weakly referenced) keeps alive, for as long as it lives.

        Another registration that nobody uses gives way if there is no room.  False: it cannot be.  `dma_buf`, `offset`:
        where they lie, if that is another device's memory (gpudirect.py).
        """
        cdef hk_pin* e = NULL
        cdef int i
        cdef ibv_mr* mr
        cdef int access = IBV_ACCESS_LOCAL_WRITE | (IBV_ACCESS_MW_BIND if self.windows else 0)
        if self.closed:
            return False
        for i in range(HK_V_PINS):
            e = &self.pins.pin[i]
            if e.mr == NULL or address + nbytes <= <uintptr_t>e.at or <uintptr_t>e.at + e.len <= address:
                continue
            held = self.owners.get(i)
            if held is not None and held() is owner:
                if <uintptr_t>e.at <= address and address + nbytes <= <uintptr_t>e.at + e.len:
                    return True
            elif not self._drop(i):     # somebody else's: perhaps of memory that is no more
                return False
        try:
            weakref.ref(owner)          # can its death be noticed?
        except TypeError:
            return False
        while True:
            if dma_buf >= 0:
                mr = ibv.ibv_reg_dmabuf_mr(self.pd, offset, nbytes, address, dma_buf, access)
            else:
                mr = ibv.ibv_reg_mr(self.pd, <void*>address, nbytes, access)
            if mr == NULL and errno != ENOMEM:
                return False            # to let others go would not help: it is read-only, or not mapped
            spare = self._spare(mr == NULL)
            if mr != NULL or spare < 0:
                break
        if mr == NULL or spare < 0:
            if mr != NULL:
                ibv.ibv_dereg_mr(mr)
            return False
        e = &self.pins.pin[spare]
        pthread_mutex_lock(&self.pins.lock)
        self.pins.clock += 1
        e.mr, e.at, e.len, e.uses, e.age = mr, <char*>address, nbytes, 0, self.pins.clock
        pthread_mutex_unlock(&self.pins.lock)
        device = weakref.ref(self)

        def gone(dead):
            here = device()
            if here is not None:
                here._unpin(spare)

        self.owners[spare] = weakref.ref(owner, gone)
        return True

    def _spare(self, bint make):
        """A free entry, else (or to `make` room) the one that has not been used for longest; -1: all are in use."""
        cdef int i, found = -1
        cdef hk_pin* e
        pthread_mutex_lock(&self.pins.lock)
        for i in range(HK_V_PINS):
            e = &self.pins.pin[i]
            if e.mr == NULL and e.uses == 0 and not make:
                found = i
                break
            if e.mr != NULL and e.uses == 0 and (found < 0 or e.age < self.pins.pin[found].age):
                found = i
        pthread_mutex_unlock(&self.pins.lock)
        if found >= 0 and self.pins.pin[found].mr != NULL and not self._drop(found):
            return self._spare(make)    # a channel has begun to use it
        return found

    def _drop(self, int i):
        """Unpin, unless it is in use."""
        return self._unpin(i, False)

    def _unpin(self, int i, bint anyway=True):
        cdef ibv_mr* mr = hk_pins_take(&self.pins, i, anyway)
        if mr != NULL:
            self.owners.pop(i, None)
            ibv.ibv_dereg_mr(mr)
        return mr != NULL

    @property
    def pinned(self):
        """Registered arrays."""
        return len(self.owners)

    def close(self):
        """After all its channels."""
        for i in range(HK_V_PINS):
            self._unpin(i)
        self.closed = True
        device_free(self)

    def __dealloc__(self):
        cdef int i
        cdef ibv_mr* mr
        for i in range(HK_V_PINS):
            mr = hk_pins_take(&self.pins, i, True)
            if mr != NULL:
                ibv.ibv_dereg_mr(mr)
        device_free(self)


cdef void device_free(Device d) noexcept:
    """Close it, unless a channel still uses it (EBUSY): then the last one lets go of us, and we come again."""
    if d.pd != NULL and ibv.ibv_dealloc_pd(d.pd) != 0:
        return
    d.pd = NULL
    if d.context != NULL:
        ibv.ibv_close_device(d.context)
        d.context = NULL


cdef class Path:
    """How packets find a peer: our port and address, the peer's address, and the MTU (a verbs code) of both."""

    cdef readonly int port, gid_index, lid, mtu
    cdef readonly bytes gid

    def __init__(self, int port, int gid_index, bytes gid, int lid, int mtu):
        """`gid`, `lid`: the peer's; lid 0 on Ethernet."""
        if len(gid) != 16:
            raise ValueError(f"a GID of {len(gid)} bytes")
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
        raise _refused(f"{device.name} gives no completion channel")
    fcntl(e.events.fd, F_SETFL, fcntl(e.events.fd, F_GETFL) | O_NONBLOCK)
    e.cq = ibv.ibv_create_cq(device.context, most, NULL, e.events, 0)
    if e.cq == NULL:
        raise _refused(f"{device.name} gives no completion queue")
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
            raise _refused(f"{device.name} gives no queue pair")
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
            raise _refused("a queue pair cannot be set up", code)
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
            raise _refused("a queue pair cannot be connected to the peer's (is there a route to its address?)", code)
        memset(&a, 0, sizeof(a))
        a.qp_state, a.sq_psn, a.timeout, a.retry_cnt, a.rnr_retry = IBV_QPS_RTS, mine, ACK_TIMEOUT, RETRIES, 7
        a.max_rd_atomic = 1
        code = ibv.ibv_modify_qp(e.qp[i], &a, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT
                                 | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC)
        if code != 0:
            raise _refused("a queue pair cannot start to send", code)
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


cdef char* ring_memory(size_t size) except NULL:
    cdef void* made = NULL
    if posix_memalign(&made, PAGE, size) != 0:
        raise MemoryError
    memset(made, 0, size)
    return <char*>made


@cython.no_gc_clear     # `device` is needed to the end
cdef class Writer:
    """The sending end of a channel.  `offer` goes to the reader, whose answer goes to `connect`."""

    cdef hk_v_writer channel
    cdef ibv_mr* ring_mr
    cdef int nqp
    cdef uint32_t psn
    cdef readonly object capsule
    cdef readonly Device device

    def __cinit__(self, Device device, int nqp):
        self.device, self.nqp = device, nqp
        self.channel.base.ops, self.channel.base.fd = &hk_v_writer_ops, -1
        self.channel.pins = &device.pins
        self.psn = int.from_bytes(os.urandom(3), "little")
        end_open(&self.channel.end, device, nqp)
        self.channel.ring = ring_memory(HK_V_WRITER_BYTES)
        self.ring_mr = ibv.ibv_reg_mr(device.pd, self.channel.ring, HK_V_WRITER_BYTES, IBV_ACCESS_LOCAL_WRITE)
        if self.ring_mr == NULL:
            raise _refused(f"{device.name} cannot register {HK_V_WRITER_BYTES} bytes")
        self.channel.lkey = self.ring_mr.lkey
        self.capsule = PyCapsule_New(&self.channel.base, HK_CAPSULE, NULL)

    @property
    def offer(self):
        """What the reader needs (JSON)."""
        return {"qps": numbers_of(&self.channel.end, self.nqp), "psn": self.psn}

    def connect(self, Path path, dict answer):
        cdef int i
        if len(answer["qps"]) != self.nqp:
            raise TransportError(f"a reader with {len(answer['qps'])} queue pairs, not {self.nqp}")
        end_connect(&self.channel.end, self.device, path, answer["qps"], self.psn, answer["psn"], 0)
        for i in range(HK_V_WORDS):
            hk_v_writer_post_recv(&self.channel, i)
        self.channel.remote, self.channel.rkey = answer["ring"], answer["rkey"]
        self.channel.base.events = POLLIN    # of the completion queue: the reader's words, and what was written
        self.channel.base.fd = self.channel.end.events.fd
        hk_store32(<uint32_t*>&self.channel.end.nqp, self.nqp)

    def lost(self):
        """The reader's process has ended.  From any thread."""
        hk_store32(&self.channel.end.gone, 1)

    def close(self, bint politely=True):
        """Say goodbye, which arrives behind all that was sent, and let go of everything.  Did it arrive?"""
        cdef int arrived = 0
        if politely and self.channel.end.nqp and not self.channel.end.ended:
            with nogil:
                arrived = hk_v_writer_goodbye(&self.channel)
        if self.channel.end.nqp:
            self.channel.base.ops.forget(&self.channel.base)
        end_close(&self.channel.end)
        if self.ring_mr != NULL:
            ibv.ibv_dereg_mr(self.ring_mr)
            self.ring_mr = NULL
        free(self.channel.ring)
        self.channel.ring = NULL
        return bool(arrived)

    def __dealloc__(self):
        self.close(False)


@cython.no_gc_clear     # as Writer
cdef class Reader:
    """The receiving end of a channel: empty until a writer comes (`attach`)."""

    cdef hk_v_reader channel
    cdef ibv_mr* ring_mr
    cdef int nqp
    cdef Writer writer
    cdef readonly object capsule
    cdef readonly Device device

    def __cinit__(self, Device device):
        self.device = device
        self.channel.base.ops, self.channel.base.fd = &hk_v_reader_ops, -1
        self.channel.pins = &device.pins
        self.capsule = PyCapsule_New(&self.channel.base, HK_CAPSULE, NULL)

    def stand_beside(self, Writer writer):
        """Look after the writer of the other direction, while this end waits: nobody else may."""
        self.writer = writer
        self.channel.beside = &writer.channel

    def attach(self, Path path, dict offer) -> dict:
        """Take a writer's offer; gives what it connects to.  Once; a run may be waiting for it."""
        cdef int i
        cdef hk_v_end* e = &self.channel.end
        if e.cq != NULL or e.ended:
            raise TransportError("this channel has a writer already, or is closed")
        numbers = list(offer["qps"])
        if not 2 <= len(numbers) <= HK_V_QPS:
            raise TransportError(f"a writer with {len(numbers)} queue pairs: 2 to {HK_V_QPS} are understood")
        self.nqp = len(numbers)
        psn = int.from_bytes(os.urandom(3), "little")
        end_open(e, self.device, self.nqp)
        self.channel.ring = ring_memory(HK_V_RING)
        self.ring_mr = ibv.ibv_reg_mr(self.device.pd, self.channel.ring, HK_V_RING,
                                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
        if self.ring_mr == NULL:
            raise _refused(f"{self.device.name} cannot register {HK_V_RING} bytes")
        end_connect(e, self.device, path, numbers, psn, offer["psn"], IBV_ACCESS_REMOTE_WRITE)
        for i in range(HK_V_WORDS):
            hk_v_reader_post_recv(e, 0)
        for i in range(HK_V_OFFERS * (self.nqp - 1)):
            hk_v_reader_post_recv(e, 1 + i // HK_V_OFFERS)
        for i in range(HK_V_OFFERS if self.device.windows else 0):
            self.channel.window[i] = hk_v_alloc_window(self.device.pd)
        answer = {
            "qps": numbers_of(e, self.nqp), "psn": psn, "ring": <uintptr_t>self.channel.ring, "rkey": self.ring_mr.rkey,
        }
        hk_store32(<uint32_t*>&self.channel.base.fd, <uint32_t>e.events.fd)
        hk_store32(<uint32_t*>&e.nqp, self.nqp)
        return answer

    def lost(self):
        """The writer's process has ended.  From any thread."""
        hk_store32(&self.channel.end.gone, 1)

    def close(self, bint politely=True):
        """Say goodbye, and let go of everything."""
        cdef int i
        if politely and self.channel.end.nqp and not self.channel.end.ended:
            with nogil:
                hk_v_reader_goodbye(&self.channel)
        if self.channel.end.nqp:
            self.channel.base.ops.forget(&self.channel.base)
        end_close(&self.channel.end)
        for i in range(HK_V_OFFERS):
            if self.channel.window[i] != NULL:
                hk_v_free_window(self.channel.window[i])
                self.channel.window[i] = NULL
        if self.ring_mr != NULL:
            ibv.ibv_dereg_mr(self.ring_mr)
            self.ring_mr = NULL
        if self.channel.stage_mr != NULL:
            ibv.ibv_dereg_mr(self.channel.stage_mr)
            self.channel.stage_mr = NULL
        free(self.channel.ring)
        free(self.channel.stage)
        self.channel.ring = self.channel.stage = NULL

    def __dealloc__(self):
        self.close(False)
