"""Every dtype with every op, against the kernels' NumPy oracle; and the ops that are made of others.

Where a result is one k-way reduction in rank order, small floats must equal fp32 accumulation rounded once, to the
bit; other algorithms round at every hop.  What does not round is exact by any algorithm.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.conformance import oracle
from hocket.errors import ArgumentError
from hocket.kernels.dtypes import DType
from hocket.kernels.ops import OPS
from support.cases import more
from support.worlds import spread

COUNTS = (1, 37, 9001)
ONE_REDUCTION = ("one_shot", "direct")
SWEEP = (*ONE_REDUCTION, "ring", "recursive_doubling", "double_binary_tree")
NUMBERS = [row for row in oracle.ROWS if row.kind in ("int", "uint", "float", "complex")]
Array = np.ndarray[Any, Any]


def rng(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def rounds(row: DType, op: str) -> bool:
    return row.kind in ("float", "complex") and op in ("sum", "prod")


def mild(row: DType, count: int, seed: int) -> Array:
    """Values that neither overflow nor vanish in a few sums or products."""
    dtype, source = oracle.numpy_dtype(row), rng(seed, row.code)
    if row.kind in ("int", "uint"):
        return source.integers(0 if row.kind == "uint" else -20, 20, count).astype(dtype)
    values = source.choice([-1, 1], count) * source.uniform(0.75, 1.5, count)
    return (values + 1j * source.uniform(-1, 1, count)).astype(dtype) if row.kind == "complex" else values.astype(dtype)


def wide(x: Array) -> Array:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def near(got: Array, exact: Array, scale: Array, hops: int, what: str) -> None:
    """Within one rounding for each hop, of values as large as `scale`."""
    info = np.finfo(got.dtype) if got.dtype.kind == "c" else ml_dtypes.finfo(got.dtype)
    error = np.abs(wide(got) - exact)
    limit = hops * float(info.eps) * scale + float(info.smallest_subnormal)
    assert (error <= limit).all(), f"{what}: off by {(error / limit).max()} times what rounding explains"


def exactly(got: Array, want: Array, what: str) -> None:
    good = oracle.same(got, want)
    assert good.all(), (
        f"{what}: {np.sum(~good)} of {good.size} wrong, first got {got[~good][:1]}, wanted {want[~good][:1]}"
    )


def inputs_for(comm: Communicator, row: DType, op: str, count: int, one: bool) -> list[Array]:
    """Every rank's x.  Zeros lose their sign: which of two zeros is the smaller depends on the order."""
    if rounds(row, op) and not one:
        return [mild(row, count, r) for r in range(comm.size)]
    made = [oracle.samples(row, count, rng(r, row.code, count)) for r in range(comm.size)]
    if row.kind == "float":
        with np.errstate(invalid="ignore"):  # ml_dtypes say so of every comparison with a NaN
            made = [np.where(x == 0, np.zeros(1, x.dtype), x) for x in made]
    return made


def one_op(comm: Communicator, row: DType, op: str, name: str, count: int) -> None:
    one = name in ONE_REDUCTION
    inputs = inputs_for(comm, row, op, count, one)
    what = f"allreduce {row.name} {op} by {name}, {count} elements, rank {comm.rank} of {comm.size}"
    x = inputs[comm.rank].copy()
    got = comm.allreduce(x, op, algorithm=name)
    assert got is x and got.dtype == inputs[0].dtype, what
    if one or not rounds(row, op):
        exactly(got, oracle.fold(op, inputs), what)
    else:
        fold = np.sum if op == "sum" else np.prod
        exact = fold([wide(x) for x in inputs], axis=0)
        near(got, exact, fold([np.abs(wide(x)) for x in inputs], axis=0), 3 * comm.size, what)


def every_dtype_and_op(comm: Communicator) -> None:
    for row in oracle.ROWS:
        for op in OPS:
            if row.kind in op.kinds:
                for name in SWEEP:
                    one_op(comm, row, op.name, name, 37)
                one_op(comm, row, op.name, "direct", 1)
                one_op(comm, row, op.name, "ring", 9001)


def long_vectors(comm: Communicator) -> None:
    """Bytes come in pieces of any length over a stream: no element may be torn."""
    for row in oracle.ROWS:
        ops = [op.name for op in OPS if row.kind in op.kinds]
        for name in ("direct", "ring"):
            one_op(comm, row, ops[0], name, 9001)
            one_op(comm, row, ops[-1], name, 60001)


@pytest.mark.parametrize("size", [3, *more(2, 4)])
def test_every_dtype_and_op(size: int) -> None:
    spread(every_dtype_and_op, size, "threads")


