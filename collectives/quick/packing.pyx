"""Small arrays of a list, copied into one vector for each dtype, and back.

Which arrays are copied is decided by dtypes and sizes alone, so that all ranks decide the same.  Arrays on GPUs are not
copied: that would cost a kernel for each.
"""

from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.ref cimport PyObject
from libc.stdint cimport uint64_t, uintptr_t
from libc.string cimport memcpy

cimport numpy as np

from hocket.collectives.calls.ask cimport Ask
from hocket.collectives.quick.shortcut cimport MISS, Lists, Seen, Shortcut, groups_open, learn, see

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


cdef inline void copied(char* to, const char* source, size_t nbytes) noexcept:
    if nbytes == 8:
        memcpy(to, source, 8)       # one move, where a call would cost as much as all the rest
    else:
        memcpy(to, source, nbytes)


cdef class Packed:
    """A tree's arrays as vectors of those with at most `largest` bytes, one for each dtype, and the others (`alone`).

    `digest`: of dtypes and sizes, in order.  `written`: must the arrays be writable?  `spare`: vectors of earlier lists,
    which are used again, as new memory costs more than the copies.  Raises ArgumentError for what is no such array.
    """

    cdef readonly list vectors, alone
    cdef readonly uint64_t digest
    cdef object tree
    cdef readonly list leaves
    cdef dict described             # the Buffers of arrays that have no plain memory, by their places
    cdef dict spare
    cdef object key                 # in `spare`
    cdef Spot* spots
    cdef char* begin[KINDS]

    def __init__(self, tree, size_t largest, bint written, dict spare):
        cdef list leaves = []
        cdef Spot* spot
        cdef Py_ssize_t i
        cdef int code
        cdef size_t[KINDS] length
        cdef list first = [None] * KINDS, order = []
        cdef uint64_t digest = FNV_START
        walk(tree, leaves, None, None)
        self.spots = <Spot*>PyMem_Calloc(max(1, len(leaves)), sizeof(Spot))
        if self.spots == NULL:
            raise MemoryError
        self.tree, self.leaves, self.spare, self.alone, self.described = tree, leaves, spare, [], {}
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
                copied(self.begin[spot.code] + spot.at, spot.home, spot.nbytes)

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
        name = leaves_of(self.tree)[0][i]
        b = describe(leaf, name)
        if written:
            writable(b, name)
        spot.home, spot.nbytes = <char*><uintptr_t>b.address, b.nbytes
        self.described[i] = b
        return b.dtype.code

    cdef bint is_foreign(self, Py_ssize_t i):
        buffer = self.described.get(i)
        return buffer is not None and buffer.foreign

    def unpack(self):
        """Copy what came back to the arrays.  The vectors may then serve another list."""
        cdef Spot* spot
        cdef Py_ssize_t i
        if self.vectors is None:        # two threads waited for this call
            return
        for i in range(len(self.leaves)):
            spot = &self.spots[i]
            if spot.code >= 0:
                copied(spot.home, self.begin[spot.code] + spot.at, spot.nbytes)
        for i, buffer in self.described.items():
            if self.spots[i].code >= 0:
                buffer.restore()
        if len(self.spare) >= SPARE:
            self.spare.clear()
        self.spare[self.key], self.vectors = self.vectors, None

    cdef bint plain(self):
        """Are these NumPy arrays of one dtype, of which none goes alone?"""
        return len(self.leaves) > 0 and not self.alone and not self.described and len(self.key) == 2 and (
            np.PyArray_CheckExact(self.leaves[0]))

    def __dealloc__(self):
        PyMem_Free(self.spots)


def leaves_of(tree):
    """The places of a tree's arrays, as `x['w'][1]`, and the arrays."""
    cdef list leaves = [], names = []
    walk(tree, leaves, names, "x")
    return names, leaves


cdef int walk(tree, list leaves, list names, str where) except -1:
    """Append the arrays of a tree, in an order that is the same on all ranks: that of a dict's sorted keys.

    `names` gets their places; None: nobody asks.  Where they are told by names, keys may have no order.
    """
    if isinstance(tree, dict):
        try:
            keys = sorted(tree)
        except TypeError:
            if names is None:
                raise ArgumentError(
                    f"x has a dict whose keys cannot be sorted ({kind(tree)} of {len(tree)}), so ranks may take its "
                    "arrays in different orders: use strings or numbers as keys"
                ) from None
            keys = tree
        for key in keys:
            walk(tree[key], leaves, names, None if names is None else f"{where}[{key!r}]")
    elif np.PyArray_CheckExact(tree) or not isinstance(tree, (list, tuple)):
        leaves.append(tree)
        if names is not None:
            names.append(where)
    elif names is None:
        for each in tree:
            if np.PyArray_CheckExact(each):
                leaves.append(each)
            else:
                walk(each, leaves, None, None)
    else:
        for i, each in enumerate(tree):
            walk(each, leaves, names, f"{where}[{i}]")
    return 0


