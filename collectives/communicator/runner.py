"""How a collective is carried out: resolve the call, find or make its plan, run it or queue it."""

from __future__ import annotations

import dataclasses
import time
import zlib
from typing import Any

from hocket.algorithms.choice.choose import choose
from hocket.algorithms.choice.delegated import LIBRARIES, MEETING, library
from hocket.algorithms.hierarchical import hierarchical
from hocket.algorithms.language import registry
from hocket.algorithms.language.contract import reduces
from hocket.algorithms.language.registry import Algorithm
from hocket.algorithms.language.relays import relays
from hocket.collectives.arrays.buffers import describe, empty_like
from hocket.collectives.calls.asked import asked
from hocket.collectives.calls.call import Call, resolve_call
from hocket.collectives.calls.functions import refuse_inside
from hocket.collectives.calls.ops import Op, Resolved, resolve
from hocket.collectives.calls.options import PLAIN, PLAIN_IN_ORDER, Options
from hocket.collectives.delegates.mpi import library_call, offered, refusal
from hocket.collectives.engine.engine import CODES
from hocket.collectives.engine.queue import WHOLE_BELOW, WHOLE_FROM, Queue
from hocket.collectives.failures.callsite import caller_site
from hocket.collectives.failures.leaving import GRACE, HasLeft
from hocket.collectives.failures.reporting import Failing
from hocket.collectives.gpu.call import OnGpu
from hocket.collectives.plans.lower import OUT, Layout, lower
from hocket.collectives.plans.plan import Plan
from hocket.collectives.waiting.queued import Queued
from hocket.collectives.waiting.work import Work, open_group
from hocket.errors import ArgumentError, TransportError
from hocket.kernels.cpu.reduce import scale_bytes

DONE, BUSY = CODES["done"], CODES["busy"]
NO_OP = Resolved("", -1)
EMPTY = Layout([0], lambda chunk: (OUT, 0), lambda chunk: (OUT, 0))
"""A meeting's layout: every rank has and wants nothing."""
Scaling = tuple[int, int, int, float]
"""To which address, from which, how many elements, times what: what a run does before anything else."""


