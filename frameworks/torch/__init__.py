"""hocket under torch.distributed: `init_process_group("hocket")`, and everything that stands on it.

Importing torch makes the name known (the entry point `torch.backends`); where that is switched off, import this.

The group, from its name to its end:
    register.py      the name, and what makes a group of it
    bootstrap.py     from torch's store to a communicator
    group.py         the process group
    backend.py       the same calls as one backend of several in a group
    identity.py      what both say of themselves, and how they end
    errors.py        hocket's errors, of classes that torch's users catch

A call:
    calls.py         their collectives and messages, under torch's names
    issuing.py       at once or with a Work, by itself or with others
    names.py         what methods are called in which version of torch
    options.pyx      what torch's AllreduceOptions say: the op, asynchronous or not
    ops.py           torch's ReduceOp in hocket's words
    tensors.py       tensors as hocket takes them: plain, contiguous, one behind the other
    quick.pyx        the short way of an all_reduce that was made before

What comes of it:
    works.py         torch's Work and Future over hocket's Work
    streams.py       CUDA tensors: what comes after a call, in its stream
    profiled.py      what torch's profiler saw, in hocket's traces

Ranks that are lost and come:
    elastic.py       the default group of a communicator, and of the next generation's

What torch keeps to other backends, or in its own C++:
    functional.py    functional collectives, in groups made in Python
    hooks.py         communication hooks of DDP
    sharded.py       FSDP2's reduce-scatter and all-gather, with fewer bits
    states.py        what hocket's objects keep, with tensors for arrays
    monitor.py       monitored_barrier
    check.py         do all ranks hold the same model?
    dynamo.py        torch.compile does not look into these files
    callers.py       errors name no lines of torch's

What a model is made of:
    functions.py     collectives through which gradients flow

What trains:
    training/        DistributedOptimizer; ServedEmbedding; a module's parameters for `hocket.training`; callbacks of
                     Lightning and Hugging Face's Trainer

What another library asks for:
    torchft.py       a group that is made again while training goes on
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hocket.torch.check import check
from hocket.torch.elastic import is_loss, renew, use
from hocket.torch.hooks import bf16_compress_hook, compress
from hocket.torch.monitor import monitored_barrier
from hocket.torch.profiled import into_trace
from hocket.torch.register import register

if TYPE_CHECKING:
    from hocket.torch.training.optimizer import DistributedOptimizer as DistributedOptimizer
    from hocket.torch.training.served import ServedEmbedding as ServedEmbedding

__all__ = [
    "DistributedOptimizer", "ServedEmbedding", "bf16_compress_hook", "check", "compress", "into_trace", "is_loss",
    "monitored_barrier", "register", "renew", "use",
]  # fmt: skip
LATER = {"DistributedOptimizer": "optimizer", "ServedEmbedding": "served"}
"""Names that few programs use, and their modules."""


def __getattr__(name: str) -> Any:
    """What few programs use is loaded when they do."""
    if name in LATER:
        return getattr(import_module(f"hocket.torch.training.{LATER[name]}"), name)
    raise AttributeError(f"module 'hocket.torch' has no attribute {name!r}")


register()
