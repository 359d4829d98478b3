"""The short way for calls that were made before: NumPy arrays, default options, a plan at hand.

A direct-mapped table of 64 entries remembers what the general way (running.py) resolved: same collective, dtype, shape,
op, root and kind of output means the same plan.  Anything unusual is a miss, and the general way decides.
"""

cimport numpy as np
from cpython.ref cimport PyObject
from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from hocket.collectives.engine cimport Engine
from hocket.collectives.plan cimport IN, OUT, Plan
from hocket.collectives.run cimport DONE, Run
from hocket.kernels.reduce cimport find_reduce, find_scale, reduce_fn, scale_fn

from hocket.collectives.options import Options

np.import_array()

cdef enum:
    ENTRIES = 64
    USER_DEFINED = 256          # NPY_USERDEF: ml_dtypes and the like, whose arrays are made the general way
    MAX_DIMS = 8

cdef object _MISS = object()
cdef int _groups_open = 0


def group_opened(int change):
    """A `group()` begins (+1) or ends (-1) in some thread: every call must take the general way meanwhile."""
    global _groups_open
    _groups_open += change


cdef class Entry:
    cdef Plan plan
    cdef str collective
    cdef object dtype, op, root, order  # compared by identity: small ints and literals are the same objects
    cdef int ndim, out_ndim
    cdef np.npy_intp dims[MAX_DIMS]
    cdef np.npy_intp out_dims[MAX_DIMS]
    cdef bint in_place, fresh           # otherwise: `out` was given
    cdef bint silent                    # this rank gets None
    cdef reduce_fn reduce
    cdef scale_fn scale                 # afterwards, of the result (avg); NULL: not
    cdef double after
    cdef size_t out_nbytes, out_count


cdef class HotPath:
    """Base of the communicator: the table, and the way through it."""

    cdef Engine engine
    cdef list entries
    cdef uint64_t limit

    def _hot_init(self, Engine engine, double timeout):
        self.engine = engine
        self.entries = [None] * ENTRIES
        self.limit = <uint64_t>(timeout * 1e9)

    def _call(self, str collective, x, out, op, root, counts, async_op, timeout, algorithm, transport, order):
        """Carry out one call: the short way if it was made before, else `_general`."""
        if counts is None and not async_op and timeout is None and algorithm is None and transport is None:
            done = self._hot(collective, x, out, op, root, order)
            if done is not _MISS:
                return done
        options = Options(async_op, timeout, algorithm, transport, order)
        return self._general(collective, x, out, op, root, counts, options)

    cdef object _hot(self, str collective, object x, object out, object op, object root, object order):
        """The result, or MISS."""
        cdef np.ndarray a, b
        cdef Entry e
        cdef Engine engine = self.engine
        cdef Run* r
        cdef int rc, i
        cdef char* src
        cdef char* dst
        if not np.PyArray_CheckExact(x):
            return _MISS
        a = <np.ndarray>x
        entry = self.entries[slot(collective, a, out is not None)]
        if entry is None:
            return _MISS
        e = <Entry>entry
        if (e.collective is not collective or e.op is not op or e.root is not root or e.order is not order
                or e.ndim != np.PyArray_NDIM(a) or <PyObject*>np.PyArray_DESCR(a) != <PyObject*>e.dtype or not np.PyArray_IS_C_CONTIGUOUS(a)
                or _groups_open):
            return _MISS
        for i in range(e.ndim):
            if np.PyArray_DIM(a, i) != e.dims[i]:
                return _MISS
        src = dst = np.PyArray_BYTES(a)
        result = None
        if e.in_place:
            if (out is not None and out is not x) or not np.PyArray_ISWRITEABLE(a):
                return _MISS
            result = x
        elif e.silent:
            dst = NULL
        elif e.fresh:
            if out is not None:
                return _MISS
            result = np.PyArray_EMPTY(e.out_ndim, e.out_dims, np.PyArray_TYPE(a), 0)
            dst = np.PyArray_BYTES(<np.ndarray>result)
        else:
            if not np.PyArray_CheckExact(out):
                return _MISS
            b = <np.ndarray>out
            dst = np.PyArray_BYTES(b)
            if (<PyObject*>np.PyArray_DESCR(b) != <PyObject*>e.dtype or not np.PyArray_IS_C_CONTIGUOUS(b)
                    or not np.PyArray_ISWRITEABLE(b) or <size_t>np.PyArray_NBYTES(b) != e.out_nbytes
                    or (dst < src + np.PyArray_NBYTES(a) and src < dst + e.out_nbytes)):
                return _MISS
            result = out
        if not engine.claim():
            return _MISS
        r = &engine.run
        try:
            engine.point(r, e.plan)
        except BaseException:
            engine.release()
            raise
        r.base[IN], r.base[OUT] = src, dst
        r.reduce = e.reduce
        r.limit = self.limit
        engine.seq += 1
        r.tag = (<uint64_t>engine.seq << 32) | e.plan.fingerprint
        rc = engine.perform(r, e.plan)
        if rc != DONE:
            engine.culprit, engine.foreign = r.culprit, r.foreign
            self._fail(engine, rc, r.culprit, self.limit * 1e-9)
        if e.scale != NULL:
            e.scale(dst, dst, e.out_count, e.after)
        return result

    def _remember(self, str collective, x, out, op, root, order, bint given, bint in_place, Plan plan, int code, double after):
        """Let the next such call take the short way, if it may."""
        cdef np.ndarray a, b
        cdef Entry e
        cdef int i
        if not np.PyArray_CheckExact(x) or np.PyArray_NDIM(<np.ndarray>x) > MAX_DIMS:
            return
        a = <np.ndarray>x
        if np.PyArray_TYPE(a) >= USER_DEFINED or not np.PyArray_ISNOTSWAPPED(a) or np.PyArray_TYPE(a) == np.NPY_VOID:
            return
        e = Entry.__new__(Entry)
        e.plan, e.collective, e.dtype, e.op, e.root, e.order = plan, collective, a.dtype, op, root, order
        e.ndim = np.PyArray_NDIM(a)
        for i in range(e.ndim):
            e.dims[i] = np.PyArray_DIM(a, i)
        e.in_place, e.silent, e.after = in_place, out is None, after
        e.reduce = find_reduce(plan.dtype, code) if code >= 0 else NULL
        e.scale = find_scale(plan.dtype) if after else NULL
        if out is not None:
            if not np.PyArray_CheckExact(out) or np.PyArray_NDIM(<np.ndarray>out) > MAX_DIMS:
                return
            b = <np.ndarray>out
            e.fresh = not given and not in_place
            e.out_ndim = np.PyArray_NDIM(b)
            for i in range(e.out_ndim):
                e.out_dims[i] = np.PyArray_DIM(b, i)
            e.out_nbytes, e.out_count = np.PyArray_NBYTES(b), np.PyArray_SIZE(b)
        self.entries[slot(collective, a, given and not in_place)] = e


cdef inline int slot(str collective, np.ndarray a, bint given):
    cdef uintptr_t h = <uintptr_t><PyObject*>collective >> 4
    h = h * 31 + <uintptr_t>np.PyArray_TYPE(a)
    h = h * 31 + <uintptr_t>np.PyArray_SIZE(a) * 2 + given
    return <int>((h ^ (h >> 7)) % ENTRIES)
