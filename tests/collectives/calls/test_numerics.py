"""Float results: the same bits on every rank, and on every run, whatever the timing.

The values are such that any other order of the additions gives other bits.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hocket.algorithms.hierarchical import hierarchical
from hocket.algorithms.language import registry
from hocket.algorithms.language.registry import Algorithm
from hocket.collectives.communicator.communicator import Communicator
from support.cases import more
from support.worlds import same, spread

COUNTS = (1, 7, 300, 5000, 70001)
GROUPS = {3: ((0, 1), (2,)), 4: ((0, 2), (1, 3)), 5: ((0, 1), (2, 3, 4))}
REPEATS = 5


def values(rank: int, count: int, dtype: str) -> np.ndarray[Any, Any]:
    return _values(rank, count, dtype).copy()


@functools.cache
def _values(rank: int, count: int, dtype: str) -> np.ndarray[Any, Any]:
    source = np.random.default_rng((rank, count))
    return (source.standard_normal(count) * 10.0 ** source.integers(-3, 4, count)).astype(dtype)


def algorithms(collective: str, size: int) -> list[str | Algorithm | None]:
    named: list[str | Algorithm | None] = [None, *registry.names(collective)]
    usable = [n for n in named if n is None or registry.get(collective, str(n)).requires(size) is None]
    return usable + ([hierarchical(collective, GROUPS[size])] if size in GROUPS else [])


def same_bits_everywhere(comm: Communicator) -> None:
    for algorithm in algorithms("allreduce", comm.size):
        for count in COUNTS:
            for dtype in ("float32", "float16", "complex64"):
                digests = []
                for _ in range(REPEATS):
                    got = comm.allreduce(values(comm.rank, count, dtype), algorithm=algorithm)
                    digests.append(hashlib.sha256(got.tobytes()).digest())
                all_of_them = comm.allgather(np.frombuffer(b"".join(digests), np.uint8)).reshape(-1, 32)
                assert (all_of_them == all_of_them[0]).all(), (
                    f"allreduce of {count} {dtype} by {getattr(algorithm, 'doc', algorithm)}: "
                    f"{len(np.unique(all_of_them, axis=0))} different results over {comm.size} ranks, {REPEATS} runs"
                )
        zeros = np.copysign(np.float32(0), values(comm.rank, 300, "float32"))  # of equal ones the order decides, too
        got = comm.allgather(comm.allreduce(zeros, "max", algorithm=algorithm).view(np.uint32)).reshape(comm.size, -1)
        assert (got == got[0]).all(), f"max of zeros by {getattr(algorithm, 'doc', algorithm)}"


@pytest.mark.parametrize(
    ("size", "transport"), [(5, "threads"), (3, "tcp"), *more((3, "threads"), (4, "shm"))]
)
def test_same_bits_on_all_ranks_and_runs(size: int, transport: str) -> None:
    """Two ranks have one order only."""
    spread(same_bits_everywhere, size, transport)


def test_the_values_tell_orders_apart() -> None:
    """Else the tests above could not fail."""
    rows = [values(r, 5000, "float32") for r in range(3)]
    assert ((rows[0] + rows[1]) + rows[2]).tobytes() != ((rows[2] + rows[1]) + rows[0]).tobytes()


def left_fold(comm: Communicator) -> None:
    """The algorithms made of one k-way reduction, and a linear scan, add strictly from rank 0 on."""
    for count in COUNTS:
        rows = [values(r, count, "float32") for r in range(comm.size)]
        for name in ("one_shot", "direct"):
            want = rows[0].copy()
            for row in rows[1:]:
                want = want + row
            same(comm.allreduce(rows[comm.rank].copy(), algorithm=name), want, f"{count} elements by {name}")
        want = rows[0].copy()
        for row in rows[1 : comm.rank + 1]:
            want = want + row
        same(comm.scan(rows[comm.rank].copy(), algorithm="linear"), want, f"scan of {count}")


def test_added_from_rank_0_on() -> None:
    spread(left_fold, 5, "threads")


def reduce_equals_allreduce(comm: Communicator) -> None:
    """A root's result does not depend on which rank is the root, where the algorithm keeps rank order."""
    x = values(comm.rank, 5000, "float32")
    results = []
    for root in range(comm.size):
        got = comm.reduce(x, root, algorithm="direct")
        results.append(comm.broadcast(got if comm.rank == root else np.empty_like(x), root))
    for root, got in enumerate(results):
        same(got, results[0], f"root {root}")
    same(comm.allreduce(x.copy(), algorithm="direct"), results[0], "allreduce")


def test_the_root_does_not_matter() -> None:
    spread(reduce_equals_allreduce, 4, "threads")


SMALL = (np.float16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)


def averages_that_fit(comm: Communicator) -> None:
    """The nearest number of the dtype to the exact average, by every algorithm, whatever the sum is."""
    for dtype in SMALL:
        dice, p = np.random.default_rng(5), comm.size
        top, tiny = float(ml_dtypes.finfo(dtype).max), float(ml_dtypes.finfo(dtype).smallest_subnormal)
        parts = ([np.full(8, top), dice.uniform(0.5, 1, 40) * top, dice.integers(-9, 10, 64) * tiny] for _ in range(p))
        rows = np.stack([np.concatenate([*part, dice.normal(size=40)]) for part in parts]).astype(dtype)
        exact, mine = rows.astype(float), rows[comm.rank]
        right = exact.mean(0).astype(dtype)
        for collective in ("allreduce", "reduce", "reduce_scatter", "scan"):
            named = [None, *registry.names(collective)] if collective == "scan" else algorithms(collective, p)
            for name in named:
                even = len(mine) // p * p
                want = {
                    "reduce_scatter": right[:even].reshape(p, -1)[comm.rank],
                    "scan": (exact[: comm.rank + 1].sum(0) / p).astype(dtype),
                }.get(collective, right)
                given = mine[:even].reshape(p, -1) if collective == "reduce_scatter" else mine.copy()
                got = getattr(comm, collective)(given, op="avg", algorithm=name)
                if collective != "reduce" or comm.rank == 0:
                    same(np.reshape(got, want.shape), want, f"{dtype.__name__}, {collective} by {name}")
        works = [comm.allreduce(mine.copy(), "avg", async_op=True) for _ in range(3)]
        prepared, listed = comm.prepare("allreduce", mine.copy(), op="avg"), comm.allreduce([mine.copy()], "avg")
        for got in (*(work.result() for work in works), prepared.start().result(), *listed):
            same(got, right, f"{dtype.__name__}, another way")


@pytest.mark.parametrize(("size", "transport"), [(3, "threads"), (8, "threads"), *more((2, "threads"), (5, "threads"))])
def test_an_average_that_fits_does_not_overflow(size: int, transport: str) -> None:
    """Sums of two float16 may be more than 65504, and those of float8_e4m3fn more than 448."""
    spread(averages_that_fit, size, transport)
