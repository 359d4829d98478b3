"""Who belongs to a communicator, and the queues that carry its calls to them."""

from __future__ import annotations

import functools
import json
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from hocket.algorithms.tuning import Tuning
from hocket.collectives.buffers import Buffer
from hocket.collectives.calls import rank_in
from hocket.collectives.hot import HotPath
from hocket.collectives.queue import Queue
from hocket.collectives.world import World
from hocket.errors import ArgumentError
from hocket.transports.base import LOCAL

Groups = tuple[tuple[int, ...], ...]


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
        self._closed = False
        self._broken: BaseException | None = None
        self._verdict: dict[str, Any] | None = None
        self._heard = threading.Event()
        self._stuck_at = -1
        self._halted = False
        self._nothing = numpy.empty(0, numpy.uint8)
        self.why_staged: str | None = None
        """Why GPU arrays go through host memory whole; "": they do not; None: there were none yet."""
        self.why_pinned: dict[int, str] = {}
        """If they do not: the ranks that are reached through pinned memory, and why; the others' GPUs are mapped."""
        self.all_mapped = True
        """Is there no such rank, for any of the members?"""
        self.why_events = ""
        """... and why streams wait for events, and not for words."""
        self._gpu = -1
        self._to_register: list[Buffer] = []
        self.unregistered: dict[str, int] = {}
        """Why memory that was to be registered is not: so many arrays each."""
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
        self.timeout = seconds
        self._hot_init(self._main.engine, seconds)

    def _queue_on(self, gpu: int, timeout: float | None) -> Queue | None:
        """The queue for arrays on this GPU; None if they must go through host memory.  The same on all members."""
        if self.why_staged is None:  # the first call on GPU arrays
            without = [r for r, member in enumerate(self.members) if not self.world.gpus[member]]
            if without:
                self.why_staged = f"rank {without[0]} has no GPU, or says so (HOCKET_GPU)"
            else:
                try:
                    self._make_gpu_queue(gpu, functools.partial(self._share, timeout=timeout))
                except BaseException as error:  # the others would wait for us in the next step
                    self.give_up(error)  # type: ignore[attr-defined]
                    raise
        if self.why_staged:
            return None
        if gpu != self._gpu:
            raise ArgumentError(
                f"this communicator works on GPU {self._gpu}; the array is on GPU {gpu}: copy it there, "
                "or use another communicator (comm.split)"
            )
        return self._queues["gpu", None]

    def _make_gpu_queue(self, gpu: int, share: Callable[[Any], list[Any]]) -> None:
        from hocket.collectives import accelerated  # only who has arrays on a GPU needs it

        accelerator, found = accelerated.build(self, gpu, share)
        if accelerator is not None:
            try:
                made = self._make_queue("gpu", None, accelerator)
                made.accept(share(made.offer()))
            except BaseException:
                accelerator.abort()
                raise
            self._queues["gpu", None] = made
            accelerator.is_driven = lambda: made.engine.driven
            if self._halted:  # meanwhile, and that queue was not there to be told
                made.engine.abort()
                accelerator.abort()
            made.engine.count_with(self._main.engine)
            self.all_mapped = not any(map(any, found.mapped))
            self.why_pinned = {r: why for r, why in enumerate(found.mapped[self.rank]) if why}
            self._gpu = gpu
            for buffer in self._to_register:
                self._register(accelerator, buffer)
            self._to_register.clear()
        self.why_staged, self.why_events = found.why_staged, found.why_events

    def _register_array(self, buffer: Buffer) -> None:
        """Tell the queue of GPU arrays, now or when there is one, that this array's memory stays."""
        if buffer.device < 0:
            raise ArgumentError("register takes an array on a GPU; for others nothing is to be gained")
        queue = self._queues.get(("gpu", None))
        if queue is None:
            self._to_register.append(buffer)
        else:
            self._register(queue.accelerator, buffer)

    def _register(self, accelerator: Any, buffer: Buffer) -> None:
        why = accelerator.register(buffer)
        if why:
            self.unregistered[why] = self.unregistered.get(why, 0) + 1

    def _make_queue(self, kind: str, forced: str | None, accelerator: Any = None) -> Queue:
        roads = [None if r == self.world.rank else self.world.road(r, forced) for r in self.members]
        name = f"{zlib.crc32(f'{self.name}|{kind}|{forced}'.encode()):08x}"
        used = [t for t in dict.fromkeys(roads) if t is not None]
        lanes = {t: self.world.transports[t].lane(name, self.rank, self.members) for t in used}
        near = forced is None or forced in LOCAL
        groups = self.groups if near else tuple((r,) for r in range(self.size))
        queue = Queue(
            name, self.rank, roads, lanes, crowded=self.world.crowded, groups=groups,
            between=self._between(groups, forced, accelerator), concurrent=kind == "messages", vendor=self.world.vendor,
            accelerator=accelerator,
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
        if queue is None:
            if forced is not None and not all(self._share(self._reaches_all(forced))):
                self.world.add(forced, self._exchange_in_world)
            queue = self._make_queue(kind, forced)
            queue.accept(self._share(queue.offer()))
            self._queues[kind, forced] = queue
        return queue

    def _reaches_all(self, transport: str) -> bool:
        """Has this rank a road to every member over this transport?  (Members may know different things.)"""
        return all(r == self.world.rank or self.world.refusal(transport, r) is None for r in self.members)

    def _exchange_in_world(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.world.size
        for r, given in zip(self.members, self._share(value), strict=True):
            values[r] = given
        return values

    def _share(self, value: Any, timeout: float | None = None) -> list[Any]:
        """Every member's JSON value, by rank."""
        data = numpy.frombuffer(json.dumps(value).encode(), numpy.uint8)
        lengths = self.allgather(numpy.array([len(data)]), timeout=timeout)  # type: ignore[attr-defined]
        rows = self.allgatherv(data, lengths.tolist(), timeout=timeout)  # type: ignore[attr-defined]
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
        offers = self._share(made.offer() if made is not None else None)
        if made is not None:
            made.wire([offers[self.members.index(r)] for r in made.members])

    def _rank(self, value: int, what: str) -> int:
        return rank_in(self.size, value, what)
