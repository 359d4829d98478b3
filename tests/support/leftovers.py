"""The holdings of a process, each by its name: what a test left behind is what is there now and was not before.

Counts would not do: what an earlier test dropped may be collected, or closed by a thread, in the middle of this one.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pathlib
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


def listening(pids: list[int]) -> list[int]:
    """The TCP ports that these processes listen on."""
    inodes = {what for pid in pids for _, what in descriptors(pid)}
    rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sorted({int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes})
