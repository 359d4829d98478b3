"""Which layers make a stage: neighbours, cut so that the slowest stage, or the slowest message, is as fast as can be.

Source: Narayanan et al., "PipeDream: generalized pipeline parallelism for DNN training", SOSP 2019, 3.1: layers are
timed alone, and a table is filled by A(j, m) = min over i of max(A(i, m-1), 2 C_i, T(i+1..j)), where C_i is the time of
a message behind layer i, which goes there and whose gradient comes back.  Stages are not replicated one by one: a mesh
has its axis of replicas for that.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.arguments import whole
from hocket.errors import ArgumentError
from hocket.training.flat import Array
from hocket.training.large.agreeing import agree
from hocket.training.large.stage import Stage


def cut(seconds: Sequence[float], stages: int, messages: Sequence[float] = ()) -> list[slice]:
    """The layers of each stage.  `seconds`: of both passes of each layer; `messages`: of one message behind each.

    Cost: layers^2 * stages.  ArgumentError where there are fewer layers than stages.

    >>> cut([1, 1, 1, 3], 2)
    [slice(0, 3, None), slice(3, 4, None)]
    """
    count = len(seconds)
    if not 0 < whole(stages, "stages") <= count:
        raise ArgumentError(f"{count} layers cannot make {stages} stages: each needs one")
    passed = [2 * each for each in messages] or [0.0] * count
    ends = np.concatenate([[0.0], np.cumsum(seconds)])
    slowest, begins = [float(each) for each in ends], [[0] * (count + 1)]
    for number in range(1, stages):
        fewer, slowest, begin = slowest, [float("inf")] * (count + 1), [0] * (count + 1)
        for j in range(number + 1, count + 1):
            ways = [(max(fewer[i], passed[i - 1], float(ends[j] - ends[i])), i) for i in range(number, j)]
            slowest[j], begin[j] = min(ways)
        begins.append(begin)
    slices, end = [], count
    for begin in reversed(begins):
        slices.append(slice(begin[end], end))
        end = begin[end]
    return slices[::-1]


def timed(layers: Sequence[Stage], x: Array, comm: Any, rounds: int = 5) -> list[float]:
    """Seconds of both passes of each layer with a micro-batch x: the median of some rounds, of the slowest rank.

    All ranks of `comm` call it, with all layers, and find the same.  The layers' gradients change.
    """
    agree(comm, "timed", lambda: _said(layers, rounds))
    medians = []
    for layer in layers:
        took = []
        for _ in range(rounds):
            began = time.perf_counter()
            y, kept = layer.forward(x)
            layer.backward(np.ones_like(y), kept)
            took.append(time.perf_counter() - began)
        medians.append(float(np.median(took)))
        x = y
    return [float(each) for each in comm.allreduce(np.array(medians), "max")]


def _said(layers: Sequence[Stage], rounds: int) -> dict[str, Any]:
    if whole(rounds, "rounds") < 1 or not layers:
        raise ArgumentError(f"rounds={rounds} must be at least 1, and there must be layers: {len(layers)} were given")
    return {"number of layers": len(layers), "rounds": rounds}
