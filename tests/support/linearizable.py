"""Is a history of one register linearizable?  (Wing and Gong, 1993, with Lowe's memory of what has been tried.)"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

NEVER = math.inf
"""The end of an operation whose process was killed: a write may have taken effect, at any time, or not."""


class Access(NamedTuple):
    """One operation between two moments of one clock: it wrote this value, or read it."""

    begin: float
    end: float
    writes: bool
    value: Any


def wrong(history: Iterable[Access], first: Any) -> str:
    """Why no order of the operations explains the history of a register that begins with `first`; "" if one does."""
    ops = sorted(op for op in history if op.writes or op.end < NEVER)
    seen: set[tuple[int, int, Any]] = set()
    stack = [(0, 0, first)]
    """Operations before a place are done, and of those from there on the ones with a bit; what is written then."""
    furthest = 0
    while stack:
        start, done, value = stack.pop()
        while done & 1:
            start, done = start + 1, done >> 1
        if (start, done, value) in seen:
            continue
        seen.add((start, done, value))
        furthest = max(furthest, start)
        next_ = _next(ops, start, done)
        if all(ops[i].end == NEVER for i in next_):  # those that are left need not have happened
            return ""
        for i in next_:
            if ops[i].writes or ops[i].value == value:
                stack.append((start, done | 1 << (i - start), ops[i].value))
    return f"{len(ops)} operations are not linearizable; the first that cannot be explained is near {ops[furthest]}"


def _next(ops: list[Access], start: int, done: int) -> list[int]:
    """Operations that may come next: no other that is left had ended before they began."""
    left, ended = [], NEVER
    for i in range(start, len(ops)):
        if ops[i].begin > ended:
            break
        if not done >> (i - start) & 1:
            left.append(i)
            ended = min(ended, ops[i].end)
    return left
