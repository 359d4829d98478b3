"""64 bits that tell bytes apart (kernels/digest.h)."""

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint64_t

cdef extern from "kernels/digest.h" nogil:
    ctypedef struct hk_digest:
        pass
    void hk_digest_begin(hk_digest *d)
    void hk_digest_more(hk_digest *d, const uint8_t *p, size_t nbytes)
    uint64_t hk_digest_end(const hk_digest *d)

cdef enum: LONG = 16 << 10      # bytes: from here on others may run meanwhile


def digest(*parts):
    """XXH64 of the bytes of contiguous buffers, one behind the other: an int below 2**64.

    It tells apart what an accident made different; it proves nothing where somebody wants two digests alike.

    >>> hex(digest(b"abc")), digest(b"ab", b"c") == digest(b"abc")
    ('0x44bc2cf5ad770999', True)
    """
    cdef hk_digest d
    cdef Py_buffer view
    hk_digest_begin(&d)
    for part in parts:
        PyObject_GetBuffer(part, &view, PyBUF_C_CONTIGUOUS)
        if view.len >= LONG:
            with nogil:
                hk_digest_more(&d, <const uint8_t*>view.buf, view.len)
        else:
            hk_digest_more(&d, <const uint8_t*>view.buf, view.len)
        PyBuffer_Release(&view)
    return hk_digest_end(&d)
