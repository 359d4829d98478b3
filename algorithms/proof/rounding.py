"""The random numbers that a codec rounds by belong to the value that is encoded, not to the rank that encodes it.

Some codecs round at random.  A rank encodes what it brings, and each sum that it makes on the way.  Where several
ranks make the same sum (one_shot, recursive doubling), all round it by the same numbers; else they would end with
different bits.  Different values have different numbers, so that their errors are independent and average out.

`numbers` is what a plan rounds by.  `Rounding` follows it through a proof: verify.py shows that all ranks end with the
same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from hocket.algorithms.language.contract import CONTRACTS
from hocket.algorithms.language.registry import Algorithm
from hocket.algorithms.language.schedule import touched
from hocket.algorithms.proof.walk import Programs, Value, start, walk

Numbers = Callable[[int, int], int]
"""(steps done, chunk) -> the sequence of random numbers, one of 2^64, that this rank rounds by when it encodes what the
chunk then holds."""


def numbers(algorithm: Algorithm, rank: int, size: int, root: int = 0) -> Numbers:
    """The random numbers of one rank's encodings.  All ranks are walked, unless no two of them make the same sum."""
    if not repeats(algorithm):
        return lambda done, chunk: (rank + size * done) << 32 | chunk
    mine = _walked(algorithm, rank, size, root)
    return lambda done, chunk: mine[done][chunk] << 32 | chunk


@lru_cache(maxsize=256)
def _walked(algorithm: Algorithm, rank: int, size: int, root: int) -> list[dict[int, int]]:
    """The number of the sum that each chunk of this rank holds, after each step; equal ones are the same sum."""
    held = start(CONTRACTS[algorithm.collective], size, root, algorithm.chunks(size))
    mine = [{chunk: value.made for chunk, value in held[rank].items()}]
    for _ in walk([list(algorithm.steps(each, size, root)) for each in range(size)], held):
        mine.append({chunk: value.made for chunk, value in held[rank].items()})
    return mine


def repeats(algorithm: Algorithm) -> bool:
    """May several ranks make the same sum?"""
    return algorithm.repeats and CONTRACTS[algorithm.collective].reduces


class Rounding:
    """Follows which values have the same bits by a codec that rounds at random: those that `numbers` rounds alike."""

    def __init__(self, programs: Programs, repeated: bool, far: int = 0) -> None:
        self.repeated, self.far = repeated, far
        self.moved = [{c for step in steps[far:] for op in step for c in touched(op)} for steps in programs]
        self.known: dict[tuple[int, ...], int] = {}

    def begin(self, t: int, held: list[dict[int, Value]]) -> None:
        """Before the step `far` every rank encodes what it holds; after near steps, only what moves from then on."""
        if t == self.far:
            for rank, chunks in enumerate(held):
                for place, value in chunks.items():
                    if t == 0 or place in self.moved[rank]:
                        chunks[place] = self._coded(value, (value.made if self.repeated else rank,))

    def rounded(self, total: Value, terms: Sequence[Value], rank: int, t: int) -> Value:
        """A sum of encoded terms.  A single term stays as it came."""
        if t < self.far or len(terms) == 1:
            return total
        by = (total.made,) if self.repeated else (rank, t)
        return self._coded(total, (*by, *(term.coded for term in terms)))

    def _coded(self, value: Value, how: tuple[int, ...]) -> Value:
        key = (value.chunk, value.made, *how)
        return value._replace(coded=self.known.setdefault(key, len(self.known) + 1))
