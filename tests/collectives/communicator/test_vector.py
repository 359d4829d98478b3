"""Generated calls: any shape, any root, any counts, `out` given or not, against NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hocket
from hocket.algorithms.language import registry
from hocket.collectives.communicator.communicator import Communicator
from support.worlds import same, spread

WORLDS = {p: hocket.local_world(p) for p in (1, 2, 3, 4)}
"""Made once: an example takes a millisecond, a world several."""
SETTINGS = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
DTYPES = st.sampled_from(["int64", "int8", "float64", "complex128", "bool"])
SIZES = st.sampled_from(sorted(WORLDS))
TAILS = st.lists(st.integers(0, 4), max_size=2).map(tuple)
ROWS = st.one_of(st.integers(0, 6), st.integers(0, 3000))


def filled(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 5, shape).astype(dtype)


def out_like(give: bool, shape: tuple[int, ...], dtype: str) -> Any:
    return np.empty(shape, dtype) if give else None


@st.composite
def row_counts(draw: st.DrawFn) -> list[int]:
    size = draw(SIZES)
    return draw(st.lists(ROWS, min_size=size, max_size=size))


@SETTINGS
@given(
    SIZES,
    st.one_of(st.just(()), st.tuples(ROWS), st.tuples(ROWS, st.integers(0, 4))),
    DTYPES,
    st.booleans(),
    st.integers(0, 3),
)
def test_vectors(size: int, shape: tuple[int, ...], dtype: str, give: bool, root: int) -> None:
    inputs = [filled(shape, dtype, r) for r in range(size)]
    add = np.logical_or if dtype == "bool" else np.add
    root %= size

    def call(comm: Communicator) -> None:
        prefix = inputs[0].copy()
        for x in inputs[1 : comm.rank + 1]:
            prefix = add(prefix, x).astype(dtype)
        total = prefix
        for x in inputs[comm.rank + 1 :]:
            total = add(total, x).astype(dtype)
        mine = inputs[comm.rank]
        same(comm.allreduce(mine.copy(), out=out_like(give, shape, dtype)), total, "allreduce")
        same(comm.scan(mine.copy(), out=out_like(give, shape, dtype)), prefix, "scan")
        same(comm.broadcast(mine.copy(), root), inputs[root], "broadcast")
        got = comm.reduce(mine, root, out=out_like(give and comm.rank == root, shape, dtype))
        if comm.rank == root:
            same(got, total, "reduce")
        else:
            assert got is None

    WORLDS[size].run(call)


@SETTINGS
@given(row_counts(), TAILS, DTYPES, st.booleans(), st.integers(0, 3))
def test_counts(counts: list[int], tail: tuple[int, ...], dtype: str, give: bool, root: int) -> None:
    size = len(counts)
    root %= size
    blocks = [filled((n, *tail), dtype, r) for r, n in enumerate(counts)]
    whole = np.concatenate(blocks)
    summands = [filled(whole.shape, "int64", 100 + r) for r in range(size)]
    total = np.sum(summands, axis=0).astype("int64")
    ends = np.cumsum(counts)

    def call(comm: Communicator) -> None:
        mine, rows = blocks[comm.rank], slice(ends[comm.rank] - counts[comm.rank], ends[comm.rank])
        same(comm.allgatherv(mine, counts, out=out_like(give, whole.shape, dtype)), whole, "allgatherv")
        got = comm.gatherv(mine, counts, root, out=out_like(give and comm.rank == root, whole.shape, dtype))
        if comm.rank == root:
            same(got, whole, "gatherv")
        else:
            assert got is None
        out = out_like(give, mine.shape, dtype)
        same(comm.scatterv(whole, counts, root, out=out), mine, "scatterv")
        out = np.empty(mine.shape, dtype)  # ranks that know only their own part
        same(comm.scatterv(whole if comm.rank == root else None, counts, root, out=out), mine, "scatterv to out")
        out = out_like(give, mine.shape, "int64")
        same(comm.reduce_scatterv(summands[comm.rank], counts, out=out), total[rows], "reduce_scatterv")

    WORLDS[size].run(call)


@SETTINGS
@given(st.data(), SIZES, TAILS, st.booleans())
def test_alltoallv(data: st.DataObject, size: int, tail: tuple[int, ...], give: bool) -> None:
    table = [[data.draw(ROWS) for _ in range(size)] for _ in range(size)]  # [from][to]
    parts = [[filled((table[s][d], *tail), "int64", 10 * s + d) for d in range(size)] for s in range(size)]

    def call(comm: Communicator) -> None:
        send, receive = table[comm.rank], [row[comm.rank] for row in table]
        want = np.concatenate([parts[s][comm.rank] for s in range(size)])
        out = out_like(give, want.shape, "int64")
        x = np.concatenate(parts[comm.rank])
        same(comm.alltoallv(x, send, receive, out=out), want, f"alltoallv {table}")
        same(comm.alltoallv(x, send, receive, algorithm="pairwise"), want, f"alltoallv {table} by pairwise")

    WORLDS[size].run(call)


@SETTINGS
@given(SIZES, ROWS, TAILS, DTYPES, st.booleans(), st.integers(0, 3))
def test_blocks(size: int, m: int, tail: tuple[int, ...], dtype: str, give: bool, root: int) -> None:
    root %= size
    inputs = [filled((size * m, *tail), dtype, r) for r in range(size)]
    block = (m, *tail)

    def call(comm: Communicator) -> None:
        x, rows = inputs[comm.rank], slice(comm.rank * m, comm.rank * m + m)
        want = np.concatenate([other[rows] for other in inputs])
        same(comm.alltoall(x, out=out_like(give, x.shape, dtype)), want, "alltoall")
        same(comm.scatter(x, root, out=out_like(give, block, dtype)), inputs[root][rows], "scatter")
        out = np.empty(block, dtype)
        same(comm.scatter(x if comm.rank == root else None, root, out=out), inputs[root][rows], "scatter to out")
        everything = (size * size * m, *tail)
        same(comm.allgather(x, out=out_like(give, everything, dtype)), np.concatenate(inputs), "allgather")
        got = comm.gather(x, root, out=out_like(give and comm.rank == root, everything, dtype))
        if comm.rank == root:
            same(got, np.concatenate(inputs), "gather")

    WORLDS[size].run(call)


def test_out_may_have_another_shape_of_as_many_elements() -> None:
    def call(comm: Communicator) -> None:
        out = np.empty((4, 3))
        got = comm.allreduce(np.ones(12), out=out)
        assert got is out and (out == comm.size).all()
        got = comm.allgather(np.full((2, 3), comm.rank), out=np.empty(comm.size * 6, np.int64))
        assert got.tolist() == np.repeat(range(comm.size), 6).tolist()

    WORLDS[3].run(call)


def test_more_dimensions_keep_their_shape() -> None:
    def call(comm: Communicator) -> None:
        x = np.arange(math.prod((4, 2, 3, 2))).reshape(4, 2, 3, 2)
        assert comm.allgather(x).shape == (8, 2, 3, 2)
        assert comm.reduce_scatter(x).shape == (2, 2, 3, 2)
        assert comm.alltoall(x).shape == x.shape
        same(comm.reduce_scatter(x), 2 * x[2 * comm.rank : 2 * comm.rank + 2], "reduce_scatter")

    WORLDS[2].run(call)


def exchange(comm: Communicator, algorithm: Any = None) -> None:
    """An alltoallv of blocks that all differ in length."""
    rank, size = comm.rank, comm.size
    counts = [[1 + (s + 2 * d) % 3 for d in range(size)] for s in range(size)]
    mine = np.concatenate([np.full(n, 10 * rank + d) for d, n in enumerate(counts[rank])])
    got = comm.alltoallv(mine, counts[rank], [row[rank] for row in counts], algorithm=algorithm)
    assert got.tolist() == [10 * s + rank for s, row in enumerate(counts) for _ in range(row[rank])]


def test_alltoallv_by_an_algorithm_that_relays() -> None:
    """Ranks know the lengths of their own blocks only.  Among three nobody passes anything on."""

    def refused(comm: Communicator) -> None:
        for algorithm in ("bruck", hocket.algorithms.get("alltoall", "bruck")):
            with pytest.raises(hocket.ArgumentError, match="alltoallv does not run with 'bruck'.*'direct'"):
                exchange(comm, algorithm)
        for algorithm in registry.names("alltoall"):
            assert comm.alltoall(np.arange(4), algorithm=algorithm)[0] == comm.rank
        for algorithm in ("direct", "pairwise", None):
            exchange(comm, algorithm)

    with hocket.local_world(4) as world:
        world.run(refused)
    with hocket.local_world(3) as world:
        world.run(lambda comm: exchange(comm, "bruck"))


def test_alltoallv_where_the_environment_asks_for_one_that_relays() -> None:
    """The environment's algorithm is for alltoall; alltoallv does without."""
    spread(exchange, 4, "shm", HOCKET_ALGORITHM="alltoall=bruck")
