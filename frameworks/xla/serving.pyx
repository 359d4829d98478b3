"""The functions that library.c hands XLA's calls to: hocket's calls on XLA's buffers, which stay where they are.

XLA calls from the main thread, from others and from its pool's, two at once too.  A reduction or a gather like one
before goes to the engine without the GIL, which a thread of the program may hold for milliseconds; other calls take it.
"""

cimport numpy as np
from cpython.exc cimport PyErr_SetInterrupt
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.string cimport memcpy

from hocket.collectives.calls.ask cimport Ask, asking
from hocket.collectives.engine.engine cimport Engine, reduce_fn
from hocket.collectives.engine.run cimport BUSY, DONE, hk_store64, hk_swap64, nanoseconds, this_thread
from hocket.collectives.plans.plan cimport Plan
from hocket.collectives.quick.shortcut cimport Entry, ShortWay

import ctypes

import numpy

from hocket.collectives.calls.ask import Lasting
from hocket.errors import Error
from hocket.xla import loading, meeting

np.import_array()

cdef extern from "Python.h":
    ctypedef struct PyThreadState:
        pass
    PyThreadState* PyThreadState_Get()
    uint64_t PyThreadState_GetID(PyThreadState*) nogil
    PyThreadState* PyGILState_GetThisThreadState() nogil
    PyObject* PyEval_GetFrame()

cdef extern from "numpy/arrayobject.h":
    ctypedef struct PyArray_Descr:
        pass
    object PyArray_NewFromDescr(
        PyTypeObject* kind, PyArray_Descr* dtype, int ndim, const np.npy_intp* shape, const np.npy_intp* strides,
        void* data, int flags, PyObject* owner)
    int NPY_ARRAY_CARRAY, NPY_ARRAY_CARRAY_RO

cdef extern from "xla/serving.h":
    cdef struct hk_group:
        int rank, size
        void* object
        char broken[1024]
    cdef struct hk_serving:
        int (*init)(char*) noexcept nogil
        int (*split)(hk_group*, int, int, char*) noexcept nogil
        int (*allreduce)(hk_group*, const void*, void*, int64_t, int, int, char*) noexcept nogil
        int (*allgather)(hk_group*, const void*, void*, int64_t, int, char*) noexcept nogil
        int (*reduce_scatter)(hk_group*, const void*, void*, int64_t, int, int, char*) noexcept nogil
        int (*sendrecv)(hk_group*, const void*, int64_t, int, void*, int64_t, int, char*) noexcept nogil
        int (*note)(hk_group*, void*, int64_t, int, int, char*) noexcept nogil
        int (*wait)(hk_group*, char*) noexcept nogil

cdef enum:
    LONGEST = 1023
    BYTE = 0
    KNOWN = 64      # kinds of calls of a group that need no GIL
    ALLREDUCE = 0
    ALLGATHER = 1
    REDUCE_SCATTER = 2

# In the order of setup.py's XLA.
cdef list TYPES = [numpy.dtype(name) for name in (
    "uint8", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64", "complex64",
    "complex128")]
cdef list OPS = ["sum", "prod", "min", "max"]
cdef list COLLECTIVES = ["allreduce", "allgather", "reduce_scatter"]
cdef object WITHIN = Lasting("a program of JAX's")
cdef object OLDER = Lasting("a program of JAX's, in an older Python thread than that of the call before it")
cdef object YOUNGER = Lasting("a program of JAX's, in a younger Python thread than that of the call before it")
cdef list kept = []         # groups: their handles are XLA's for as long as the process lives


cdef struct Known:          # a kind of call that was made before
    int what, type, op
    int64_t count
    void* plan
    reduce_fn reduce


