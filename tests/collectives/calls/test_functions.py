"""Functions for ops, combined in rank order; and elements of any structure, moved as they are."""

from __future__ import annotations

import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hocket
from hocket.algorithms.language import registry
from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import ArgumentError
from support.worlds import spread

Array = np.ndarray[Any, Any]

MATRIX = np.dtype([("m", np.int64, (2, 2))])
AFFINE = np.dtype([("a", np.int64), ("b", np.int64)])


def product(a: Array, b: Array) -> Array:
    """2x2 matrix products: associative, not commutative; wraps like any integer."""
    out = np.empty_like(a)
    out["m"] = a["m"] @ b["m"]
    return out


def compose(f: Array, g: Array) -> Array:
    """x -> g(f(x)) for affine maps a x + b."""
    out = np.empty_like(f)
    out["a"], out["b"] = f["a"] * g["a"], f["b"] * g["a"] + g["b"]
    return out


def non_commutative(comm: Communicator) -> None:
    for dtype, function in ((MATRIX, product), (AFFINE, compose)):
        for count in (1, 5, 5001):
            inputs = []
            for r in range(comm.size):
                x = np.zeros(count, dtype)
                flat = x.view(np.int64)
                flat[:] = np.random.default_rng((r, count)).integers(-3, 4, flat.size)
                inputs.append(x)
            prefix = [inputs[0]]
            for x in inputs[1:]:
                prefix.append(function(prefix[-1], x))
            for name in (None, *registry.names("allreduce")):
                if name is not None and registry.get("allreduce", name).order != "rank":
                    continue
                got = comm.allreduce(inputs[comm.rank].copy(), function, algorithm=name)
                assert (got == prefix[-1]).all(), f"{function.__name__}, {count} elements by {name}"
            for name in registry.names("scan"):
                got = comm.scan(inputs[comm.rank].copy(), function, algorithm=name)
                assert (got == prefix[comm.rank]).all(), f"scan of {function.__name__} by {name}"
            got = comm.exscan(inputs[comm.rank].copy(), function)
            assert comm.rank == 0 or (got == prefix[comm.rank - 1]).all(), f"exscan of {function.__name__}"
            got = comm.reduce(inputs[comm.rank], comm.size - 1, function)
            assert comm.rank < comm.size - 1 or (got == prefix[-1]).all(), f"reduce of {function.__name__}"
            work = comm.allreduce(inputs[comm.rank].copy(), function, async_op=True)
            assert (work.result() == prefix[-1]).all(), f"{function.__name__}, asynchronous"


@pytest.mark.parametrize(("size", "transport"), [(1, "threads"), (2, "threads"), (5, "threads"), (3, "tcp")])
def test_functions_are_combined_in_rank_order(size: int, transport: str) -> None:
    spread(non_commutative, size, transport)


def with_torch(comm: Communicator) -> None:
    import torch

    inputs = [torch.arange(1000, dtype=torch.bfloat16) % 7 + r for r in range(comm.size)]
    got = comm.allreduce(inputs[comm.rank].clone(), lambda a, b: 2 * a - b)
    want = inputs[0]
    for x in inputs[1:]:
        want = 2 * want - x
    assert isinstance(got, torch.Tensor) and torch.equal(got, want)


@pytest.mark.filterwarnings("error")
def test_functions_on_tensors() -> None:
    spread(with_torch, 3, "threads")


def in_place(a: Any, b: Any) -> Any:
    a += b
    return a


def backwards(a: Any, b: Any) -> Any:
    """Gives `b` itself now and then."""
    return b if b[0] > a[0] else a


def works_in_place(comm: Communicator) -> None:
    """A function that changes its arguments changes nobody's x."""
    import torch

    p, total = comm.size, comm.size * (comm.size + 1) / 2
    for name in registry.names("allreduce"):
        if registry.get("allreduce", name).order == "rank":
            x = np.full(5000, comm.rank + 1.0)
            out = comm.allreduce(x, in_place, np.empty(5000), algorithm=name)
            assert (out == total).all() and (x == comm.rank + 1).all(), name
            assert (comm.allreduce(x, lambda a, b: np.add(a, b, out=a), algorithm=name) == total).all(), name
    x = np.full(5000, comm.rank + 1.0)
    got = comm.reduce(x, 0, in_place)
    assert (x == comm.rank + 1).all() and (comm.rank > 0 or (got == total).all())
    t = torch.full((5000,), comm.rank + 1.0)
    out = comm.allreduce(t, in_place, torch.empty(5000))
    assert (out == total).all() and (t == comm.rank + 1).all()
    assert (comm.allreduce(np.full(9, comm.rank + 1), backwards) == p).all()


def test_functions_that_work_in_place() -> None:
    spread(works_in_place, 4, "threads")


