"""Two encrypted streams as a pair of channels; tls_channels.h is how."""

from cpython.pycapsule cimport PyCapsule_New
from libc.stdint cimport uint32_t
from libc.stdlib cimport free

from hocket.system.tls cimport Tls, hk_tls
from hocket.transports.channel cimport HK_CAPSULE, hk_channel, hk_channel_ops


cdef extern from "system/atomics.h" nogil:
    void hk_store32(uint32_t*, uint32_t)

cdef extern from "transports/tcp/tls_channels.h" nogil:
    struct hk_receiver:
        hk_channel base
        char* stage
    struct hk_tls_sender:
        hk_channel base
        hk_tls* tls
    struct hk_tls_receiver:
        hk_receiver plain
        hk_tls* tls
    const hk_channel_ops hk_tls_sender_ops
    const hk_channel_ops hk_tls_receiver_ops


cdef class TlsStreams:
    """The two channels over encrypted streams: `out` for ours, and the peer's when it has come.

    Both ends' handshakes are over.  This object owns and closes the sockets.
    """

    cdef hk_tls_sender sender
    cdef hk_tls_receiver receiver
    cdef Tls out, incoming
    cdef readonly object send, recv     # capsules

    def __cinit__(self, Tls out):
        self.out = out
        self.sender.tls = &out.tls
        self.sender.base.ops = &hk_tls_sender_ops
        self.sender.base.fd = out.socket.fileno()
        self.receiver.plain.base.ops = &hk_tls_receiver_ops
        self.receiver.plain.base.fd = -1
        self.send = PyCapsule_New(&self.sender.base, HK_CAPSULE, NULL)
        self.recv = PyCapsule_New(&self.receiver.plain.base, HK_CAPSULE, NULL)

    def receive_from(self, Tls incoming):
        """The peer's stream has come.  From any thread, once; a run may be waiting for it."""
        self.incoming = incoming
        self.receiver.tls = &incoming.tls
        hk_store32(<uint32_t*>&self.receiver.plain.base.fd, <uint32_t><int>incoming.socket.fileno())

    def close(self):
        hk_store32(<uint32_t*>&self.receiver.plain.base.fd, <uint32_t>-1)
        self.out.close()
        if self.incoming is not None:
            self.incoming.close()

    def __dealloc__(self):
        free(self.receiver.plain.stage)
