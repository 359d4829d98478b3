"""The thread of a rank that is traced: it records what the kernel says of TCP connections, and has memory ready."""

from __future__ import annotations

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
NAMES = {
    Link.RTT_US: "rtt", Link.RETRANSMITS: "total_retrans", Link.BUSY_US: "busy_time",
    Link.RWND_LIMITED_US: "rwnd_limited", Link.SNDBUF_LIMITED_US: "sndbuf_limited",
}  # fmt: skip


class LinkRecorder:
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
                if info := tcp_info(fd):  # else it is no TCP, or closed just now
                    self._note(name, followed.members[peer], info)
                    seen += 1
        return seen

    def _note(self, name: str, rank: int, info: dict[str, int]) -> None:
        own = self._own()
        for number, named in NAMES.items():
            value = info.get(named)
            if own is not None and value is not None and self._last.get((name, rank, number)) != value:
                self._last[name, rank, number] = value
                own.put(Kind.LINK, name, value, rank, lane=number)
