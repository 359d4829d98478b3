"""The time of a collective on a topology: an event simulation over the schedules that the engine runs.

A rank runs its steps as the engine does.  Its CPU prepares the sends of a step (`overhead` each); then their bytes
are on the way, all messages to one peer as one stream, sharing ports fairly with everybody else's.  A send is done
when its last byte has left; it needs no waiting receiver (channels buffer).  A message has arrived the latency after
its last byte left.  Reductions keep up with what arrives, `GRAIN` bytes behind it, unless the CPU is too slow.  The
next step starts when all ops are done; steps run over segments if the algorithm is worth it and chunks are long.

Exact within that model: messages, bytes, order, and the merging of ranks.  Ranks that `Algorithm.period` and
`Topology.period` both say are in the same situation are simulated once, whatever their number; that changes no
result.  Approximations: chunks are equally long, to the fraction of a byte; one op is one message (the engine fuses
some); memory is a link, so that copying costs no CPU; ranks do not compete for cores; streams have no start-up,
losses or protocol of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import ceil, lcm

from hocket.algorithms.language.compose import pipelined
from hocket.algorithms.language.registry import Algorithm
from hocket.algorithms.language.schedule import Copy, Recv, Schedule, Send, ids
from hocket.algorithms.prediction.sharing import Sharing, Transfer
from hocket.algorithms.prediction.topology import Port, Topology
from hocket.errors import ArgumentError, ScheduleError

GRAIN = 1 << 18
"""Bytes that arrive together: what a stream reads ahead (transports/tcp/stream.h)."""
SAME = 1e-9
"""Events whose times differ by this part of the time are one event: rounding must not part what is simultaneous."""
MOST_STEPS = 30_000_000
MOST_RATES = 10_000_000
"""Steps of all simulated ranks, times segments, and rates of transfers: beyond them a simulation is refused.
See `test_what_would_take_too_long_is_refused`."""


@dataclass(frozen=True)
class Prediction:
    """One simulated call."""

    collective: str
    algorithm: str
    size: int
    nbytes: float
    """A rank's whole vector, all blocks together."""
    seconds: float
    """Until the last rank is done."""
    messages: int
    """All ranks' together."""
    sent: float
    """Bytes sent by the rank that sends most."""
    busiest: str
    """The port in use for most of the time; of several in the same situation, the first."""
    share: float
    """The part of the time in which it would be in use at full rate."""
    segments: int
    simulated: int
    """Ranks looked at; the others do the same."""
    ends: tuple[float, ...] = ()
    """When each of these was done."""


def simulate(
    algorithm: Algorithm, size: int, nbytes: float, topology: Topology, root: int = 0, segment: int = 0,
    starts: Sequence[float] | None = None,
) -> Prediction:  # fmt: skip
    """Predict one call on `nbytes` bytes (a rank's whole vector); `segment` bytes of a chunk are pipelined, 0: whole.

    `starts`: when each rank comes to the call; None: all at 0.

    ArgumentError: a size that the algorithm refuses or the topology has no room for, or so much to simulate that it
    would take more than some minutes.

    >>> from hocket.algorithms import get, topology
    >>> flat = topology("flat:latency=20us,bandwidth=1Gbit,overhead=0us")
    >>> simulate(get("broadcast", "direct"), 2, 125e6, flat).seconds
    1.00002
    """
    if reason := algorithm.requires(size):
        raise ArgumentError(f"{algorithm.collective} {algorithm.name} does not run with {size} ranks: {reason}")
    topology.check(size)
    if not 0 <= root < size or nbytes < 0 or segment < 0:
        given = f"root={root}, nbytes={nbytes}, segment={segment}"
        raise ArgumentError(f"{given}: root must be 0..{size - 1}, nbytes and segment at least 0")
    if starts is not None and len(starts) != size:
        raise ArgumentError(f"starts has {len(starts)} times; expected one for each of {size} ranks")
    return _Run(algorithm, size, nbytes, topology, root, segment, starts).predict()


