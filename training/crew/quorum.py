"""The time that those who have come wait for the others: what is usual here, and four times what that varies by."""

from __future__ import annotations

import statistics
from collections import deque

FIRST = 5.0
"""Seconds while little is known."""
LEAST, MOST = 0.25, 60.0
KNOWN = 5
"""Waits after which the grace follows them."""


class Grace:
    """Seconds to wait for late ranks: fixed, or "adaptive": median + 4 MAD of the latest waits in which all came."""

    def __init__(self, given: float | str) -> None:
        self._given = given
        self._waits: deque[float] = deque(maxlen=32)

    def note(self, seconds: float) -> None:
        """All had come so long after this rank."""
        self._waits.append(seconds)

    @property
    def seconds(self) -> float:
        if not isinstance(self._given, str):
            return self._given
        if len(self._waits) < KNOWN:
            return FIRST
        median = statistics.median(self._waits)
        spread = statistics.median(abs(each - median) for each in self._waits)
        return min(MOST, max(LEAST, median + 4 * spread))
