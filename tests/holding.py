"""What a process holds, each thing by its name: what a test left behind is what is there now and was not before.

Counts would not do: what an earlier test dropped may be collected, or closed by a thread, in the middle of this one.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading


def descriptors(pid: int | None = None) -> set[tuple[int, str]]:
    """(number, what it leads to) of every open descriptor of this process, or of another."""
    gc.collect()
    where = f"/proc/{pid or os.getpid()}/fd"
    found = set()
    for fd in os.listdir(where):
        with contextlib.suppress(OSError):  # the listing's own descriptor is closed by now
            found.add((int(fd), os.readlink(f"{where}/{fd}")))
    return found


def threads() -> set[threading.Thread]:
    return set(threading.enumerate())
