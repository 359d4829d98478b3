"""The two ends of a channel: how they are made, connected and closed.

The data path is writer.h and reader.h, without the GIL.
"""

import os

from cpython.pycapsule cimport PyCapsule_New
cimport cython
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memset

from hocket.transports.channel cimport HK_CAPSULE, hk_channel, hk_channel_ops
from hocket.transports.verbs.device cimport Device, hk_pins, ibv, refused
from hocket.transports.verbs.ends cimport Path, end_close, end_connect, end_open, hk_v_end, numbers_of
from hocket.transports.verbs.ibverbs cimport IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, ibv_mr, ibv_mw, ibv_pd

from hocket.errors import TransportError

cdef extern from "poll.h" nogil:
    enum: POLLIN

cdef extern from "stdlib.h" nogil:
    int posix_memalign(void**, size_t, size_t)

cdef extern from "system/atomics.h" nogil:
    void hk_store32(uint32_t*, uint32_t)

cdef extern from "transports/verbs/reader.h" nogil:
    ibv_mw* hk_v_alloc_window(ibv_pd*)
    void hk_v_free_window(ibv_mw*)
    enum:
        HK_V_QPS, HK_V_OFFERS, HK_V_WORDS, HK_V_OFFER_MIN
    size_t HK_V_RING, HK_V_WRITER_BYTES
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
    int hk_v_writer_post_recv(hk_v_writer*, uint32_t)
    int hk_v_reader_post_recv(hk_v_end*, int)
    int hk_v_writer_goodbye(hk_v_writer*)
    int hk_v_reader_goodbye(hk_v_reader*)

OFFER_MIN = HK_V_OFFER_MIN
"""Bytes from which a piece of registered memory is not copied."""
PAGE = 4096


cdef char* ring_memory(size_t size) except NULL:
    cdef void* memory = NULL
    if posix_memalign(&memory, PAGE, size) != 0:
        raise MemoryError
    memset(memory, 0, size)
    return <char*>memory


@cython.no_gc_clear     # `device` is needed to the end
cdef class WriteEnd:
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
            raise refused(f"{device.name} cannot register {HK_V_WRITER_BYTES} bytes")
        self.channel.lkey = self.ring_mr.lkey
        self.capsule = PyCapsule_New(&self.channel.base, HK_CAPSULE, NULL)

    @property
    def offer(self):
        """The offer that the reader needs (JSON)."""
        return {"qps": numbers_of(&self.channel.end, self.nqp), "psn": self.psn}

    def connect(self, Path path, dict answer):
        cdef int i
        if len(answer["qps"]) != self.nqp:
            raise TransportError(f"the peer's reader has {len(answer['qps'])} queue pairs; expected {self.nqp}")
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


@cython.no_gc_clear     # as WriteEnd
cdef class ReadEnd:
    """The receiving end of a channel: empty until a writer comes (`attach`)."""

    cdef hk_v_reader channel
    cdef ibv_mr* ring_mr
    cdef int nqp
    cdef WriteEnd writer
    cdef readonly object capsule
    cdef readonly Device device

    def __cinit__(self, Device device):
        self.device = device
        self.channel.base.ops, self.channel.base.fd = &hk_v_reader_ops, -1
        self.channel.pins = &device.pins
        self.capsule = PyCapsule_New(&self.channel.base, HK_CAPSULE, NULL)

    def stand_beside(self, WriteEnd writer):
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
            raise TransportError(f"the peer's writer has {len(numbers)} queue pairs; expected 2 to {HK_V_QPS}")
        self.nqp = len(numbers)
        psn = int.from_bytes(os.urandom(3), "little")
        end_open(e, self.device, self.nqp)
        self.channel.ring = ring_memory(HK_V_RING)
        self.ring_mr = ibv.ibv_reg_mr(self.device.pd, self.channel.ring, HK_V_RING,
                                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
        if self.ring_mr == NULL:
            raise refused(f"{self.device.name} cannot register {HK_V_RING} bytes")
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
