"""The walk: all ranks' schedules run with symbols in the place of data, step by step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from hocket.algorithms.language.contract import Contract
from hocket.algorithms.language.schedule import Copy, Recv, Send, Step, ids
from hocket.errors import ScheduleError

Programs = Sequence[Sequence[Step]]
Pair = tuple[int, int]


class Encodings(Protocol):
    """Follows what a codec makes of the values (rounding.py)."""

    def begin(self, t: int, held: list[dict[int, Value]]) -> None:
        """Step t comes next."""

    def rounded(self, total: Value, terms: Sequence[Value], rank: int, t: int) -> Value:
        """The sum of these terms as `rank` encodes it in step t."""


class Value(NamedTuple):
    """The content of a chunk: whose contributions to which chunk, in the order combined, and by which sums."""

    chunk: int
    ranks: tuple[int, ...]
    made: int
    coded: int = 0
    """Equal where a codec that rounds at random gives equal bits (rounding.py)."""


def start(
    contract: Contract, size: int, root: int, chunks: int, span: int = 0, segments: int = 1
) -> list[dict[int, Value]]:
    """The chunks of each rank before the first step: its own input."""
    places = [(k * span + c, c) for k in range(segments) for c in range(chunks)]
    return [
        {place: Value(place, (rank,), rank) for place, c in places if contract.holds(rank, size, root, c)}
        for rank in range(size)
    ]


def walk(programs: Programs, held: list[dict[int, Value]], encodings: Encodings | None = None) -> Iterator[int]:
    """Run all ranks in place, one step at each `next`.  The clock must be aligned and messages must match.

    `encodings` follows which values a codec gives the same bits; None: nobody asks.
    """
    sums: dict[tuple[int, ...], int] = {}
    for t in range(len(programs[0]) if programs else 0):
        if encodings is not None:
            encodings.begin(t, held)
        wires: dict[Pair, list[list[Value]]] = defaultdict(list)
        copied = [_leave(steps[t], rank, held[rank], wires, t) for rank, steps in enumerate(programs)]
        for rank, steps in enumerate(programs):
            written, terms = _arrive(steps[t], rank, wires)
            for chunk, arrived in terms.items():
                own = [(rank, held[rank][chunk])] if chunk in held[rank] else []
                values = [value for _, value in sorted([*own, *arrived], key=lambda term: term[0])]
                total = _combined(values, sums, len(programs), rank, t)
                written[chunk] = total if encodings is None else encodings.rounded(total, values, rank, t)
            held[rank].update({**copied[rank], **written})
        yield t


def _leave(
    step: Step, rank: int, held: dict[int, Value], wires: dict[Pair, list[list[Value]]], t: int
) -> dict[int, Value]:
    """Put what is sent on the wires.  Returns what is copied, by target."""
    copied = {}
    for op in step:
        if isinstance(op, Send):
            wires[rank, op.peer].append([_read(held, c, rank, t) for c in ids(op.chunks)])
        elif isinstance(op, Copy):
            copied[op.target] = _read(held, op.source, rank, t)
    return copied


def _arrive(
    step: Step, rank: int, wires: dict[Pair, list[list[Value]]]
) -> tuple[dict[int, Value], dict[int, list[tuple[int, Value]]]]:
    """Take what is received off the wires.  Returns what overwrites, by chunk, and what is reduced, with its sender."""
    overwritten: dict[int, Value] = {}
    terms: dict[int, list[tuple[int, Value]]] = defaultdict(list)
    for op in step:
        if isinstance(op, Recv):
            message = zip(ids(op.chunks), wires[op.peer, rank].pop(0), strict=True)
            if op.reduce:
                for chunk, value in message:
                    terms[chunk].append((op.peer, value))
            else:
                overwritten.update(message)
    return overwritten, terms


def _read(held: dict[int, Value], chunk: int, rank: int, t: int) -> Value:
    if chunk not in held:
        raise ScheduleError(f"rank {rank} step {t}: chunk {chunk} is read but holds nothing yet")
    return held[chunk]


def _combined(values: list[Value], sums: dict[tuple[int, ...], int], size: int, rank: int, t: int) -> Value:
    """The sum of the terms, given in rank order."""
    if len({value.chunk for value in values}) > 1:
        raise ScheduleError(f"rank {rank} step {t}: values of different chunks are added: {values}")
    if len(values) == 1:
        return values[0]
    number = sums.setdefault(tuple(value.made for value in values), size + len(sums))
    return Value(values[0].chunk, tuple(r for value in values for r in value.ranks), number)
