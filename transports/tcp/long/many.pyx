"""Several streams between two ranks as one pair of channels; many.h is how."""

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from libc.stdint cimport uint32_t, uint64_t

from hocket.transports.channel cimport HK_CAPSULE, hk_channel, hk_channel_ops


cdef extern from "system/atomics.h" nogil:
    void hk_store32(uint32_t*, uint32_t)

cdef extern from "transports/tcp/long/many.h" nogil:
    const int HK_MANY
    struct hk_many:
        hk_channel base
        hk_channel* stream[16]
        uint32_t have, use
        int cuts
        uint64_t next
    const hk_channel_ops hk_many_sender_ops, hk_many_receiver_ops
    void hk_many_begin(hk_many*)
    void hk_many_close(hk_many*)

MOST = HK_MANY


cdef class ManyStreams:
    """The two channels over `first`, healing streams, and over those that are added.

    Who adds holds a lock; the channels may be in use meanwhile.
    """

    cdef hk_many sender, receiver
    cdef readonly object send, recv     # capsules
    cdef readonly list streams          # HealingStreams or None, by number
    cdef object __weakref__

    def __cinit__(self, first):
        self.streams = [first] + [None] * (HK_MANY - 1)
        self.sender.base.ops, self.receiver.base.ops = &hk_many_sender_ops, &hk_many_receiver_ops
        hk_many_begin(&self.sender)
        hk_many_begin(&self.receiver)
        self.sender.use = 1
        self.sends(0)
        self.receives(0)
        self.send = PyCapsule_New(&self.sender.base, HK_CAPSULE, NULL)
        self.recv = PyCapsule_New(&self.receiver.base, HK_CAPSULE, NULL)

    def __dealloc__(self):
        hk_many_close(&self.sender)
        hk_many_close(&self.receiver)

    def cut(self):
        """Cut messages from now on.  Before the first one is sent."""
        self.sender.cuts = 1

    def keep(self, int number, streams):
        """Own a stream: it is closed with this object."""
        self.streams[number] = streams

    def sends(self, int number):
        """This stream has a connection of ours."""
        self.sender.stream[number] = <hk_channel*>PyCapsule_GetPointer(self.streams[number].send, HK_CAPSULE)
        hk_store32(&self.sender.have, self.sender.have | <uint32_t>1 << number)

    def receives(self, int number):
        """The peer's connection of this stream has come."""
        self.receiver.stream[number] = <hk_channel*>PyCapsule_GetPointer(self.streams[number].recv, HK_CAPSULE)
        hk_store32(&self.receiver.have, self.receiver.have | <uint32_t>1 << number)

    @property
    def use(self):
        """The streams that pieces are given to, as bits.  Those that have no connection do not count."""
        return self.sender.use & self.sender.have | 1

    @use.setter
    def use(self, uint32_t bits):
        hk_store32(&self.sender.use, bits | 1)

    @property
    def pieces(self):
        """(sent, received): the number of pieces, where there are several streams."""
        return self.sender.next, self.receiver.next

    def receive_from(self, end):
        """The peer's connection of the first stream has come."""
        self.streams[0].receive_from(end)

    def close(self):
        for each in self.streams:
            if each is not None:
                each.close()
        hk_many_close(&self.sender)
        hk_many_close(&self.receiver)
