"""In which order a stage of a pipeline does its passes: pure functions.

With K stages and M micro-batches, where each pass takes one time on each stage, both take M+K-1 times of a forward and
a backward pass, of which (K-1)/(M+K-1) is idle: the bubble.

Sources: Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., "PipeDream", SOSP 2019, as it is without weight versions
in "Memory-efficient pipeline-parallel DNN training", ICML 2021 (PipeDream-Flush).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

FORWARD, BACKWARD = "forward", "backward"


class Pass(NamedTuple):
    """One pass of one micro-batch."""

    way: str
    micro: int


def gpipe(stage: int, stages: int, micro: int) -> Iterator[Pass]:
    """All forward passes, then all backward passes.  A stage keeps what M passes need.

    >>> [f"{way[0]}{m}" for way, m in gpipe(0, 2, 2)]
    ['f0', 'f1', 'b0', 'b1']
    """
    for way in (FORWARD, BACKWARD):
        for m in range(micro):
            yield Pass(way, m)


def one_forward_one_backward(stage: int, stages: int, micro: int) -> Iterator[Pass]:
    """A backward pass as soon as it can be.  Stage k keeps what K-k passes need at most.

    >>> [f"{way[0]}{m}" for way, m in one_forward_one_backward(0, 2, 3)]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'b2']
    """
    ahead = min(stages - stage - 1, micro)
    for m in range(ahead):
        yield Pass(FORWARD, m)
    for m in range(micro):
        if m + ahead < micro:
            yield Pass(FORWARD, m + ahead)
        yield Pass(BACKWARD, m)


ORDERS: dict[str, Callable[[int, int, int], Iterator[Pass]]] = {"gpipe": gpipe, "1f1b": one_forward_one_backward}
