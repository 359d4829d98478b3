"""The default communicator, and the module-level functions that use it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Concatenate, ParamSpec, TypeVar

from hocket.collectives.communicator import Communicator
from hocket.errors import ArgumentError

P = ParamSpec("P")
R = TypeVar("R")

class _OfThread(threading.local):
    comm: Communicator | None = None  # of threads that set none: without it, the lookup raises and catches


_process: Communicator | None = None
_thread = _OfThread()


def set_default(comm: Communicator | None) -> None:
    """Make `comm` this process's default."""
    global _process
    _process = comm


def communicator() -> Communicator:
    """The communicator of `hocket.init`, or of this thread's `local_world`."""
    comm = _thread.comm or _process
    if comm is None:
        raise ArgumentError("there is no default communicator yet: call hocket.init() first")
    return comm


@contextlib.contextmanager
def current(comm: Communicator) -> Iterator[Communicator]:
    """Make `comm` the default of this thread, inside the block."""
    before = _thread.comm
    _thread.comm = comm
    try:
        yield comm
    finally:
        _thread.comm = before


def _on_default(method: Callable[Concatenate[Communicator, P], R]) -> Callable[P, R]:
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return method(_thread.comm or _process or communicator(), *args, **kwargs)

    call.__name__ = call.__qualname__ = method.__name__
    call.__doc__ = f"`Communicator.{method.__name__}` of the default communicator.\n\n    {method.__doc__}"
    call.__module__ = "hocket"
    return call


allreduce = _on_default(Communicator.allreduce)
reduce = _on_default(Communicator.reduce)
reduce_scatter = _on_default(Communicator.reduce_scatter)
reduce_scatterv = _on_default(Communicator.reduce_scatterv)
scan = _on_default(Communicator.scan)
exscan = _on_default(Communicator.exscan)
broadcast = _on_default(Communicator.broadcast)
allgather = _on_default(Communicator.allgather)
allgatherv = _on_default(Communicator.allgatherv)
gather = _on_default(Communicator.gather)
gatherv = _on_default(Communicator.gatherv)
scatter = _on_default(Communicator.scatter)
scatterv = _on_default(Communicator.scatterv)
alltoall = _on_default(Communicator.alltoall)
alltoallv = _on_default(Communicator.alltoallv)
barrier = _on_default(Communicator.barrier)
send = _on_default(Communicator.send)
recv = _on_default(Communicator.recv)
sendrecv = _on_default(Communicator.sendrecv)
split = _on_default(Communicator.split)
subgroup = _on_default(Communicator.subgroup)


def rank() -> int:
    """This process's rank in the default communicator."""
    return communicator().rank


def size() -> int:
    """How many ranks the default communicator has."""
    return communicator().size
