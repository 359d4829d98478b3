"""The messages of one round of a random program on one rank: what it sends, what it receives, whether that is right."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hocket
from hocket.conformance.fuzz.local_call import Guarded, WrongError
from hocket.conformance.fuzz.order import Orders
from hocket.conformance.fuzz.rounds import Messages
from hocket.conformance.fuzz.values import values
from hocket.conformance.oracle import Array


@dataclass
class Under:
    """A message under way: its work, and the check of it when it has ended."""

    work: Any
    check: Callable[[], None]


class Exchange:
    """`own`: this rank's dice, for the order in which it does what no other rank can see."""

    def __init__(self, comm: Any, what: Messages, key: tuple[int, ...], own: random.Random) -> None:
        self.comm, self.what, self.key, self.own = comm, what, key, own
        self.from_any: list[Under] = []
        """Receives from any source, in the order in which they were posted."""

    def data(self, number: int) -> Array:
        return values((*self.key, number), self.what.dtype, self.what.messages[number].count, None)

    def run(self) -> list[Under]:
        """Make all sends and receives.  Returns what has not ended."""
        style = self.what.style
        if style in ("ring", "self"):
            self._sendrecv()
            return []
        if style == "blocking":
            self._blocking()
            return []
        with hocket.group() if style == "group" else contextlib.nullcontext() as works:
            posted = [self._post(number, kind) for number, kind in self._order()]
        if works is not None:  # a group's works are in the order of issue, as `posted` is
            for each, work in zip(posted, works, strict=True):
                each.work = work
        if style == "leave":
            return posted
        shuffled = self.own.sample(posted, len(posted))
        for each in shuffled:
            each.work.wait()
        for each in shuffled:
            each.check()
        return []

    def _order(self) -> list[tuple[int, str]]:
        """(message, "send" or "recv") of this rank in random order; those that match alike keep the program's order."""
        lists: dict[tuple[Any, ...], list[tuple[int, str]]] = {}
        for number, each in enumerate(self.what.messages):
            if each.source == self.comm.rank:
                lists.setdefault(("send", each.dest, each.tag), []).append((number, "send"))
            if each.dest == self.comm.rank:
                who = None if each.any else each.source
                lists.setdefault(("recv", who, each.tag), []).append((number, "recv"))
        turns = self.own.sample(drawn := [key for key, numbers in lists.items() for _ in numbers], len(drawn))
        return [lists[key].pop(0) for key in turns]

    def _post(self, number: int, kind: str) -> Under:
        each, how = self.what.messages[number], {} if self.what.style == "group" else {"async_op": True}
        if kind == "send":
            x = self.data(number).copy()
            return Under(self.comm.send(x, each.dest, each.tag, **how), lambda: None)
        got = Guarded(self.what.dtype, (each.count,))
        work = self.comm.recv(got.array, None if each.any else each.source, each.tag, **how)
        if not each.any:
            return Under(work, lambda: self._same(got, number))
        place = len(self.from_any)
        self.from_any.append(Under(work, lambda: self._one_of(place, got)))
        return self.from_any[-1]

    # --- blocking ones

    def _sendrecv(self) -> None:
        me = self.comm.rank
        out = next(n for n, each in enumerate(self.what.messages) if each.source == me)
        into = next(n for n, each in enumerate(self.what.messages) if each.dest == me)
        sent, came = self.what.messages[out], self.what.messages[into]
        got = Guarded(self.what.dtype, (came.count,))
        self.comm.sendrecv(self.data(out).copy(), sent.dest, got.array, came.source, sent.tag)
        self._same(got, into)

    def _blocking(self) -> None:
        """To one rank, which is not told the sources; the messages of each source come in their order."""
        me = self.comm.rank
        sent: dict[int, list[bytes]] = {}
        for number, each in enumerate(self.what.messages):
            if each.source == me:
                self.comm.send(self.data(number).copy(), each.dest, each.tag)
            sent.setdefault(each.source, []).append(self.data(number).tobytes())
        orders = Orders(sent.values())
        for each in self.what.messages if self.what.messages[0].dest == me else ():
            got = Guarded(self.what.dtype, (each.count,))
            self.comm.recv(got.array, None, each.tag)
            got.check()
            if not orders.take(got.array.tobytes()):
                raise WrongError("what came from any source is not the next message of a rank")

    # --- checks

    def _same(self, got: Guarded, number: int) -> None:
        got.check()
        if got.array.tobytes() != self.data(number).tobytes():
            raise WrongError(f"message {number} is {self._which(got)}: {self.what.messages[number]}")

    def _which(self, got: Guarded) -> str:
        """The message that came instead."""
        for number in range(len(self.what.messages)):
            if got.array.tobytes() == self.data(number).tobytes():
                return f"message {number}, {self.what.messages[number]}"
        return "no message of this round"

    def _one_of(self, place: int, got: Guarded) -> None:
        """The messages of each source come in the order in which they were sent."""
        source = self.from_any[place].work.source
        before = sum(each.work.source == source for each in self.from_any[:place])
        sent = [n for n, each in enumerate(self.what.messages) if each.any and each.source == source]
        if before >= len(sent):
            raise WrongError(f"{before + 1} messages from any source are rank {source}'s, which sent {len(sent)}")
        self._same(got, sent[before])
