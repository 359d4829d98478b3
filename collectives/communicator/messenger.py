"""send, recv and sendrecv: messages between two ranks, matched by tag, in a queue of their own."""

from __future__ import annotations

import dataclasses
import json
import math
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from hocket.arguments import whole
from hocket.collectives.arrays.buffers import Buffer, describe, overlap
from hocket.collectives.base.callsite import caller_site
from hocket.collectives.base.groups import open_group, outside_group
from hocket.collectives.calls.ask import Ask, checked
from hocket.collectives.calls.call import IS_PACKED, ON_GPU, Call, array_facts
from hocket.collectives.calls.packed_messages import PackedArray
from hocket.collectives.calls.shapes import writable
from hocket.collectives.calls.user_ops import refuse_inside
from hocket.collectives.communicator.planner import NO_OP, Planner
from hocket.collectives.communicator.runner import Runner
from hocket.collectives.engine.engine import CODES
from hocket.collectives.engine.queue import ONE_WAY, InHost, Queue, Weighs
from hocket.collectives.failures.reporting import Reporter
from hocket.collectives.members.members import Members
from hocket.collectives.plans.instr import IN, NO_FACTS, OUT, About, Instr
from hocket.collectives.plans.plan import Plan
from hocket.collectives.quick.short_messages import ShortMessages
from hocket.collectives.waiting.queued import Queued
from hocket.collectives.waiting.work import Work
from hocket.errors import ArgumentError
from hocket.kernels.dtypes import by_code, by_name

DONE, BUSY = CODES["done"], CODES["busy"]
ANY = -1
"""A source: whichever rank's message comes first."""
PROC_NULL = -(1 << 31)
"""A rank at one end of a message: there is no rank.  Far from the ranks, so that no sum of small numbers is it."""
ANY_TAG = 1 << 63
"""A tag: whichever comes first; objects have none of these."""
TAGS = (1 << 32) - 1
PRIVATE = 1 << 31
"""Tags from here on are the library's own ..."""
OBJECTS = 1 << 30
"""... those with this bit carry objects."""
ROOMS = PRIVATE | zlib.crc32(b"rooms of GPUs") >> 2
"""The tag of messages that a room was read (gpu/rooms.py)."""
LAST_LOOK = 1.0
"""Seconds that a communicator's end waits for those."""
NEVER = (1 << 64) - 1
"""When a probe without a time limit ends; and the source of a message that did not come."""


@dataclasses.dataclass(frozen=True)
class Message:
    """The facts about a message before it is received."""

    source: int
    tag: int
    dtype: str
    """The dtype of the sender's array: "float32"."""
    nbytes: int
    codec: str | None = None
    """ "lossless": it is packed, and its recv says so, too."""

    @property
    def count(self) -> int:
        """Elements of its dtype; -1: it is packed, and does not say how many there are."""
        return -1 if self.codec else self.nbytes // by_name(self.dtype).itemsize