@pytest.mark.parametrize("transport", ["tcp", *more("shm")])
def test_long_vectors_of_every_dtype(transport: str) -> None:
    spread(long_vectors, 3, transport)


# ------------------------------------------------------------------------------------------------ other collectives


def reduce_and_scan(comm: Communicator) -> None:
    """The other reductions take the same kernels: a few dtypes each, one k-way reduction where there is one."""
    for row in oracle.ROWS:
        op = "minloc" if row.kind == "pair" else "max" if row.kind == "bool" else "sum"
        count = 24 * comm.size
        inputs = inputs_for(comm, row, op, count, True)
        want, mine = oracle.fold(op, inputs), inputs[comm.rank]
        got = comm.reduce(mine, 1 % comm.size, op, algorithm="direct")
        if comm.rank == 1 % comm.size:
            exactly(got, want, f"reduce {row.name}")
        block = slice(comm.rank * 24, comm.rank * 24 + 24)
        exactly(comm.reduce_scatter(mine, op, algorithm="direct"), want[block], f"reduce_scatter {row.name}")
        if not rounds(row, op):
            prefix = oracle.fold(op, inputs[: comm.rank + 1])
            exactly(comm.scan(mine.copy(), op), prefix, f"scan {row.name}")


@pytest.mark.parametrize("size", [3, *more(2, 4)])
def test_every_dtype_in_the_other_reductions(size: int) -> None:
    spread(reduce_and_scan, size, "threads")


# ------------------------------------------------------------------------------------------------ avg and premul_sum


def averages(comm: Communicator) -> None:
    for row in NUMBERS:
        inputs = [mild(row, 113, r) for r in range(comm.size)]
        total = np.sum([wide(x) for x in inputs], axis=0)
        scale = np.sum([np.abs(wide(x)) for x in inputs], axis=0)
        for name in ("direct", "ring"):
            what = f"avg of {row.name} by {name}"
            out = np.empty_like(inputs[0])
            got = comm.allreduce(inputs[comm.rank].copy(), "avg", out, algorithm=name)
            assert got is out
            if row.kind in ("int", "uint"):
                exactly(got, np.trunc(total / comm.size).astype(got.dtype), what)
            else:
                near(got, total / comm.size, scale, 3 * comm.size, what)
        part = comm.reduce_scatter(np.concatenate([inputs[comm.rank]] * comm.size), "avg")
        whole = comm.allreduce(inputs[comm.rank].copy(), "avg", algorithm="direct")
        if row.kind in ("int", "uint"):
            exactly(part, whole, f"avg of {row.name} by reduce_scatter")
        at_root = comm.reduce(inputs[comm.rank], 0, "avg", algorithm="direct")
        if comm.rank == 0:
            exactly(at_root, whole, f"avg of {row.name} at the root")
        work = comm.allreduce(inputs[comm.rank].copy(), "avg", algorithm="direct", async_op=True)
        exactly(work.result(), whole, f"avg of {row.name}, asynchronous")


def premultiplied(comm: Communicator) -> None:
    factors = [0.5 * (r + 1) for r in range(comm.size)]
    op = hocket.premul_sum(factors[comm.rank])
    for row in NUMBERS:
        inputs = [mild(row, 113, r) for r in range(comm.size)]
        parts = [wide(x) * f for x, f in zip(inputs, factors, strict=True)]
        if row.kind in ("int", "uint"):
            parts = [np.trunc(p) for p in parts]
        total, scale = np.sum(parts, axis=0), np.sum([np.abs(p) for p in parts], axis=0)
        x, out = inputs[comm.rank].copy(), np.empty_like(inputs[0])
        works = comm.allreduce(x, op, out, async_op=True)
        for got in (works.result(), comm.allreduce(x, op, np.empty_like(x)), comm.allreduce(x.copy(), op)):
            if row.kind in ("int", "uint"):
                exactly(got, total.astype(x.dtype), f"premul_sum of {row.name}")
            else:
                near(got, total, scale, 3 * comm.size, f"premul_sum of {row.name}")
        exactly(x, inputs[comm.rank], f"premul_sum of {row.name}: x must stay")


@pytest.mark.parametrize("size", [1, 3, *more(2)])
@pytest.mark.parametrize("function", [averages, premultiplied])
def test_scaled_sums(function: Any, size: int) -> None:
    spread(function, size, "threads")


def test_avg_of_bool_is_refused() -> None:
    def call(comm: Communicator) -> None:
        with pytest.raises(ArgumentError, match="needs numbers"):
            comm.allreduce(np.ones(3, bool), "avg")

    with hocket.local_world(2) as world:
        world.run(call)
