"""Processes of this host, as its kernel knows them: that one has ended is proven by the kernel alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from hocket.control.reactor import Reactor
from hocket.system.machine import boot_id


def kernel() -> str:
    """The same on two processes that see each other's pids: one kernel, one namespace of pids."""
    space = 0
    with contextlib.suppress(OSError):
        space = os.stat("/proc/self/ns/pid").st_ino
    return f"{boot_id()}:{space}"


def started(pid: int) -> int:
    """When a process started, in ticks of the kernel's clock; 0: there is none, or it cannot be seen."""
    with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])
    return 0


class Process:
    """A process that the kernel is asked about, as a file that is readable once it has ended."""

    def __init__(self, pid: int) -> None:
        self._number = os.pidfd_open(pid)

    def fileno(self) -> int:
        return self._number

    def close(self) -> None:
        if self._number >= 0:
            os.close(self._number)
            self._number = -1


def watch(reactor: Reactor, pid: int, since: int, ended: Callable[[], object]) -> Process | None:
    """Call `ended` on the reactor's thread once this process of `kernel()` has ended.  None: it cannot be watched.

    `since`: its `started`; a later process of the same pid is another.
    """
    if not since:
        return None
    try:
        process = Process(pid)
    except ProcessLookupError:
        reactor.soon(ended)
        return None
    except (OSError, AttributeError):  # Linux before 5.3, or a filter of system calls; Python without it
        return None
    if started(pid) != since:
        process.close()
        reactor.soon(ended)
        return None

    def over() -> None:
        reactor.remove(process, close=True)
        ended()

    reactor.add(process, over)
    return process
