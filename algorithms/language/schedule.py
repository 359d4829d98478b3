"""The schedule language: what one rank does, as data.

A schedule is a lazy iterable of steps.  The ops of a step are in flight together; the next step
starts when they are done; sends and copies carry the values from before the step.

Rules:
1. One op is one message: its chunks, in the order written.  Messages of a pair (source, destination)
   match in order; within a step, in the order written.
2. Several reducing receives into one chunk in one step are one k-way reduction in rank order, with this
   rank's own value (if it holds one) at its own rank's place.  A single one likewise: lower rank first.
3. A receive that does not reduce overwrites.
4. The step clock is global: a send and its receive stand at the same step index on both ranks, an idle
   rank yields `()`, and all ranks yield the same number of steps.  So nothing can deadlock, even without
   buffers, and any schedule can be pipelined over segments (`hocket.algorithms.language.compose.pipelined`).

Nothing here knows bytes, dtypes, clocks or sockets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

Chunks: TypeAlias = int | range | tuple[int, ...]


class Send(NamedTuple):
    """One message to `peer` that carries `chunks` in that order."""

    peer: int
    chunks: Chunks


class Recv(NamedTuple):
    """One message from `peer`, into `chunks` in that order; `reduce` combines instead of overwriting."""

    peer: int
    chunks: Chunks
    reduce: bool = False


class Copy(NamedTuple):
    """Local: chunk `target` becomes what chunk `source` was before the step."""

    source: int
    target: int


Action: TypeAlias = Send | Recv | Copy
Step: TypeAlias = tuple[Action, ...]
Schedule: TypeAlias = Iterator[Step]


def touched(op: Action) -> Sequence[int]:
    """The chunk ids that an op reads or writes."""
    return (op.source, op.target) if isinstance(op, Copy) else ids(op.chunks)


def ids(chunks: Chunks) -> Sequence[int]:
    """The chunk ids of an op, whichever way they were written."""
    return (chunks,) if isinstance(chunks, int) else chunks
