"""Stages that pass micro-batches on: gradients of one rank, as much kept and as long idle as their schedule says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from worlds import same, spread

import hocket
from hocket.errors import ArgumentError, MismatchError
from hocket.training import Pipeline
from hocket.training.large.orders import BACKWARD, ORDERS

Array = np.ndarray[Any, Any]
WIDTH, ROWS = 6, 24


class Tanh:
    """tanh(x w), whose gradient of w is added up."""

    def __init__(self, number: int) -> None:
        self.w = np.random.default_rng(number).normal(size=(WIDTH, WIDTH)).astype(np.float32)
        self.gradient = np.zeros_like(self.w)

    def forward(self, x: Array) -> tuple[Array, Any]:
        y = np.tanh(x @ self.w)
        return y, (x, y)

    def backward(self, dy: Array, kept: Any) -> Array:
        x, y = kept
        dz = dy * (1 - y * y)
        self.gradient += x.T @ dz
        return dz @ self.w.T  # type: ignore[no-any-return]


def data() -> tuple[Array, Array]:
    dice = np.random.default_rng(99)
    return dice.normal(size=(ROWS, WIDTH)).astype(np.float32), dice.normal(size=(ROWS, WIDTH)).astype(np.float32)


def loss_of(wanted: Array, micro: int) -> Any:
    parts = np.split(wanted, micro)

    def loss(y: Array, m: int) -> tuple[float, Array]:
        return float(((y - parts[m]) ** 2).sum() / 2), y - parts[m]

    return loss


def alone(stages: int, micro: int) -> tuple[list[Array], float]:
    """One rank: each micro-batch through all stages and back."""
    made, (x, wanted), total = [Tanh(k) for k in range(stages)], data(), 0.0
    for m, part in enumerate(np.split(x, micro)):
        kept = []
        for stage in made:
            part, needed = stage.forward(part)
            kept.append(needed)
        one, dy = loss_of(wanted, micro)(part, m)
        total += one
        for stage, needed in zip(reversed(made), reversed(kept), strict=True):
            dy = stage.backward(dy, needed)
    return [stage.gradient for stage in made], total


def gradients_are_those_of_one_rank(comm: Any) -> None:
    x, wanted = data()
    for micro in (1, 4, 12):
        gradients, total = alone(comm.size, micro)
        for schedule in ORDERS:
            stage = Tanh(comm.rank)
            like = np.empty((ROWS // micro, WIDTH), np.float32)
            pipe = Pipeline(stage, comm, like, micro=micro, schedule=schedule)
            for _ in range(2):
                stage.gradient[...] = 0
                found = pipe.step(x if pipe.first else None, loss_of(wanted, micro) if pipe.last else None)
                same(stage.gradient, gradients[comm.rank], f"{schedule}, {micro} micro-batches")
            assert found == (pytest.approx(total) if pipe.last else None)
            assert pipe.most == min(micro, comm.size - comm.rank if schedule == "1f1b" else micro)


def wrong(comm: Any) -> None:
    like, last = np.empty((2, 2), np.float32), comm.rank == comm.size - 1
    for kind, text, more in (
        (ArgumentError, "micro=0 must be at least 1", {"micro": 0}),
        (ArgumentError, "schedule='1b1f' is unknown; known: gpipe, 1f1b", {"schedule": "1b1f"}),
        (MismatchError, "different micro: 4 on rank 0", {"micro": 5 if last else 4}),
    ):
        with pytest.raises(kind, match=text):
            Pipeline(Tanh(0), comm, like, **more)
    with pytest.raises(ArgumentError, match=rf"stage=None must have forward.* \(on rank {comm.size - 1}\)"):
        Pipeline(None if last else Tanh(0), comm, like)  # type: ignore[arg-type]
    pipe = Pipeline(Tanh(0), comm, like, micro=3)
    if pipe.first:
        with pytest.raises(ArgumentError, match="rank 0: 4 rows cannot be cut into 3 micro-batches"):
            pipe.step(np.ones((4, 2), np.float32))


@pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (3, "tcp"), (4, "threads")])
def test_stages(size: int, transport: str) -> None:
    spread((gradients_are_those_of_one_rank, wrong), size, transport)


def ended(name: str, stages: int, micro: int) -> int:
    """When the last pass ends, each taking one time, and waiting for what it needs alone."""
    lists = [[*ORDERS[name](k, stages, micro)] for k in range(stages)]
    done: dict[tuple[int, str, int], int] = {}
    clocks, at = [0] * stages, [0] * stages
    while any(at[k] < len(lists[k]) for k in range(stages)):
        moved = False
        for k in range(stages):
            while at[k] < len(lists[k]):
                way, m = lists[k][at[k]]
                before = k + 1 if way == BACKWARD else k - 1
                needed = done.get((before, way, m)) if 0 <= before < stages else 0
                if way == BACKWARD and k == stages - 1:
                    needed = done.get((k, "forward", m))
                if needed is None:
                    break
                clocks[k] = done[k, way, m] = max(clocks[k], needed) + 1
                at[k], moved = at[k] + 1, True
        assert moved, f"{name} of {stages} stages and {micro} micro-batches waits for ever"
    return max(clocks)


@pytest.mark.parametrize("name", ORDERS)
def test_bubbles_are_those_of_the_law(name: str) -> None:
    for stages in range(1, 9):
        for micro in (1, 2, 3, 4, 8, 32):
            assert ended(name, stages, micro) == 2 * (micro + stages - 1)
            for k in range(stages):
                passes = [*ORDERS[name](k, stages, micro)]
                assert sorted(passes) == sorted((way, m) for way in ("forward", "backward") for m in range(micro))
                kept = np.cumsum([-1 if way == BACKWARD else 1 for way, _ in passes])
                assert kept.max() == min(micro, stages - k if name == "1f1b" else micro)


def test_a_lost_stage_is_named() -> None:
    """The others do not wait for it."""
    def program(comm: hocket.Communicator) -> Any:
        pipe = Pipeline(Tanh(comm.rank), comm, np.empty((ROWS // 4, WIDTH), np.float32), micro=4)
        if comm.rank == 1:
            comm.abort(ValueError("out of memory"))
            return None
        x, wanted = data()
        with pytest.raises(hocket.PeerLostError) as found:
            pipe.step(x if pipe.first else None, loss_of(wanted, 4) if pipe.last else None)
        return found.value.ranks

    assert hocket.local_world(3).run(program) == [(1,), None, (1,)]