cdef class Packing:
    """A list of NumPy arrays of one dtype, all of which are copied: what the next such list is compared with."""

    cdef object vector, label
    cdef char* begin
    cdef size_t* nbytes
    cdef Py_ssize_t count
    cdef int number                 # of the dtype, NumPy's
    cdef bint busy                  # a call has the vector

    def __dealloc__(self):
        PyMem_Free(self.nbytes)

    cdef bint gather(self, list leaves) except -1:
        """Copy the arrays of a list of this kind; False: it is of another."""
        cdef char* to = self.begin
        cdef np.ndarray a
        cdef Py_ssize_t i
        for i in range(self.count):
            each = leaves[i]
            if not np.PyArray_CheckExact(each):
                return False
            a = <np.ndarray>each
            if np.PyArray_TYPE(a) != self.number or size_of(a) != self.nbytes[i] or not np.PyArray_ISBEHAVED(a) or (
                    not np.PyArray_IS_C_CONTIGUOUS(a)):
                return False
            copied(to, np.PyArray_BYTES(a), self.nbytes[i])
            to += self.nbytes[i]
        return True

    cdef int scatter(self, list leaves) except -1:
        cdef char* source = self.begin
        cdef Py_ssize_t i
        for i in range(self.count):
            copied(np.PyArray_BYTES(<np.ndarray>leaves[i]), source, self.nbytes[i])
            source += self.nbytes[i]
        return 0


cdef inline size_t size_of(np.ndarray a) noexcept:
    """Bytes."""
    cdef size_t nbytes = np.PyArray_ITEMSIZE(a)
    cdef int i
    for i in range(np.PyArray_NDIM(a)):
        nbytes *= np.PyArray_DIMS(a)[i]
    return nbytes


cdef class Known(Lists):
    """A communicator's memory of lists: vectors of any, and the layouts of those that take the short way."""

    cdef readonly dict spare
    cdef dict layouts               # by the number of arrays

    def __init__(self):
        self.spare, self.layouts = {}, {}

    def learn(self, tree, Packed packed, label):
        """A call on this list went well: the next one on such a list may take the short way."""
        cdef Packing layout
        cdef Py_ssize_t i
        cdef np.npy_intp count = 0
        leaves = packed.leaves
        if (type(tree) is not list and type(tree) is not tuple) or len(leaves) != len(tree) or not packed.plain():
            return
        layout = self.layouts.get(len(leaves))
        if layout is not None and layout.label is label:
            return
        layout = Packing.__new__(Packing)
        layout.count, layout.label, layout.number = len(leaves), label, np.PyArray_TYPE(<np.ndarray>leaves[0])
        layout.nbytes = <size_t*>PyMem_Calloc(layout.count, sizeof(size_t))
        if layout.nbytes == NULL:
            raise MemoryError
        for i in range(layout.count):
            layout.nbytes[i] = packed.spots[i].nbytes
            count += np.PyArray_SIZE(<np.ndarray>leaves[i])
        layout.vector = np.PyArray_EMPTY(1, &count, layout.number, 0)
        layout.begin = np.PyArray_BYTES(<np.ndarray>layout.vector)
        if len(self.layouts) >= SPARE:
            self.layouts.clear()
        self.layouts[layout.count] = layout

    cdef object take(self, Shortcut shortcut, object tree, Ask* ask):
        cdef Packing layout
        cdef Ask one = ask[0]
        cdef list leaves
        if ask.async_op or groups_open() or <object>ask.within:
            return MISS
        if ask.residual != <PyObject*>None or ask.owner_residual != <PyObject*>None:
            return MISS
        if type(tree) is not list and type(tree) is not tuple:
            return MISS
        layout = self.layouts.get(len(tree))
        if layout is None or layout.busy:
            return MISS
        leaves = list(tree)             # holds them, whatever another thread does with the list
        layout.busy = True
        try:
            if not layout.gather(leaves):
                return MISS
            one.within = <PyObject*>layout.label
            if shortcut.take(layout.vector, None, &one) is MISS:
                return MISS
            layout.scatter(leaves)
        finally:
            layout.busy = False
        return tree
