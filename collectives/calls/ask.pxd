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


cdef inline int fill(Ask* a, tuple asked) except -1:
    """Fill it without references: `asked`, the items of an `Ask` of ask.py, keeps them alive."""
    a.collective, a.op, a.root = <PyObject*>asked[0], <PyObject*>asked[1], <PyObject*>asked[2]
    a.counts, a.async_op, a.timeout = <PyObject*>asked[3], asked[4], <PyObject*>asked[5]
    a.algorithm, a.transport = <PyObject*>asked[6], <PyObject*>asked[7]
    a.order, a.codec = <PyObject*>asked[8], <PyObject*>asked[9]
    a.residual, a.owner_residual, a.within = <PyObject*>asked[10], <PyObject*>asked[11], <PyObject*>asked[12]
    return 0


cdef inline bint same(Ask* a, Ask* b) noexcept:
    """Do both ask for the same, but for counts, the time limit, and whether the caller waits?"""
    return (a.collective == b.collective and a.op == b.op and a.root == b.root and a.algorithm == b.algorithm
            and a.transport == b.transport and a.order == b.order and a.codec == b.codec
            and a.residual == b.residual and a.owner_residual == b.owner_residual and a.within == b.within)