class Running(Failing):
    """The general way of every call; hot.pyx has the short one."""

    def _general(
        self, collective: str, x: Any, out: Any, op: Op | None, root: int, counts: Any, options: Options
    ) -> Any:
        """The way of every call that has not been made before (hot.pyx has the short one)."""
        call = resolve_call(collective, x, out, self._rank(root, "root"), counts, self.rank, self.size)
        try:
            return self._run(call, options, op)
        except TransportError as error:
            if call.gpu >= 0:  # the driver refused what comes before the call itself: the others are in theirs already
                self.give_up(error)
            raise

    def _run(self, call: Call, options: Options, op: Op | None = None) -> Any:
        self.usable()
        refuse_inside()
        if options.order not in ("any", "rank"):
            raise ArgumentError(f"order={options.order!r} is neither 'any' nor 'rank'")
        how = resolve(op, call.model, self.size) if reduces(call.collective) else NO_OP
        if how.before is not None and call.collective == "exscan":
            call = dataclasses.replace(call, in_place=False)  # rank 0 contributes, and keeps its x
        queue = self._queue_for(call, how, options)
        queue.check_thread()
        key = (
            call.collective, call.model.dtype, call.count, call.counts, call.root, call.in_place, call.private,
            call.src is None, call.dst is None, how.name, options.algorithm, options.order,
            options.within,
        )  # fmt: skip
        plan = queue.engine.plans.get(key)
        if plan is None:
            plan = self._plan(queue, call, how, options)
            queue.keep(key, plan)
        apart = options.async_op or open_group() is not None
        there = OnGpu(queue.accelerator, call, how, plan, apart) if queue.accelerator is not None else None
        given, first = call, None
        if how.before is not None:
            call, first = _premultiplied(call, how.before, there)
        if there is not None and plan.meets:
            there.meet(call, plan.algorithm, how)
        held = queue.pin(call.src, call.dst) if there is None else None
        src, dst = call.src.address if call.src else 0, call.dst.address if call.dst else 0
        after = how.after if call.dst else 0.0
        if apart:
            self._shorten(call, options, op, how, plan)
            keep = call, given, held
            return self._start(queue, plan, src, dst, how, options, None, keep, after, call, there, first)
        engine = queue.engine
        timeout = self._limit(options)
        placed, user = (there.placed, there.user) if there else (None, how.user)
        code = engine.execute(plan, src, dst, how.code, user, timeout, placed=placed, first=first)
        if code == BUSY:
            keep = call, given, held
            return self._start(queue, plan, src, dst, how, options, None, keep, after, call, there, first).result()
        if code != DONE:
            engine.hold((call, given, held))
            self._fail(engine, code, engine.culprit, timeout)
        if there is not None:
            there.finish()
        elif after and call.dst is not None:
            scale_bytes(call.dst.dtype.code, dst, dst, call.dst.count, after)
        if call.dst is not None:
            call.dst.restore()
        self._shorten(call, options, op, how, plan)
        return call.result

    def _queue_for(self, call: Call, how: Resolved, options: Options) -> Queue:
        """The queue of this call.  What its GPU cannot do, or not with the others', is done in host memory."""
        gpu, ours = call.gpu, options.transport is None and options.algorithm not in LIBRARIES
        queue = self.gpus.queue(self, gpu, options.timeout) if gpu >= 0 and ours else None
        # A library need not take pinned memory for an array of its GPU's.
        if queue is not None and (self.gpus.all_mapped or how.function is None):
            return queue
        if how.expression is not None:
            why = self.gpus.why_staged or "this call asks for another road"
            why = "these arrays are in host memory" if gpu < 0 else why
            raise ArgumentError(f"an expression reduces on GPUs only, and {why}: pass a function as op")
        call.stage()
        return self._main if options.transport is None else self._queue("collectives", options.transport)

    def _shorten(self, call: Call, options: Options, op: Op | None, how: Resolved, plan: Plan) -> None:
        """Let the next such call take the short way (hot.pyx), if it may."""
        if call.model.foreign:
            return
        if call.model.nbytes >= self._main.pin_from:
            return  # it must be told of its arrays each time
        plain = options._replace(async_op=False, algorithm=None) in (PLAIN, PLAIN_IN_ORDER)
        usual = plain and how.before is None and how.user is None
        if usual and call.src is not None and call.is_told_by_shape:
            out = call.dst.array if call.dst is not None else None
            given = call.dst is not None and not call.dst.fresh
            what = call.collective, call.src.array, out, op, call.root, options.algorithm, options.order
            self._remember(*what, given, call.in_place, plan, how.code, how.after if call.dst else 0.0)

    def _start(
        self, queue: Queue, plan: Plan, src: int, dst: int, how: Resolved, options: Options, tag: int | None,
        keep: Any, factor: float = 0.0, call: Call | None = None, there: OnGpu | None = None,
        first: Scaling | None = None,
    ) -> Any:  # fmt: skip
        """Queue the run; a `Work`, or inside a group the array that will hold the result."""
        engine = queue.engine
        timeout = self._limit(options)
        count = call.dst.count if call is not None and call.dst is not None else 0
        placed, user, host_factor = (there.placed, there.user, 0.0) if there else (None, how.user, factor)
        queued = Queued(engine, plan, src, dst, how.code, user, timeout, tag, keep, host_factor, count, placed, first)

        def check(ended: Queued) -> None:
            if ended.status != DONE:
                self._fail(engine, ended.status, ended.culprit, timeout, ended)
            if there is not None:
                there.finish()
            if call is not None and call.dst is not None:
                call.dst.restore()

        work = Work(queued, call.result if call else None, check, there.stream if there else 0)
        together = open_group()
        if together is None or options.async_op:
            return work
        together.append(work)
        return call.result if call else None

    def _work(self, run: Queued, result: Any) -> Work:
        """The handle of a run that hot.pyx has queued."""
        return Work(run, result, self._ended)

    def _plan(self, queue: Queue, call: Call, how: Resolved, options: Options) -> Plan:
        algorithm = self._algorithm(queue, call, how, options)
        why = algorithm.requires(self.size)
        if why:
            raise ArgumentError(f"{call.collective} algorithm {algorithm.name!r} cannot be used here: {why}")
        if algorithm.library:
            return self._library_plan(queue, call, how, options, algorithm)
        if queue.accelerator is not None and queue.accelerator.carries(call, algorithm, how):
            return self._met_plan(queue, call, how, options, algorithm)
        layout = call.layout(algorithm, self.rank, self.size)
        longest = max(layout.lengths, default=0)
        itemsize = call.model.dtype.itemsize
        segment = queue.segment // itemsize * itemsize
        if queue.reads_all and call.contract.traffic != "one way" and WHOLE_FROM <= call.count * itemsize < WHOLE_BELOW:
            segment = 0
        if not algorithm.pipeline or longest < 2 * segment:  # nothing to overlap
            segment = 0
        lowered = lower(
            algorithm, self.rank, self.size, call.root, layout,
            eager=queue.eager, multicasts=queue.engine.multicasts, join=segment == 0,
        )  # fmt: skip
        plan = Plan(
            lowered.steps, scratch=lowered.scratch, segment=segment, traffic=call.contract.traffic,
            **self._about(queue, call, how, options, algorithm),
        )  # fmt: skip
        self._connect(queue, plan, self._limit(options))
        return plan

    def _about(self, queue: Queue, call: Call, how: Resolved, options: Options, algorithm: Algorithm) -> dict[str, Any]:
        """What a plan says of its call: to the other ranks, and to people."""
        agreed = f"{self.name}|{call.agreed}|{how.name}|{algorithm.name}|{queue.accelerator is not None}|"
        agreed += options.within
        where = "" if queue.accelerator is None else " on a GPU"
        where += f" within {options.within}" if options.within else ""
        special = options.algorithm or asked(self.world.config.algorithm, call.contract.collective)
        return {
            "itemsize": call.model.dtype.itemsize, "dtype": call.model.dtype.code,
            "fingerprint": zlib.crc32(agreed.encode()), "collective": call.collective, "algorithm": algorithm.name,
            "text": call.words(how.name, algorithm.name if special else None) + where, "site": caller_site(),
        }  # fmt: skip

    def _limit(self, options: Options) -> float:
        return self.timeout if options.timeout is None else options.timeout

    def _met_plan(self, queue: Queue, call: Call, how: Resolved, options: Options, algorithm: Algorithm) -> Plan:
        """All ranks meet; then a kernel of each does the rest (meeting.pyx)."""
        met = lower(MEETING, self.rank, self.size, 0, EMPTY, eager=queue.eager, multicasts=queue.engine.multicasts)
        about = self._about(queue, call, how, options, algorithm)
        plan = Plan(met.steps, scratch=met.scratch, segment=0, meets=True, **about)
        self._connect(queue, plan, self._limit(options))
        return plan

    def _library_plan(
        self, queue: Queue, call: Call, how: Resolved, options: Options, algorithm: Algorithm
    ) -> Plan:
        """All ranks meet; then the library does the rest.

        The first time on a queue they meet once more, before the library's communicator for it is made.
        """
        job: Any = self.world.mpi
        about = self._about(queue, call, how, options, algorithm)
        met = lower(MEETING, self.rank, self.size, 0, EMPTY, eager=queue.eager, multicasts=queue.engine.multicasts)
        if queue.library is None:
            queue.engine.thread = max(queue.engine.thread, job.thread)
            queue.check_thread()
            meeting = Plan(met.steps, scratch=met.scratch, segment=0, **about)
            self._connect(queue, meeting, self._limit(options))
            self._start(queue, meeting, 0, 0, NO_OP, options._replace(async_op=True), None, None).result()
            queue.library = job.among(self.members, zlib.crc32(queue.name.encode()))
        calls = library_call(job, queue.library, call, how, self.rank, self.size)
        steps: list[Any] = [*met.steps, [("call", (), -1, False, None, None)]]
        plan = Plan(steps, scratch=met.scratch, segment=0, library=calls, **about)
        self._connect(queue, plan, self._limit(options))
        return plan

    def _algorithm(self, queue: Queue, call: Call, how: Resolved, options: Options) -> Algorithm:
        commutative = how.commutative and options.order == "any"
        collective, wanted = call.contract.collective, options.algorithm
        if isinstance(wanted, Algorithm):
            name, chosen = wanted.name, wanted
        else:
            setting = wanted or asked(self.world.config.algorithm, collective)
            if setting is None and self._only is not None and self._only[0] == collective:
                setting = self._only[1]
            # The end must not wait as MPI waits.
            if setting in LIBRARIES and (self.size == 1 or call.collective == "close"):
                setting = None
            name = setting or self._usual(queue, call, how, commutative)
            chosen = self._named(queue, call, how, name)
            if setting and not wanted and self._lacks_lengths(call, chosen):
                return registry.get(collective, self._usual(queue, call, how, commutative))
        if chosen.collective != collective:
            raise ArgumentError(f"algorithm {name!r} is one of {chosen.collective}, not of {collective}")
        if self._lacks_lengths(call, chosen):
            raise ArgumentError(
                f"alltoallv cannot be carried out by {name!r}, where ranks pass on blocks of others: each knows the "
                "lengths of its own only; ask for 'direct' or 'pairwise', or for none"
            )
        if not commutative and chosen.order != "rank" and how.name:
            raise ArgumentError(
                f"{call.collective} algorithm {name!r} does not keep rank order, which this op or order='rank' needs"
            )
        return chosen

    def _usual(self, queue: Queue, call: Call, how: Resolved, commutative: bool) -> str:
        """The choice where nobody asked for another."""
        if call.private:
            return "direct" if self.size <= 16 else "pairwise"
        nbytes, libraries = call.count * call.model.dtype.itemsize, offered(self.world, call, how)
        what = call.contract.collective
        return choose(self.tuning, what, nbytes, queue.layout, queue.groups, commutative, libraries).name

    def _named(self, queue: Queue, call: Call, how: Resolved, name: str) -> Algorithm:
        collective = call.contract.collective
        if name not in LIBRARIES:
            return hierarchical(collective, queue.groups) if name == "hierarchical" else registry.get(collective, name)
        why = refusal(self.world, call, how)
        if why:
            raise ArgumentError(f"{call.collective} algorithm {name!r} cannot be used here: {why}")
        return library(collective, name)

    def _lacks_lengths(self, call: Call, algorithm: Algorithm) -> bool:
        """Would `algorithm` need the lengths of blocks that this rank has not been told?"""
        return call.private and not algorithm.library and relays(algorithm, self.size)

    def _connect(self, queue: Queue, plan: Plan, timeout: float, tag: int | None = None) -> None:
        """Open the channels that `plan` needs.  Waits as a call does: its peers may be late, die, or call another."""
        engine, began, waits_for = queue.engine, time.monotonic(), -1
        if all(engine.connected(p) for p in plan.peers):
            return

        def look(peer: int) -> None:
            nonlocal waits_for
            waits_for, waited = peer, time.monotonic() - began
            if self._halted and not engine.spares_next:
                raise _Ended(CODES["aborted"])
            if self.members[peer] in self.world.left and waited > GRACE:
                raise HasLeft([peer])
            if engine.owner is not None:
                self.on_wait(engine, waited)
            if 0 < timeout < waited:
                raise _Ended(CODES["timeout"])

        engine.begin(plan, tag)
        try:
            queue.connect(plan.peers, look)
        except _Ended as why:
            self._fail(engine, why.code, waits_for, timeout)
        except BaseException as error:
            engine.error = error
            self._fail(engine, CODES["raised"], waits_for, timeout)
        engine.ready()


class _Ended(Exception):
    """There is no more use in waiting for a channel; the code is the engine's."""

    def __init__(self, code: int) -> None:
        self.code = code


def _premultiplied(call: Call, factor: float, there: OnGpu | None) -> tuple[Call, Scaling | None]:
    """The call on factor * x: in place if it is in place, else on a copy.

    On a GPU the scaling has been issued, in stream order; else it is what the run does first, when its turn has come.
    """
    assert call.src is not None
    target, first = call.src, None
    if not call.in_place:
        target = describe(there.empty_like(call.src) if there else empty_like(call.src, call.src.shape))
    if there is not None:
        there.scale(target, call.src, factor)
    else:
        first = target.address, call.src.address, call.src.count, factor
    return dataclasses.replace(call, src=target, dst=target if call.in_place else call.dst), first