cdef class Group:
    """A communicator of XLA's."""

    cdef ShortWay comm
    cdef object error       # what broke it off, as text
    cdef uint64_t user      # the thread whose call is under way; 0: none
    cdef Known known[KNOWN]
    cdef int nknown
    cdef list plans         # of these
    cdef Engine engine      # ... on which they run
    cdef uint64_t limit
    cdef bint begun         # has it made its first call, in the thread that makes groups?
    cdef uint64_t thread    # the Python thread of the call before; 0: there is none
    cdef list parts         # of a ppermute: (array, peer, receives)
    cdef list sent, taken   # by rank, the messages of ppermutes that were begun
    cdef int rank, size
    cdef int step           # of an all_to_all: the exchange that came last; 0: none is under way
    cdef int64_t block      # ... the bytes of each block, and by rank where they lie
    cdef list blocks_out, blocks_in

    def __init__(self, ShortWay comm):
        self.comm, self.parts, self.plans, self.rank, self.size = comm, [], [], comm.rank, comm.size
        self.limit = nanoseconds(comm.config.timeout)
        self.sent, self.taken = [0] * self.size, [0] * self.size
        self.blocks_out, self.blocks_in = [0] * self.size, [0] * self.size
        comm.in_order("a ppermute of a program of JAX's", self.passed)

    def passed(self):
        return list(self.sent), list(self.taken)

    cdef int enter(self) except -1:
        """Calls of one thread follow each other, and so do those of one program; two at once are of two programs."""
        cdef uint64_t me = this_thread(), now = 0
        if self.error is not None:
            raise RuntimeError(self.error)
        if not hk_swap64(&self.user, &now, me) and (now != me or not (self.parts or self.step)):
            self.error = (
                "hocket: two threads of this process run programs on the same devices at once, and nothing tells "
                "their collectives apart, so other ranks may take one for the other: let one thread start them, or "
                "hold a lock that all ranks take in the same order")
            self.comm.abort(Error(self.error))
            raise RuntimeError(self.error)
        self.parts.clear()      # of a ppermute that failed half-way
        self.step = 0
        return 0

    cdef void leave(self) noexcept nogil:
        hk_store64(&self.user, 0)

    cdef object within(self):
        """Compared among ranks: where Python threads take turns here, do they in the same order on all ranks?

        Threads are told apart by their age.  That of a call in a thread of XLA's own is not known.
        """
        cdef uint64_t now
        cdef uint64_t before = self.thread
        if not self.begun or PyEval_GetFrame() == NULL:
            self.begun = True
            return WITHIN
        now = self.thread = PyThreadState_GetID(PyThreadState_Get())
        return WITHIN if not before or now == before else YOUNGER if now > before else OLDER

    cdef int again(self, int what, const void* send, void* recv, int64_t count, int type, int op) noexcept nogil:
        """A call like one before, in the thread of the one before or in one of XLA's.  BUSY: it is none."""
        cdef uint64_t nobody = 0
        cdef int i, rc = BUSY
        cdef Known* k
        cdef PyThreadState* state
        if not self.nknown or not hk_swap64(&self.user, &nobody, this_thread()):
            return BUSY
        state = PyGILState_GetThisThreadState()
        if state == NULL or PyThreadState_GetID(state) == self.thread:
            for i in range(self.nknown):
                k = &self.known[i]
                if k.count == count and k.what == what and k.type == type and k.op == op:
                    rc = self.engine.repeat(<Plan>k.plan, <char*>send, <char*>recv, k.reduce, self.limit)
                    break
        self.leave()
        return rc

    cdef object ask(self, int what, const void* send, int64_t n, void* recv, int64_t m, int64_t count, int type, int op):
        """`count`: as XLA says it; `n` and `m`: elements of x and of the result."""
        cdef Ask ask = asking(COLLECTIVES[what], None if what == ALLGATHER else op_named(op), False, None, None, None)
        self.enter()
        try:
            within = self.within()
            ask.within = <PyObject*>within
            x, out = read(send, n, type), written(recv, m, type)
            self.comm.call(x, out, &ask)
            if within is WITHIN and self.nknown < KNOWN:
                self.learn(self.comm.known(x, out, &ask), Known(what, type, op, count, NULL, NULL))
        finally:
            self.leave()

    cdef int learn(self, Entry entry, Known kind) except -1:
        cdef int i
        for i in range(self.nknown):
            if (self.known[i].what, self.known[i].type, self.known[i].op, self.known[i].count) == (
                    kind.what, kind.type, kind.op, kind.count):
                return 0
        if entry is None or entry.in_place or (self.engine is not None and self.engine is not entry.engine):
            return 0
        self.engine, kind.plan, kind.reduce = entry.engine, <void*>entry.plan, entry.reduce
        self.plans.append(entry.plan)
        self.known[self.nknown] = kind
        self.nknown += 1
        return 0

    cdef object exchange(self, const void* data, int64_t n, int to, void* into, int64_t m, int source):
        """XLA's all_to_all: rank - 1, then rank - 2 ... sends to rank + 1, rank + 2 ...; the last one carries out all."""
        cdef int step = (to - self.rank + self.size) % self.size
        if step == 1:
            self.enter()
            self.block = n
        elif self.step != step - 1 or self.user != this_thread():
            self.enter()        # which may say why
            step = 0
        if not step or n != self.block or m != n or (self.rank - source + self.size) % self.size != step:
            self.step = 0
            self.leave()
            raise NotImplementedError("hocket carries out MPI_Sendrecv as XLA's all_to_all calls it, and this is another")
        self.step, self.blocks_out[to], self.blocks_in[source] = step, <uintptr_t>data, <uintptr_t>into
        if step < self.size - 1:
            return
        try:
            self.comm.exchange_blocks(n, self.blocks_out, self.blocks_in, self.within())
        finally:
            self.step = 0
            self.leave()

    cdef object permute(self, list parts):
        for _, peer, receives in parts:
            (self.taken if receives else self.sent)[peer] += 1
        if len(parts) == 2 and parts[0][2] and not parts[1][2]:
            return self.comm.sendrecv(parts[1][0], parts[1][1], parts[0][0], parts[0][1])
        works = [self.comm.recv(data, peer, async_op=True) if receives else self.comm.send(data, peer, async_op=True)
                 for data, peer, receives in parts]
        for work in works:
            work.wait()


