"""What every call takes besides its arrays."""

from __future__ import annotations

import reprlib
from typing import NamedTuple

from hocket.algorithms.language.registry import Algorithm
from hocket.arguments import optional, seconds
from hocket.errors import ArgumentError
from hocket.kernels.codecs import Codec


class Options(NamedTuple):
    """See communicator.py for their meaning."""

    async_op: bool = False
    timeout: float | None = None
    algorithm: str | Algorithm | None = None
    transport: str | None = None
    order: str = "any"
    codec: str | Codec | None = None
    within: str = ""
    """The call of hocket's that this one is a part of: shown in errors, and compared between ranks."""


def checked(options: Options) -> Options:
    """The same options, if each has a type that it may have; names are checked where they are looked up."""
    _, timeout, algorithm, transport, order, *_ = options
    if not (algorithm is None or isinstance(algorithm, (str, Algorithm))):
        raise ArgumentError(f"algorithm={reprlib.repr(algorithm)} must be a name or an Algorithm")
    optional(transport, "transport")
    if not isinstance(order, str):
        raise ArgumentError(f"order={reprlib.repr(order)} is neither 'any' nor 'rank'")
    return options if timeout is None else options._replace(timeout=seconds(timeout, "timeout", "HOCKET_TIMEOUT"))


PLAIN = Options()
PLAIN_IN_ORDER = Options(order="rank")
"""Calls with these options take the short way (engine/shortcut.pyx) from the second time on."""
