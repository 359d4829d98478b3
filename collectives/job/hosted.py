"""A rank in a process that belongs to a framework (Ray, Dask, Spark): it joins, calls one function, and leaves.

The framework numbers the ranks, gives them a store to meet through, and brings their errors together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hocket.arguments import seconds
from hocket.collectives import default
from hocket.collectives.communicator.communicator import Communicator
from hocket.collectives.job.init import config, init
from hocket.control.store import Store
from hocket.errors import Error, PeerLostError, TimeoutError

Result = TypeVar("Result")
MEETING = 60.0
"""Seconds that the ranks have to meet, if the caller does not say."""
FAREWELL = 10.0
"""Seconds that a framework's other ranks have, once one has failed, to say what it is to them."""


def limit(timeout: float | None) -> float:
    """Seconds that the ranks of `run(..., timeout=)` have to meet."""
    return MEETING if timeout is None else seconds(timeout, "timeout", f"{MEETING:g}")


def join(rank: int, size: int, store: Store, host: str, timeout: float | None = None, **options: Any) -> Communicator:
    """`hocket.init` through `store`.  `host`: this process's address as the framework knows it; HOCKET_IFACE is better.

    `options` go to init.
    """
    iface = None if config().iface else host
    return init(rank, size, store=store, iface=iface, timeout=timeout, **options)


def call(comm: Communicator, function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """function(comm, *args, **kwargs), with `comm` as this thread's default, and then closed.

    If it raises, the other ranks' calls end at once with an error that names this rank and what it raised.
    """
    with comm, default.current(comm):
        return function(comm, *args, **kwargs)


def cause(errors: Sequence[BaseException]) -> BaseException:
    """Of the errors of one job's ranks, in rank order: the one that the others follow from.

    A rank that fails by itself raises something of its own.  The others raise PeerLostError because of it, or
    TimeoutError.
    """
    echoes = (PeerLostError, TimeoutError)
    for kinds in ((Error,), echoes):
        for error in errors:
            if not isinstance(error, kinds):
                return error
    return errors[0]
