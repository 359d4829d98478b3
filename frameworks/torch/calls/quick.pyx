"""The short way of the commonest call: all_reduce of one tensor, that was made before.

No tensor is looked at: the communicator's table (quick/shortcut.pyx) knows plain ones, and everything else takes the
general way.

torch's options are C++ objects.  pybind11 makes a new Python object of each part that is asked for, which takes longer than
all the rest (`opts.reduceOp.op`, looked up in a table: 1.1 us, AMD EPYC; an allreduce of one rank: 0.1).  So two of their
bytes are read where they lie, if that was found to be the same place in options of all kinds (`find`); else they are asked.
"""

from cpython.object cimport PyObject
from libc.stddef cimport size_t

from hocket.collectives.calls.ask cimport Ask, asking
from hocket.collectives.quick.shortcut cimport MISS, Shortcut

import torch
import torch.distributed as dist

from hocket.errors import Error
from hocket.torch.calls.ops import BY_NUMBER
from hocket.torch.calls.works import Work
from hocket.torch.errors import as_torch

cdef extern from "malloc.h" nogil:
    size_t malloc_usable_size(const void*)

cdef struct Bound:              # an object of pybind11's that holds one value
    PyObject head
    const unsigned char* value

cdef object profiled = torch._C._autograd._profiler_enabled
cdef object OPTIONS = dist.AllreduceOptions
cdef list names = [BY_NUMBER.get(number) for number in range(256)]
cdef Py_ssize_t op_at = -1, later_at = -1       # in options; -1: not known


cdef inline const unsigned char* value(object options) noexcept:
    return (<Bound*><PyObject*>options).value


cdef Py_ssize_t the_same(list made, list wanted) except -2:
    """Where in all of these options is the byte that is wanted?  -1: nowhere, or in several places."""
    texts = []
    for options in made:
        texts.append(value(options)[:malloc_usable_size(value(options))])
    found = [at for at, column in enumerate(zip(*texts)) if list(column) == wanted]
    return found[0] if len(found) == 1 else -1


def find(kind=OPTIONS):
    """Find where options of this class have their op and whether a call is asynchronous.  Are both known?"""
    global op_at, later_at
    op_at = later_at = -1
    if type(kind).__name__ != "pybind11_type" or kind.__basicsize__ < sizeof(Bound):
        return False
    made, numbers, laters = [], [], []
    for later in (False, True):
        for op in dist.ReduceOp.RedOpType.__members__.values():
            if op != dist.ReduceOp.RedOpType.PREMUL_SUM:        # which wants a factor
                options = kind()
                options.reduceOp, options.asyncOp = op, later
                made.append(options)
                numbers.append(hash(options.reduceOp))
                laters.append(later)
    op_at, later_at = the_same(made, numbers), the_same(made, laters)
    return op_at >= 0 and later_at >= 0


find()


def allreduce(self, tensors, opts=None, op=None, timeout=None):
    """A method of `Calls`.  In place; sparse COO tensors too (sum and avg)."""
    cdef Shortcut shortcut
    cdef Ask ask
    cdef bint later
    if type(opts) is OPTIONS and type(tensors) is list and len(<list>tensors) == 1:
        if op_at >= 0 and later_at >= 0:
            name, later = names[value(opts)[op_at]], value(opts)[later_at]
        else:
            name, later = BY_NUMBER.get(hash(opts.reduceOp)), opts.asyncOp
        if name is not None and not profiled() and not (later and self._together is not None):
            shortcut = self.comm.shortcut
            try:
                ask = asking("allreduce", name, later, None, None, None)
                done = shortcut.take((<list>tensors)[0], None, &ask)
            except Error as error:
                raise as_torch(error) from None
            if done is not MISS:
                return Work([done] if later else [], tensors) if later or self.always_work else None
    return self._allreduce(tensors, opts, op)
