"""Schedules from schedules: backwards, one after the other, side by side, over segments, on other ranks.

A half of an algorithm is written once; everything else is built from it here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest

from hocket.algorithms.language.schedule import Action, Copy, Recv, Schedule, Send, Step, ids
from hocket.errors import ArgumentError


def mirror(schedule: Iterable[Step]) -> Schedule:
    """The schedule run backwards, each send a receive and each receive a send; nothing is reduced.

    Every way in which a sum was gathered becomes the way in which it is handed out: reduce becomes
    broadcast, reduce_scatter allgather, gather scatter.  Same steps, same bytes.
    """
    for step in reversed(list(schedule)):
        yield tuple(_turned(op) for op in step)


def _turned(op: Action) -> Action:
    if isinstance(op, Send):
        return Recv(op.peer, op.chunks)
    if isinstance(op, Recv):
        return Send(op.peer, op.chunks)
    raise ArgumentError(f"a schedule with local copies cannot be mirrored: {op}; write it without Copy")


def then(*schedules: Iterable[Step]) -> Schedule:
    """One schedule after the other."""
    for schedule in schedules:
        yield from schedule


def beside(schedules: Iterable[Iterable[Step]], length: int = 0) -> Schedule:
    """Several schedules in the same steps, in the order given; idle steps up to `length`.

    They must not write each other's chunks.  All ranks must give them in the same order.
    """
    for parts in zip_longest(*schedules, [()] * length, fillvalue=()):
        yield tuple(op for part in parts for op in part)


def embed(schedule: Iterable[Step], ranks: Sequence[int], pieces: Callable[[int], Sequence[int]]) -> Schedule:
    """The schedule of rank i played by ranks[i], its chunk c standing for the chunks pieces(c).

    Messages that come to carry nothing disappear; the steps stay, so that all ranks stay aligned.
    """

    def spread(op: Action) -> list[Action]:
        if isinstance(op, Copy):
            return [Copy(a, b) for a, b in zip(pieces(op.source), pieces(op.target), strict=True)]
        chunks = tuple(piece for chunk in ids(op.chunks) for piece in pieces(chunk))
        return [op._replace(peer=ranks[op.peer], chunks=chunks)] if chunks else []

    for step in schedule:
        yield tuple(placed for op in step for placed in spread(op))


def pipelined(schedule: Iterable[Step], segments: int, span: int) -> Schedule:
    """The schedule over several segments, each one step behind the one before; s-1 steps more.

    Step t is the union over segments k of step t-k, lowest k first; segment k has the chunk ids
    k*span .. (k+1)*span-1.
    """
    steps = list(schedule)
    for t in range(len(steps) + segments - 1 if steps else 0):
        yield tuple(_shifted(op, k * span) for k in range(segments) if 0 <= t - k < len(steps) for op in steps[t - k])


def _shifted(op: Action, by: int) -> Action:
    if not by:
        return op
    if isinstance(op, Copy):
        return Copy(op.source + by, op.target + by)
    return op._replace(chunks=tuple(chunk + by for chunk in ids(op.chunks)))
