"""Small arrays of a list, copied into one vector for each dtype, and back.

Which arrays are copied is decided by dtypes and sizes alone, so that all ranks decide the same.  Arrays on GPUs are not
copied: that would cost a kernel for each.
"""

from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport uint64_t, uintptr_t
from libc.string cimport memcpy

cimport numpy as np

from hocket.collectives.engine.shortcut cimport Seen, learn, see

from hocket.arguments import kind
from hocket.collectives.arrays.buffers import describe, empty_like
from hocket.collectives.calls.shapes import writable
from hocket.errors import ArgumentError
from hocket.kernels.dtypes import DTYPES, by_name

np.import_array()

cdef enum:
    KINDS = 32                  # more than there are dtypes
    TYPES = 24                  # NumPy's numbers of those that `learn` knows are below
    SPARE = 16                  # lists whose vectors are kept for the next call

cdef uint64_t FNV_START = 14695981039346656037ULL, FNV_PRIME = 1099511628211ULL
cdef int OPAQUE = by_name("bytes").code
cdef dict tensors = {}          # Seen.dtype of a tensor -> code of a DType
cdef int[TYPES] numbers         # the same by NumPy's type number, plus 1
assert len(DTYPES) <= KINDS


cdef struct Spot:               # where an array lies
    char* home
    size_t nbytes
    size_t at                   # in its vector
    int code                    # of its dtype; -1: it goes alone


cdef class Packed:
    """`leaves` as vectors of those with at most `largest` bytes, one for each dtype, and the others (`alone`).

    `digest`: of dtypes and sizes, in order.  `written`: must the arrays be writable?  `spare`: vectors of earlier lists,
    which are used again, as new memory costs more than the copies.  Raises ArgumentError for what is no such array.
    """

    cdef readonly list vectors, alone
    cdef readonly uint64_t digest
    cdef list leaves
    cdef dict described             # the Buffers of arrays that have no plain memory, by their places
    cdef dict spare
    cdef object key                 # in `spare`
    cdef Spot* spots
    cdef char* begin[KINDS]

    def __cinit__(self, list leaves, *_):
        self.spots = <Spot*>PyMem_Calloc(max(1, len(leaves)), sizeof(Spot))
        if self.spots == NULL:
            raise MemoryError

    def __init__(self, list leaves, size_t largest, bint written, dict spare):
        cdef Spot* spot
        cdef Py_ssize_t i
        cdef int code
        cdef size_t[KINDS] length
        cdef list first = [None] * KINDS, order = []
        cdef uint64_t digest = FNV_START
        self.leaves, self.spare, self.alone, self.described = leaves, spare, [], {}
        for code in range(KINDS):
            length[code] = 0
        for i in range(len(leaves)):
            spot = &self.spots[i]
            code = self.look(leaves[i], i, spot, written)
            digest = ((digest ^ <uint64_t>code) * FNV_PRIME ^ spot.nbytes) * FNV_PRIME
            if spot.nbytes > largest or code == OPAQUE or (self.described and self.is_foreign(i)):
                spot.code = -1
                self.alone.append(leaves[i])
                continue
            spot.code, spot.at = code, length[code]
            length[code] += spot.nbytes
            if first[code] is None:
                first[code] = leaves[i]
                order.append(code)
        self.digest, self.key = digest, (digest, *[type(first[code]) for code in order])
        self.vectors = spare.pop(self.key, None)
        if self.vectors is None:
            self.vectors = [empty_like(describe(first[code]), (length[code] // DTYPES[code].itemsize,)) for code in order]
        for code, vector in zip(order, self.vectors):
            self.begin[code] = <char*><uintptr_t>describe(vector).address
        for i in range(len(leaves)):
            spot = &self.spots[i]
            if spot.code >= 0:
                memcpy(self.begin[spot.code] + spot.at, spot.home, spot.nbytes)

    cdef int look(self, object leaf, Py_ssize_t i, Spot* spot, bint written) except -1:
        """Find an array's memory.  The code of its dtype."""
        cdef Seen seen
        cdef np.ndarray a
        cdef int number
        if np.PyArray_CheckExact(leaf):
            a = <np.ndarray>leaf
            number = np.PyArray_TYPE(a)
            if number < TYPES and np.PyArray_IS_C_CONTIGUOUS(a) and (np.PyArray_ISWRITEABLE(a) or not written) and learn(a):
                if numbers[number] == 0:
                    numbers[number] = describe(a).dtype.code + 1
                spot.home, spot.nbytes = np.PyArray_BYTES(a), np.PyArray_NBYTES(a)
                return numbers[number] - 1
        elif see(leaf, &seen) and learn(leaf):
            code = tensors.get(seen.dtype)
            if code is None:
                code = tensors[seen.dtype] = describe(leaf).dtype.code
            spot.home, spot.nbytes = seen.data, seen.nbytes
            return code
        b = describe(leaf, f"x[{i}]")
        if written:
            writable(b, f"x[{i}]")
        spot.home, spot.nbytes = <char*><uintptr_t>b.address, b.nbytes
        self.described[i] = b
        return b.dtype.code

    cdef bint is_foreign(self, Py_ssize_t i):
        found = self.described.get(i)
        return found is not None and found.foreign

    def unpack(self):
        """Copy what came back to the arrays.  The vectors may then serve another list."""
        cdef Spot* spot
        cdef Py_ssize_t i
        if self.vectors is None:        # two threads waited for this call
            return
        for i in range(len(self.leaves)):
            spot = &self.spots[i]
            if spot.code >= 0:
                memcpy(spot.home, self.begin[spot.code] + spot.at, spot.nbytes)
        for i, buffer in self.described.items():
            if self.spots[i].code >= 0:
                buffer.restore()
        if len(self.spare) >= SPARE:
            self.spare.clear()
        self.spare[self.key], self.vectors = self.vectors, None

    def __dealloc__(self):
        PyMem_Free(self.spots)


def leaves_of(tree, list leaves):
    """Append the arrays of a tree, in an order that is the same on all ranks: that of a dict's sorted keys."""
    if isinstance(tree, dict):
        try:
            tree = [tree[key] for key in sorted(tree)]
        except TypeError:
            raise ArgumentError(
                f"x has a dict with keys that have no order ({kind(tree)} of {len(tree)}), so ranks may take its arrays "
                "in another order: use texts or numbers as keys"
            ) from None
    for each in tree:
        if not np.PyArray_CheckExact(each) and isinstance(each, (list, tuple, dict)):
            leaves_of(each, leaves)
        else:
            leaves.append(each)
