"""Who belongs to a communicator, and the queues that carry its calls to them."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Sequence
from typing import Any

import numpy

from hocket import arguments
from hocket.algorithms.choice.tuning import Tuning
from hocket.collectives.calls.call import rank_in
from hocket.collectives.calls.options import Options
from hocket.collectives.engine.queue import Queue
from hocket.collectives.engine.shortcut import HotPath
from hocket.collectives.gpu.gpus import Gpus
from hocket.collectives.job.world import World
from hocket.control.records import Account, Verdict

Groups = tuple[tuple[int, ...], ...]


def lane_name(what: str) -> str:
    """10 letters and digits, 50 bits: two of 1,000 communicators share one in 1 of 2,000,000,000 jobs.

    Such a job fails with a MismatchError, as messages carry what their communicator is called (running.py).
    """
    return base64.b32encode(hashlib.blake2b(what.encode(), digest_size=7).digest()).decode()[:10].lower()


class Members(HotPath):
    """An ordered set of world ranks (`members`), with queues of their own."""

    def __init__(self, world: World, name: str, members: Sequence[int], tuning: Tuning | None = None) -> None:
        self.world, self.name, self.members = world, name, list(members)
        self.tuning = world.tuning if tuning is None else tuning
        """What algorithms are chosen by; the same on all members."""
        self.rank, self.size = self.members.index(world.rank), len(self.members)
        self._queues: dict[tuple[str, str | None], Queue] = {}
        self._serial = 0
        self._only: tuple[str, str] | None = None
        self._closed = self._gone = False
        self._broken: BaseException | None = None
        self._raised = False
        """Has a call raised what ended it?"""
        self._verdict: Verdict | None = None
        self._heard = threading.Event()
        self._sole: dict[str, bool] = {}
        self._waits: dict[Any, Any] = {}
        """Of each engine, how its long wait stands (failing.Waiting)."""
        self.told: dict[int, Account] = {}
        """What other world ranks said that they were doing, when this one asked as it waited long."""
        self._stranded: dict[int, list[int]] = {}
        """Members that cannot go on, as those have left."""
        self._halted = False
        self._nothing = numpy.empty(0, numpy.uint8)
        self.gpus = Gpus()
        self.groups = tuple(
            tuple(self.members.index(r) for r in host if r in self.members)
            for host in world.groups if any(r in self.members for r in host)
        )  # fmt: skip
        for concurrent in ("collectives", "messages"):
            self._queues[concurrent, None] = self._make_queue(concurrent, None)
        self._main = self._queues["collectives", None]
        self.set_timeout(world.config.timeout)
        world.admit(self)  # type: ignore[arg-type]

    def set_timeout(self, seconds: float) -> None:
        """How long calls that do not say so may wait for other ranks, from now on; at first HOCKET_TIMEOUT."""
        self.timeout = arguments.seconds(seconds, "seconds")
        self._hot_init(self._main.engine, self.timeout)

    def _make_queue(self, kind: str, forced: str | None, accelerator: Any = None) -> Queue:
        roads = [None if r == self.world.rank else self.world.road(r, forced) for r in self.members]
        name = lane_name(f"{self.name}|{kind}|{forced}")
        used = [t for t in dict.fromkeys(roads) if t is not None]
        lanes = {t: self.world.transports[t].lane(name, self.rank, self.members) for t in used}
        near = forced is None or self.world.traits[forced].local
        groups = self.groups if near else tuple((r,) for r in range(self.size))
        queue = Queue(
            name, self.rank, roads, lanes, crowded=self.world.crowded, groups=groups,
            between=self._between(groups, forced, accelerator), traits=self.world.traits,
            concurrent=kind == "messages", accelerator=accelerator,
        )  # fmt: skip
        queue.engine.owner = self
        return queue

    def _between(self, groups: Groups, forced: str | None, accelerator: Any) -> tuple[str, str]:
        """The roads inside the hosts and across, "" where there is none: the same on all members.

        Those of a queue for GPU arrays have names of their own: what host arrays take says nothing of them.
        """

        def road(a: int, b: int) -> str:
            return self.world.road(self.members[b], forced, self.members[a])

        inside = next((road(*group[:2]) for group in groups if len(group) > 1), "")
        across = road(groups[0][0], groups[1][0]) if len(groups) > 1 else ""
        if accelerator is None:
            return inside, across
        return inside and accelerator.road, across and f"cuda over {across}"

    def wire(self, offers: Sequence[list[dict[str, Any]]]) -> None:
        """Take the members' offers for the queues made at birth."""
        for i, queue in enumerate(self._queues.values()):
            queue.accept([offer[i] for offer in offers])

    def offer(self) -> list[dict[str, Any]]:
        return [queue.offer() for queue in self._queues.values()]

    def _queue(self, kind: str, forced: str | None) -> Queue:
        """The queue for this kind of call over this transport; made, by all members together, at first use."""
        queue = self._queues.get((kind, forced))
        if queue is None and forced is not None and kind == "messages" and self._takes_anyway(forced):
            return self._queues[kind, None]
        if queue is None:
            within = f"the first call over {forced}"
            if forced is not None:
                self.world.check(forced)
            if forced is not None and not all(self._share(self._reaches_all(forced), within)):
                self.world.add(forced, self._exchange_in_world)
            queue = self._make_queue(kind, forced)
            queue.accept(self._share(queue.offer(), within))
            self._queues[kind, forced] = queue
        return queue

    def _takes_anyway(self, forced: str) -> bool:
        """Is this the road between all members?  The same on each: then no queue of its own is needed."""
        if forced not in self._sole:
            pairs = [(a, b) for a in self.members for b in self.members if a != b]
            self._sole[forced] = all(self.world.road(b, None, a) == forced for a, b in pairs)
        return self._sole[forced]

    def _reaches_all(self, transport: str) -> bool:
        """Has this rank a road to every member over this transport?  (Members may know different things.)"""
        return all(r == self.world.rank or self.world.refusal(transport, r) is None for r in self.members)

    def _exchange_in_world(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.world.size
        for r, given in zip(self.members, self._share(value, "opening a transport"), strict=True):
            values[r] = given
        return values

    def _share(self, value: Any, within: str, timeout: float | None = None) -> list[Any]:
        """Every member's JSON value, by rank.  `within`: the call that this is a part of."""
        data, general = numpy.frombuffer(json.dumps(value).encode(), numpy.uint8), self._general  # type: ignore[attr-defined]
        options = Options(timeout=timeout, within=within)
        lengths = general("allgather", numpy.array([len(data)]), None, None, 0, None, options)
        rows = general("allgather", data, None, None, 0, lengths.tolist(), options)
        ends = numpy.cumsum(lengths)
        return [json.loads(rows[end - n : end].tobytes()) for n, end in zip(lengths, ends, strict=True)]

    def retune(self, tuning: Tuning, only: tuple[str, str] | None = None) -> None:
        """Choose by this from now on, or use `only` this algorithm of this collective.  On all members alike."""
        self.tuning, self._only = tuning, only
        for queue in self._queues.values():
            queue.engine.plans.clear()
        self._forget()

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def _wire(self, made: Members | None) -> None:
        """Give a new communicator its peers' offers; collective over this one."""
        offers = self._share(made.offer() if made is not None else None, "split()")
        if made is not None:
            made.wire([offers[self.members.index(r)] for r in made.members])

    def _rank(self, value: int, what: str) -> int:
        return rank_in(self.size, value, what)
