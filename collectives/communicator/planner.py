"""From a call to the plan that carries it out: which algorithm, lowered to bytes, its channels open."""

from __future__ import annotations

import dataclasses
import functools
import time
import zlib
from collections.abc import Callable
from typing import Any

from hocket.algorithms.language import registry
from hocket.algorithms.language.registry import Algorithm
from hocket.algorithms.language.relays import relays
from hocket.algorithms.proof.first_use import proven
from hocket.algorithms.proof.residuals import keeps_residuals
from hocket.algorithms.proof.rounding import Numbers, numbers
from hocket.collectives.base.callsite import caller_site
from hocket.collectives.calls import encodings, exact
from hocket.collectives.calls.ask import Ask
from hocket.collectives.calls.call import Call, array_facts
from hocket.collectives.calls.ops import Resolved
from hocket.collectives.choice import table
from hocket.collectives.choice.choose import choose
from hocket.collectives.choice.setting import asked
from hocket.collectives.delegates import mpi, nccl
from hocket.collectives.delegates.libraries import LIBRARIES, MEETING, library
from hocket.collectives.engine.engine import CODES
from hocket.collectives.engine.queue import Queue, Weighs
from hocket.collectives.failures.leaving import ARRIVAL_WAIT, HasLeft
from hocket.collectives.failures.reporting import Reporter
from hocket.collectives.members.members import Members
from hocket.collectives.plans.instr import (
    IN,
    OUT,
    SCRATCH,
    About,
    Apply,
    ChunkLayout,
    Elements,
    Instr,
    Lowered,
    Wires,
)  # fmt: skip
from hocket.collectives.plans.lower import BARE, lower
from hocket.collectives.plans.plan import Plan
from hocket.collectives.waiting.queued import Queued
from hocket.errors import ArgumentError
from hocket.kernels.codecs import HALVES, Codec
from hocket.kernels.dtypes import DType

NO_OP = Resolved("", -1)
"""The op of a call that only moves data."""
EMPTY = ChunkLayout([0], lambda chunk: (OUT, 0), lambda chunk: (OUT, 0))
"""A meeting's layout: every rank has and wants nothing."""
DONE = CODES["done"]
REFUSALS = {"mpi": mpi.refusal, "nccl": nccl.refusal}
"""Why a library cannot carry out a call, by its name; None: it can."""
PACKED_MORE = 256
"""Bytes that a short packed message may be longer than its memory."""


