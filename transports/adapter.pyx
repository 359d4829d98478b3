"""A channel written in Python, for the engine: the reference transport, and whoever writes the next.

The Python object has the methods of `hocket.transports.base.PyChannel`; each call takes the GIL.
"""

import logging

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport PyObject
from libc.stdint cimport uint64_t

from hocket.transports.channel cimport HK_AGAIN, HK_CAPSULE, HK_FAULT, HK_LOST, hk_call, hk_channel, hk_channel_ops, hk_view


cdef enum: OFFERED = 1 << 18   # bytes given to one `send`: all of them are copied, and most of them not taken

log = logging.getLogger("hocket")


cdef struct py_channel:
    hk_channel base
    PyObject* adapter


cdef hk_channel_ops OPS
OPS.send = _send
OPS.settled = NULL
OPS.multicast = NULL
OPS.peek = _peek
OPS.consume = _consume
OPS.recv = NULL
OPS.forget = NULL


cdef class Adapter:
    """`capsule` is the channel that carries `target`'s bytes.  The adapter must outlive it."""

    cdef py_channel channel
    cdef object target
    cdef object view                # keeps what was peeked alive
    cdef readonly object capsule
    cdef bytes words                # of the exception behind a fault

    def __cinit__(self, target):
        self.target = target
        self.channel.base.ops = &OPS
        self.channel.base.fd = -1
        self.channel.adapter = <PyObject*>self
        self.capsule = PyCapsule_New(&self.channel.base, HK_CAPSULE, NULL)


cdef long _failed(Adapter a, object error) noexcept:
    """That the peer is gone, or a fault, which nobody else would ever see."""
    a.channel.base.error = (error.errno or 0) if isinstance(error, OSError) else 0
    a.words = f"{type(error).__name__}: {error}".encode(errors="replace")
    a.channel.base.words = a.words
    if isinstance(error, ConnectionError):
        return HK_LOST
    log.error("%s: %s", type(a.target).__name__, error, exc_info=error)
    return HK_FAULT


cdef long _send(hk_channel* ch, const hk_call* call, uint64_t length, uint64_t done, const void* src,
                size_t n) noexcept nogil:
    with gil:
        a = <Adapter>(<py_channel*>ch).adapter
        try:
            n = min(n, OFFERED)
            taken = a.target.send(call.tag, length, done, (<const char*>src)[:n] if n else b"")
            if taken is not None and not min(n, 1) <= taken <= n:
                raise ValueError(
                    f"send returned {taken} for {n} bytes; expected 1 to {n}, or None if nothing can be sent now"
                )
            return HK_AGAIN if taken is None else <long>taken
        except BaseException as e:
            return _failed(a, e)


cdef int _peek(hk_channel* ch, const hk_call* call, hk_view* v, size_t want) noexcept nogil:
    cdef Py_buffer room
    with gil:
        a = <Adapter>(<py_channel*>ch).adapter
        try:
            head = a.target.peek(want)
            if head is None:
                return HK_AGAIN
            v.tag, v.length, a.view = head
            PyObject_GetBuffer(a.view, &room, PyBUF_SIMPLE)
            v.data, v.avail = <const char*>room.buf, room.len
            PyBuffer_Release(&room)     # `view` keeps it
            return 1
        except BaseException as e:
            return <int>_failed(a, e)


cdef int _consume(hk_channel* ch, const hk_call* call, size_t n, int end) noexcept nogil:
    with gil:
        a = <Adapter>(<py_channel*>ch).adapter
        a.view = None
        try:
            a.target.consume(n, bool(end))
            return 0
        except BaseException as e:
            return <int>_failed(a, e)
