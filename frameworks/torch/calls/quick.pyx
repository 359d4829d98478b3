"""The short way of the commonest call: all_reduce of one tensor, that was made before.

No tensor is looked at: the communicator's table (quick/shortcut.pyx) knows plain ones, and everything else takes the
general way.
"""

from hocket.collectives.calls.ask cimport Ask, asking
from hocket.collectives.quick.shortcut cimport MISS, Shortcut

import torch
import torch.distributed as dist

from hocket.errors import Error
from hocket.torch.calls.ops import BY_NUMBER
from hocket.torch.calls.works import Work
from hocket.torch.errors import as_torch

cdef object profiled = torch._C._autograd._profiler_enabled
cdef object OPTIONS = dist.AllreduceOptions


def allreduce(self, tensors, opts=None, op=None, timeout=None):
    """A method of `Calls`.  In place; sparse COO tensors too (sum and avg)."""
    cdef Shortcut shortcut
    cdef Ask ask
    cdef bint later
    if type(opts) is OPTIONS and type(tensors) is list and len(<list>tensors) == 1:
        name = BY_NUMBER.get(hash(opts.reduceOp))
        later = opts.asyncOp
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