class Planner:
    """Makes the plans of a communicator."""

    def __init__(self, members: Members, reporter: Reporter) -> None:
        self.members, self.reporter = members, reporter
        self.rank, self.size, self.world = members.rank, members.size, members.world
        self.share: Callable[..., list[Any]]
        """The runner's."""

    def plan(self, queue: Queue, call: Call, how: Resolved, ask: Ask) -> Plan:
        """The plan of a call: its calls are counted with those of its kind, and its channels are open."""
        return queue.counted(self._made(queue, call, how, ask))

    def _made(self, queue: Queue, call: Call, how: Resolved, ask: Ask) -> Plan:
        algorithm = self._algorithm(queue, call, how, ask)
        why = algorithm.requires(self.size)
        if why:
            raise ArgumentError(f"{call.collective} algorithm {algorithm.name!r} cannot be used here: {why}")
        if call.codec and algorithm.library:
            raise ArgumentError(
                f"algorithm={algorithm.name!r} runs in another library and takes no codec: omit one of the two"
            )
        if algorithm.library == "nccl":
            return self._nccl_plan(queue, call, how, ask, algorithm)
        if algorithm.library:
            return self._library_plan(queue, call, how, ask, algorithm)
        if not algorithm.own:
            algorithm = proven(algorithm, self.size, call.root)
        if call.residuals and not keeps_residuals(algorithm, self.size):
            raise ArgumentError(_keeps_none(call, algorithm, self.size))
        if _loses(call) and algorithm.far is not None and isinstance(call.encoded, DType):
            call = dataclasses.replace(call, encoded=HALVES[call.encoded.name])
        if call.exact is not None:
            call, how = exact.encoded(call, how, algorithm, self.size)
        packing = encodings.packing(call) or exact.packing(call)
        added = algorithm.added(self.size) if call.wire is packing and algorithm.own and algorithm.added else None
        if queue.carries(call, algorithm, how):
            return self._met_plan(queue, call, how, ask, algorithm)
        layout = call.layout(algorithm, self.rank, self.size)
        longest = max(layout.lengths, default=0)
        itemsize = call.wire.itemsize
        exchanged = call.contract.traffic != "one way"
        far = _far(algorithm, call, self.size)
        element = itemsize if far is None else call.wire.block * call.model.dtype.itemsize
        if call.wire is packing:
            element = exact.usual(call)
        gathers = call.contract.collective == "allgather"
        by_slots, early = gathers and queue.gathers_by_slots(longest), gathers and queue.gathers_early(longest)
        weighs = () if by_slots else self._weighs(queue, call, longest)
        segment = queue.segment_of(call.on_wire(call.count) if exchanged else 0, weighs) // element * itemsize
        segment = algorithm.cut(longest, segment, queue.layout.apart)
        if weighs and not exchanged:
            segment = 0  # in one piece, so that each of two cores can copy one half
        given = call.model.dtype if call.wire.block > 1 or isinstance(call.encoded, DType) else None
        elements = Elements(
            _applied(how.before, taken=given), _applied(how.after, made=given), call.in_place and given is None, far,
            _numbers(algorithm, call, self.rank, self.size), added,
        )  # fmt: skip
        wires = Wires(queue.eager, queue.engine.multicasts, join=segment == 0, early=early)
        if packing is not None:
            multicasts = BARE.multicasts if added is None else wires.multicasts
            wires = Wires(max(0, queue.eager - PACKED_MORE), multicasts, join=segment == 0)
        lowered = lower(algorithm, self.rank, self.size, call.root, layout, wires, elements)
        about = self._about(queue, call, how, ask, algorithm)._replace(packing=packing)
        traffic = "slots" if by_slots else call.contract.traffic
        plan = Plan(lowered.steps, about, lowered.scratch, segment, traffic=traffic, weighs=weighs)
        self.connect(queue, plan, self.members.limit(ask.timeout))
        if packing is not None:
            queue.engine.pack(plan.peers)
        return plan

    def _weighs(self, queue: Queue, call: Call, longest: int) -> Weighs:
        """The ways that its messages may go.

        All ranks must try at the same calls, and of a private call each knows its own counts alone.
        """
        traffic = call.contract.traffic
        if call.private or call.codec or traffic == "one way" and call.contract.reduces:
            return ()
        return queue.weighs(traffic, call.on_wire(call.count) if traffic == "reduced" else longest)

    def _about(self, queue: Queue, call: Call, how: Resolved, ask: Ask, algorithm: Algorithm) -> About:
        """The plan's words about its call: to the other ranks, and to people."""
        agreed = f"{self.members.name}|{call.agreed}|{how.name}|{algorithm.name}|{queue.where}|{ask.within}"
        where = queue.where + (f" within {ask.within}" if ask.within else "")
        special = ask.algorithm or asked(self.world.config.algorithm, call.contract.collective)
        wire = call.wire
        text = call.words(how.name, algorithm.name if special else None, self.members.world_ranks) + where
        codec, dtype = (wire, call.model.dtype) if isinstance(wire, Codec) else (None, wire)
        facts = {} if call.collective in ("barrier", "close") else array_facts(call.model)
        return About(
            call.collective, algorithm.name, text, caller_site(), dtype.code, wire.itemsize, call.carried,
            zlib.crc32(agreed.encode()), codec, facts=facts,
        )  # fmt: skip

    def _met_plan(self, queue: Queue, call: Call, how: Resolved, ask: Ask, algorithm: Algorithm) -> Plan:
        """All ranks meet; then a kernel of each does the rest (meeting.pyx)."""
        met = self._met(queue)
        about = self._about(queue, call, how, ask, algorithm)
        plan = Plan(_calling(met, call, how), about, met.scratch, meets=True)
        self.connect(queue, plan, self.members.limit(ask.timeout))
        return plan

    def _nccl_plan(self, queue: Queue, call: Call, how: Resolved, ask: Ask, algorithm: Algorithm) -> Plan:
        """All ranks meet; then NCCL does the rest, in the order of the call's stream.

        The first time they meet once more, before its communicator is made.
        """
        gpu, limit = queue.context, self.members.limit(ask.timeout)
        if gpu.nccl is None:
            gpu.refuse_capture(call.model.array)
            self._meet(queue, self._about(queue, call, how, ask, algorithm), limit)
            share = functools.partial(self.share, within="the first call of NCCL's", timeout=ask.timeout)
            gpu.join_nccl(self.size, share, self.reporter.usable, limit)
        return self._met_plan(queue, call, how, ask, algorithm)

    def _library_plan(
        self, queue: Queue, call: Call, how: Resolved, ask: Ask, algorithm: Algorithm
    ) -> Plan:
        """All ranks meet; then the library does the rest.

        The first time on a queue they meet once more, before the library's communicator for it is made.
        """
        job: Any = self.world.mpi
        about = self._about(queue, call, how, ask, algorithm)
        if queue.library is None:
            queue.engine.thread = max(queue.engine.thread, job.thread)
            queue.check_thread()
            self._meet(queue, about, self.members.limit(ask.timeout))
            queue.library = job.among(self.members.world_ranks, zlib.crc32(queue.name.encode()))
        met = self._met(queue)
        calls = mpi.library_call(job, queue.library, call, how, self.rank, self.size)
        plan = Plan(_calling(met, call, how), about, met.scratch, library=calls)
        self.connect(queue, plan, self.members.limit(ask.timeout))
        return plan

    def _met(self, queue: Queue) -> Lowered:
        """The steps by which all ranks meet."""
        return lower(MEETING, self.rank, self.size, 0, EMPTY, Wires(queue.eager, queue.engine.multicasts))

    def _meet(self, queue: Queue, about: About, timeout: float) -> None:
        """Let all ranks meet, after the calls that are queued there."""
        met = self._met(queue)
        meeting = Plan(met.steps, about, met.scratch)
        self.connect(queue, meeting, timeout)
        queued = Queued(queue.engine, meeting, 0, 0, timeout=timeout)
        queued.wait()
        if queued.status != DONE:
            self.reporter.fail(queue.engine, queued.status, queued.culprit, timeout, queued)

    def _algorithm(self, queue: Queue, call: Call, how: Resolved, ask: Ask) -> Algorithm:
        commutative = how.commutative and ask.order != "rank"
        collective, wanted = call.contract.collective, ask.algorithm
        if isinstance(wanted, Algorithm):
            name, chosen = wanted.name, wanted
        else:
            setting = wanted or asked(self.world.config.algorithm, collective)
            if setting is None and self.members.only is not None and self.members.only[0] == collective:
                setting = self.members.only[1]
            named = wanted and (self.size > 1 or call.exact is not None)  # what is refused on two is on one
            if setting in LIBRARIES and not named and self._stays_ours(setting, queue, call, how):
                setting = None
            name = setting or self._usual(queue, call, how, commutative)
            chosen = self._named(queue, call, how, name)
            if setting and not wanted and (self._lacks_lengths(call, chosen) or self._drops_residuals(call, chosen)):
                return registry.get(collective, self._usual(queue, call, how, commutative))
        if chosen.collective != collective:
            raise ArgumentError(f"algorithm {name!r} is for {chosen.collective}, not for {collective}")
        if self._lacks_lengths(call, chosen):
            raise ArgumentError(
                f"alltoallv does not run with {name!r}: its ranks pass on blocks of others, and do not know their "
                "lengths; ask for 'direct' or 'pairwise', or leave algorithm= out"
            )
        if not commutative and chosen.order != "rank" and how.name:
            raise ArgumentError(
                f"{call.collective} algorithm {name!r} does not keep rank order, which this op or order='rank' needs"
            )
        return chosen

    def _usual(self, queue: Queue, call: Call, how: Resolved, commutative: bool) -> str:
        """The choice where nobody asked for another."""
        if call.private:
            return table.usual("alltoallv", 0, queue.layout, registry.names("alltoall")).name
        nbytes = call.on_wire(call.count)
        libraries = mpi.offered(self.world, call, how) if not call.codec else ()
        what = call.contract.collective
        layout = queue.layout.short if _loses(call) else queue.layout  # its bits depend on the algorithm
        name = choose(self.members.tuning, what, nbytes, layout, commutative, libraries).name
        return "direct" if self._drops_residuals(call, self._named(queue, call, how, name)) else name

    def _named(self, queue: Queue, call: Call, how: Resolved, name: str) -> Algorithm:
        collective = call.contract.collective
        if name not in LIBRARIES:
            algorithm = registry.get(collective, name)
            far = queue.layout.long and not _loses(call)
            return algorithm if algorithm.for_hosts is None else algorithm.for_hosts(queue.groups, far)
        why = REFUSALS[name](self.world, queue.context is not None, call, how)
        if why:
            raise ArgumentError(f"{call.collective} algorithm {name!r} cannot be used here: {why}")
        return library(collective, name)

    def _stays_ours(self, name: str, queue: Queue, call: Call, how: Resolved) -> bool:
        """Is this call none of a library's, where the setting names one?

        A close has a time limit, which MPI's waits have not; libraries carry elements as they are, and lack some ops.
        """
        why = REFUSALS[name](self.world, queue.context is not None, call, how)
        return self.size == 1 or call.collective == "close" or bool(call.codec) or why not in (None, mpi.NO_JOB)

    def _lacks_lengths(self, call: Call, algorithm: Algorithm) -> bool:
        """Would `algorithm` need the lengths of blocks that this rank has not been told?"""
        return call.private and not algorithm.library and relays(algorithm, self.size)

    def _drops_residuals(self, call: Call, algorithm: Algorithm) -> bool:
        return bool(call.residuals) and not algorithm.library and not keeps_residuals(algorithm, self.size)

    def connect(self, queue: Queue, plan: Plan, timeout: float, tag: int | None = None) -> None:
        """Open the channels that `plan` needs.  Waits as a call does: its peers may be late, die, or call another."""
        engine, began, waits_for = queue.engine, time.monotonic(), -1
        if all(engine.connected(p) for p in plan.peers):
            return

        def look(peer: int) -> None:
            nonlocal waits_for
            waits_for, waited = peer, time.monotonic() - began
            if self.reporter.halted and not engine.spares_next:
                raise _ChannelEnded(CODES["aborted"])
            if self.members.world_ranks[peer] in self.world.gone.left and waited > ARRIVAL_WAIT:
                raise HasLeft([peer])
            if engine.owner is not None:
                self.reporter.on_wait(engine, waited)
            if 0 < timeout < waited:
                raise _ChannelEnded(CODES["timeout"])

        engine.begin(plan, tag)
        try:
            queue.connect(plan.peers, look)
        except _ChannelEnded as why:
            self.reporter.fail(engine, why.code, waits_for, timeout)
        except BaseException as error:
            engine.error = error
            self.reporter.fail(engine, CODES["raised"], waits_for, timeout)
        engine.ready()


