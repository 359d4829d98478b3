"""The default communicator, and the module-level functions that use it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import ArgumentError

P = ParamSpec("P")
R = TypeVar("R")

class _OfThread(threading.local):
    comm: Communicator | None = None  # for threads that set none: without it, each lookup raises and catches


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
    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return method(_thread.comm or _process or communicator(), *args, **kwargs)

    wrapper: Any = call
    wrapper.__module__, wrapper.__qualname__ = "hocket", method.__name__
    wrapper.__doc__ = f"`Communicator.{method.__name__}` of the default communicator.\n\n    {method.__doc__}"
    whole = inspect.signature(method)
    wrapper.__signature__ = whole.replace(parameters=list(whole.parameters.values())[1:])  # without self
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
prepare = _on_default(Communicator.prepare)
prepare_redistribute = _on_default(Communicator.prepare_redistribute)
send = _on_default(Communicator.send)
recv = _on_default(Communicator.recv)
probe = _on_default(Communicator.probe)
sendrecv = _on_default(Communicator.sendrecv)
broadcast_object = _on_default(Communicator.broadcast_object)
allgather_object = _on_default(Communicator.allgather_object)
gather_object = _on_default(Communicator.gather_object)
scatter_object = _on_default(Communicator.scatter_object)
send_object = _on_default(Communicator.send_object)
recv_object = _on_default(Communicator.recv_object)
redistribute = _on_default(Communicator.redistribute)
check_equal = _on_default(Communicator.check_equal)
split = _on_default(Communicator.split)
lane = _on_default(Communicator.lane)
lanes = _on_default(Communicator.lanes)
dup = _on_default(Communicator.dup)
subgroup = _on_default(Communicator.subgroup)
create_group = _on_default(Communicator.create_group)
register = _on_default(Communicator.register)
tune = _on_default(Communicator.tune)
explain = _on_default(Communicator.explain)
stats = _on_default(Communicator.stats)
mark = _on_default(Communicator.mark)
recorder = _on_default(Communicator.recorder)
trace = _on_default(Communicator.trace)
set_timeout = _on_default(Communicator.set_timeout)
close = _on_default(Communicator.close)


def rank() -> int:
    """This process's rank in the default communicator."""
    return communicator().rank


def size() -> int:
    """The number of ranks of the default communicator."""
    return communicator().size
