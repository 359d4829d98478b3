"""In which order a rank of a pipeline does its passes: pure functions of (rank, ranks, micro-batches, chunks).

A rank has `chunks` stages, those of its number and of that plus `ranks`, ...: one, but if interleaved.  With K ranks, M
micro-batches and V chunks, where each pass takes one time, all take 2 (M V + K - 1) of them.  Of that 2 (K-1) are idle,
the bubble: (K-1)/(M+K-1) with one chunk, (K-1)/(M V + K-1) with V, for V times the messages.

Sources: Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., "PipeDream", SOSP 2019, and, as it is without weight
versions, "Memory-efficient pipeline-parallel DNN training", ICML 2021 (PipeDream-Flush); Narayanan et al., "Efficient
large-scale language model training on GPU clusters using Megatron-LM", SC 2021 (interleaved).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

FORWARD, BACKWARD = "forward", "backward"


class Pass(NamedTuple):
    """One pass of one micro-batch through one of the rank's stages."""

    way: str
    micro: int
    chunk: int = 0


def gpipe(rank: int, ranks: int, micro: int, chunks: int = 1) -> Iterator[Pass]:
    """All forward passes, then all backward passes.  A rank keeps what M passes need.

    >>> [f"{way[0]}{m}" for way, m, _ in gpipe(0, 2, 2)]
    ['f0', 'f1', 'b0', 'b1']
    """
    for way in (FORWARD, BACKWARD):
        for m in range(micro):
            yield Pass(way, m)


def one_forward_one_backward(rank: int, ranks: int, micro: int, chunks: int = 1) -> Iterator[Pass]:
    """A backward pass as soon as it can be.  Rank k keeps what K-k passes need at most.

    >>> [f"{way[0]}{m}" for way, m, _ in one_forward_one_backward(0, 2, 3)]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'b2']
    """
    forward, backward = ([Pass(way, m) for m in range(micro)] for way in (FORWARD, BACKWARD))
    yield from _alternating(forward, backward, ranks - rank - 1)


def steady(rank: int, ranks: int, begin: int, micro: int) -> Iterator[Pass]:
    """Micro-batches `begin` to `begin + micro` of a pipeline that stays full: backward passes follow K-k-1 behind.

    >>> [f"{way[0]}{m}" for begin in (0, 2) for way, m, _ in steady(0, 2, begin, 2)]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'f3', 'b2']
    """
    for m in range(begin, begin + micro):
        yield Pass(FORWARD, m)
        if m >= ranks - rank - 1:
            yield Pass(BACKWARD, m - (ranks - rank - 1))


def interleaved(rank: int, ranks: int, micro: int, chunks: int) -> Iterator[Pass]:
    """Micro-batches go in groups of K: each group through the rank's first stage, then its second, ...  M divides by K.

    >>> [f"{way[0]}{m}{'ab'[chunk]}" for way, m, chunk in interleaved(1, 2, 2, 2)]
    ['f0a', 'f1a', 'f0b', 'b0b', 'f1b', 'b1b', 'b0a', 'b1a']
    """
    def passes(way: str) -> list[Pass]:
        order = [*range(chunks)][:: 1 if way == FORWARD else -1]
        return [
            Pass(way, m, chunk)
            for group in range(0, micro, ranks) for chunk in order for m in range(group, group + ranks)
        ]  # fmt: skip

    yield from _alternating(passes(FORWARD), passes(BACKWARD), 2 * (ranks - rank - 1) + (chunks - 1) * ranks)


def _alternating(forward: list[Pass], backward: list[Pass], ahead: int) -> Iterator[Pass]:
    """`ahead` forward passes, then one of each in turn, then the backward passes that are left."""
    ahead = min(ahead, len(forward))
    yield from forward[:ahead]
    for i, each in enumerate(backward):
        yield from forward[ahead + i : ahead + i + 1]
        yield each


ORDERS: dict[str, Callable[[int, int, int, int], Iterator[Pass]]] = {
    "gpipe": gpipe, "1f1b": one_forward_one_backward, "interleaved": interleaved,
    "pipedream": one_forward_one_backward,
}  # fmt: skip
