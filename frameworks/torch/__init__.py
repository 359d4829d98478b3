"""hocket under torch.distributed: `init_process_group("hocket")`, and everything that stands on it.

Importing torch makes the name known (the entry point `torch.backends`); where that is switched off, import this.

    register.py      the name, and who makes a group of it
    bootstrap.py     from torch's store to a communicator
    group.py         the process group
    backend.py       the same calls as one backend of several in a group
    identity.py      what both say of themselves, and how they end
    calls.py         their collectives and messages, under torch's names
    names.py         what those are called in which version of torch
    tensors.py       tensors as hocket takes them: plain, contiguous, one behind the other
    ops.py           torch's ReduceOp in hocket's words
    works.py         torch's Work and Future over hocket's Work
    streams.py       CUDA tensors: what comes after a call, in its stream
    failing.py       hocket's errors, of classes that torch's users catch
    functional.py    a functional collective that torch's C++ keeps from groups made in Python
    dynamo.py        torch.compile does not look into these files
    sparse.py        the sum of sparse tensors
    hooks.py         communication hooks of DDP that torch keeps to other backends
"""

from hocket.torch.hooks import bf16_compress_hook
from hocket.torch.monitor import monitored_barrier
from hocket.torch.register import register

__all__ = ["bf16_compress_hook", "monitored_barrier", "register"]

register()