def _loses(call: Call) -> bool:
    """Has it a codec that rounds?"""
    return bool(call.codec) and call.codec != encodings.LOSSLESS


def _applied(factor: float | None, taken: DType | None = None, made: DType | None = None) -> Apply | None:
    """The change to a vector before it is sent, or after it came; None: nothing."""
    nothing = factor is None and taken is None and made is None
    return None if nothing else Apply(1.0 if factor is None else factor, taken, made)


def _keeps_none(call: Call, algorithm: Algorithm, size: int) -> str:
    """Why a residual does not go with this algorithm, and which it goes with."""
    all_ = [registry.get(call.collective, name) for name in registry.names(call.collective)]
    fit = [each.name for each in all_ if each.requires(size) is None and keeps_residuals(each, size)]
    return (
        f"algorithm={algorithm.name!r} of {size} ranks encodes an element of a sum twice on a rank, or on two ranks, "
        f"so a residual cannot hold what that loses; ask for {' or '.join(map(repr, fit))}, or omit algorithm="
    )


def _far(algorithm: Algorithm, call: Call, size: int) -> int | None:
    """The step from which on elements are encoded; None: all are.

    Who gathers blocks for its host has no residual of them: their owners encode them.
    """
    if call.exact is not None or call.residuals and not call.contract.reduces:
        return None
    return algorithm.far(size) if isinstance(call.wire, Codec) and algorithm.far is not None else None


