"""What every call takes besides its arrays."""

from __future__ import annotations

from typing import NamedTuple

from hocket.algorithms.registry import Algorithm


class Options(NamedTuple):
    """See communicator.py for their meaning."""

    async_op: bool = False
    timeout: float | None = None
    algorithm: str | Algorithm | None = None
    transport: str | None = None
    order: str = "any"


PLAIN = Options()
PLAIN_IN_ORDER = Options(order="rank")
"""Calls that say no more than this take the short way (hot.pyx) from the second time on."""