cdef object array(const void* data, int64_t count, int type, int flags):
    cdef np.npy_intp shape = count
    if type < 0:
        raise TypeError("hocket: XLA asks for an MPI datatype that it is not known to use")
    dtype = TYPES[type]
    Py_INCREF(dtype)        # which the new array takes
    return PyArray_NewFromDescr(
        <PyTypeObject*>np.ndarray, <PyArray_Descr*>dtype, 1, &shape, NULL, <void*>data, flags, NULL)


cdef object read(const void* data, int64_t count, int type):
    return array(data, count, type, NPY_ARRAY_CARRAY_RO)


cdef object written(void* data, int64_t count, int type):
    return array(data, count, type, NPY_ARRAY_CARRAY)


cdef object op_named(int op):
    if op < 0:
        raise TypeError("hocket: XLA asks for an MPI op that it is not known to use")
    return OPS[op]


cdef int told(error, char* said) noexcept:
    """Why a call failed, for XLA, which shows it to the user."""
    cdef bytes text
    try:
        kind = type(error)
        words = str(error) if kind is RuntimeError else f"{kind.__module__}.{kind.__qualname__}: {error}"
        text = words.removeprefix("builtins.").replace("\0", " ").encode(errors="replace")[:LONGEST]
    except BaseException:
        text = b"hocket: a call failed, and so did telling why"
    memcpy(said, <const char*>text, len(text))
    said[len(text)] = 0
    if isinstance(error, KeyboardInterrupt):
        PyErr_SetInterrupt()        # the program fails, and Ctrl-C is raised when it returns
    return 1


cdef int init(char* said) noexcept with gil:
    try:
        meeting.begin()
        return 0
    except BaseException as error:
        return told(error, said)


cdef int split(hk_group* group, int color, int key, char* said) noexcept with gil:
    try:
        group.size = meeting.size_of(color, key)
        made = Group(meeting.join(color, key))
        kept.append(made)
        group.object = <void*>made
        return 0
    except BaseException as error:
        return told(error, said)


cdef int ask(hk_group* group, int rc, int what, const void* send, int64_t n, void* recv, int64_t m, int64_t count,
             int type, int op, char* said) noexcept with gil:
    """A call that is none like before, or (`rc`) one that has failed."""
    cdef Group its = <Group>group.object
    try:
        if rc != BUSY:
            its.comm.raise_failed(rc)
        its.ask(what, send, n, recv, m, count, type, op)
        return 0
    except BaseException as error:
        return told(error, said)


cdef int allreduce(hk_group* group, const void* send, void* recv, int64_t count, int type, int op,
                   char* said) noexcept nogil:
    cdef int rc = (<Group>group.object).again(ALLREDUCE, send, recv, count, type, op)
    return 0 if rc == DONE else ask(group, rc, ALLREDUCE, send, count, recv, count, count, type, op, said)


cdef int allgather(hk_group* group, const void* send, void* recv, int64_t count, int type, char* said) noexcept nogil:
    cdef int rc = (<Group>group.object).again(ALLGATHER, send, recv, count, type, -1)
    return 0 if rc == DONE else ask(group, rc, ALLGATHER, send, count, recv, count * group.size, count, type, -1, said)


cdef int reduce_scatter(hk_group* group, const void* send, void* recv, int64_t count, int type, int op,
                        char* said) noexcept nogil:
    cdef int rc = (<Group>group.object).again(REDUCE_SCATTER, send, recv, count, type, op)
    return 0 if rc == DONE else ask(group, rc, REDUCE_SCATTER, send, count * group.size, recv, count, count, type, op, said)


cdef int sendrecv(hk_group* group, const void* data, int64_t n, int to, void* into, int64_t m, int source,
                  char* said) noexcept with gil:
    try:
        (<Group>group.object).exchange(data, n, to, into, m, source)
        return 0
    except BaseException as error:
        return told(error, said)


cdef int note(hk_group* group, void* data, int64_t count, int peer, int receives, char* said) noexcept with gil:
    """A part of a ppermute, which `wait` carries out."""
    cdef Group its = <Group>group.object
    try:
        if not its.parts:
            its.enter()
        elif its.user != this_thread():
            its.enter()         # which says so
        its.parts.append((array(data, count, BYTE, NPY_ARRAY_CARRAY), peer, receives))
        return 0
    except BaseException as error:
        return told(error, said)


cdef int wait(hk_group* group, char* said) noexcept with gil:
    cdef Group its = <Group>group.object
    cdef list parts = its.parts
    if not parts:
        return 0                # the first Wait has done it
    its.parts = []
    try:
        try:
            its.permute(parts)
        finally:
            its.leave()
        return 0
    except BaseException as error:
        return told(error, said)


cdef hk_serving table
table.init, table.split, table.allreduce, table.allgather = init, split, allreduce, allgather
table.reduce_scatter, table.sendrecv, table.note, table.wait = reduce_scatter, sendrecv, note, wait


def busy():
    """By thread, the communicators in whose calls this process is."""
    cdef Group its
    found = {}
    for its in list(kept):
        if its.user:
            found[its.user] = its.comm
    return found


def serve():
    """Give the library, which XLA has loaded, these functions."""
    library = ctypes.CDLL(loading.LIBRARY)
    library.hocket_serve(ctypes.c_void_p(<uintptr_t>&table))


serve()
