"""Elements of whole numbers with codes of different lengths (kernels/cpu/elias.h), and back, on NumPy arrays."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t

import numpy as np

from hocket.errors import ArgumentError
from hocket.kernels.codecs import WHOLE
from hocket.kernels.cpu.reduce cimport find_codec, hk_codec

cdef extern from "kernels/cpu/elias.h" nogil:
    size_t hk_elias_most(const hk_codec *c, size_t count)
    size_t hk_elias_put(const hk_codec *c, uint8_t *out, const uint8_t *elements, size_t count)
    int hk_elias_get(const hk_codec *c, uint8_t *elements, size_t count, const uint8_t *bytes, size_t nbytes)


def shorten(elements, codec):
    """The bytes of a uint8 array of elements of `codec`, a uint8 array; their number depends on what the elements are."""
    cdef hk_codec c = _whole(codec)
    cdef size_t nbytes, n
    cdef const uint8_t* given = _memory(elements, PyBUF_SIMPLE, &nbytes)
    if nbytes % c.nbytes:
        raise ArgumentError(f"{nbytes} bytes are not whole elements of {codec.name}, which have {codec.itemsize} bytes")
    cdef size_t count = nbytes // c.nbytes
    out = np.empty(hk_elias_most(&c, count), np.uint8)
    cdef uint8_t* made = _memory(out, PyBUF_WRITABLE, &n)
    if count == 0:
        return out[:0]
    with nogil:
        n = hk_elias_put(&c, made, given, count)
    return out[:n]


def restore(shortened, codec, size_t count):
    """`count` elements of `codec`, of which `shortened` has the bytes.  Raises ArgumentError if it has not."""
    cdef hk_codec c = _whole(codec)
    cdef size_t nbytes, room
    cdef const uint8_t* given = _memory(shortened, PyBUF_SIMPLE, &nbytes)
    elements = np.empty(count * c.nbytes, np.uint8)
    cdef uint8_t* made = _memory(elements, PyBUF_WRITABLE, &room)
    cdef int rc = 0
    if count and nbytes:
        with nogil:
            rc = hk_elias_get(&c, made, count, given, nbytes)
    if rc < 0 or (count == 0) != (nbytes == 0):
        raise ArgumentError(f"{nbytes} bytes are not the Elias codes of {count} elements of {codec.name}")
    return elements


cdef uint8_t* _memory(array, int flags, size_t* nbytes) except *:
    """Where its bytes are, and how many; not longer than the array."""
    cdef Py_buffer room
    PyObject_GetBuffer(array, &room, flags)
    nbytes[0] = room.len
    PyBuffer_Release(&room)
    return <uint8_t*>room.buf


cdef hk_codec _whole(codec):
    if codec.code != WHOLE:
        raise ArgumentError(f"{codec.name} has no Elias codes; use QSGD, TernGrad or Int")
    return find_codec(codec)
