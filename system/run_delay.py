"""The time that threads of this process were ready to run and had no core: the kernel's schedstat of each thread."""

from __future__ import annotations

import os
import time

PLACE = "/proc/self/task"


class RunDelay:
    """`share()` tells it of the time since the last call, or since this was made."""

    def __init__(self, place: str = PLACE) -> None:
        self._place = place
        self._at, self._delays = time.monotonic(), _delays(place)

    def share(self) -> float:
        """The share of the thread that waited longest for a core: its waits as a share of that time, 0 to 1."""
        before, self._delays = self._delays, _delays(self._place)
        begin, self._at = self._at, time.monotonic()
        waited = (ns - before.get(thread, ns) for thread, ns in self._delays.items())
        return min(1.0, max(waited, default=0) / 1e9 / max(self._at - begin, 1e-9))


def _delays(place: str) -> dict[str, int]:
    """Thread -> nanoseconds until now; empty where the kernel does not tell."""
    delays = {}
    try:
        for thread in os.listdir(place):
            with open(os.path.join(place, thread, "schedstat"), "rb") as file:
                delays[thread] = int(file.read().split()[1])
    except (OSError, IndexError, ValueError):  # a thread may end meanwhile: what is known of the others is enough
        pass
    return delays
