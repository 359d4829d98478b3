"""One rank's part of its process's recorder."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hocket.collectives.recording import memory
from hocket.collectives.recording.links import LinkRecorder
from hocket.collectives.recording.recorder import Recorder, Writer
from hocket.collectives.recording.records import NOBODY, SPAN, Kind, Recorded, read, shortened
from hocket.collectives.recording.spans import AsData, written
from hocket.errors import Error

if TYPE_CHECKING:
    from hocket.collectives.plans.plan import Plan


Queue = Any
"""engine/queue.py has it, which stands above."""


class Followed(NamedTuple):
    """A queue whose calls are recorded."""

    about: dict[str, Any]
    """The recorder's words about it."""
    members: Sequence[int]
    """World ranks."""


class OwnRecorder:
    """The events of one rank: its engines' calls, and what else happens to it, in a ring of its own.

    `job`: the same on all ranks of the job, and of no other.
    """

    def __init__(self, recorder: Recorder, rank: int, size: int, job: str) -> None:
        self.recorder, self.rank, self.size, self.job = recorder, rank, size, job
        self.traces = 0
        """The number of traces that want its events; 0: it does not."""
        self._links = LinkRecorder(self)
        self._queues: weakref.WeakKeyDictionary[Queue, Followed] = weakref.WeakKeyDictionary()
        self._closed = False
        self._about = {"kind": "rank", "index": rank}
        self._own = self._ring(self._about)

    def _ring(self, about: dict[str, Any]) -> Writer | None:
        if self._closed:
            return None
        facts = {"rank": self.rank, "size": self.size, "job": self.job, **about}
        traced = self.recorder.copy if self.traces else None
        return (traced or self.recorder).ring(facts) or self.recorder.ring(facts)

    def follow(
        self, queue: Queue, comm: str, kind: str, members: Sequence[int], priority: int = 0,
        transport: str | None = None,
    ) -> None:  # fmt: skip
        """Record the calls of this queue from now on, if a ring is free."""
        about = {
            "comm": comm, "kind": kind, "index": queue.engine.rank, "members": shortened(members), "priority": priority,
            "transport": transport or "",
        }  # fmt: skip
        self._queues[queue] = Followed(about, members)
        queue.engine.record(self._ring(about))

    def leave(self, queue: Queue) -> None:
        """Record no more calls of this queue: its communicator is closed, and others need the ring."""
        if self._queues.pop(queue, None) is not None:
            queue.engine.record(None)

    def close(self) -> None:
        """The rank has left its job: nothing more is recorded, and its rings are given back.

        A queue that a thread is still in keeps its own.
        """
        self._own, self._closed = None, True
        for queue, _ in self.queues:
            if not queue.engine.driven:
                self.leave(queue)

    def trace(self, folder: str) -> str:
        """Record everything from now on, in a file of this folder; no call of this rank may be under way.

        Returns the folder: another one if this process records into it already, for another rank say.  Raises OSError
        where the file cannot be made.
        """
        traced = self.recorder.trace(folder)
        self.traces += 1
        if self.traces == 1:
            self._follow_again()
            self._links.start()
        return os.path.dirname(os.readlink(f"/proc/self/fd/{traced.fd}"))

    def untrace(self) -> None:
        """End what `trace` began: its file stays there."""
        self.traces -= 1
        if self.traces == 0:
            self._links.stop()
            self._follow_again()
        self.recorder.untrace()

    @property
    def queues(self) -> list[tuple[Queue, Followed]]:
        """The queues that are followed."""
        queues = [queue for ref in self._queues.keyrefs() if (queue := ref()) is not None]  # others come meanwhile
        return [(queue, self._queues[queue]) for queue in queues]

    def _follow_again(self) -> None:
        self._own = self._ring(self._about)
        for queue, followed in self.queues:
            queue.engine.record(self._ring(followed.about))

    def call(self, plan: Plan, transports: str) -> int:
        """The number by which records name calls of this plan."""
        return self.recorder.call({
            "text": plan.text, "collective": plan.collective, "algorithm": plan.algorithm, "transports": transports,
            "bytes": plan.nbytes, "fingerprint": plan.fingerprint, "site": plan.site, **plan.facts,
        })  # fmt: skip

    def put(
        self, kind: Kind, text: str = "", value: int = 0, peer: int = NOBODY, seq: int = 0, lane: int = NOBODY
    ) -> None:
        """Record what happened to this rank just now, in about a microsecond."""
        if (own := self._own) is not None:  # which close() takes away
            # The process's table gives the number: a trace's has the same lines in the same order.
            own.put(kind, "", value, peer, seq, self.recorder.text(text), lane)

    def span(self, name: str, group: str, begin: int, end: int, told: AsData | None = None) -> None:
        """Something that the program did, CLOCK_MONOTONIC ns: in traces alone, or marks would leave the ring."""
        if self.traces and (own := self._own) is not None:
            of = self.recorder.text(group)
            what = self.recorder.line({"text": name[:200], **written(told)}) if told else self.recorder.text(name)
            own.put(Kind.MARK, "", end - begin, seq=of, what=what, lane=SPAN, ns=end)

    def recorded(self) -> Recorded:
        """This rank's part, as it is now: a copy.  Raises Error where no ring was left for it."""
        traced = self.recorder.copy if self.traces else None
        image = (traced or self.recorder).image()
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
