"""Carrying out a collective: resolve the call, find or make its plan, run it or queue it."""

from __future__ import annotations

import dataclasses
import json
import reprlib
import threading
from collections.abc import Callable
from typing import Any

import numpy

from hocket.algorithms.language.contract import reduces
from hocket.collectives.base.groups import open_group, outside_group
from hocket.collectives.calls import encodings, exact, residuals
from hocket.collectives.calls.ask import Ask, Lasting, checked
from hocket.collectives.calls.call import Call
from hocket.collectives.calls.ops import Resolved, resolve
from hocket.collectives.calls.shapes import resolve_call
from hocket.collectives.calls.user_ops import refuse_inside
from hocket.collectives.choice.tuning import Tuning
from hocket.collectives.communicator import trees
from hocket.collectives.communicator.planner import NO_OP, Planner
from hocket.collectives.engine.engine import CODES
from hocket.collectives.engine.queue import Queue
from hocket.collectives.failures.reporting import Reporter
from hocket.collectives.gpu.gpus import Gpus
from hocket.collectives.measuring.worth import Worth
from hocket.collectives.members.members import Members
from hocket.collectives.plans.plan import Plan
from hocket.collectives.quick.packing import Known
from hocket.collectives.quick.shortcut import Shortcut
from hocket.collectives.waiting.queued import Queued
from hocket.collectives.waiting.work import Work
from hocket.errors import ArgumentError, TransportError

DONE, BUSY = CODES["done"], CODES["busy"]


