"""The short way for calls that were made before: of NumPy arrays, torch tensors or arrays on a GPU, with a plan at hand.

A table remembers what the general way (communicator/runner.py) resolved: calls that ask for the same
(calls/ask.pxd) with the same dtype, shape and kind of output have the same plan.  Anything unusual is a MISS, and the
general way decides.
"""

import weakref

import numpy

cimport numpy as np
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.ref cimport PyObject, Py_TYPE
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t

from hocket.collectives.calls.ask cimport Ask, fill, same
from hocket.collectives.arrays.dlpack cimport (DLPACK_COMPLEX, DLPACK_CPU, DLPACK_CUDA, DLPACK_MAJOR, DLPackExchangeAPI,
                                        DLTensor)
from hocket.collectives.engine.run cimport run_init
from hocket.collectives.engine.engine cimport Engine
from hocket.collectives.plans.plan cimport IN, OUT, Plan
from hocket.collectives.engine.run cimport DONE, Run, limited, may_drive, nanoseconds, stopped
from hocket.collectives.quick.counts cimport copied, equal, mixed
from hocket.collectives.waiting.queued cimport Queued, queue_run, reap_ended
from hocket.kernels.cpu.reduce cimport find_reduce, reduce_fn

from hocket.collectives.arrays import streams
from hocket.collectives.arrays.staging import read_cuda_interface
from hocket.collectives.base import groups
from hocket.collectives.calls import ask as asks
from hocket.collectives.calls import numbers

np.import_array()

cdef enum:
    ENTRIES = 256
    WAYS = 4                    # places where a call may be; the newest is in the first
    NUMBERS = 17                # NPY_OBJECT: below are bool, integers, floats, complex, whose type number tells all ...
    HALF = 23                   # NPY_HALF: ... as it does of this one

MISS = object()
TREES = list, tuple, dict
"""These hold arrays."""
NOTHING = numpy.empty(0, numpy.uint8)
"""A barrier sums this."""
cdef int _groups_open = 0
cdef np.npy_intp one_element = 1
cdef PyObject* _tensor_type = NULL              # the type whose tensors are looked at by `_tensors`; kept for ever
cdef const DLPackExchangeAPI* _tensors = NULL
cdef set _cuda_types = set()                    # those whose __cuda_array_interface__ is looked at


cdef bint groups_open() noexcept:
    """Is a `group()` open in some thread?"""
    return _groups_open != 0


def group_opened(int change):
    """A `group()` begins (+1) or ends (-1) in some thread: every call must take the general way meanwhile."""
    global _groups_open
    _groups_open += change


groups.watchers.append(group_opened)


cdef bint see(object x, Seen* s) except -1:
    """Look at an argument in host memory; False if it wants the general way."""
    return look(x, s) and s.gpu < 0


cdef bint look(object x, Seen* s) except -1:
    """Look at an argument; False if it wants the general way."""
    s.gpu = -1
    if np.PyArray_CheckExact(x):
        return see_array(<np.ndarray>x, s)
    if <PyObject*>Py_TYPE(x) == _tensor_type and _tensor_type != NULL:
        return see_tensor(x, s)
    return type(x) in _cuda_types and see_cuda(x, s)


cdef bint see_array(np.ndarray a, Seen* s) noexcept:
    s.data, s.dims, s.ndim = np.PyArray_BYTES(a), <const int64_t*>np.PyArray_DIMS(a), np.PyArray_NDIM(a)
    s.count, s.nbytes = np.PyArray_SIZE(a), np.PyArray_NBYTES(a)
    s.dtype, s.writable = <uintptr_t><PyObject*>np.PyArray_DESCR(a), np.PyArray_ISWRITEABLE(a)
    return np.PyArray_IS_C_CONTIGUOUS(a)


