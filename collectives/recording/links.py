"""The thread of a rank that is traced: it records what the kernel says of TCP connections, and has memory ready."""

from __future__ import annotations

import contextlib
import struct
import threading
import weakref
from typing import TYPE_CHECKING

from hocket.collectives.recording.records import Kind, Link
from hocket.system.machine import tcp_info

if TYPE_CHECKING:
    from hocket.collectives.recording.own import OwnRecorder

OFTEN = 0.1
"""Seconds from one look to the next ..."""
MOST = 200
"""... or more: records a second, of all connections, so that marks and failures stay in the ring for an hour."""
PLACES = {
    Link.RTT_US: ("I", 68), Link.RETRANSMITS: ("I", 100), Link.BUSY_US: ("Q", 168), Link.RWND_LIMITED_US: ("Q", 176),
    Link.SNDBUF_LIMITED_US: ("Q", 184),
}  # fmt: skip
"""Where a number stands in `struct tcp_info` (linux/tcp.h); a kernel before 4.10 gives fewer."""
LONGEST = 192


def numbers(fd: int) -> dict[Link, int]:
    """The kernel's numbers about a connection; none for what is no TCP socket."""
    info = tcp_info(fd, LONGEST)
    return {
        number: struct.unpack_from(f"={kind}", info, at)[0]
        for number, (kind, at) in PLACES.items() if at + struct.calcsize(kind) <= len(info)
    }  # fmt: skip


class Links:
    """Looks at the connections of a rank, also while calls wait, and records each number that has changed."""

    def __init__(self, own: OwnRecorder) -> None:
        self._own = weakref.ref(own)
        self._over = threading.Event()
        self._last: dict[tuple[str, int, Link], int] = {}

    def start(self) -> None:
        """From now on, until `stop` or the end of the recorder."""
        self._over, self._last = threading.Event(), {}
        threading.Thread(target=self._watch, args=(self._over,), name="hocket links", daemon=True).start()

    def stop(self) -> None:
        """A last look."""
        self._over.set()
        self.look()

    def _watch(self, over: threading.Event) -> None:
        pause = OFTEN
        while not over.wait(pause) and self._own() is not None:
            pause = max(OFTEN, self.look() * len(Link) / MOST)
            self._make_room()

    def _make_room(self) -> None:
        """The trace's rings have pages for what comes next, so that no call touches one first."""
        own = self._own()
        if own is not None and own.recorder.copy is not None:
            own.recorder.copy.touch_ahead()

    def look(self) -> int:
        """Record what has changed; how many connections there are."""
        own, seen = self._own(), 0
        for queue, followed in own.queues if own is not None else ():
            name = f"{followed.about['comm']} {followed.about['kind']}"
            for peer, fd in queue.engine.descriptors():
                with contextlib.suppress(OSError):  # no TCP, or closed just now
                    self._note(name, followed.members[peer], numbers(fd))
                    seen += 1
        return seen

    def _note(self, name: str, rank: int, values: dict[Link, int]) -> None:
        own = self._own()
        for number, value in values.items():
            if own is not None and self._last.get((name, rank, number)) != value:
                self._last[name, rank, number] = value
                own.put(Kind.LINK, name, value, rank, lane=number)