class Runner:
    """The general way of every call; quick/shortcut.pyx has the short one."""

    def __init__(self, members: Members, reporter: Reporter, planner: Planner) -> None:
        self.members, self.reporter, self.planner = members, reporter, planner
        self.rank, self.size, self.world = members.rank, members.size, members.world
        self._lists = Known()
        self._making: dict[tuple[str, str | None], threading.Lock] = {}
        """Threads may need a queue at once."""
        self.worth, self.gpus = Worth(self), Gpus(members, reporter)
        self.shortcut = Shortcut(members.main.engine, members.timeout, self, self._lists)
        planner.share = self.share

    def general(self, x: Any, out: Any, ask: Ask) -> Any:
        """The way of every call that the short one does not take: new ones, and those of unusual arrays."""
        ask = checked(ask)
        self.members.checked(ask.root, "root")
        if ask.axis is not None:
            x, ask = exact.without_whole_rows(x, ask)
        call = resolve_call(ask, x, out, self.rank, self.size)
        try:
            return self._run(call, ask)
        except TransportError as error:
            if call.gpu >= 0:  # the driver failed before the call began, and the other ranks are in it already
                self.reporter.give_up(error)
            raise

    def tree(self, call: Callable[[Any, Any, Ask], Any], x: Any, out: Any, ask: Ask) -> Any:
        """A call on a list, a tuple or a dict of arrays, by `call(x, out, ask)` on single ones."""
        return trees.carry_out(call, x, out, ask, self.members, self._lists)

    def _run(self, call: Call, ask: Ask) -> Any:
        self.reporter.usable()
        refuse_inside()
        how = resolve(ask.op, call.model, self.size) if reduces(call.collective) else NO_OP
        codec, lasting = ask.codec, call.is_told_by_shape and how.user is None and ask.axis is None
        if ask.order == "exact":
            call = exact.of(call, how, ask, self.size)
        if codec == encodings.AUTO:
            residuals.refuse(ask)
            encodings.check(call, encodings.AUTO, how.name)
            codec = self.worth.codec(ask, call.on_wire(call.count), call.model)
            lasting = lasting and open_group() is None  # where nothing is measured: it may be float32 for that alone
        if codec == encodings.LOSSLESS:
            call = encodings.packed(encodings.widened(call, how.name, self.size), ask)
        elif codec is not None:
            call = encodings.encoded(call, codec, how.name)
        elif call.exact is None:
            call = encodings.widened(call, how.name, self.size)
        call = residuals.attached(call, ask)
        if how.before is not None and call.collective == "exscan":
            call = dataclasses.replace(call, in_place=False)  # rank 0 contributes, and keeps its x
        queue = self._queue_for(call, how, ask)
        queue.check_thread()
        key = call.kind, how.name, how.before, ask.algorithm, ask.order, codec, ask.within
        plan = queue.engine.plans.get(key)
        if plan is None:
            plan = self.planner.plan(queue, call, how, ask)
            queue.keep(key, plan)
        apart = ask.async_op or open_group() is not None
        prepared = queue.prepared(call, how, plan, apart)
        known = not ask.within or isinstance(ask.within, Lasting)
        # `pin` must see the arrays of each call of the host's memory
        small = not call.model.foreign and call.model.nbytes < queue.pin_from
        again = small or prepared.placed is not None and not apart
        if lasting and known and again and not call.residuals:
            self.shortcut.remember(ask, call, queue.engine, plan, how.code, prepared.placed)
        if apart:
            return self.start(queue, plan, call, how.code, prepared, ask)
        engine, timeout = queue.engine, self.members.limit(ask.timeout)
        more = {"placed": prepared.placed, "residuals": call.residual_addresses}
        code = engine.execute(plan, *call.addresses, how.code, prepared.user, timeout, **more)
        if code == BUSY:
            return self.start(queue, plan, call, how.code, prepared, ask).result()
        if code != DONE:
            engine.hold((call, prepared))
            self.reporter.fail(engine, code, engine.culprit, timeout)
        prepared.finish()
        call.restore()
        return call.result

    def _queue_for(self, call: Call, how: Resolved, ask: Ask) -> Queue:
        """The queue of this call.  Calls that the members' GPUs cannot carry out are staged in host memory."""
        gpu, ours = call.gpu, ask.transport is None and ask.algorithm != "mpi"
        queue = self.gpus.queue(self.share, call.model, ask.timeout) if gpu >= 0 and ours else None
        # A function needs mapped memory: its library may refuse pinned host memory as an array of the GPU.
        if queue is not None and (self.gpus.all_mapped or how.function is None):
            return queue
        if how.expression is not None:
            why = self.gpus.why_staged or "this call asks for another transport"
            why = "these arrays are in host memory" if gpu < 0 else why
            raise ArgumentError(f"an expression reduces on GPUs only, and {why}: pass a function as op")
        call.stage()
        return self.members.main if ask.transport is None else self.queue("collectives", ask.transport)

    def start(
        self, queue: Queue, plan: Plan, call: Call, op: int, prepared: Any, ask: Ask, tag: int | None = None
    ) -> Any:  # fmt: skip
        """Queue the run; a `Work`, or inside a group the array that will hold the result.  `tag`: of a message."""
        engine = queue.engine
        timeout = self.members.limit(ask.timeout)
        queued = Queued(
            engine, plan, *call.addresses, op, prepared.user, timeout, tag, (call, prepared), prepared.placed,
            call.residual_addresses,
        )  # fmt: skip

        def settle(ended: Queued) -> None:
            if ended.status != DONE:
                self.reporter.fail(engine, ended.status, ended.culprit, timeout, ended)
            prepared.finish()
            call.restore()

        work = Work(queued, call.result, settle, prepared.stream)
        together = open_group()
        if together is None or ask.async_op:
            return work
        together.append(work)
        return call.result

    def work(self, run: Queued, result: Any) -> Work:
        """The handle of a run that the shortcut has queued."""
        def settle(ended: Queued) -> None:
            if ended.status != DONE:
                self.reporter.fail(ended.engine, ended.status, ended.culprit, ended.limit, ended)

        return Work(run, result, settle)

    def retune(self, tuning: Tuning, only: tuple[str, str] | None = None) -> None:
        """Choose by this from now on, or use `only` this algorithm of this collective.  On all members alike."""
        self.members.tuning, self.members.only = tuning, only
        for queue in list(self.members.queues.values()):
            queue.read_from(self.members.reads)
            queue.engine.plans.clear()
        self.shortcut.forget()

    def queue(self, kind: str, forced: str | None) -> Queue:
        """The queue for this kind of call over this transport.  All members make it together, at its first use.

        A queue of messages is made by this rank alone if the transport's channels offer nothing.  Where the job has not
        opened the transport, all ranks do so beside what they are doing.
        """
        with self._making.setdefault((kind, forced), threading.Lock()):
            return self._queue(kind, forced)

    def _queue(self, kind: str, forced: str | None) -> Queue:
        queue, members = self.members.queues.get((kind, forced)), self.members
        if queue is None and forced is not None and kind == "messages" and members.takes_anyway(forced):
            return members.queues[kind, None]
        if queue is None:
            within = f"the first call over {forced}"
            if forced is not None:
                self.world.check(forced)
            alone = kind == "messages" and forced is not None and self._opened_apart(forced)
            if forced is not None and not alone and not all(self.share(members.reaches_all(forced), within)):
                self.world.add(forced, self._exchange_in_world)
            queue = members.make_queue(kind, forced, self.reporter)
            offer = queue.offer()
            nothing = alone and all(value is None for value in offer.values())
            queue.accept([offer] * self.size if nothing else self.share(offer, within))
            queue.read_from(members.reads)
            members.queues[kind, forced] = queue
        return queue

    def _opened_apart(self, name: str) -> bool:
        """Open this transport, if it is not, without a call of the other members.  Is it open between all of them?"""
        world = self.world
        if not self.members.reach_each_other(name) and (name != "mpi" or world.mpi_everywhere):
            world.opener.open(name, self.reporter.usable)
        return self.members.reach_each_other(name)

    def _exchange_in_world(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.world.size
        for r, given in zip(self.members.world_ranks, self.share(value, "opening a transport"), strict=True):
            values[r] = given
        return values

    def share(self, value: Any, within: str, timeout: float | None = None) -> list[Any]:
        """Every member's JSON value, by rank.  `within`: the call that this is a part of."""
        try:
            data = numpy.frombuffer(json.dumps(value).encode(), numpy.uint8)
        except (TypeError, ValueError, RecursionError) as why:
            raise ArgumentError(f"{within}: {reprlib.repr(value)} cannot be shared as JSON: {why}") from None
        ask = Ask("allgather", timeout=timeout, within=within)
        with outside_group():
            lengths = self.general(numpy.array([len(data)]), None, ask)
            rows = self.general(data, None, ask._replace(counts=lengths.tolist()))
        ends = numpy.cumsum(lengths)
        return [json.loads(rows[end - n : end].tobytes()) for n, end in zip(lengths, ends, strict=True)]
