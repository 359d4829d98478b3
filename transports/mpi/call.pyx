"""MPI's own collectives as plans' calls; call.h says how they are called, types.py with which types."""

from cpython.pycapsule cimport PyCapsule_New
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.stdlib cimport calloc, free

from hocket.errors import ArgumentError
from hocket.transports.library cimport HK_LIBRARY_CAPSULE, hk_library
from hocket.transports.mpi.library cimport Mpi, hk_mpi, hk_mpi_request

cdef extern from "transports/mpi/call.h" nogil:
    struct hk_mpi_call:
        hk_library base
        hk_mpi* mpi
        uintptr_t blocking, starting
        uintptr_t word[10]
        int words, in_ "in", out
        size_t given, taken
        char* spare
        hk_mpi_request request
    void hk_mpi_call_init(hk_mpi_call*)

ARGUMENTS = {
    "Allreduce": "in out count type op comm", "Scan": "in out count type op comm",
    "Exscan": "in out count type op comm", "Reduce": "in out count type op root comm",
    "Reduce_scatter_block": "in out count type op comm", "Reduce_scatter": "in out counts type op comm",
    "Bcast": "out count type root comm", "Barrier": "comm",
    "Allgather": "in count type out count type comm", "Alltoall": "in count type out count type comm",
    "Allgatherv": "in count type out counts displs type comm",
    "Gather": "in count type out count type root comm", "Scatter": "in count type out count type root comm",
    "Gatherv": "in count type out counts displs type root comm",
    "Scatterv": "in counts displs type out count type root comm",
    "Alltoallv": "in counts displs type out from_counts from_displs type comm",
}
"""The arguments of each function, as in the MPI standard, without MPI_ and the request of the I-variants."""
INT_MAX = 2**31 - 1


cdef class MpiCall:
    """`function` ("Allreduce") with these words (by the names in ARGUMENTS; lists become arrays).

    `in_place`: MPI_IN_PLACE instead of the input.  `overlap`: bytes of input and output, if these may overlap though
    MPI forbids it.  Raises ArgumentError if a count is too large for this MPI.
    """

    cdef hk_mpi_call* call      # freed only when nothing is under way
    cdef Mpi mpi
    cdef list arrays
    cdef readonly object capsule

    def __cinit__(self, Mpi mpi, str function, dict words, bint in_place=False, tuple overlap=(0, 0)):
        cdef hk_mpi_call* c
        self.mpi, self.arrays = mpi, []
        self.call = c = <hk_mpi_call*>calloc(1, sizeof(hk_mpi_call))
        if c == NULL:
            raise MemoryError
        c.mpi = mpi.table
        hk_mpi_call_init(c)
        large = any(n > INT_MAX for value in words.values() if isinstance(value, list) for n in value)
        large = large or words.get("count", 0) > INT_MAX
        suffix = "_c" if large else ""
        c.blocking, c.starting = mpi.find(f"MPI_{function}{suffix}"), mpi.find(f"MPI_I{function.lower()}{suffix}")
        if not c.blocking or not c.starting:
            hint = f", and more than {INT_MAX} elements are counted: use another algorithm, or several calls"
            raise ArgumentError(f"this MPI has no MPI_{function}{suffix}{hint if large else ''}")
        c.given, c.taken = overlap
        for name in ARGUMENTS[function].split():
            if name == "in" and in_place:
                c.word[c.words] = mpi.table.in_place
            elif name == "in":
                c.in_ = c.words
            elif name == "out":
                c.out = c.words
            else:
                c.word[c.words] = self.array(words[name], large) if isinstance(words[name], list) else words[name]
            c.words += 1
        self.capsule = PyCapsule_New(&c.base, HK_LIBRARY_CAPSULE, NULL)

    cdef uintptr_t array(self, list values, bint large) except 0:
        import array
        numbers = array.array("q" if large else "i", values)
        self.arrays.append(numbers)
        return numbers.buffer_info()[0]

    @property
    def under_way(self):
        return bool(self.call.request.busy)

    def __dealloc__(self):
        if self.call != NULL and not self.call.request.busy:
            free(self.call.spare)
            free(self.call)
