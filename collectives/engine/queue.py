"""A queue: one engine, and the channels that carry its bytes to and from each member.

A channel is opened when a plan first needs it; one inside the host costs nothing to open and is opened at once,
so that lowering knows which channels can multicast.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy

from hocket.algorithms.language.registry import Algorithm
from hocket.collectives.arrays.buffers import Buffer
from hocket.collectives.calls.call import Call
from hocket.collectives.calls.ops import Resolved
from hocket.collectives.choice.fabric import LONG, NEAR, Fabric
from hocket.collectives.choice.tuning import Reads
from hocket.collectives.engine.engine import Engine
from hocket.collectives.plans.plan import Counts, Plan
from hocket.collectives.recording.own import OwnRecorder
from hocket.errors import ArgumentError
from hocket.transports.base import Channels, Traits
from hocket.transports.loopback import Loopback

SPIN_ALONE, SPIN_STREAM, SPIN_SHARED = 4000, 300, 1
"""Polls before the first yield: with a core for each local rank; over sockets, where each poll is a system call; and
without such cores, where the awaited rank needs ours.  `hocket bench allreduce -n 8 -b 8 -e 8`, 8 ranks on 2 cores:
10 us, with 20 polls 16 us, of which a yield to the next rank takes 1 us."""
PLANS = 1024
"""Plans that a queue remembers."""
CLOSE_WAIT = 1.0
"""Seconds that closing waits for other threads to leave the engine."""
POLLS_WITH_GIL = 200
"""Polls before the GIL is released: to release it and take it back costs a small call a tenth of its time
(`hocket bench allreduce -n 2 -b 8 -e 8`: 0.43 us with, 0.49 us without)."""
WHOLE_FROM, WHOLE_BELOW = 4 << 20, 32 << 20
"""Bytes of vectors that ranks who reduce out of each other's memory run in one piece: one copy and few steps count for
more than what segments keep in the caches."""
WAYS = {
    "moved": ("slots", "reading"),
    "reduced": ("slots", "reading", "writing"),
    "one way": ("slots", "both cores"),
}
"""By a contract's traffic, the ways of its messages that may be the fastest."""
WAYS_WHERE_SLOTS_ARE_SLOW = WAYS | {"moved": ("reading", "both cores"), "reduced": ("reading", "writing")}
"""The ways of messages that are read by the rule there."""
GATHERED_FROM = 4 << 20
"""Bytes of a block below which an allgather's are copied by slots where no ways are tried: a rank's own copy is stored
beside each slot, and what lies in one is there for all (AMD; docs/performance.md)."""
EARLY_BELOW = 4 << 20
"""Bytes of a block from which on a rank's own part of an allgather is copied while it waits, though others are read: no
cache has so much."""
LONG_CHUNK = 16 << 20
"""Bytes of a pipelined chunk between hosts with long links: each chunk waits once for the latency, which is 50 ms on
docs/long-links.md's, while 1 Gbit/s carries 6 MB."""
LONG_SEGMENT = 1 << 20
"""Bytes of a chunk of what is reduced then: ranks wait for each other seldom, and one system call reads it."""
Weighs = tuple[()] | tuple[tuple[str, ...], int, str]
ONE_WAY: tuple[str, Weighs] = "one way", ()
_pinned: list[Queue] = []
"""Closed queues that are kept: a library that cannot let go, or a thread in them, may still touch their memory."""


class Hold:
    """Some memory is registered while this lives."""

    __slots__ = ("__weakref__",)


class InHost:
    """One call whose arrays are in host memory, as a run takes it; gpu/call.py has the other kind."""

    placed, stream = None, 0

    def __init__(self, queue: Queue, call: Call, how: Resolved) -> None:
        self.user, self.held = how.user, queue.pin(call.src, call.dst)

    def finish(self) -> None:
        """The run has ended: nothing is left to do."""


class Cores(NamedTuple):
    """The ranks that share cores, which tells how to wait.  The same on all ranks, but for `home`."""

    crowded: bool
    """Do ranks outnumber the cores, on any host?"""
    scarce: bool
    """Has some host fewer than two cores for each of its ranks?"""
    home: int
    """This rank's own core, to which it may move where two ranks share one (system/wait.h); -1: it has none."""
    each: float
    """Cores of this rank's host for each of its ranks."""


