"""Which elements of a vector are large (kernels/select.h), on NumPy arrays."""

from libc.stdint cimport int64_t, uint32_t

import numpy as np

cdef extern from "kernels/select.h" nogil:
    size_t hk_select(const uint32_t *x, size_t count, uint32_t least, int64_t *places, size_t room)


def not_below(x, least, size_t guess=0):
    """The indices of the elements of at least this magnitude, and of NaN, ascending; int64.

    `x`: float32, of one dimension, contiguous.  `guess`: how many there may be, which saves a second pass.
    """
    cdef const uint32_t[::1] given = x.view(np.uint32)
    cdef uint32_t bits = np.abs(np.float32(least)).view(np.uint32)
    cdef size_t count = given.shape[0], room = min(count, guess) + 64, found
    cdef int64_t[::1] made
    if count == 0:
        return np.empty(0, np.int64)
    while True:
        places = np.empty(room, np.int64)
        made = places
        with nogil:
            found = hk_select(&given[0], count, bits, &made[0], room)
        if found <= room:
            return places[:found]
        room = found + 64
