"""Limits of CPU time that hold on slow machines, too: in units of a loop that is timed beside what they bound."""

from __future__ import annotations

import time

LOOP = 0.03
"""CPU seconds of the loop on the machine whose limits tests give (Zen 4, CPython 3.11)."""


def pace() -> float:
    """The time of a loop here and now, over its time on that machine; at least 1."""
    began, total = time.process_time(), 0
    for each in range(500_000):
        total += each * each
    return max(1.0, (time.process_time() - began) / LOOP)