class Routes(NamedTuple):
    """The ways to the members of a queue."""

    transports: Sequence[str | None]
    """To each; None: this rank itself."""
    channels: dict[str, Channels]
    """Channels of these transports, by name."""
    traits: Mapping[str, Traits]
    """Traits of every transport that is open in this job, by name."""
    groups: tuple[tuple[int, ...], ...]
    """The members that reach each other inside a host."""
    between: tuple[str, str]
    """The transports inside and across, "" where there is none."""
    long: bool = False
    """Does a round trip between two hosts take milliseconds?"""
    one_host: bool = False
    """Are all members on one host, also where they share no memory?"""


class Queue:
    """The engine of one communicator's collectives, or of its sends and receives.

    `name`: the same on all members, and of no other queue.  `index`: this rank's among them.
    Calls on GPU arrays have a queue of a subclass (gpu/queue.py).
    """

    where = ""
    """Where its arrays are, for texts."""
    context: Any = None
    """The channels of GPU arrays stand on this."""

    def __init__(
        self, name: str, index: int, routes: Routes, cores: Cores, *, priority: int = 0, concurrent: bool = False,
        segment: int = 0,
    ) -> None:  # fmt: skip
        transports, channels, traits, self.groups, between, long, one_host = routes
        self.name, self.transports, self.channels, self._crowded = name, transports, channels, cores.crowded
        self._traits = [traits[name] for name in transports if name is not None]
        spins = SPIN_SHARED if cores.crowded else SPIN_ALONE if all(t.polled for t in self._traits) else SPIN_STREAM
        polls = 0 if any(t.needs_gil for t in self._traits) else min(POLLS_WITH_GIL, spins)
        out = not all(t.local for t in self._traits)
        self.engine = Engine(index, len(transports), spins, concurrent, polls, cores.home, priority, cores.scarce, out)
        self.engine.room = cores.each
        self.engine.thread = max((getattr(each, "thread", 0) for each in channels.values()), default=0)
        inside, across = between
        chunk = traits.get(across or inside, Traits()).segment
        if across and one_host:
            across = NEAR + across
        elif across:
            chunk = traits.get(across, Traits()).between_hosts
            across, chunk = (LONG + across, LONG_CHUNK) if long else (across, chunk)
        self.segment = segment or chunk
        """Bytes of a pipelined chunk that are in flight together: the same on every member."""
        self.layout = Fabric(tuple(map(len, self.groups)), inside, across, self.segment)
        """Algorithms are chosen by this."""
        self.counts: dict[tuple[str, str, str], Counts] = {}
        """By collective, algorithm and transports."""
        self.recorder: OwnRecorder | None = None
        self.follow: Callable[[], None] | None = None
        """Makes the recorder follow the engine: when a call is to come, as many engines never have any."""
        self.offers: Sequence[dict[str, Any]] = []
        self.library: Any = None
        """The MPI communicator of the members, for algorithm="mpi"; made at its first use."""
        self.readable: Any = None
        """The channels whose members can all read each other's memory, if there are any: the same on all."""
        self._local = {name for name in transports if name is not None and traits[name].local}
        self._opening = [threading.Lock() for _ in transports]
        pinning: list[Any] = [each for each in channels.values() if hasattr(each, "pin")]
        self._pins = [each.pin for each in pinning]
        self.pin_from = min((each.pin_from for each in pinning), default=sys.maxsize)
        """Bytes of an array from which `pin` does something."""

    def keep(self, key: Hashable, plan: Plan) -> None:
        """Remember a plan; the oldest goes when there are many (counts that change with each call)."""
        plans = self.engine.plans
        plans[key] = plan
        while len(plans) > PLANS:
            plans.pop(next(iter(plans)), None)

    def counted(self, plan: Plan) -> Plan:
        """The same plan, whose calls are counted with those of its kind, and recorded."""
        over = "+".join(sorted({name for p in plan.peers if (name := self.transports[p]) is not None}))
        plan.counts = self.counts.setdefault((plan.collective, plan.algorithm, over), plan.counts)
        if self.recorder is not None:
            plan.what = self.recorder.call(plan, over)
            if self.follow is not None:
                self.follow()
                self.follow = None
        return plan

    def check_thread(self) -> None:
        """Raise ArgumentError if the calling thread may not drive this queue."""
        if not self.engine.is_ours:
            raise ArgumentError(
                "this communicator calls MPI, which was started so that only one thread may: call from that thread, "
                "start MPI with MPI_THREAD_MULTIPLE (mpi4py's default), or use another transport or algorithm here"
            )

    def pin(self, *buffers: Buffer | None) -> list[Hold] | None:
        """Register these buffers with the transports that then need not copy them.  None: there is no such transport.

        What a NumPy array owns stays registered as long as it lives.  Other memory may be freed though its array lives
        (torch resizes storages), so it is registered for this call: until the `Hold`s are dropped.
        """
        if not self._pins:
            return None
        holds = []
        for buffer in {b.address: b for b in buffers if b is not None}.values():  # once, if it is in place
            if buffer.nbytes >= self.pin_from:
                owner = _owner(buffer.array if buffer.host is None else buffer.host)
                if owner is None:
                    owner = Hold()
                    holds.append(owner)
                for pin in self._pins:
                    pin(buffer.address, buffer.nbytes, owner)
        return holds

    def offer(self) -> dict[str, Any]:
        """The offer that the other members need; see `Channels.offer`."""
        return {name: channels.offer() for name, channels in self.channels.items()}

    def accept(self, offers: Sequence[dict[str, Any]]) -> None:
        """Take the other members' offers, and open what is local."""
        self.offers = offers
        for name, channels in self.channels.items():
            if hasattr(channels, "agree") and channels.agree([offer.get(name) for offer in offers]):
                self.readable = channels
        self.connect(p for p in range(len(self.transports)) if self.is_local(p))

    def read_from(self, reads: Reads | None) -> None:
        """By this rule ranks read the sender's memory from now on; None: by the CPU's maker.  On all members alike."""
        if self.readable is not None:
            self.readable.read_from(*(self.readable.usual[self._crowded] if reads is None else reads))

    def segment_of(self, nbytes: int, weighs: Weighs = ()) -> int:
        """Bytes of a pipelined chunk of so long a vector; 0: it runs in one piece."""
        reduces_far = self.readable is not None and Reads(*self.readable.rule).reduced is not None
        if weighs:
            return LONG_SEGMENT
        return 0 if reduces_far and WHOLE_FROM <= nbytes < WHOLE_BELOW else self.segment

    def weighs(self, traffic: str, longest: int) -> Weighs:
        """The ways among which a plan finds the fastest (weigh.h), calls by slots before one counts, and the first one.

        (): the rule decides.  `longest`: bytes of the longest block that it only moves, or of all that it reduces.
        """
        if self.readable is None or self.context is not None:
            return ()
        rule = Reads(*self.readable.rule)
        tried, read_from = rule.tried(traffic), {"moved": rule.moved, "reduced": rule.reduced}.get(traffic)
        if tried is None or longest < tried:
            return ()
        by_rule = read_from is not None and longest >= read_from
        ways = (WAYS_WHERE_SLOTS_ARE_SLOW if by_rule and rule.slots_are_slow else WAYS)[traffic]
        if self.readable.checked:  # nobody writes into another's arrays (transports/shm/checked.h)
            ways = tuple(way for way in ways if way in ("slots", "reading"))
        rounds = -(-2 * self.readable.circle // longest) if ways[0] == "slots" else 1
        return (ways, rounds, "reading" if by_rule else "slots") if len(ways) > 1 else ()

    def gathers_early(self, longest: int) -> bool:
        """Does a rank copy its own part of an allgather before it reads what comes?

        `longest`: bytes of the longest block.
        A part that was just written is still in the rank's caches.  The others' parts would drive it out.
        """
        if self.readable is None:
            return False
        rule = Reads(*self.readable.rule)
        return rule.slots_are_slow and rule.moved is not None and rule.moved <= longest < EARLY_BELOW

    def of_message(self, nbytes: int, receives: bool) -> tuple[str, Weighs]:
        """The traffic of a message of so many bytes, and the ways that are tried.

        `receives`: the same call takes one, so both ranks copy in any case.
        """
        if receives and self.readable is not None:
            rule = Reads(*self.readable.rule)
            if rule.slots_are_slow and rule.moved is not None and nbytes >= rule.moved:
                return "moved", self.weighs("moved", nbytes)
        return "one way", self.weighs("one way", nbytes)

    def gathers_by_slots(self, longest: int) -> bool:
        """Do an allgather's blocks, of `longest` bytes at most, go by slots, whatever is done with what is only moved?

        Where `hocket tune` has measured from how many bytes on an allgather's are read, that counts.
        """
        if self.readable is None or self.context is not None or longest >= GATHERED_FROM:
            return False
        rule = Reads(*self.readable.rule)
        by_maker = rule.moved == Reads(*self.readable.usual[self._crowded]).moved
        return rule.tried_moved is None and by_maker and rule.moved is not None and not rule.slots_are_slow

    def is_local(self, peer: int) -> bool:
        """Are the channels to this member memory?"""
        return self.transports[peer] in self._local

    def connect(self, peers: Iterable[int], look: Callable[[int], object] = lambda peer: None) -> None:
        """Open the channels to these members that are not open yet; `look(peer)` is called now and then in a wait."""
        for peer in sorted(peers):
            if not self.engine.connected(peer):
                with self._opening[peer]:  # threads may call at once
                    self._open(peer, look)

    def _open(self, peer: int, look: Callable[[int], object]) -> None:
        if not self.engine.connected(peer):
            transport = self.transports[peer]
            if transport is None:  # this rank itself
                own = Loopback()
                self.engine.connect(peer, own.capsule, own.capsule, own)
                return
            channels = self.channels[transport]
            if hasattr(channels, "look"):
                channels.look = functools.partial(look, peer)
            try:
                ends = channels.open(peer, self.offers[peer].get(transport))
                self.engine.connect(peer, *self.over(peer, *ends), (channels, self.context))
            finally:
                if hasattr(channels, "look"):
                    vars(channels).pop("look", None)  # it holds the communicator

    def over(self, peer: int, send: Any, recv: Any) -> tuple[Any, Any]:
        """The channels that calls use, over those of the transport."""
        return send, recv

    def carries(self, call: Call, algorithm: Algorithm, how: Resolved) -> bool:
        """Does one kernel of each rank (gpu/meeting.pyx) carry out such a call?"""
        return False

    def prepared(self, call: Call, how: Resolved, plan: Plan, apart: bool) -> Any:
        """The object that a run of the engine works on for this call.  `apart`: the call is asynchronous."""
        return InHost(self, call, how)

    def abort(self) -> None:
        """The communicator has failed, and its engines were told: end the other waits of this queue."""

    def settle(self, limit: float) -> None:
        """At the end: wait at most `limit` seconds for what the last barrier does not wait for."""

    def let_go(self) -> None:
        """Before the channels are closed: free what uses them."""

    @property
    def eager(self) -> int:
        """Bytes that every channel of this queue buffers."""
        return min((t.eager for t in self._traits), default=Traits().eager)

    def close(self) -> None:
        self.engine.abort()
        deadline = time.monotonic() + CLOSE_WAIT
        while self.engine.driven and time.monotonic() < deadline:
            self.engine.help()
            time.sleep(0.001)
        if self.engine.driven:  # a function given as op that does not return: its memory and its ring stay as they are
            _pinned.append(self)
            return
        self.let_go()
        if self.recorder is not None:
            self.recorder.leave(self)
        for channels in self.channels.values():
            channels.close()
        failed_in_mpi = self.library is not None and self.engine.failed
        if failed_in_mpi or any(getattr(each, "pinned", False) for each in self.channels.values()):
            _pinned.append(self)


def _owner(array: Any) -> Any:
    """The NumPy array that owns this one's memory, whose life is the memory's; None where nobody can tell."""
    while isinstance(array, numpy.ndarray) and isinstance(array.base, numpy.ndarray):
        array = array.base
    return array if isinstance(array, numpy.ndarray) and array.flags.owndata else None