def _numbers(algorithm: Algorithm, call: Call, rank: int, size: int) -> Numbers | None:
    """The random numbers that this rank rounds by, if its codec rounds at random."""
    at_random = isinstance(call.wire, Codec) and call.wire.stochastic
    return numbers(algorithm, rank, size, call.root) if at_random else None


def _calling(met: Lowered, call: Call, how: Resolved) -> list[list[Instr]]:
    """The steps of a call that a library or a kernel carries out when the ranks have met; scaled by us."""
    x = [(IN, 0, call.src.nbytes if call.src is not None else 0)]
    out = [(OUT, 0, call.dst.nbytes if call.dst is not None else 0)]
    steps = list(met.steps)
    if how.before is not None and call.src is not None:
        scaled = x
        if not call.in_place:
            scaled = [(SCRATCH, met.scratch, call.src.nbytes)]
            met.scratch += call.src.nbytes
        steps.append([Instr("apply", src=x, dst=scaled, applied=Apply(how.before))])
        x = scaled
    steps.append([Instr("call", src=x)])
    if how.after is not None and call.dst is not None:
        steps.append([Instr("apply", src=out, dst=out, applied=Apply(how.after))])
    return steps


class _ChannelEnded(Exception):
    """Waiting for a channel is of no more use; `code` is the engine's."""

    def __init__(self, code: int) -> None:
        self.code = code