BAD: dict[str, tuple[Any, str]] = {
    "nothing": (lambda a, b: None, "returned None"),
    "a scalar": (lambda a, b: a.sum(), "returned a float64"),
    "another shape": (lambda a, b: np.concatenate([a, b]), r"shape \(\d+,\)"),
    "another dtype": (lambda a, b: (a + b) * 1j, "returned complex128 of arrays of float64"),
    "a list": (lambda a, b: list(a), "returned a list"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_a_function_may_return(name: str) -> None:
    function, text = BAD[name]

    def call(comm: Communicator) -> None:
        with pytest.raises(hocket.Error, match=text):
            comm.allreduce(np.ones(10), function)

    with hocket.local_world(2) as world:
        world.run(call)


def test_b_cannot_be_written_to() -> None:
    def call(comm: Communicator) -> None:
        with pytest.raises((ValueError, hocket.Error), match="read-only"):
            comm.allreduce(np.ones(10), lambda a, b: np.add(a, b, out=b))

    with hocket.local_world(2) as world:
        world.run(call)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_function_cannot_call_hocket(asynchronous: bool) -> None:
    def call(comm: Communicator) -> None:
        comm.allreduce(np.ones(3))  # known, so that it may go the short way

        def nested(a: Any, b: Any) -> Any:
            comm.allreduce(np.ones(3), async_op=asynchronous)
            return a + b

        with pytest.raises(hocket.Error, match="cannot call hocket"):
            work = comm.allreduce(np.ones(10), nested, async_op=asynchronous, timeout=60)
            if asynchronous:
                work.wait()

    with hocket.local_world(2) as world:
        world.run(call)


def test_a_function_cannot_wait_for_a_work() -> None:
    """The thread that runs it may be the one that makes all works go on.  Of a work that has ended it sees the end."""
    refused = threading.Barrier(2)

    def call(comm: Communicator) -> None:
        inner = comm.dup()
        work = inner.recv(np.empty(1), 1 - comm.rank, async_op=True)

        def nested(a: Any, b: Any) -> Any:
            work.wait()
            return a + b

        with pytest.raises(hocket.Error, match="cannot call hocket"):
            comm.allreduce(np.ones(10), nested, async_op=True, timeout=60).wait()
        refused.wait(60)  # what the other sends would end the work
        inner.send(np.ones(1), 1 - comm.rank)
        work.wait()

    with hocket.local_world(2) as world:
        world.run(call)


def rank_order(comm: Communicator) -> None:
    """Floats whose sum depends on the order: every choice that order="rank" makes is a sum in rank order."""
    values = [1e16, 1.0, -1e16, 1.0]
    for count in (1, 600, 40_000, 200_001):
        x = np.full(count, values[comm.rank])
        got = comm.allreduce(x, order="rank", algorithm="direct")
        assert (got == ((1e16 + 1.0) - 1e16) + 1.0).all(), f"{count} elements: {got[0]}"
        x = np.full(count, float(comm.rank + 1))
        assert (comm.allreduce(x, order="rank") == sum(range(1, comm.size + 1))).all()
    for name in registry.names("allreduce"):
        if registry.get("allreduce", name).order == "any":
            with pytest.raises(ArgumentError, match="rank order"):
                comm.allreduce(np.ones(3), order="rank", algorithm=name)
            with pytest.raises(ArgumentError, match="rank order"):
                comm.allreduce(np.ones(3), np.add, algorithm=name)


def test_order_rank() -> None:
    spread(rank_order, 4, "threads")


# ------------------------------------------------------------------------------------------------ what is only moved

ODD = (
    np.dtype([("name", "S5"), ("x", "f4"), ("y", "f8", (3,))]), np.dtype("S7"), np.dtype("U3"),
    np.dtype("datetime64[ns]"), np.dtype([("value", "f4"), ("index", "i4")]), np.dtype(np.longdouble),
    np.dtype(ml_dtypes.float8_e4m3fn), np.dtype("V3"), np.dtype(">i4"),
)  # fmt: skip


def moved(comm: Communicator) -> None:
    p = comm.size
    for dtype in ODD:
        for m in (1, 5, 3001):
            inputs = [
                np.random.default_rng((r, m)).integers(0, 100, p * m * dtype.itemsize).astype(np.uint8).view(dtype)
                for r in range(p)
            ]
            mine, block = inputs[comm.rank], slice(comm.rank * m, comm.rank * m + m)

            def equal(got: Any, want: list[Array], what: str, dtype: Any = dtype) -> None:
                # np.concatenate would turn >i4 into <i4
                assert got.dtype == dtype and got.tobytes() == b"".join(x.tobytes() for x in want), f"{what} of {dtype}"

            equal(comm.broadcast(mine.copy(), p - 1), [inputs[p - 1]], "broadcast")
            for _ in range(2):  # the second call may go another way
                equal(comm.allgather(mine), inputs, "allgather")
            equal(comm.scatter(mine, 0), [inputs[0][block]], "scatter")
            equal(comm.alltoall(mine), [x[block] for x in inputs], "alltoall")
            gathered = comm.gather(mine, 0)
            if comm.rank == 0:
                equal(gathered, inputs, "gather")


@pytest.mark.parametrize(("size", "transport"), [(3, "threads"), (2, "shm"), (2, "tcp")])
def test_structures_and_other_dtypes_are_moved(size: int, transport: str) -> None:
    spread(moved, size, transport)


def test_what_has_no_sum_or_no_bytes_is_refused() -> None:
    def call(comm: Communicator) -> None:
        for name in ("|S4", "datetime64[s]", str(np.dtype(np.longdouble))):
            for op, needs in (("sum", "numbers or bool"), ("avg", "numbers")):
                with pytest.raises(ArgumentError) as error:
                    comm.allreduce(np.zeros(3, name), op)
                assert f"op {op!r} needs {needs}, got {name}, which is only moved" in str(error.value)
        with pytest.raises(ArgumentError, match="needs"):
            comm.allreduce(np.zeros(3, complex), "max")
        with pytest.raises(ArgumentError):
            comm.broadcast(np.array([object()]))
        assert comm.allreduce(np.ones(1))[0] == comm.size  # nobody was disturbed

    with hocket.local_world(2) as world:
        world.run(call)
