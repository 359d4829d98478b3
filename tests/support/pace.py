"""Limits of CPU time that hold on slow machines, too: in units of a loop that is timed beside what they bound."""

from __future__ import annotations

import time

LOOP = 0.03
"""CPU seconds of the loop where the limits count as they are written."""


def pace() -> float:
    """The CPU time of a loop here and now, over LOOP; at least 1."""
    began, total = time.process_time(), 0
    for each in range(500_000):
        total += each * each
    return max(1.0, (time.process_time() - began) / LOOP)
