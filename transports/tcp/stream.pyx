"""A connected socket as a pair of channels; stream.h is the protocol."""

from cpython.pycapsule cimport PyCapsule_New
from libc.stdint cimport uint32_t
from libc.stdlib cimport free

from hocket.transports.channel cimport HK_CAPSULE, hk_channel, hk_channel_ops


cdef extern from "system/atomics.h" nogil:
    void hk_store32(uint32_t*, uint32_t)

cdef extern from "transports/tcp/stream.h" nogil:
    struct hk_sender:
        hk_channel base
    struct hk_receiver:
        hk_channel base
        char* stage
    const hk_channel_ops hk_sender_ops
    const hk_channel_ops hk_receiver_ops


cdef class SocketStreams:
    """The two channels over stream sockets, which this object owns and closes.

    `socket` carries both directions, or with `receive=False` only ours, until `receive_from` gives the other's.
    """

    cdef hk_sender sender
    cdef hk_receiver receiver
    cdef readonly object socket
    cdef object incoming
    cdef readonly object send, recv     # capsules

    def __cinit__(self, socket, bint receive=True):
        socket.setblocking(False)
        self.socket = socket
        self.sender.base.ops = &hk_sender_ops
        self.receiver.base.ops = &hk_receiver_ops
        self.sender.base.fd = socket.fileno()
        self.receiver.base.fd = socket.fileno() if receive else -1
        self.send = PyCapsule_New(&self.sender.base, HK_CAPSULE, NULL)
        self.recv = PyCapsule_New(&self.receiver.base, HK_CAPSULE, NULL)

    def receive_from(self, socket):
        """The peer's stream has come.  From any thread, once; a run may be waiting for it."""
        socket.setblocking(False)
        self.incoming = socket
        hk_store32(<uint32_t*>&self.receiver.base.fd, <uint32_t><int>socket.fileno())

    def close(self):
        """Calls on the channels fail from now on, or find nothing; may come twice."""
        hk_store32(<uint32_t*>&self.sender.base.fd, <uint32_t>-1)
        hk_store32(<uint32_t*>&self.receiver.base.fd, <uint32_t>-1)
        self.socket.close()
        if self.incoming is not None:
            self.incoming.close()

    def __dealloc__(self):
        free(self.receiver.stage)