class Messenger:
    """The messages of a communicator."""

    def __init__(self, members: Members, reporter: Reporter, planner: Planner, runner: Runner) -> None:
        self.members, self.reporter, self.planner, self.runner = members, reporter, planner, runner
        self.rank, self.size = members.rank, members.size
        self.short = ShortMessages(members.queues["messages", None].engine, members.timeout, self)

    def send(
        self, x: Any, dest: int, tag: int, async_op: bool, timeout: float | None, transport: str | None
    ) -> Any:  # fmt: skip
        """`send` of the communicator, whatever the arguments are."""
        x, code = x if isinstance(x, PackedArray) else (x, None)
        ask = checked(Ask("message", async_op=async_op, timeout=timeout, transport=transport))
        to = self.end(dest, "dest")
        return self.exchange(x, to, None, None, user_tag(whole(tag, "tag")), ask, code)

    def recv(
        self, out: Any, source: int | None, tag: int | None, async_op: bool, timeout: float | None,
        transport: str | None, code: int | None = None,
    ) -> Any:  # fmt: skip
        """`recv`, likewise; `code`: of the message's dtype, None: out's."""
        ask = checked(Ask("message", async_op=async_op, timeout=timeout, transport=transport))
        return self.exchange(None, None, out, *self.wanted(source, tag), ask, code)

    def sendrecv(
        self, x: Any, dest: int, out: Any, source: int, tag: int, async_op: bool, timeout: float | None,
        transport: str | None,
    ) -> Any:  # fmt: skip
        """`sendrecv`, likewise."""
        ask = checked(Ask("message", async_op=async_op, timeout=timeout, transport=transport))
        ends = self.end(dest, "dest"), out, self.end(source, "source")
        return self.exchange(x, *ends, user_tag(whole(tag, "tag")), ask)

    def wanted(self, source: int | None, tag: int | None) -> tuple[int, int]:
        """The place and tag that a recv asks for, ANY and ANY_TAG for None."""
        place = ANY if source is None else self.end(source, "source")
        return place, ANY_TAG if tag is None else user_tag(whole(tag, "tag"))

    def end(self, rank: int, what: str) -> int:
        """A rank at one end of a message, or PROC_NULL, as a user gives it."""
        null = isinstance(rank, int | numpy.integer) and rank == PROC_NULL
        return PROC_NULL if null else self.members.checked(rank, what)

    def exchange(
        self, x: Any, dest: int | None, out: Any, source: int | None, tag: int, ask: Ask, code: int | None = None
    ) -> Any:
        self.reporter.refuse_broken()
        refuse_inside()
        src: Any = describe(x) if dest not in (None, PROC_NULL) else None
        dst: Any = writable(describe(out, "out"), "out") if source not in (None, PROC_NULL) else None
        rooms = [None if b is None or ask.transport is not None else self.runner.gpus.rooms(b, self._peers(end))
                 for b, end in ((src, dest), (dst, source))]  # fmt: skip
        if src is not None and dst is not None and rooms[0] is not rooms[1]:  # one end is in reach, and one is not
            return self._apart(x, dest, out, source, tag, ask)
        for buffer, room in zip((src, dst), rooms, strict=True):
            if buffer is not None and room is None:
                buffer.stage()
        if src is not None and dst is not None and src.dtype != dst.dtype:
            raise ArgumentError(f"x has dtype {src.dtype.name}, out has {dst.dtype.name}; they must be the same")
        if src is not None and dst is not None and overlap(src, dst):
            raise ArgumentError("out overlaps x; sendrecv needs separate memory")
        queue = self.runner.queue("messages", ask.transport)
        queue.check_thread()
        model = src or dst or describe(out if dest is None else x)
        timeout = self.members.limit(ask.timeout)
        label = _label(model, tag) if code is None else code << 32 | tag
        if rooms[0] is not None or rooms[1] is not None:
            label |= ON_GPU << 32
            if rooms[0] is not None and dest is not None:
                src = rooms[0].post(dest, src, self._acked)
            if rooms[1] is not None:
                dst = rooms[1].expect(dst, self._ack, self.reporter.give_up, self.reporter.refuse_broken)
        key = dest, source, label >> 32, model.shape, src and src.nbytes, dst and dst.nbytes
        plan = queue.engine.plans.get(key)
        if plan is None:
            how = ONE_WAY if src is None else queue.of_message(src.nbytes, dst is not None)
            plan = queue.counted(self._plan(dest, source, src, dst, model, how, any(rooms)))
            self.planner.connect(queue, plan, timeout, label)
            queue.keep(key, plan)
        if PROC_NULL not in (dest, source) and code is None:
            self._shorten(x, dest, out, source, plan, model, ask)
        later = ask.async_op or open_group() is not None
        return self._carry_out(queue, plan, Call("message", src, dst, 0, result=out), ask, label, later)

    def _apart(self, x: Any, dest: int | None, out: Any, source: int | None, tag: int, ask: Ask) -> Any:
        """A sendrecv as two messages."""
        if open_group() is not None and not ask.async_op:
            self.exchange(x, dest, None, None, tag, ask)
            return self.exchange(None, None, out, source, tag, ask)
        sent = self.exchange(x, dest, None, None, tag, ask._replace(async_op=True))
        came = self.exchange(None, None, out, source, tag, ask)
        if ask.async_op:
            return came.ending(sent.wait)
        sent.wait()
        return came

    def _carry_out(self, queue: Queue, plan: Plan, call: Call, ask: Ask, label: int, later: bool) -> Any:
        engine, prepared, timeout = queue.engine, InHost(queue, call, NO_OP), self.members.limit(ask.timeout)
        if later:
            return self.runner.start(queue, plan, call, -1, prepared, ask, label)
        code = engine.execute(plan, *call.addresses, -1, None, timeout, label)
        if code == BUSY:
            return self.runner.start(queue, plan, call, -1, prepared, ask._replace(async_op=True), label).result()
        if code != DONE:
            engine.hold((call, prepared))
            self.reporter.fail(engine, code, engine.culprit, timeout)
        if call.dst is not None:
            call.dst.restore()
        return call.result

    def _shorten(
        self, x: Any, dest: int | None, out: Any, source: int | None, plan: Plan, model: Buffer, ask: Ask
    ) -> None:
        """Let the next such message take the short way (quick/short_messages.pyx), if it may."""
        if ask.timeout is None and ask.transport is None and not model.foreign:
            self.short.remember(x, dest, out, source, plan, _label(model, 0))

    def work(self, run: Queued, result: Any) -> Work:
        """The handle of a message that the short way has queued."""
        engine = self.members.queues["messages", None].engine

        def settle(ended: Queued) -> None:
            if ended.status != DONE:
                self.reporter.fail(engine, ended.status, ended.culprit, self.members.timeout, ended)

        return Work(run, result, settle)

    def share_among(self, ranks: Sequence[int], name: str, value: Any, ask: Ask) -> list[Any]:
        """Exchange JSON values among `ranks`, which alone call it; in their order.  The first of them collects."""
        tag = PRIVATE | zlib.crc32(name.encode()) >> 2
        if len(ranks) == 1:
            return [value]
        if self.rank != ranks[0]:
            self._post(value, ranks[0], tag, ask)
            return list(self._fetch(ranks[0], tag, ask))
        values = [value, *(self._fetch(r, tag, ask) for r in ranks[1:])]
        for r in ranks[1:]:
            self._post(values, r, tag, ask)
        return values

    def _post(self, value: Any, dest: int, tag: int, ask: Ask) -> None:
        data = numpy.frombuffer(json.dumps(value).encode(), numpy.uint8)
        for part in (numpy.array([len(data)]), data):
            self.exchange(part, dest, None, None, tag, ask)

    def _fetch(self, source: int, tag: int, ask: Ask) -> Any:
        length = numpy.zeros(1, numpy.int64)
        self.exchange(None, None, length, source, tag, ask)
        data = numpy.empty(int(length[0]), numpy.uint8)
        self.exchange(None, None, data, source, tag, ask)
        return json.loads(data.tobytes())

    def probe(self, source: int, tag: int, timeout: float | None) -> Message | None:
        """The message that a recv with these would take; None: `timeout` seconds were over before it came."""
        self.reporter.refuse_broken()
        refuse_inside()
        if source == PROC_NULL:
            return Message(PROC_NULL, 0 if tag == ANY_TAG else tag, "uint8", 0)
        queue = self.runner.queue("messages", None)
        queue.check_thread()
        until = NEVER if timeout is None else time.monotonic_ns() + int(timeout * 1e9) if timeout else 0
        asked, answer = numpy.array([until], numpy.uint64), numpy.full(3, NEVER, numpy.uint64)
        src, dst = describe(asked), describe(answer)
        plan = queue.engine.plans.get(key := ("probe", source))
        if plan is None:
            plan = _plan_of("probe", f"probe({self._from(source)})", [
                Instr("probe", self._peers(source), src=[(IN, 0, src.nbytes)], dst=[(OUT, 0, dst.nbytes)])
            ], dst, facts=self._ends(source=source))  # fmt: skip
            self.planner.connect(queue, plan, self.members.timeout, tag)
            queue.keep(key, plan)
        call = Call("message", src, dst, 0, result=answer)
        self._carry_out(queue, plan, call, Ask("message", timeout=math.inf), tag, later=False)
        place, label, nbytes = answer.tolist()
        if place == NEVER:
            return None
        code = label >> 32
        if code & ON_GPU:
            raise ArgumentError(
                "probe: the message goes from GPU to GPU, and only its recv learns how long it is: agree on that before"
            )
        codec = "lossless" if code & IS_PACKED else None
        return Message(place, label & TAGS, by_code(code & ~IS_PACKED).name, nbytes, codec)

    def _ack(self, sender: int, number: int) -> None:
        """Tell the sender that its room has been read."""
        with outside_group():
            told = numpy.array([number], numpy.int64)
            self.exchange(told, sender, None, None, ROOMS, Ask("message"))

    def _acked(self, receiver: int, wait: bool) -> int | None:
        """The number of a room that the receiver has read; None: it has told of none."""
        with outside_group():
            if not wait and self.probe(receiver, ROOMS, 0.0) is None:
                return None
            number = numpy.empty(1, numpy.int64)
            self.exchange(None, None, number, receiver, ROOMS, Ask("message"))
        return int(number[0])

    def settle(self, limit: float) -> None:
        """At the end: hear for so many seconds which rooms have been read."""
        rooms, until = self.runner.gpus.all_rooms, time.monotonic() + limit
        while rooms is not None and (receivers := rooms.receivers):
            for receiver in receivers:
                rooms.collect(receiver, self._acked)
            if time.monotonic() > until:
                return
            time.sleep(0.0005)

    def _peers(self, source: int | None) -> Sequence[int]:
        return range(self.size) if source == ANY else () if source is None else (source,)

    def _from(self, source: int) -> str:
        return "from any rank" if source == ANY else f"source={self._named(source)}"

    def _named(self, rank: int) -> str:
        """A member's rank in the job, as texts have it."""
        return "PROC_NULL" if rank == PROC_NULL else str(self.members.world_ranks[rank])

    def _ends(self, **peers: int | None) -> dict[str, int]:
        """The ends of a message that are members, as records have them."""
        return {name: self.members.world_ranks[r] for name, r in peers.items() if r is not None and r >= 0}

    def _plan(
        self, dest: int | None, source: int | None, src: Buffer | None, dst: Buffer | None, model: Buffer,
        how: tuple[str, Weighs], there: bool,
    ) -> Plan:  # fmt: skip
        step, ends = [], []
        if src is not None and dest is not None:
            step.append(Instr("send", (dest,), src=[(IN, 0, src.nbytes)]))
        if dst is not None and source is not None:
            step.append(Instr("recv", self._peers(source), dst=[(OUT, 0, dst.nbytes)]))
        if dest is not None:
            ends.append(f"dest={self._named(dest)}")
        if source is not None:
            ends.append(self._from(source))
        if self.members.within:
            ends.append(f"within {self.members.within}")
        facts = array_facts(model) | self._ends(dest=dest, source=source)
        verb = "recv" if dest is None else "send" if source is None else "sendrecv"
        what = f"{model.dtype.name}{list(model.shape)}{' on a GPU' if there else ''}"
        return _plan_of(verb, f"{verb}({what}, {', '.join(ends)})", step, model, facts, how)


def _plan_of(
    verb: str, text: str, step: list[Any], model: Buffer, facts: Mapping[str, Any] = NO_FACTS,
    how: tuple[str, Weighs] = ONE_WAY,
) -> Plan:  # fmt: skip
    dtype, (traffic, weighs) = model.dtype, how
    about = About(verb, "message", text, caller_site(), dtype.code, dtype.itemsize, model.nbytes, facts=facts)
    return Plan([step], about, traffic=traffic, weighs=weighs)


def user_tag(tag: int) -> int:
    """`tag`, if it may be a message's."""
    if not 0 <= tag < PRIVATE:
        raise ArgumentError(f"tag={tag} must be between 0 and 2**31 - 1")
    return tag


def object_tag(tag: int) -> int:
    """That of objects sent with `tag`, which no recv of an array takes."""
    if not 0 <= tag < OBJECTS:
        raise ArgumentError(f"tag={tag} must be between 0 and 2**30 - 1 for objects")
    return PRIVATE | OBJECTS | tag


def _label(model: Buffer, tag: int) -> int:
    """A message's label: its dtype, which is checked, and its tag, which is matched."""
    return int(model.dtype.code) << 32 | tag