cdef bint see_tensor(object x, Seen* s) except -1:
    cdef DLTensor t
    cdef int i
    cdef int64_t step = 1
    try:
        _tensors.tensor_from_object(<PyObject*>x, &t)
    except Exception:                   # sparse, and whatever else has no memory: the general way says why
        return False
    if t.device_type == DLPACK_CUDA:
        s.gpu = t.device_id
    elif t.device_type != DLPACK_CPU:
        return False
    if t.lanes != 1 or t.bits % 8 or x.requires_grad:
        return False
    if t.code == DLPACK_COMPLEX and x.is_conj() or x.is_neg():
        return False                    # lazy: the memory holds other values than the tensor
    if t.data == NULL:                  # freed, or never there
        return False
    for i in range(t.ndim - 1, -1, -1):
        if t.strides != NULL and t.shape[i] != 1 and t.strides[i] != step:
            return False
        step *= t.shape[i]
    s.data, s.dims, s.ndim = <char*>t.data + t.byte_offset, t.shape, t.ndim
    s.count, s.nbytes = step, step * (t.bits // 8)
    s.dtype, s.writable = (<uintptr_t>t.code << 16 | <uintptr_t>t.bits << 8) | 1, True
    return True


cdef bint see_cuda(object x, Seen* s) except -1:
    cdef uintptr_t at
    cdef int i
    try:
        s.gpu, at, shape, s.writable = read_cuda_interface(x, "x")
    except Exception:                   # not contiguous, or freed: the general way says so
        return False
    dtype = x.dtype                     # of NumPy: one object for each built-in dtype
    if s.gpu < 0 or len(shape) > MAX_DIMS:
        return False
    s.data, s.ndim, s.dims, s.count = <char*>at, len(shape), s.room, 1
    for i in range(s.ndim):
        s.room[i] = shape[i]
        s.count *= s.room[i]
    s.nbytes, s.dtype = s.count * <size_t>dtype.itemsize, <uintptr_t><PyObject*>dtype
    return True


cdef bint learn(object x) except -1:
    """Can calls on `x` be remembered?  torch's tensor type is looked at, if it has DLPack's C API; Paddle's has it too."""
    global _tensor_type, _tensors
    cdef const DLPackExchangeAPI* api
    if np.PyArray_CheckExact(x):
        a = <np.ndarray>x
        # Not strings, dates and records: results are made by the type number, which lacks their size or unit.
        return np.PyArray_ISNOTSWAPPED(a) and (np.PyArray_TYPE(a) < NUMBERS or np.PyArray_TYPE(a) == HALF)
    if (_tensor_type == NULL and (type(x).__module__, type(x).__name__) == ("torch", "Tensor")
            and hasattr(type(x), "__dlpack_c_exchange_api__")):
        api = <const DLPackExchangeAPI*>PyCapsule_GetPointer(type(x).__dlpack_c_exchange_api__, "dlpack_exchange_api")
        if api.major == DLPACK_MAJOR:
            _tensor_type, _tensors = <PyObject*>Py_TYPE(x), api
            _kept.append(type(x))
    if <PyObject*>Py_TYPE(x) == _tensor_type and _tensor_type != NULL:
        return True
    if not hasattr(type(x), "__cuda_array_interface__") or getattr(getattr(x, "dtype", None), "isbuiltin", 0) != 1:
        return False
    _cuda_types.add(type(x))
    return True


_kept = []


cdef class Entry:
    pass


cdef class Lists:
    cdef object take(self, Shortcut shortcut, object tree, Ask* ask):
        """The list, whose arrays have their results; or MISS."""
        return MISS


cdef class Shortcut:
    """The table of a communicator, and the way through it; `runner` is its general way, which owns this."""

    def __init__(self, Engine main, double timeout, runner, Lists lists):
        self.main, self.lists = main, lists
        self.entries = [None] * ENTRIES
        self.limit = nanoseconds(timeout)
        self.runner = weakref.ref(runner)   # weak, as it owns us: a dropped communicator is freed at once

    def set_timeout(self, double timeout):
        self.limit = nanoseconds(timeout)

    def forget(self):
        """Let every call take the general way once more."""
        self.entries = [None] * ENTRIES

    cdef object take(self, object x, object out, Ask* ask):
        """The result (or the work), or MISS."""
        cdef Seen a, b
        cdef Entry e
        cdef Engine engine
        cdef Run* r
        cdef int rc
        cdef char* dst
        cdef uint64_t limit = self.limit
        cdef int given = -1 if _groups_open else into(x, out, &a, &b)
        e = self.find(ask, &a, given) if given >= 0 else None
        if e is None:
            return MISS
        if ask.timeout != <PyObject*>None and not limited(<object>ask.timeout, &limit):
            return MISS
        dst = a.data
        result = None
        if e.in_place:
            if (out is not None and out is not x) or not a.writable:
                return MISS
            result = x
        elif e.silent:
            dst = NULL
        elif e.fresh:
            if out is not None:
                return MISS
            try:
                result = self._fresh(e, x)
            except (MemoryError, RuntimeError):     # RuntimeError: torch's
                return MISS                         # the general way says so in words
            if not look(result, &b):
                return MISS
            dst = b.data
        else:
            if (b.dtype != e.dtype_id or b.gpu != e.gpu or not b.writable or b.nbytes != e.out_nbytes
                    or (given == 2 and (a.data - b.data != e.shift or not a.writable))):
                return MISS
            dst, result = b.data, out
        engine = e.engine
        if ask.async_op:
            if e.placed is not None or not may_drive(&engine.core, True):
                return MISS
            return self.queue(e, a.data, dst, limit, x, result)
        if engine.core.failed or self.main.core.failed or stopped(&engine.core, engine.seq + 1) or not engine.claim():
            return MISS                # of a call that fails at once the general way keeps nothing
        r = &engine.run
        try:
            run_init(r, e.plan)
            if e.placed is None:
                engine.make_room(e.plan)
            elif self.follow(e, x):
                e.placed.place(r, e.plan.scratch)
            else:
                engine.release()
                return MISS
        except BaseException:
            engine.release()
            raise
        r.base[IN], r.base[OUT] = a.data, dst
        r.reduce = e.reduce
        r.limit = limit
        engine.number(r, e.plan)
        rc = engine.perform(r, e.plan)
        if rc != DONE:
            engine.hold((x, result))
            self.runner().reporter.fail(engine, rc, engine.culprit, limit * 1e-9)
        reap_ended()
        return result

    cdef bint follow(self, Entry e, object x) except -1:
        """Order the next call of `e` in the stream that the caller works on; False if it cannot be issued there."""
        cdef void* stream = NULL
        if <PyObject*>Py_TYPE(x) != _tensor_type or streams.is_asked():
            return e.placed.follow(streams.current_stream(x, e.gpu))
        return _tensors.current_stream(DLPACK_CUDA, e.gpu, &stream) == 0 and e.placed.follow(<uintptr_t>stream)

    cdef Entry find(self, Ask* ask, Seen* a, int given):
        """The entry of such a call, or None.  `given`: where its result goes (`into`)."""
        cdef Entry e
        cdef int i, first = slot(ask, a, given)
        for i in range(first, first + WAYS):
            entry = self.entries[i]
            if entry is None:
                return None
            e = <Entry>entry
            if e.given == given and same(ask, &e.ask) and e.dtype_id == a.dtype and e.gpu == a.gpu and fits(&e.x, a) and (
                    ask.counts == e.ask.counts or equal(<object>ask.counts, e.counts)):
                return e
        return None

    cdef object queue(self, Entry e, char* src, char* dst, uint64_t limit, object x, object result):
        if stopped(&e.engine.core, e.engine.seq + 1):
            return MISS                # the general way says why
        cdef Queued queued = queue_run(e.engine, e.plan, src, dst, e.reduce, limit, (x, result))
        queued.enqueue(True)
        return self.runner().work(queued, result)

    cdef object _fresh(self, Entry e, object x):
        """A new array for the result, of x's kind."""
        if np.PyArray_CheckExact(x):
            return np.PyArray_EMPTY(e.out.ndim, <np.npy_intp*>e.out.dims, np.PyArray_TYPE(<np.ndarray>x), 0)
        return x.new_empty(e.out_shape)

    def remember(self, ask, call, Engine engine, Plan plan, int code, Placed placed=None):
        """Let the next such call take the short way, if it may.  `code`: of its reduction, or -1.

        `placed`: of this call, whose arrays are not in the host's memory; it places the next ones too.
        """
        cdef Seen a, b
        cdef Entry e
        cdef int i
        x, dst = call.model.array, call.dst
        if not learn(x) or not look(x, &a) or a.ndim > MAX_DIMS or (a.gpu >= 0) != (placed is not None):
            return
        e = Entry.__new__(Entry)
        e.engine, e.plan, e.kept, e.counts = engine, plan, tuple(ask), copied(ask.counts)
        fill(&e.ask, e.kept)
        e.ask.counts = <PyObject*>e.counts
        e.dtype, e.dtype_id, e.gpu, e.placed = x.dtype, a.dtype, a.gpu, placed
        keep(&e.x, &a)
        e.in_place, e.silent = call.in_place and (dst is None or dst.array is x), dst is None
        e.reduce = find_reduce(plan.dtype, code) if code >= 0 else NULL
        if dst is not None:
            if not look(dst.array, &b) or b.ndim > MAX_DIMS or b.dtype != a.dtype or b.gpu != a.gpu:
                return
            e.fresh = dst.fresh and not call.in_place
            if e.fresh and type(x) in _cuda_types:
                return                      # only its library makes another such array
            e.out_shape, e.out_nbytes = tuple(dst.array.shape), b.nbytes
            keep(&e.out, &b)
            e.given, e.shift = 0 if e.fresh or e.in_place else 1 + overlap(&a, &b), a.data - b.data
        if self.find(&e.ask, &a, e.given) is None:
            i = slot(&e.ask, &a, e.given)
            self.entries[i + 1:i + WAYS] = self.entries[i:i + WAYS - 1]
            self.entries[i] = e


cdef class ShortWay:
    """Base of the communicator, as a call by way of an attribute would take a tenth longer (8 bytes, 2 ranks)."""

    def _set_shortcut(self, Shortcut shortcut):
        self.shortcut = shortcut

    def _call(self, x, out, asked):
        """Carry out one call, which an `Ask` tells."""
        cdef Ask ask
        fill(&ask, tuple(asked))
        return self.call(x, out, &ask)

    cdef object call(self, object x, object out, Ask* ask):
        """Carry out one call: the short way if it was made before, else the general way."""
        done = self.shortcut.take(x, out, ask)
        if done is MISS and (type(x) is float or type(x) is int):
            done = self.of_number(x, out, ask)
        if done is not MISS:
            return done
        if isinstance(x, numbers.KINDS):
            return numbers.carry_out(self._call, x, out, owned(ask))
        if isinstance(x, TREES):
            if out is None:
                done = self.shortcut.lists.take(self.shortcut, x, ask)
                if done is not MISS:
                    return done
            return self.shortcut.runner().tree(self._call, x, out, owned(ask))
        return self.shortcut.runner().general(x, out, owned(ask))

    cdef Entry known(self, object x, object out, Ask* ask):
        cdef Seen a, b
        cdef int given = into(x, out, &a, &b)
        return self.shortcut.find(ask, &a, given) if given >= 0 else None

    cdef object of_number(self, object x, object out, Ask* ask):
        """The short way of a number that becomes another one (calls/numbers.py), or MISS."""
        cdef int beyond = 0
        cdef int64_t whole = 0
        if out is not None or ask.async_op or <object>ask.collective not in numbers.AGAIN:
            return MISS
        if type(x) is int:
            whole = PyLong_AsLongLongAndOverflow(x, &beyond)
            if beyond:
                return MISS
        one = np.PyArray_EMPTY(1, &one_element, np.NPY_DOUBLE if type(x) is float else np.NPY_INT64, 0)
        if type(x) is float:
            (<double*>np.PyArray_DATA(<np.ndarray>one))[0] = x
        else:
            (<int64_t*>np.PyArray_DATA(<np.ndarray>one))[0] = whole
        done = self.shortcut.take(one, None, ask)
        if done is MISS or done is None:
            return done
        if type(x) is float:
            return (<double*>np.PyArray_DATA(<np.ndarray>done))[0]
        return (<int64_t*>np.PyArray_DATA(<np.ndarray>done))[0]


cdef object owned(Ask* a):
    """The same, kept alive, for the general way."""
    return asks.Ask(<object>a.collective, <object>a.op, <object>a.root, <object>a.counts, bool(a.async_op),
                    <object>a.timeout, <object>a.algorithm, <object>a.transport, <object>a.order, <object>a.codec,
                    <object>a.residual, <object>a.owner_residual, <object>a.within)


cdef inline int slot(Ask* ask, Seen* a, int given) except -1:
    """The first of the places where such a call may be."""
    cdef uintptr_t h = <uintptr_t>ask.collective >> 4
    h = h * 31 + (a.dtype >> 4)
    h = h * 31 + (<uintptr_t>ask.algorithm >> 4) + (<uintptr_t>ask.op >> 4) + (<uintptr_t>ask.root >> 4)
    h = h * 31 + (<uintptr_t>ask.codec >> 4) + (<uintptr_t>ask.transport >> 4) + a.count * 3 + given
    if ask.counts != <PyObject*>None:
        h = h * 31 + mixed(<object>ask.counts)
    return <int>((h ^ (h >> 6) ^ (h >> 12)) % (ENTRIES // WAYS)) * WAYS
