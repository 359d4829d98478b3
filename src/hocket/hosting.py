"""Ranks in processes that belong to another system (Ray, Dask, Spark, JAX): they join, call one function, and leave.

The system numbers the ranks, gives them a store to meet through, and brings their errors together.

    def task(rank, size, store, host):  # on each of its workers
        return hosting.call(hosting.join(rank, size, store, host, make_default=False), function)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hocket.arguments import seconds
from hocket.collectives.base.config import given
from hocket.collectives.communicator.communicator import Communicator
from hocket.collectives.elastic import joining
from hocket.collectives.job.place import meeting_path, own_address
from hocket.collectives.start import default
from hocket.collectives.start.init import config, init
from hocket.control.folder import FolderStore
from hocket.control.store import Store
from hocket.errors import Error, PeerLostError, TimeoutError

__all__ = [
    "FAREWELL", "FolderStore", "Store", "call", "cause", "has_secret", "here", "join", "limit", "local_meeting",
    "notice", "own_address", "patience",
]  # fmt: skip
Result = TypeVar("Result")
MEETING = 60.0
"""Seconds that the ranks have to meet, if the caller does not say."""
FAREWELL = 10.0
"""Seconds that the other ranks have, once one has failed, to say what it is to them."""


def limit(timeout: float | None) -> float:
    """Seconds that the ranks of `run(..., timeout=)` have to meet."""
    return MEETING if timeout is None else seconds(timeout, "timeout", f"{MEETING:g}")


def patience() -> tuple[float, float]:
    """Seconds that the absent may keep a group of JAX's waiting: outside JAX, and if they work in it."""
    return min(config().absent_after, config().timeout), config().timeout


def notice(
    join: str | Store, timeout: float = 10.0, *, secret: str | bytes | None = None, encrypt: bool | None = None,
    iface: str | None = None,
) -> Any:  # fmt: skip
    """The word of a member of an elastic job to those who may come (`comm.set_notice`); None: nothing.

    `join` and the rest: as in `hocket.init`.  Raises AuthError (another secret), TransportError (nobody is there).
    """
    settings = given(config(), secret, iface, encrypt)
    return joining.notice_of(join, settings, "secret", seconds(timeout, "timeout"))


def join(rank: int, size: int, store: Store, host: str, timeout: float | None = None, **options: Any) -> Communicator:
    """`hocket.init` through `store`: an object with set(key, text) and get(key), None where there is no such key yet.

    `host`: this process's address as the system knows it; HOCKET_IFACE comes first.  `timeout`: seconds for all ranks
    to come (60).  `options` go to init, and its errors come from there.
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
    """The cause among the errors of one job's ranks, in rank order: the one that the others follow from.

    A rank that fails by itself raises something of its own.  The others raise PeerLostError because of it, or
    TimeoutError.
    """
    echoes = (PeerLostError, TimeoutError)
    for kinds in ((Error,), echoes):
        for error in errors:
            if not isinstance(error, kinds):
                return error
    return errors[0]


def local_meeting(name: str) -> str:
    """Where ranks of one host meet that know this name: an `address` for `hocket.init`."""
    return f"unix:{meeting_path(os.environ, name)}"


def here() -> str:
    """The address that this process's listeners have: HOCKET_IFACE's, else `own_address()`."""
    return config().iface or own_address()


def has_secret() -> bool:
    """Was this process given its job's secret (HOCKET_SECRET)?"""
    return config().secret is not None
