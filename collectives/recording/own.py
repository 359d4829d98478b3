"""One rank's part of its process's recorder."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hocket.collectives.recording import memory
from hocket.collectives.recording.recorder import Recorder, Writer
from hocket.collectives.recording.records import NOBODY, Kind, Recorded, read, shortened
from hocket.errors import Error

if TYPE_CHECKING:
    from hocket.collectives.engine.queue import Queue
    from hocket.collectives.plans.plan import Plan


class OwnRecorder:
    """What a rank records: its engines' calls, and what else happens to it, in a ring of its own.

    `job`: the same on all ranks of the job, and of no other.
    """

    def __init__(self, recorder: Recorder, rank: int, size: int, job: str) -> None:
        self.recorder, self.rank, self.size, self.job = recorder, rank, size, job
        self._queues: weakref.WeakKeyDictionary[Queue, dict[str, Any]] = weakref.WeakKeyDictionary()
        self._about = {"kind": "rank", "index": rank}
        self._own = self._ring(self._about)

    def _ring(self, about: dict[str, Any]) -> Writer | None:
        told = {"rank": self.rank, "size": self.size, "job": self.job, **about}
        return (self.recorder.copy or self.recorder).ring(told) or self.recorder.ring(told)

    def follow(
        self, queue: Queue, comm: str, kind: str, members: Sequence[int], priority: int = 0,
        transport: str | None = None,
    ) -> None:  # fmt: skip
        """Record the calls of this queue from now on, if a ring is free."""
        self._queues[queue] = about = {
            "comm": comm, "kind": kind, "index": queue.engine.rank, "members": shortened(members), "priority": priority,
            "transport": transport or "",
        }  # fmt: skip
        queue.engine.record(self._ring(about))

    def trace(self, folder: str) -> None:
        """Record everything from now on, in a file of this folder; no call of this rank may be under way.

        Raises OSError where the file cannot be made.
        """
        self.recorder.trace(folder)
        self._follow_again()

    def untrace(self) -> None:
        """The trace has ended: its file stays there."""
        self.recorder.untrace()
        self._follow_again()

    def _follow_again(self) -> None:
        self._own = self._ring(self._about)
        for queue, about in list(self._queues.items()):
            queue.engine.record(self._ring(about))

    def call(self, plan: Plan, transports: str) -> int:
        """The number by which records name calls of this plan."""
        return self.recorder.call(
            plan.collective, plan.algorithm, transports, plan.text, plan.nbytes, plan.fingerprint, plan.site)

    def put(self, kind: Kind, text: str = "", value: int = 0, peer: int = NOBODY, seq: int = 0) -> None:
        """Record what happened to this rank just now, in about a microsecond."""
        if self._own is not None:
            self._own.put(kind, text, value, peer, seq)

    def recorded(self) -> Recorded:
        """This rank's part, as it is now: a copy.  Raises Error where no ring was left for it."""
        image = (self.recorder.copy or self.recorder).image()
        for each in read(image):
            if self.owns(each):
                return each
        raise Error(
            f"nothing is recorded of this rank: all {memory.RINGS} rings of this process are in use; close "
            "communicators that are no longer needed"
        )

    def owns(self, part: Recorded) -> bool:
        """Is this part of a recording this rank's?"""
        return (part.facts.rank, part.facts.job) == (self.rank, self.job)
