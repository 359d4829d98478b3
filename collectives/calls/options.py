"""What every call takes besides its arrays."""

from __future__ import annotations

import reprlib
from typing import NamedTuple

from hocket.algorithms.language.registry import Algorithm
from hocket.arguments import optional, seconds
from hocket.errors import ArgumentError


class Options(NamedTuple):
    """See communicator.py for their meaning."""

    async_op: bool = False
    timeout: float | None = None
    algorithm: str | Algorithm | None = None
    transport: str | None = None
    order: str = "any"
    within: str = ""
    """Of a call that is part of another one of hocket's: which, for people and for the other ranks."""


def checked(options: Options) -> Options:
    """The same, if each is of a kind that it may be; which names there are is known to those who look them up."""
    _, timeout, algorithm, transport, order, _ = options
    if not (algorithm is None or isinstance(algorithm, (str, Algorithm))):
        raise ArgumentError(f"algorithm={reprlib.repr(algorithm)} must be a name or an Algorithm")
    optional(transport, "transport")
    if not isinstance(order, str):
        raise ArgumentError(f"order={reprlib.repr(order)} is neither 'any' nor 'rank'")
    return options if timeout is None else options._replace(timeout=seconds(timeout, "timeout", "HOCKET_TIMEOUT"))


PLAIN = Options()
PLAIN_IN_ORDER = Options(order="rank")
"""Calls that say no more than this take the short way (engine/shortcut.pyx) from the second time on."""
