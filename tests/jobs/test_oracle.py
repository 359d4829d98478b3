"""Every collective by every algorithm, against NumPy, over every transport: exact integers.

One job runs all the cases of one (size, transport).  Outputs lie between guard elements, inputs that are not the
output must be untouched.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from hocket.algorithms.hierarchical import STAGES, hierarchical
from hocket.algorithms.language import registry
from hocket.algorithms.language.contract import CONTRACTS
from hocket.algorithms.language.registry import Algorithm
from hocket.collectives.communicator.communicator import Communicator
from hocket.conformance.oracle import pieces
from support.cases import more
from support.worlds import same, spread

COUNTS = (0, 1, 3, 17, 1000, 70001)
"""Elements of a vector: nothing, fewer than ranks, a cache line and a bit, pipelined."""
GUARD = 16
GROUPINGS: dict[int, tuple[dict[str, Any], ...]] = {
    2: ({"groups": ((0,), (1,))},),
    3: ({"groups": ((0, 1), (2,))}, {"groups": ((2, 0), (1,)), "outer": "direct"}),
    4: (
        {"groups": ((0, 1), (2, 3))},
        {"groups": ((0, 1), (2, 3)), "leaders": 1, "inner": "binomial"},
        {"groups": ((0, 2), (1, 3)), "outer": "direct"},
        {"groups": ((0,), (1, 2, 3))},
    ),
    5: ({"groups": ((0, 1), (2, 3, 4))}, {"groups": ((4, 0), (1,), (2, 3))}),
}
Array = np.ndarray[Any, np.dtype[np.int64]]


@functools.cache
def data(rank: int, count: int, salt: int = 0) -> Array:
    """Not to be written to: made once, as all algorithms take the same."""
    made = (np.arange(count, dtype=np.int64) * 31 + rank * 1_000_003 + salt * 17) % 100_003
    made.flags.writeable = False
    return made


def guarded(count: int) -> tuple[Array, Array]:
    """(an output of `count` elements, the memory around it)."""
    memory = np.full(count + 2 * GUARD, -1, np.int64)
    return memory[GUARD : GUARD + count], memory


def guards_stand(memory: Array, what: str) -> None:
    assert (memory[:GUARD] == -1).all() and (memory[-GUARD:] == -1).all(), f"{what}: written outside of the output"


def rows(collective: str, count: int, size: int) -> int:
    """Rows of one block: long vectors are cut, short ones are a block each."""
    return count if count <= 1000 else count // size + 1


def wanted(collective: str, inputs: list[Array], rank: int, root: int) -> Array | None:
    """The elements that `rank` must get; None: nothing."""
    blocks = collective in ("reduce_scatter", "scatter", "alltoall")
    length = len(inputs[0]) // len(inputs) if blocks else len(inputs[0])
    found = [
        np.sum([inputs[r][each.source : each.source + each.length] for r in each.ranks], axis=0)
        for each in pieces(collective, len(inputs), rank, root, length)
    ]
    return np.concatenate(found) if found else None


def call(comm: Communicator, collective: str, x: Array, root: int, **how: Any) -> Any:
    method: Callable[..., Any] = getattr(comm, collective)
    rooted = {"root": root} if CONTRACTS[collective].rooted else {}
    return method(x, **rooted, **how)


def check(comm: Communicator, collective: str, algorithm: str | Algorithm | None, count: int, salt: int) -> None:
    """One case, in each way that the result can be asked for."""
    blocks = collective in ("reduce_scatter", "scatter", "alltoall")
    whole = rows(collective, count, comm.size) * comm.size if blocks else count
    root = salt % comm.size
    inputs = [data(r, whole, salt) for r in range(comm.size)]
    answer = wanted(collective, inputs, comm.rank, root)
    name = getattr(algorithm, "doc", algorithm)
    for way in WAYS[collective] * (3 if algorithm is None else 1):  # a repeated call takes a shorter way
        what = f"{collective} by {name}, {count} elements, rank {comm.rank} of {comm.size}, root {root}, {way}"
        x = inputs[comm.rank].copy()
        if way == "in place":
            got, memory = in_place(comm, collective, x, root, algorithm)
        elif way == "out":
            out, memory = guarded(len(answer)) if answer is not None else (None, None)
            if collective == "exscan" and answer is None:
                out, memory = guarded(len(x))
            got = call(comm, collective, x, root, out=out, algorithm=algorithm)
            assert got is out, f"{what}: the result is not out"
            same(x, inputs[comm.rank], f"{what}: x after the call")
        else:
            got, memory = call(comm, collective, x, root, algorithm=algorithm), None
            same(x, inputs[comm.rank], f"{what}: x after the call")
        if memory is not None:
            guards_stand(memory, what)
        if answer is not None:
            same(got, answer, what)
        elif collective in ("reduce", "gather"):
            assert got is None, f"{what}: {got!r} on a rank that gets nothing"


def in_place(comm: Communicator, collective: str, x: Array, root: int, algorithm: Any) -> tuple[Any, Array | None]:
    """x, or the rank's own block of one array, is the output."""
    if collective == "allgather":
        out, memory = guarded(len(x) * comm.size)
        mine = out[comm.rank * len(x) : (comm.rank + 1) * len(x)]
        mine[:] = x
        return call(comm, collective, mine, root, out=out, algorithm=algorithm), memory
    held, memory = guarded(len(x))
    held[:] = x
    if collective == "reduce_scatter":
        block = len(x) // comm.size
        mine = held[comm.rank * block : (comm.rank + 1) * block]
        return call(comm, collective, held, root, out=mine, algorithm=algorithm), memory
    how = {"out": held} if collective == "reduce" and comm.rank == root else {}
    got = call(comm, collective, held, root, algorithm=algorithm, **how)
    if collective == "exscan" and comm.rank == 0:
        same(held, x, "exscan: rank 0's x")
    return got, memory


