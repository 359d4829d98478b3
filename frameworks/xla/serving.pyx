"""The functions that library.c hands XLA's calls to: hocket's calls on XLA's buffers, which stay where they are.

XLA calls from the main thread, from others and from its pool's, two at once too; each takes the GIL, makes arrays over
the buffers, and takes the short way of a call that was made before.  The engine lets the GIL go while it waits.
"""

cimport numpy as np
from cpython.exc cimport PyErr_SetInterrupt
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.string cimport memcpy

from hocket.collectives.calls.ask cimport Ask, asking
from hocket.collectives.quick.shortcut cimport ShortWay

import ctypes
import threading

import numpy

from hocket.collectives.calls.ask import Lasting
from hocket.errors import Error
from hocket.xla import loading, meeting

np.import_array()

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

# In the order of setup.py's XLA.
cdef list TYPES = [numpy.dtype(name) for name in (
    "uint8", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64", "complex64",
    "complex128")]
cdef list OPS = ["sum", "prod", "min", "max"]
cdef object WITHIN = Lasting("a program of JAX's")
cdef list kept = []         # groups: their handles are XLA's for as long as the process lives


cdef class Group:
    """A communicator of XLA's."""

    cdef ShortWay comm
    cdef object error       # what broke it off, as text
    cdef unsigned long user     # the thread whose call is under way; 0: none
    cdef list parts         # of a ppermute: (array, peer, receives)

    def __init__(self, ShortWay comm):
        self.comm, self.parts = comm, []

    cdef int enter(self) except -1:
        """Calls of one thread follow each other, and so do those of one program; two at once are of two programs."""
        cdef unsigned long me = threading.get_ident()
        if self.error is not None:
            raise RuntimeError(self.error)
        if self.user and (self.user != me or not self.parts):
            self.error = (
                "hocket: two threads of this process run programs on the same devices at once, and nothing tells "
                "their collectives apart, so other ranks may take one for the other: let one thread start them, or "
                "hold a lock that all ranks take in the same order")
            self.comm.abort(Error(self.error))
            raise RuntimeError(self.error)
        self.parts.clear()      # of a ppermute that failed half-way
        self.user = me
        return 0

    cdef object ask(self, str collective, object op, object x, object out):
        cdef Ask ask = asking(collective, op, False, None, None, None)
        ask.within = <PyObject*>WITHIN
        self.enter()
        try:
            return self.comm.call(x, out, &ask)
        finally:
            self.user = 0


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


cdef int allreduce(hk_group* group, const void* send, void* recv, int64_t count, int type, int op,
                   char* said) noexcept with gil:
    try:
        (<Group>group.object).ask("allreduce", op_named(op), read(send, count, type), written(recv, count, type))
        return 0
    except BaseException as error:
        return told(error, said)


cdef int allgather(hk_group* group, const void* send, void* recv, int64_t count, int type, char* said) noexcept with gil:
    try:
        (<Group>group.object).ask("allgather", None, read(send, count, type), written(recv, count * group.size, type))
        return 0
    except BaseException as error:
        return told(error, said)


cdef int reduce_scatter(hk_group* group, const void* send, void* recv, int64_t count, int type, int op,
                        char* said) noexcept with gil:
    try:
        (<Group>group.object).ask(
            "reduce_scatter", op_named(op), read(send, count * group.size, type), written(recv, count, type))
        return 0
    except BaseException as error:
        return told(error, said)


cdef int sendrecv(hk_group* group, const void* data, int64_t n, int to, void* into, int64_t m, int source,
                  char* said) noexcept with gil:
    cdef Group its = <Group>group.object
    try:
        its.enter()
        try:
            its.comm.sendrecv(read(data, n, BYTE), to, written(into, m, BYTE), source)
        finally:
            its.user = 0
        return 0
    except BaseException as error:
        return told(error, said)


cdef int note(hk_group* group, void* data, int64_t count, int peer, int receives, char* said) noexcept with gil:
    """A part of a ppermute, which `wait` carries out."""
    cdef Group its = <Group>group.object
    try:
        if not its.parts:
            its.enter()
        elif its.user != <unsigned long>threading.get_ident():
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
            carry_out(its.comm, parts)
        finally:
            its.user = 0
        return 0
    except BaseException as error:
        return told(error, said)


cdef object carry_out(comm, list parts):
    if len(parts) == 2 and parts[0][2] and not parts[1][2]:
        return comm.sendrecv(parts[1][0], parts[1][1], parts[0][0], parts[0][1])
    works = [comm.recv(data, peer, async_op=True) if receives else comm.send(data, peer, async_op=True)
             for data, peer, receives in parts]
    for work in works:
        work.wait()


cdef hk_serving table
table.init, table.split, table.allreduce, table.allgather = init, split, allreduce, allgather
table.reduce_scatter, table.sendrecv, table.note, table.wait = reduce_scatter, sendrecv, note, wait


def serve():
    """Give the library, which XLA has loaded, these functions."""
    library = ctypes.CDLL(loading.LIBRARY)
    library.hocket_serve(ctypes.c_void_p(<uintptr_t>&table))


serve()