class _SimulatedRank:
    """Where one rank is."""

    __slots__ = ("arrived", "at", "end", "finished", "leaving", "left", "program", "ready", "received", "sent", "tail")

    left: float
    """When the last of the step's messages left."""
    leaving: int
    """Streams of the step that have not left."""
    received: int
    """Messages that the step receives."""
    ready: float
    """When the CPU could be done with the step if everything were there."""
    tail: float
    """Seconds of work on what comes last."""

    def __init__(self, program: Schedule) -> None:
        self.program = program
        self.at = -1
        """The step, -1 before the first."""
        self.finished = False
        self.end = 0.0
        self.sent = 0.0
        self.arrived: dict[int, tuple[int, float]] = {}
        """Step -> messages that have come or are certain to, and when the last one is there."""


class _Stream(Transfer):
    """All messages of one step from rank to rank."""

    __slots__ = ("latency", "messages", "source", "step", "target")

    source: int
    target: int
    step: int
    messages: int
    latency: float


class _Run:
    def __init__(
        self, algorithm: Algorithm, size: int, nbytes: float, topology: Topology, root: int, segment: int,
        starts: Sequence[float] | None = None,
    ) -> None:  # fmt: skip
        self.algorithm, self.size, self.nbytes, self.topology = algorithm, size, nbytes, topology
        self.reducing = topology.reducing
        period = lcm(algorithm.period(size), topology.period(size))
        self.period = period if size % period == 0 and starts is None else size
        self.starts = [0.0] * self.period if starts is None else starts
        chunks = algorithm.chunks(size)
        chunk = nbytes / (size if algorithm.collective == "alltoall" else chunks)
        cut = algorithm.cut(chunk, segment, topology.spread(size))
        self.segments = ceil(chunk / cut) if cut else 1
        self.span = chunks + algorithm.scratch
        self.whole = cut or chunk
        self.last = chunk - (self.segments - 1) * self.whole
        """Bytes of a chunk in the last segment; in the others, `whole`."""
        self._check_work(sum(1 for _ in algorithm.steps(0, size, root)))
        self.ranks = [_SimulatedRank(self._program(rank, root)) for rank in range(self.period)]
        self.sharing: Sharing[_Stream] = Sharing(topology.bandwidth)
        self.carried: dict[Port, float] = defaultdict(float)
        self.messages = 0
        self.end = 0.0
        self.events: list[tuple[float, int, int | _Stream | list[_Stream]]] = []
        """(time, order, what): a rank that goes on, a stream that may have ended, or streams that begin."""
        self.order = count()

    def _check_work(self, steps: int) -> None:
        work = self.period * (steps + self.segments - 1) * self.segments
        if work > MOST_STEPS:
            raise self._too_much(f"{work:,} steps")

    def _too_much(self, what: str) -> ArgumentError:
        return ArgumentError(
            f"{self.algorithm.collective} {self.algorithm.name}, {self.size} ranks, {self.nbytes:.0f} bytes: more than"
            f" {what} would have to be simulated; take fewer ranks or bytes, or a size that fills hosts and racks"
        )

    def _program(self, rank: int, root: int) -> Schedule:
        steps = self.algorithm.steps(rank, self.size, root)
        return pipelined(steps, self.segments, self.span) if self.segments > 1 else steps

    def predict(self) -> Prediction:
        for rank, start in enumerate(self.starts):
            heappush(self.events, (start, next(self.order), rank))
        while self.events:
            self._happen(self.events[0][0])
        if stuck := [r for r, rank in enumerate(self.ranks) if not rank.finished]:
            raise ScheduleError(f"{self.algorithm.name}: ranks {stuck[:8]} wait for messages that are never sent")
        used = {port: nbytes / self.topology.bandwidth(port) for port, nbytes in self.carried.items()}
        busiest = max(used, key=used.__getitem__, default=None)
        return Prediction(
            self.algorithm.collective, self.algorithm.name, self.size, self.nbytes, self.end,
            messages=self.messages * (self.size // self.period),
            sent=max(rank.sent for rank in self.ranks),
            busiest=self.topology.words(busiest) if busiest else "",
            share=used[busiest] / self.end if busiest and self.end else 0.0,
            segments=self.segments, simulated=self.period, ends=tuple(rank.end for rank in self.ranks),
        )  # fmt: skip

    def _happen(self, now: float) -> None:
        """Everything at this time."""
        ended: list[_Stream] = []
        begun: list[_Stream] = []
        while self.events and self.events[0][0] <= now * (1 + SAME):
            time, _, what = heappop(self.events)
            if isinstance(what, int):
                self._go_on(what, now)
            elif isinstance(what, list):
                begun += what
            elif what.due == time:
                what.due = -1.0  # a stream that ends twice at one time would be in the heap twice
                ended.append(what)
        for stream in ended:
            self._has_left(stream, now)
        for stream in self.sharing.change(now, ended, begun):
            heappush(self.events, (stream.due, next(self.order), stream))
        if self.sharing.visits > MOST_RATES:
            raise self._too_much(f"{MOST_RATES:,} rates")

    def _bytes(self, op: Send | Recv) -> float:
        chunks = ids(op.chunks)
        return len(chunks) * (self.last if chunks[0] // self.span == self.segments - 1 else self.whole)

    def _go_on(self, number: int, now: float) -> None:
        """The next step that has something to do."""
        rank, topology = self.ranks[number], self.topology
        for step in rank.program:
            rank.at += 1
            peers: dict[int, tuple[int, float]] = {}
            sends, receives, reduced = 0, 0, 0.0
            sending, receiving = 0.0, 0.0
            for op in step:
                if isinstance(op, Send):
                    messages, nbytes = peers.get(op.peer, (0, 0.0))
                    peers[op.peer] = messages + 1, nbytes + self._bytes(op)
                    sends += 1
                    sending += topology.handling(number, op.peer)
                elif isinstance(op, Recv):
                    receives += 1
                    receiving += topology.handling(op.peer, number)
                    reduced += self._bytes(op) if op.reduce else 0.0
                elif isinstance(op, Copy):
                    now += self.reducing * self.whole
            if sends or receives:
                rank.left, rank.leaving, rank.received = now + sending, len(peers), receives
                rank.ready = rank.left + receiving + self.reducing * reduced
                rank.tail = receiving + self.reducing * min(reduced, GRAIN)
                self.messages += sends
                if peers:
                    streams = [self._stream(number, peer, *tally) for peer, tally in peers.items()]
                    heappush(self.events, (rank.left, next(self.order), streams))
                self._may_go_on(number)
                return
        rank.finished, rank.end = True, now
        self.end = max(self.end, now)

    def _stream(self, source: int, target: int, messages: int, nbytes: float) -> _Stream:
        ports = self.topology.ports(source, target, self.period)
        stream = _Stream(ports, nbytes)
        stream.source, stream.target, stream.step = source, target % self.period, self.ranks[source].at
        stream.messages, stream.latency = messages, self.topology.latency(source, target)
        self.ranks[source].sent += nbytes
        for port in ports:
            self.carried[port] += nbytes
        return stream

    def _has_left(self, stream: _Stream, now: float) -> None:
        source, target = self.ranks[stream.source], self.ranks[stream.target]
        source.leaving -= 1
        source.left = now
        messages, last = target.arrived.get(stream.step, (0, 0.0))
        target.arrived[stream.step] = messages + stream.messages, max(last, now + stream.latency)
        self._may_go_on(stream.source)
        if stream.target != stream.source and target.at == stream.step:
            self._may_go_on(stream.target)

    def _may_go_on(self, number: int) -> None:
        """Go on once all of the step's messages have left and come, and what came is reduced."""
        rank = self.ranks[number]
        come, last = rank.arrived.get(rank.at, (0, 0.0))
        if rank.leaving or come < rank.received:
            return
        rank.arrived.pop(rank.at, None)
        heappush(self.events, (max(rank.left, rank.ready, last + rank.tail), next(self.order), number))