WAYS = {
    "allreduce": ("in place", "out"), "scan": ("in place", "out"), "exscan": ("in place", "out"),
    "reduce": ("in place", "out", "new"), "reduce_scatter": ("in place", "out", "new"), "broadcast": ("in place",),
    "allgather": ("in place", "out", "new"), "gather": ("out", "new"), "scatter": ("out", "new"),
    "alltoall": ("out", "new"),
}  # fmt: skip


def cases(size: int) -> Iterator[tuple[str, str | Algorithm | None]]:
    for collective in CONTRACTS:
        yield collective, None
        for name in registry.names(collective):
            if registry.get(collective, name).requires(size) is None:
                yield collective, name
        if collective in STAGES:
            for grouping in GROUPINGS.get(size, ()):
                yield collective, hierarchical(collective, **grouping)


def everything(comm: Communicator) -> None:
    for collective, algorithm in cases(comm.size):
        for salt, count in enumerate(COUNTS):
            check(comm, collective, algorithm, count, salt)
    comm.barrier()


def a_few(comm: Communicator) -> None:
    """For the pure Python transport, which is slow."""
    for collective, algorithm in cases(comm.size):
        for salt, count in enumerate((0, 3, 1000)):
            check(comm, collective, algorithm, count, salt)


SIZES = {"threads": (1, 4), "shm": (2, 5), "tcp": (3,)}
"""Every size once, and every transport; `make test-more` has all pairs of these."""
MORE = more(*((transport, size) for transport in SIZES for size in range(1, 6) if size not in SIZES[transport]))


@pytest.mark.parametrize(("transport", "size"), [*((each, size) for each in SIZES for size in SIZES[each]), *MORE])
def test_every_collective_by_every_algorithm(transport: str, size: int) -> None:
    spread(everything, size, transport)


def test_over_the_reference_transport() -> None:
    spread(a_few, 3, "reference")


def test_every_algorithm_is_among_the_cases() -> None:
    found = {(c, a) for size in (2, 3, 4, 5) for c, a in cases(size) if isinstance(a, str)}
    assert found == {(c, name) for c in CONTRACTS for name in registry.names(c)}
