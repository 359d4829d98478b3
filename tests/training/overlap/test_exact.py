"""Scheduler(exact=True): averages are rounded once, over all micro-batches of all ranks."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest

import hocket
from hocket.errors import ArgumentError, MismatchError
from hocket.training import SGD, Scheduler, Sharded
from support.exact_sums import addends, bits, expected

ALL = 6
SIZES = {"a": 5, "b": 300, "c": 1}


def micro_batches(name: str, n: int) -> np.ndarray:
    return addends(np.random.default_rng(n), "float32", (ALL, n), "wide")


def averaged(comm: hocket.Communicator, order: str) -> dict[str, list[int]]:
    passes = ALL // comm.size if order != "agreed" else 1
    scheduler = Scheduler(comm, exact=True, passes=passes, order=order, finite=False, slice=400)
    for name, n in SIZES.items():
        scheduler.declare(name, np.empty(n, np.float32))
    given = {}
    for name, n in reversed(SIZES.items()):
        mine = micro_batches(name, n)[comm.rank * passes : (comm.rank + 1) * passes].copy()
        given[name] = mine[-1]
        scheduler.ready(name, mine[-1], [*mine[:-1]])
    scheduler.step()
    found = {name: bits(scheduler.wait(name)) for name in SIZES}
    scheduler.close()
    return found


@pytest.mark.parametrize(
    ("size", "order"), [(1, "priority"), (2, "fifo"), (3, "priority"), (6, "priority"), (6, "agreed")]
)
def test_averages_are_those_of_fractions(size: int, order: str) -> None:
    wanted = {name: expected(micro_batches(name, n), "float32", ALL) for name, n in SIZES.items()}
    with hocket.local_world(size) as world:
        assert all(found == wanted for found in world.run(functools.partial(averaged, order=order)))


def test_a_pass_without_a_gradient_counts_as_zeros() -> None:
    def program(comm: hocket.Communicator) -> list[float]:
        scheduler = Scheduler(comm, exact=True, passes=2)
        scheduler.declare("w", np.empty(2, np.float32))
        if comm.rank == 0:
            scheduler.ready("w", np.float32([4, 8]))
        scheduler.step()
        found: list[float] = scheduler.wait("w").tolist()
        scheduler.close()
        return found

    with hocket.local_world(2) as world:
        assert world.run(program) == [[1, 2], [1, 2]]


def test_what_is_refused() -> None:
    def program(comm: hocket.Communicator) -> None:
        for told, call in {
            "no codec and no compressor": lambda: Scheduler(comm, exact=True, codec="bf16"),
            "passes=2 must be 1": lambda: Scheduler(comm, passes=2),
            "another order than 'agreed'": lambda: Scheduler(comm, exact=True, passes=2, order="agreed"),
            "need exact=True": lambda: Scheduler(comm, exact=True).ready("w", np.ones(1), [np.ones(1)]),
            "goes with no codec": lambda: Sharded(SGD(0.1), comm, {"w": np.ones(2, "f4")}, order="exact", codec="bf16"),
            "go with order='exact'": lambda: Sharded(SGD(0.1), comm, {"w": np.ones(2, "f4")}).step([{"w": np.ones(2)}]),
        }.items():
            with pytest.raises(ArgumentError, match=re.escape(told)):
                call()
        scheduler = Scheduler(comm, exact=comm.rank == 0)
        scheduler.declare("w", np.ones(1, np.float32))
        with pytest.raises(MismatchError, match="exact="):
            scheduler.ready("w", np.ones(1, np.float32))

    with hocket.local_world(2) as world:
        world.run(program)
