"""Ports that nobody has."""

from __future__ import annotations

import contextlib
import random
import socket


def free(number: int = 1) -> list[int]:
    """TCP ports that are free now, one after the other; below those that outgoing connections take."""
    for first in random.Random().sample(range(20000, 30000, number), 100):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + number):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return [*range(first, first + number)]
    raise AssertionError(f"no {number} free ports in a row")
