"""Is this thread in a `group()`?  And the calls that cannot be queued for its end."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from hocket.errors import ArgumentError

P = ParamSpec("P")
R = TypeVar("R")
watchers: list[Callable[[int], None]] = []
"""Called with 1 when a group begins in some thread, with -1 when it ends."""


class _OfThread(threading.local):
    open: list[Any] | None = None


_thread = _OfThread()


def opened(change: int) -> None:
    """A `group()` begins (+1) or ends (-1) in some thread."""
    for watcher in watchers:
        watcher(change)


def set_group(works: list[Any] | None) -> None:
    """From now on this thread is in the group of these works, or in none."""
    _thread.open = works


def open_group() -> list[Any] | None:
    """The works of the group this thread is in, if it is in one."""
    return _thread.open


def refuse_in_group(what: str, instead: str) -> None:
    """Raise ArgumentError if this thread is in a group: `what` would read memory that nobody has written yet."""
    if _thread.open is not None:
        raise ArgumentError(f"{what}; inside group() results come after the block: {instead}")


def at_once(call: Callable[P, R]) -> Callable[P, R]:
    """`call`, which reads what other ranks send before it returns: it is refused inside a group."""

    @functools.wraps(call)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        refuse_in_group(f"{call.__name__}() needs its result at once", "call it before the block or after it")
        return call(*args, **kwargs)

    return checked


class outside_group:
    """Inside this block the thread is in no group: for calls that are made for a call, and whose results it reads."""

    __slots__ = ("_together",)

    def __enter__(self) -> None:
        self._together, _thread.open = _thread.open, None

    def __exit__(self, *exc: object) -> None:
        _thread.open = self._together
