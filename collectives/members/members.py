"""The members of a communicator, and the queues that carry its calls to them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hocket.arguments import rank_in
from hocket.collectives.base.wording import Group
from hocket.collectives.choice.tuning import Reads, Tuning
from hocket.collectives.engine.queue import Queue, Routes
from hocket.collectives.job.world import World
from hocket.errors import ArgumentError
from hocket.transports.base import Traits
from hocket.transports.tcp.long.congestion import LONG

Groups = tuple[tuple[int, ...], ...]


def channels_name(what: str) -> str:
    """10 letters and digits, 50 bits: two of 1,000 communicators share one in 1 of 2,000,000,000 jobs.

    Such a job fails with a MismatchError, as messages carry a checksum of the name (communicator/planner.py).
    """
    return base64.b32encode(hashlib.blake2b(what.encode(), digest_size=7).digest()).decode()[:10].lower()


class Members:
    """An ordered set of world ranks (`world_ranks`), with queues of their own.

    What all parts of a communicator share; it calls none of them.
    """

    def __init__(
        self, world: World, name: str, world_ranks: Sequence[int], tuning: Tuning | None = None, priority: int = 0
    ) -> None:
        self.world, self.name, self.world_ranks, self.priority = world, name, list(world_ranks), priority
        self.group = Group(name, self.world_ranks, world.size)
        self.tuning = world.tuning if tuning is None else tuning
        """Algorithms are chosen by this; the same on all members."""
        self.only: tuple[str, str] | None = None
        """(collective, algorithm) that is used instead of the choice, while it is measured."""
        self.timeout = world.config.timeout
        """Seconds that calls may wait for other ranks, if they do not say so."""
        self.within = ""
        """All calls here are a part of this, for texts."""
        self.passed: Callable[[], tuple[list[int], list[int]]] | None = None
        """Where calls follow each other, messages too: how many this rank has begun to send, and to take, by rank."""
        self.idles = False
        """Do calls here wait for news that may not come for hours?"""
        self.rank, self.size = self.world_ranks.index(world.rank), len(self.world_ranks)
        self.queues: dict[tuple[str, str | None], Queue] = {}
        """By kind of call ("collectives", "messages", "gpu") and the transport that was asked for."""
        self.groups = tuple(
            tuple(self.world_ranks.index(r) for r in host if r in self.world_ranks)
            for host in world.groups if any(r in self.world_ranks for r in host)
        )  # fmt: skip
        """The members that reach each other inside a host."""
        self._sole: dict[str, bool] = {}

    @property
    def hosts(self) -> list[list[int]]:
        """The members by host, also where they share no memory."""
        by_host = ([i for i, r in enumerate(self.world_ranks) if r in host] for host in self.world.hosts)
        return sorted(here for here in by_host if here)

    @property
    def main(self) -> Queue:
        """The queue of collectives over whichever transports reach the members."""
        return self.queues["collectives", None]

    @property
    def reads(self) -> Reads | None:
        """By which rule ranks read the sender's memory, where it was measured.

        Where ranks outnumber cores it was not: the order in which the system runs them would decide.
        """
        return None if self.world.cores.crowded else self.tuning.reads

    def idle(self) -> None:
        """From now on calls here wait for news that may not come for hours: they sleep, and nobody is told of it."""
        self.idles = True
        for queue in list(self.queues.values()):
            queue.engine.sleep_soon()

    def limit(self, timeout: float | None) -> float:
        """Seconds that a call with this `timeout` may wait."""
        return self.timeout if timeout is None else timeout

    def checked(self, value: int, what: str) -> int:
        """A rank of this communicator, as a user gives one."""
        try:
            return rank_in(self.size, value, what)
        except ArgumentError as why:
            of = "" if self.group.is_job else f": it is {self.group.text} of the job"
            raise ArgumentError(f"{why}{of}") from None

    def make_queue(self, kind: str, forced: str | None, owner: Any, make: Callable[..., Queue] = Queue) -> Queue:
        """A queue whose channels are not open yet; `owner` is told of its long waits.  `make`: its class."""
        transports = [None if r == self.world.rank else self.world.transport(r, forced) for r in self.world_ranks]
        name = channels_name(f"{self.name}|{kind}|{forced}")
        used = [t for t in dict.fromkeys(transports) if t is not None]
        channels = {t: self.world.transports[t].channels(name, self.rank, self.world_ranks) for t in used}
        for each in channels.values():
            if hasattr(each, "priority"):
                each.priority = self.priority
        near = forced is None or self.world.traits.get(forced, Traits()).local  # no traits: this rank is alone
        groups = self.groups if near else tuple((r,) for r in range(self.size))
        between = self._between(groups, forced)
        routes = Routes(transports, channels, self.world.traits, groups, between, self._long, len(self.hosts) == 1)
        queue = make(name, self.rank, routes, self.world.cores, priority=self.priority, concurrent=kind == "messages")
        queue.engine.owner, queue.recorder = owner, self.world.recorder
        if queue.recorder is not None:
            queue.follow = partial(
                queue.recorder.follow, queue, self.name, kind, self.world_ranks, self.priority, forced)
        return queue

    def _between(self, groups: Groups, forced: str | None) -> tuple[str, str]:
        """The transports inside the hosts and across, "" where there is none: the same on all members."""

        def transport(a: int, b: int) -> str:
            return self.world.transport(self.world_ranks[b], forced, self.world_ranks[a])

        inside = next((transport(*group[:2]) for group in groups if len(group) > 1), "")
        return inside, transport(groups[0][0], groups[1][0]) if len(groups) > 1 else ""

    @property
    def _long(self) -> bool:
        """Is some member's host far from another's?  Known where one is nearer to rank 0's; the same on all members."""
        there = [self.world.round_trips[r] for r in self.world_ranks]
        return max(there) - min(there) >= LONG

    def offer(self) -> list[dict[str, Any]]:
        """The offers that the other members need, for the queues made at birth."""
        return [queue.offer() for queue in self.queues.values()]

    def accept(self, offers: Sequence[list[dict[str, Any]]]) -> None:
        """Take the members' offers for these queues."""
        for i, queue in enumerate(self.queues.values()):
            queue.accept([offer[i] for offer in offers])
            queue.read_from(self.reads)

    def takes_anyway(self, forced: str) -> bool:
        """Is this the transport between all members anyway, so that it needs no queue of its own?  The same on all."""
        if forced not in self._sole:
            pairs = [(a, b) for a in self.world_ranks for b in self.world_ranks if a != b]
            self._sole[forced] = all(self.world.transport(b, None, a) == forced for a, b in pairs)
        return self._sole[forced]

    def reach_each_other(self, transport: str) -> bool:
        """Is this transport open between all members?  The same on each that has it from `init`."""
        return all(
            self.world.refusal(transport, b, a) is None for a in self.world_ranks for b in self.world_ranks if a != b
        )

    def reaches_all(self, transport: str) -> bool:
        """Does this rank reach every member over this transport?  (Members may know different things.)"""
        return all(r == self.world.rank or self.world.refusal(transport, r) is None for r in self.world_ranks)
