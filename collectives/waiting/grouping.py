"""`group()`: several calls issued as one; and what the calls do that cannot be queued for its end."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from hocket.collectives.engine.shortcut import group_opened
from hocket.errors import ArgumentError

if TYPE_CHECKING:
    from hocket.collectives.waiting.work import Work

P = ParamSpec("P")
R = TypeVar("R")


class _OfThread(threading.local):
    open: list[Work] | None = None


_thread = _OfThread()


@contextlib.contextmanager
def group() -> Generator[list[Work], None, None]:
    """Issue several calls as one: inside the block each call returns at once; the block ends when all have ended.

    Sends and receives of a group progress together, so their order does not matter.  Results are in place, in
    `out=`, or in the array that the call returned; inside the block there are none yet.  Calls that need another
    rank's answer before they return raise ArgumentError there, and nothing is sent: calls with numbers, calls with
    objects (but `send_object`), those that make communicators, `tune`, and those of `hocket.compression`.  Calls of
    torch.distributed and of hocket.horovod are not part of a group: they are carried out at once.
    """
    if _thread.open is not None:
        yield _thread.open  # nested: part of the outer group
        return
    works: list[Work] = []
    _thread.open = works
    group_opened(1)
    try:
        yield works
    finally:
        _thread.open = None
        group_opened(-1)
    for work in works:
        work.wait()


def open_group() -> list[Work] | None:
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
