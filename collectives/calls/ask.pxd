"""One call's wish, in the form that the short way hands on.  ask.py has the same as an object, for the general way."""

from cpython.ref cimport PyObject


cdef struct Ask:                # borrowed: the caller keeps all of it alive
    PyObject* collective
    PyObject* op
    PyObject* root
    PyObject* counts
    PyObject* timeout
    PyObject* algorithm
    PyObject* transport
    PyObject* order
    PyObject* codec
    PyObject* residual
    PyObject* owner_residual
    PyObject* within
    bint async_op


cdef inline Ask asking(str collective, object op, bint async_op, object timeout, object algorithm, object transport):
    """An even call with root 0, in any order, without a codec."""
    cdef Ask ask
    ask.collective, ask.op, ask.root, ask.counts = <PyObject*>collective, <PyObject*>op, <PyObject*><object>0, <PyObject*>None
    ask.timeout, ask.algorithm, ask.transport = <PyObject*>timeout, <PyObject*>algorithm, <PyObject*>transport
    ask.order, ask.codec, ask.async_op = <PyObject*><object>"any", <PyObject*>None, async_op
    ask.residual = ask.owner_residual = <PyObject*>None
    ask.within = <PyObject*><object>""
    return ask
