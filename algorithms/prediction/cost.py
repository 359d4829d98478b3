"""The cost of an algorithm on paper: a walk with clocks instead of symbols (Hockney's alpha-beta, with gamma).

A rank has one port out and one port in, both usable at once.  A message costs its sender alpha + bytes*beta,
one after the other in the order written; it has arrived when the receiver's port has had it for bytes*beta.
A reducing receive, and a local copy, cost gamma a byte once everything of the step has arrived.  There is no
barrier between steps: a rank goes on when its own ops are done.
"""

from __future__ import annotations

from collections import defaultdict

from hocket.algorithms.language.compose import pipelined
from hocket.algorithms.language.registry import Algorithm
from hocket.algorithms.language.schedule import Copy, Recv, Send, Step, ids
from hocket.errors import ArgumentError


def cost(
    algorithm: Algorithm,
    size: int,
    nbytes: float,
    alpha: float,
    beta: float,
    gamma: float,
    root: int = 0,
    segments: int = 1,
) -> float:
    """Seconds until the last rank is done.

    `nbytes` is the whole vector of a rank (all blocks together); alpha is seconds a message, beta seconds a
    byte moved, gamma seconds a byte reduced.
    """
    if reason := algorithm.requires(size):
        raise ArgumentError(f"{algorithm.collective} {algorithm.name} does not run with {size} ranks: {reason}")
    chunks = algorithm.chunks(size)
    piece = nbytes / ((size if algorithm.collective == "alltoall" else chunks) * segments)
    schedules = [algorithm.steps(rank, size, root) for rank in range(size)]
    if segments > 1:
        schedules = [pipelined(schedule, segments, chunks + algorithm.scratch) for schedule in schedules]
    clocks = [0.0] * size
    for steps in zip(*schedules, strict=True):
        _advance(clocks, steps, alpha, beta * piece, gamma * piece)
    return max(clocks)


def _advance(clocks: list[float], steps: tuple[Step, ...], alpha: float, moving: float, reducing: float) -> None:
    """One step of all ranks; `moving` and `reducing` are seconds a chunk."""
    arriving: dict[int, list[tuple[float, float]]] = defaultdict(list)  # rank -> (left the sender, time in the port)
    ends = list(clocks)
    for rank, step in enumerate(steps):
        for op in step:
            if isinstance(op, Send):
                took = moving * len(ids(op.chunks))
                ends[rank] += alpha + took
                arriving[op.peer].append((ends[rank], took))
    for rank, step in enumerate(steps):
        port = clocks[rank]
        for left, took in sorted(arriving[rank]):
            port = max(port + took, left)
        work = sum(len(ids(op.chunks)) for op in step if isinstance(op, Recv) and op.reduce)
        work += sum(1 for op in step if isinstance(op, Copy))
        clocks[rank] = max(ends[rank], port + work * reducing)
