"""The ranks of a law: each an engine over its sides, driven with plans of one step, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from hocket.collectives.engine.engine import CODES, Engine
from hocket.collectives.plans.instr import About, Instr
from hocket.collectives.plans.plan import Plan

PATIENCE = 60.0
"""Seconds for anything that should happen."""
HANGS = 30.0
"""Seconds after PATIENCE, by which a rank should have given up, until it is called a hang."""
WORDS = {code: word for word, code in CODES.items()}
Pieces = list[tuple[int, int, int]]


@dataclass
class Side:
    """One end: capsules, what keeps them alive, and how it is closed (None: it cannot be, as memory cannot)."""

    send: Any
    recv: Any
    owner: Any
    close: Callable[[], None] | None = None


Pair = Callable[[], tuple[Side, Side]]
Sides = Callable[[int], Sequence[Sequence[Side | None]]]


class End:
    """A rank: an engine over its sides, by peer."""

    def __init__(self, rank: int, sides: Sequence[Side | None]) -> None:
        self.rank, self.sides = rank, sides
        self.engine = Engine(rank, len(sides), 200)
        for peer, side in enumerate(sides):
            if side is not None:
                self.engine.connect(peer, side.send, side.recv, side.owner)

    def run(
        self, *instrs: Any, tag: int | None = None, timeout: float | None = None, source: Any = None,
        target: Any = None, itemsize: int = 1, user: Callable[..., None] | None = None,
    ) -> str:  # fmt: skip
        """Run one step of these instructions: "done", or how else it ended."""
        plan = Plan([list(instrs)], About("law", "law", "law", itemsize=itemsize))
        src, dst = (0 if a is None else a.ctypes.data for a in (source, target))
        wait = PATIENCE if timeout is None else timeout
        return WORDS[self.engine.execute(plan, src, dst, timeout=wait, tag=tag, user=user)]

    def send(self, data: Any, cuts: int = 1, to: Sequence[int] = (), itemsize: int = 1, **how: Any) -> str:
        """Send a message of these bytes, cut into so many pieces, to one peer or several at once."""
        peers = list(to) or [1 - self.rank]
        instr = Instr("send", peers, src=pieces(0, len(data), cuts, itemsize))
        return self.run(instr, source=data, itemsize=itemsize, **how)

    def recv(self, length: int, cuts: int = 1, of: int | None = None, **how: Any) -> tuple[str, Any]:
        """Receive: 0xEE where none came."""
        into = numpy.full(length, 0xEE, numpy.uint8)
        peer = 1 - self.rank if of is None else of
        return self.run(Instr("recv", [peer], dst=pieces(1, length, cuts)), target=into, **how), into

    def reduce(self, own: Any, of: Sequence[int], itemsize: int = 1, **how: Any) -> tuple[str, Any]:
        """The exclusive or of our bytes and those of these peers, which are read where they have come."""
        into, whole = numpy.full(len(own), 0xEE, numpy.uint8), len(own)
        instr = Instr("reduce", list(of), 0, src=pieces(0, whole), dst=pieces(1, whole))
        torn: list[int] = []

        def fold(operands: Sequence[memoryview], out: memoryview) -> None:
            torn.extend(len(each) for each in operands if len(each) % itemsize or len(each) != len(out))
            out[:] = numpy.bitwise_xor.reduce([numpy.frombuffer(each, numpy.uint8) for each in operands]).tobytes()

        result = self.run(instr, source=own, target=into, itemsize=itemsize, user=fold, **how)
        expect(not torn, f"pieces of {torn[:3]} bytes for elements of {itemsize}")
        return result, into


def pieces(space: int, length: int, cuts: int = 1, itemsize: int = 1) -> Pieces:
    """`length` bytes at the start of a space, cut into so many pieces of whole elements."""
    edges = [length // itemsize * i // cuts * itemsize for i in range(cuts)] + [length]
    return [(space, a, b - a) for a, b in zip(edges, edges[1:], strict=False)]


def data(length: int, seed: int = 0) -> Any:
    return numpy.random.default_rng(seed).integers(0, 256, length, numpy.uint8)


def expect(kept: bool, words: str) -> None:
    """An `assert` that python -O keeps."""
    if not kept:
        raise AssertionError(words)


def same(got: Any, wanted: Any) -> None:
    expect(got == wanted, f"{got!r}, not {wanted!r}")


def each(ends: Sequence[End], functions: Sequence[Callable[[End], Any]]) -> list[Any]:
    """Call functions[i](ends[i]), each in a thread; then close all sides.  Raises the first error."""
    results: list[Any] = [None] * len(ends)
    errors: list[BaseException] = []

    def call(i: int) -> None:
        try:
            results[i] = functions[i](ends[i])
        except BaseException as error:  # raised below, in the caller's thread
            errors.append(error)

    threads = [threading.Thread(target=call, args=(i,), daemon=True) for i in range(len(ends))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE + HANGS)
        expect(not thread.is_alive(), "a rank hangs: some wait does not end")
    for side in (side for end in ends for side in end.sides):
        if side is not None and side.close is not None:
            side.close()
    if errors:
        raise errors[0]
    return results


def both(pair: Pair, first: Callable[[End], Any], second: Callable[[End], Any]) -> tuple[Any, Any]:
    """The results of `first(end 0)` and `second(end 1)`."""
    a, b = pair()
    one, other = each([End(0, [None, a]), End(1, [b, None])], [first, second])
    return one, other
