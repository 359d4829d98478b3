"""A process that outlives its agent by a moment: it ends what the agent's ranks have started.

The kernel ends ranks with the agent that started them, but not their children.  The sentry hears which groups there
are, and kills those that are left when the agent's end of the pipe closes, however that comes.
"""

from __future__ import annotations

import contextlib
import os
import signal


class Sentry:
    """Forked before there is anything to hold."""

    def __init__(self) -> None:
        source, self._sink = os.pipe2(os.O_CLOEXEC)
        if os.fork() == 0:
            os.close(self._sink)
            _stand(source)
        os.close(source)

    def watch(self, group: int) -> None:
        """This process group is to end with the agent."""
        self._say(f"+{group}\n")

    def forget(self, group: int) -> None:
        """This process group has ended, and its number may become another's."""
        self._say(f"-{group}\n")

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # somebody killed the sentry: the kernel still ends the ranks
            os.write(self._sink, line.encode())


def _stand(source: int) -> None:
    """Never returns."""
    try:
        os.setsid()
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        for fd in {*map(int, os.listdir("/proc/self/fd"))} - {source}:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(fd)  # it holds no connection open
        groups = set[int]()
        with os.fdopen(source, "rb") as lines:
            for line in lines:
                (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
        for group in groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
    finally:
        os._exit(0)
