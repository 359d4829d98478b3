"""Which errors an agreement raises: hocket's, or those that the users of another system catch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hocket.errors import Error, MismatchError, PeerLostError, TimeoutError


def _same(error: BaseException) -> BaseException:
    return error


class Errors(NamedTuple):
    """The classes, and `turned`: what an error of a call becomes before it is raised."""

    mismatch: type[MismatchError] = MismatchError
    left: type[Error] = PeerLostError
    """A rank that is needed has stopped, or this one."""
    stall: type[Error] = TimeoutError
    turned: Callable[[BaseException], BaseException] = _same
