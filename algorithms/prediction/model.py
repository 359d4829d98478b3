"""The cost of a call: counts that a schedule fixes, times prices that a machine has.

Over a transport a rank pays sigma for each step (to notice that it has come), alpha for each message, beta for each
byte written or read, a further beta for each byte that no cache holds any more, and gamma for each byte reduced (the
form of Hockney 1994 and Rabenseifner 2004, with the step's synchronisation apart, as shared memory wants it).  The
counts are those of the busiest rank; where a host has more ranks than cores its ranks pay for each other.  The prices
are fitted to measured times (`fit`), so they mean something on the machine they were measured on, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from hocket.algorithms.language.registry import Algorithm
from hocket.algorithms.language.schedule import Copy, Recv, Send, Step, ids

PRICES = (
    "a call", "a step inside", "a message inside", "a byte inside", "a far byte inside",
    "a step across", "a message across", "a byte across", "a reduced byte",
)  # fmt: skip
"""Each has a price: inside a host, across hosts, and for arithmetic."""
FAR = 1 << 20
"""Bytes of a vector beyond which the caches of one core do not hold it."""
ROUNDS = 400
"""Rounds of the fit: coordinate descent on nine prices has long settled by then."""


@dataclass
class _Tally:
    """The work of one rank in a whole schedule, in messages and chunks."""

    steps: list[int] = field(default_factory=lambda: [0, 0])
    """Steps with a message inside the host, and across."""
    messages: list[int] = field(default_factory=lambda: [0, 0])
    moved: list[int] = field(default_factory=lambda: [0, 0])
    reduced: int = 0


def counts(
    algorithm: Algorithm, groups: Sequence[Sequence[int]], cores: int, nbytes: float, segment: int, apart: bool
) -> tuple[float, ...]:
    """Count each of PRICES in one call of `nbytes`.

    `groups`: the ranks of each host; `cores` of a host; `segment`: bytes of a pipelined chunk in flight (queue.py).
    `apart`: the ranks are on several hosts.
    """
    size = sum(map(len, groups))
    tallies = _tallies(algorithm, tuple(map(tuple, groups)))
    piece = nbytes / (size if algorithm.collective == "alltoall" else algorithm.chunks(size))
    cut = algorithm.cut(piece, segment, apart)
    cuts = -(-int(piece) // cut) if cut else 1
    ranks = max(map(len, groups))
    turns = max(1.0, ranks / cores)

    def busiest(values: Iterable[int]) -> float:
        """The most of any rank; or of any core, where a host's ranks share its cores."""
        loads = list(values)
        return max(max(loads), sum(loads) / len(loads) * turns) if turns > 1 else max(loads)

    steps = [max(t.steps[i] for t in tallies) for i in (0, 1)]
    merged = [(n + (cuts - 1 if n else 0)) * -(-ranks // cores) for n in steps]
    messages = [busiest(t.messages[i] for t in tallies) * cuts for i in (0, 1)]
    moved = [busiest(t.moved[i] for t in tallies) * piece for i in (0, 1)]
    far = moved[0] if nbytes > FAR else 0.0
    return (
        1.0, merged[0], messages[0], moved[0], far,
        merged[1], messages[1], moved[1], busiest(t.reduced for t in tallies) * piece,
    )  # fmt: skip


@lru_cache(maxsize=256)
def _tallies(algorithm: Algorithm, groups: tuple[tuple[int, ...], ...]) -> list[_Tally]:
    """The work of each rank; of ranks that do the same, only one's."""
    size = sum(map(len, groups))
    home = {rank: i for i, group in enumerate(groups) for rank in group}
    tallies = [_Tally() for _ in range(algorithm.period(size) if len(groups) in (1, size) else size)]
    for rank, tally in enumerate(tallies):
        for step in algorithm.steps(rank, size, 0):
            _count(tally, step, home[rank], home)
    return tallies


def _count(tally: _Tally, step: Step, here: int, home: dict[int, int]) -> None:
    """Inside a host the same chunks to several peers are one message: they are written once."""
    written: set[tuple[int, ...]] = set()
    active = [0, 0]
    for op in step:
        if isinstance(op, Copy):
            tally.reduced += 1
            continue
        chunks = tuple(ids(op.chunks))
        across = int(home[op.peer] != here)
        active[across] = 1
        if isinstance(op, Recv):
            tally.reduced += len(chunks) * op.reduce
        elif isinstance(op, Send) and not across:
            if chunks in written:
                continue
            written.add(chunks)
        tally.messages[across] += 1
        tally.moved[across] += len(chunks)
    for across in (0, 1):
        tally.steps[across] += active[across]


def price(prices: Sequence[float], counted: Sequence[float]) -> float:
    """Seconds."""
    return sum(p * n for p, n in zip(prices, counted, strict=True))


def fit(rows: Sequence[tuple[Sequence[float], float]]) -> tuple[float, ...]:
    """The prices, none negative, that bring (counts, seconds) nearest to each other: least squares of relative errors.

    What no row counts is priced 0.
    """
    scaled = [([n / seconds for n in counted], seconds) for counted, seconds in rows]
    columns = range(len(PRICES))
    gram = [[sum(row[i] * row[j] for row, _ in scaled) for j in columns] for i in columns]
    wanted = [sum(row[i] for row, _ in scaled) for i in columns]
    prices = [0.0] * len(PRICES)
    for _ in range(ROUNDS):
        for i in columns:
            if gram[i][i] > 0:
                rest = wanted[i] - sum(gram[i][j] * prices[j] for j in columns if j != i)
                prices[i] = max(0.0, rest / gram[i][i])
    return tuple(prices)
