"""Processes of this host, as its kernel knows them.

What cannot be seen is not dead: that is proven by the kernel alone, by a pidfd, by a pid of this namespace that nobody
has, or by two start times read in one time namespace.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable

from hocket.control.reactor import Reactor
from hocket.system.machine import boot_id

FIRST_TIME = 0xEFFFFFFA
"""The inode of the kernel's first time namespace, in which start times are compared; others add to them."""


def kernel() -> str:
    """The same on two processes that see each other's pids: one kernel, one namespace of pids."""
    try:
        return f"{boot_id()}:{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # no /proc: nobody's
        return f"{boot_id()}:{secrets.token_hex(8)}"


def started(pid: int) -> int:
    """When a process started, in ticks of the kernel's clock; 0: it cannot be seen, or not be compared."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        if not _in_first_time() or os.readlink("/proc/self") != str(os.getpid()):  # /proc is of other pids than ours
            return 0
        # Its first thread's.  QEMU's emulator of processes makes up what a process reads of itself, but not this.
        with open(f"/proc/{pid}/task/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    return 0


def _in_first_time() -> bool:
    try:
        return os.stat("/proc/self/ns/time").st_ino == FIRST_TIME
    except FileNotFoundError:  # Linux before 5.6 has but one
        return True


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

    `since`: its `started`; a later process of the same pid is another.  Where that is not known (0, or now) the pid's
    process is watched: once that has ended, so has the one that is meant.
    """
    try:
        process = Process(pid)
    except ProcessLookupError:
        reactor.soon(ended)
        return None
    except (OSError, AttributeError):  # Linux before 5.3, or a filter of system calls; Python without it
        return None
    now = started(pid)
    if now and since and now != since:
        process.close()
        reactor.soon(ended)
        return None

    def over() -> None:
        reactor.remove(process, close=True)
        ended()

    reactor.add(process, over)
    return process
