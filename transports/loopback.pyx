"""A rank's messages to itself: what it sends is kept, whole, until it receives it.

One channel, both ends of which one engine drives, so it needs no lock.  Nothing bounds what is kept but memory: who would
read it, if not who sends?  So it is no transport that one could choose, and keeps that one law of channel.h not.
"""

from cpython.pycapsule cimport PyCapsule_New
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from hocket.transports.channel cimport HK_AGAIN, HK_CAPSULE, HK_FAULT, hk_call, hk_channel, hk_channel_ops, hk_view


cdef struct LoopMessage:
    uint64_t tag, length
    size_t came, gone           # bytes that were sent, and received
    char* data
    LoopMessage* next

cdef struct loop_channel:
    hk_channel base
    LoopMessage* first
    LoopMessage* last


cdef hk_channel_ops OPS
OPS.send = _send
OPS.settled = NULL
OPS.multicast = NULL
OPS.peek = _peek
OPS.consume = _consume
OPS.recv = NULL
OPS.forget = NULL


cdef class Loopback:
    """`capsule` is the channel, to send to and to receive from.  This must outlive it."""

    cdef loop_channel channel
    cdef readonly object capsule

    def __cinit__(self):
        self.channel.base.ops = &OPS
        self.channel.base.fd = -1
        self.capsule = PyCapsule_New(&self.channel.base, HK_CAPSULE, NULL)

    def __dealloc__(self):
        while self.channel.first != NULL:
            _drop(&self.channel)


cdef void _drop(loop_channel* c) noexcept nogil:
    cdef LoopMessage* gone = c.first
    c.first = gone.next
    free(gone.data)
    free(gone)


cdef long _send(hk_channel* ch, const hk_call* call, uint64_t length, uint64_t done, const void* src,
                size_t n) noexcept nogil:
    cdef loop_channel* c = <loop_channel*>ch
    cdef LoopMessage* m
    if done == 0:
        m = <LoopMessage*>calloc(1, sizeof(LoopMessage))
        if m != NULL:
            m.data = <char*>malloc(max(<size_t>1, <size_t>length))
        if m == NULL or m.data == NULL:
            free(m)
            ch.words = "there is not enough memory to keep a message of this rank to itself"
            return HK_FAULT
        m.tag, m.length = call.tag, length
        if c.first == NULL:
            c.first = m
        else:
            c.last.next = m
        c.last = m
    if n:
        memcpy(c.last.data + done, src, n)
    c.last.came += n
    return <long>n


cdef int _peek(hk_channel* ch, const hk_call* call, hk_view* v, size_t want) noexcept nogil:
    cdef LoopMessage* m = (<loop_channel*>ch).first
    if m == NULL:
        return HK_AGAIN
    v.tag, v.length = m.tag, m.length
    v.data, v.avail = m.data + m.gone, m.came - m.gone
    return 1


cdef int _consume(hk_channel* ch, const hk_call* call, size_t n, int end) noexcept nogil:
    cdef loop_channel* c = <loop_channel*>ch
    c.first.gone += n
    if end:
        _drop(c)
    return 0
