"""The table of calls that were made before, and the short way that it opens."""

from libc.stdint cimport int64_t, uint64_t, uintptr_t

from hocket.collectives.calls.ask cimport Ask
from hocket.collectives.engine.engine cimport Engine
from hocket.collectives.engine.placed cimport Placed
from hocket.collectives.plans.plan cimport Plan
from hocket.kernels.cpu.reduce cimport reduce_fn

cdef object MISS            # what `take` returns for a call that wants the general way


cdef enum: MAX_DIMS = 8


cdef struct Seen:               # one argument, as far as a table asks
    char* data
    size_t count, nbytes
    int ndim
    const int64_t* dims
    uintptr_t dtype             # NumPy: the descriptor's address; others: what DLPack says of it, odd
    bint writable
    int gpu                     # whose memory it is; -1: the host's
    int64_t room[MAX_DIMS]      # for dims, where the array does not keep them


cdef struct Shape:
    int ndim
    int64_t dims[MAX_DIMS]


cdef inline void keep(Shape* shape, Seen* s) noexcept:
    cdef int i
    shape.ndim = s.ndim
    for i in range(s.ndim):
        shape.dims[i] = s.dims[i]


cdef inline bint fits(Shape* shape, Seen* s) noexcept:
    cdef int i
    if shape.ndim != s.ndim:
        return False
    for i in range(s.ndim):
        if shape.dims[i] != s.dims[i]:
            return False
    return True


cdef inline bint overlap(Seen* a, Seen* b) noexcept:
    return b.data < a.data + a.nbytes and a.data < b.data + b.nbytes


cdef bint see(object x, Seen* s) except -1          # an array of the host's memory
cdef bint look(object x, Seen* s) except -1         # ... or of a GPU's
cdef bint learn(object x) except -1
cdef bint groups_open() noexcept


cdef inline int into(object x, object out, Seen* a, Seen* b) except -2:
    """Look at both.  0: no `out` that is not x; 1: into such a one; 2: and it overlaps x; -1: it wants the general way."""
    if not look(x, a):
        return -1
    if out is None or out is x:
        return 0
    return 1 + overlap(a, b) if look(out, b) else -1


cdef class Entry:               # what the general way resolved for one kind of call
    cdef Engine engine          # of the transport that was asked for
    cdef Plan plan
    cdef Ask ask                # compared by identity, as small ints and literals are the same objects ...
    cdef tuple kept             # ... which are kept here
    cdef tuple counts           # ... but for those of a v-variant, copied as tuples of ints; None: an even call
    cdef object dtype, out_shape        # keeps a NumPy descriptor; for new tensors
    cdef uintptr_t dtype_id
    cdef Shape x, out
    cdef bint in_place, fresh           # otherwise: `out` was given
    cdef int given                      # the result goes into an `out` that is not x: 1; or 2: it overlaps x, ...
    cdef ptrdiff_t shift                # ... which begins so many bytes behind it
    cdef bint silent                    # this rank gets None
    cdef reduce_fn reduce
    cdef size_t out_nbytes
    cdef int gpu                        # where the arrays are ...
    cdef Placed placed                  # ... and how its calls are issued there; None: in the host's memory


cdef class Lists:               # lists of arrays that were seen before: packing.pyx has them
    cdef object take(self, Shortcut shortcut, object tree, Ask* ask)


cdef class Shortcut:
    cdef public Lists lists
    cdef Engine main            # fails with its communicator
    cdef list entries
    cdef uint64_t limit
    cdef object runner

    cdef object take(self, object x, object out, Ask* ask)
    cdef Entry find(self, Ask* ask, Seen* a, int given)
    cdef object queue(self, Entry e, char* src, char* dst, uint64_t limit, object x, object result)
    cdef bint follow(self, Entry e, object x) except -1
    cdef object _fresh(self, Entry e, object x)


cdef object owned(Ask* a)       # the same, kept alive, for the general way


cdef class ShortWay:
    cdef readonly Shortcut shortcut

    cdef object call(self, object x, object out, Ask* ask)
    cdef Entry known(self, object x, object out, Ask* ask)      # of a call that was made before, or None
    cdef object of_number(self, object x, object out, Ask* ask)
