"""One call's wish, besides its arrays.  ask.pxd has the same as a struct, for the short way."""

from __future__ import annotations

import reprlib
from typing import Any, NamedTuple

from hocket.algorithms.language.registry import Algorithm
from hocket.arguments import optional, seconds
from hocket.errors import ArgumentError
from hocket.kernels.codecs import Codec

ORDERS = ("any", "rank", "exact")


class Lasting(str):
    """A `within` that is one object for all calls that are alike: they may take the short way."""


class Ask(NamedTuple):
    """The arguments of a method of the communicator, as they were given; communicator.py has their meaning."""

    collective: str
    """Or "message"."""
    op: Any = None
    root: Any = 0
    counts: Any = None
    """None, the counts of a v-variant, or for alltoallv both of them."""
    async_op: bool = False
    timeout: float | None = None
    algorithm: str | Algorithm | None = None
    transport: str | None = None
    order: str = "any"
    codec: str | Codec | None = None
    residual: Any = None
    owner_residual: Any = None
    within: str = ""
    """The call of hocket's that this one is a part of: shown in errors, and compared between ranks."""
    axis: int | None = None
    """0: the rows of x are addends.  Calls with it never take the short way, which does not know it."""


def checked(ask: Ask) -> Ask:
    """The same, if each part has a type that it may have; names are checked where they are looked up."""
    algorithm, order, timeout = ask.algorithm, ask.order, ask.timeout
    if not (algorithm is None or isinstance(algorithm, (str, Algorithm))):
        raise ArgumentError(f"algorithm={reprlib.repr(algorithm)} must be a name or an Algorithm")
    optional(ask.transport, "transport")
    if order not in ORDERS:
        raise ArgumentError(f"order={reprlib.repr(order)} is not one of 'any', 'rank' and 'exact'")
    if ask.axis is not None and (order != "exact" or type(ask.axis) is not int or ask.axis != 0):
        asked = f"axis={reprlib.repr(ask.axis)}"
        raise ArgumentError(f"{asked}: only axis=0 can be asked for, and with order='exact' alone")
    return ask if timeout is None else ask._replace(timeout=seconds(timeout, "timeout", "HOCKET_TIMEOUT"))
