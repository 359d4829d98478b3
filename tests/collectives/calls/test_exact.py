"""order="exact": the sum that fractions give, rounded once, by every algorithm, over every transport, however dealt."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.algorithms import names
from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import ArgumentError, MismatchError
from support.cases import more
from support.exact_sums import DTYPES, FORMATS, KINDS, TERMS, addends, bits, edges, expected
from support.sockets import sent
from support.worlds import spread

Array = np.ndarray[Any, Any]
SEED = int(os.environ.get("HOCKET_FUZZ_SEED", 1))
ROUNDS = int(os.environ.get("HOCKET_FUZZ_ROUNDS", 1))
LENGTHS = (0, 1, 2, 5, 127, 129, 300, 3000)
CHECKED = 6
"""Elements of a long vector that fractions are asked about; the others must be what "direct" gives."""


def algorithms(collective: str, size: int) -> list[str]:
    return [name for name in names(collective) if hocket.algorithms.get(collective, name).requires(size) is None]


def some(rng: np.random.Generator, n: int) -> Array:
    return np.unique(rng.integers(0, n, CHECKED)) if n > CHECKED else np.arange(n)


def case(comm: Communicator, seed: int) -> None:
    """All ranks draw the same case, and all addends."""
    rng = np.random.default_rng([SEED, comm.size, seed])
    size, dtype, kind, n = comm.size, rng.choice([*DTYPES]), rng.choice(KINDS), int(rng.choice(LENGTHS))
    op = rng.choice(["sum", "avg", "premul"], p=[0.6, 0.2, 0.2])
    collective = rng.choice(["allreduce", "allreduce", "reduce", "reduce_scatter", "scan"])
    added = collective != "scan" and rng.random() < 0.4
    rows = [int(rng.integers(4)) if added else 1 for _ in range(size)]
    rows[-1] += not any(rows)
    if collective == "reduce_scatter":
        n *= size
    x = addends(rng, dtype, (sum(rows), n), kind)
    if rng.random() < 0.3 and len(x):
        x[rng.integers(len(x))] = addends(rng, dtype, (n,), "normal")
    factors = rng.choice([1 / 3, -2.0, 0.0, 0.1, 1e-30, 1e30], size).tolist()
    each = np.repeat(factors, rows).tolist() if op == "premul" else None
    begin = sum(rows[: comm.rank])
    mine = x[begin : begin + rows[comm.rank]]
    how = hocket.premul_sum(factors[comm.rank]) if op == "premul" else op
    algorithm = rng.choice([None, *algorithms(collective, size)])
    options: dict[str, Any] = {"op": how, "order": "exact", "algorithm": algorithm}
    if added:
        options["axis"] = 0
    given = mine.copy() if added else mine[0].copy()
    root = int(rng.integers(size))
    if collective == "reduce":
        options["root"] = root
    if rng.random() < 0.3:
        result = getattr(comm, collective)(given, async_op=True, **options).result()
    else:
        result = getattr(comm, collective)(given, **options)
    if result is None:
        assert comm.rank != root
        return
    share = n // size if collective == "reduce_scatter" else n
    first = comm.rank * share if collective == "reduce_scatter" else 0
    upto = comm.rank + 1 if collective == "scan" else len(x)
    at = some(rng, share)
    divisor = (len(x) if added else size) if op == "avg" else 1
    wanted = expected(x[:upto, first : first + share][:, at], dtype, divisor, None if each is None else each[:upto])
    if size == 1 and not added and op != "premul":
        return  # nothing is added: a NaN stays as it is
    assert result.shape == (share,)
    told = f"{collective} {op} {dtype}[{n}] {kind} {algorithm} rows={rows} seed={SEED},{size},{seed}"
    assert bits(np.asarray(result)[at]) == wanted, told


def cases(comm: Communicator) -> None:
    for seed in range(60 * ROUNDS // comm.size + 10):
        case(comm, seed)


@pytest.mark.parametrize("size", range(1, 10))
def test_the_law(size: int) -> None:
    spread(cases, size, "threads")


def at_edges(comm: Communicator) -> None:
    """Single elements, whose block has no other that needs more room, and many at once."""
    for seed, dtype in enumerate(FORMATS):
        rng = np.random.default_rng([SEED, comm.size, seed])
        k = TERMS // comm.size
        for n in (*[1] * 60, 24):
            x = edges(rng, dtype, n)
            factor = float(rng.choice([2.0**-100, 3 * 2.0**-100, -1e-30]))
            scaled = hocket.premul_sum(factor)
            for op, divisor, factors in (("sum", 1, None), ("avg", TERMS, None), (scaled, 1, [factor] * TERMS)):
                algorithm = rng.choice(algorithms("allreduce", comm.size))
                mine = x[comm.rank * k : (comm.rank + 1) * k]
                result = comm.allreduce(mine, op, order="exact", axis=0, algorithm=algorithm)
                if comm.rank == seed % comm.size:
                    told = f"{op} {dtype}[{n}] {algorithm} seed={SEED},{comm.size},{seed}: {x.tolist()}"
                    assert bits(result) == expected(x, dtype, divisor, factors), told
    x = np.array([[5 * 2.0**-974, 2.0**-974], [5 * 2.0**-974, 2.0**-1060]])  # products with half of the last bit
    halves = comm.allreduce(x, hocket.premul_sum(2.0**-101), order="exact", axis=0)
    assert halves.tolist() == [comm.size * 5 * 2.0**-1074, (comm.size + 1) // 2 * 2.0**-1074]


@pytest.mark.parametrize("size", [1, 3])
def test_near_ties(size: int) -> None:
    spread(at_edges, size, "threads")


def over(comm: Communicator) -> None:
    for seed in range(1000, 1025):
        case(comm, seed)


@pytest.mark.parametrize(("size", "transport"), [(3, "shm"), (4, "tcp"), *more((3, "reference"))])
def test_over_other_transports(size: int, transport: str) -> None:
    spread(over, size, transport)


def layouts(n: int, dtype: str) -> set[bytes]:
    """The bits of one sum of 12 addends: by 1, 2, 3, 4, 6 and 12 ranks, by every algorithm, whole and in pieces."""
    x = addends(np.random.default_rng(n), dtype, (12, n), "normal")
    x[3] *= x.dtype.type(2**10)
    found = set()

    def by(comm: Communicator) -> list[bytes]:
        k = 12 // comm.size
        mine = x[comm.rank * k : (comm.rank + 1) * k]
        results = [comm.allreduce(mine, order="exact", axis=0, algorithm=a) for a in algorithms("allreduce", comm.size)]
        parts = [np.ascontiguousarray(part) for part in (mine[:, : n // 3], mine[:, n // 3 :])]
        results.append(np.concatenate([comm.allreduce(part, order="exact", axis=0) for part in parts]))
        if k == 1:
            results += [comm.allreduce(mine[0].copy(), order="exact", algorithm=a) for a in algorithms("allreduce", 12)]
        return [each.tobytes() for each in results]

    for size in (1, 2, 3, 4, 6, 12):
        with hocket.local_world(size) as world:
            for each in world.run(by):
                found |= set(each)
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_bits_do_not_depend_on_the_layout(dtype: str) -> None:
    assert len(layouts(1000, dtype)) == 1


def long(comm: Communicator) -> None:
    """Segments, slots and slices: long vectors, with wide numbers here and there, by all algorithms."""
    for dtype, n in (("float32", 200_003), ("float64", 60_001)):
        rng = np.random.default_rng(7)
        x = addends(rng, dtype, (comm.size, n), "normal")
        for i in rng.integers(0, n, 30):
            x[:, i] = addends(rng, dtype, (comm.size,), "wide")
        found = {}
        for algorithm in algorithms("allreduce", comm.size):
            found[algorithm] = comm.allreduce(x[comm.rank].copy(), order="exact", algorithm=algorithm).tobytes()
        assert len(set(found.values())) == 1, {k: hash(v) for k, v in found.items()}
        at = np.concatenate([rng.integers(0, n, 20), np.array([0, n - 1])])
        result = np.frombuffer(found["direct"], dtype)
        assert bits(result[at]) == expected(x[:, at], dtype)


@pytest.mark.parametrize(("size", "transport"), [*more((4, "shm")), (3, "tcp")])
def test_long_vectors(size: int, transport: str) -> None:
    spread(long, size, transport)


def upwards(comm: Communicator) -> None:
    """The caller's thread rounds up, on one rank; and what is prepared is what was asked for."""
    libm = ctypes.CDLL("libm.so.6")
    mixed = np.array([1.0, 2.0**-60, 1.0, 2.0**-60])
    mine = mixed[comm.rank :: comm.size, None].copy()
    libm.fesetround(0x800 if comm.rank == 0 else 0)
    try:
        total = comm.allreduce(mine, order="exact", axis=0)
        least = comm.allreduce(mine[0].copy(), "min", order="exact")
        assert libm.fegetround() == (0x800 if comm.rank == 0 else 0)
    finally:
        libm.fesetround(0)
    assert total[0] == 2.0 and least[0] == min(mixed[: comm.size])
    x = np.array([[1e20], [1.0], [-1e20]][comm.rank % 3])
    wanted, prepared = x.copy(), x.copy()
    comm.scan(wanted, order="exact")
    comm.prepare("scan", prepared, order="exact")()
    assert wanted == prepared


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the rounding mode's number is x86's")
@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_callers_rounding_and_prepared_calls(size: int) -> None:
    spread(upwards, size, "threads")


def bytes_on_the_wire(comm: Communicator) -> None:
    """Contributions are as long as ever; accumulators of usual data twice as long, and sums are rounded where made."""
    for dtype in ("float32", "float64"):
        x = addends(np.random.default_rng(comm.rank), dtype, (3, 1 << 18), "normal")
        one = x[0].copy()
        plain = sent(comm, comm.allreduce, one, algorithm="direct")
        assert sent(comm, comm.allreduce, one, algorithm="direct", order="exact") < 1.05 * plain
        assert sent(comm, comm.allreduce, x, algorithm="direct", order="exact", axis=0) < 1.55 * plain
        plain = sent(comm, comm.allreduce, one, algorithm="ring")
        assert sent(comm, comm.allreduce, one, algorithm="ring", order="exact") < 1.55 * plain
        plain = sent(comm, comm.allreduce, one, algorithm="tree")
        assert sent(comm, comm.allreduce, one, algorithm="tree", order="exact") < 2.1 * plain


def test_bytes() -> None:
    spread(bytes_on_the_wire, 4, "tcp")


def refusals(comm: Communicator) -> None:
    x, whole = np.ones(4, np.float32), np.arange(4) + comm.rank
    for told, call in {
        "codec='int8' exclude each other": lambda: comm.allreduce(x, order="exact", codec="int8"),
        "no op 'prod' of floats": lambda: comm.allreduce(x, "prod", order="exact"),
        "for a function use order='rank'": lambda: comm.allreduce(x, lambda a, b: a + b, order="exact"),
        "adds as its library does": lambda: comm.allreduce(x, order="exact", algorithm="mpi"),
        "not float8_e5m2": lambda: comm.allreduce(np.zeros(3, "float8_e5m2"), order="exact"),
        "only axis=0 can be asked for": lambda: comm.allreduce(np.ones((2, 2)), order="exact", axis=1),
        "with order='exact' alone": lambda: comm.allreduce(np.ones((2, 2)), axis=0),
        "x is a scalar (shape ())": lambda: comm.allreduce(np.ones(()), order="exact", axis=0),
        "loses nothing that a residual could keep": lambda: comm.allreduce(x, order="exact", residual=x),
        "with op='sum' of integers, not of bool": lambda: comm.allreduce(np.ones((2, 2), bool), order="exact", axis=0),
        "integers, not of int64": lambda: comm.allreduce(np.ones((2, 2), np.int64), "avg", order="exact", axis=0),
        "out of float32's range": lambda: comm.allreduce(x, hocket.premul_sum(1e39), order="exact"),
        "combine the rows of x before": lambda: comm.allreduce(np.ones((2, 2)), "max", order="exact", axis=0),
        "not one of 'any', 'rank' and 'exact'": lambda: comm.allreduce(x, order="exactly"),
        "takes one array": lambda: comm.allreduce([x], order="exact", axis=0),
    }.items():
        with pytest.raises(ArgumentError, match=re.escape(told)):
            call()
    assert comm.allreduce(whole, order="exact").tolist() == (np.arange(4) * comm.size + 3).tolist()
    assert comm.allreduce(np.ones((2, 3), np.int8), order="exact", axis=0).tolist() == [6, 6, 6]
    assert comm.allreduce(1.5, order="exact") == 4.5


def test_what_is_refused() -> None:
    spread(refusals, 3, "threads")


def nobody_has_rows(comm: Communicator) -> None:
    """A sum of nothing is 0; an average of nothing is an error wherever it would be, but -0 and NaN are results."""
    for dtype in (*DTYPES, "int16"):
        none = np.empty((0, 300), DTYPES.get(dtype, dtype))
        for algorithm in algorithms("allreduce", comm.size):
            total = comm.allreduce(none, order="exact", axis=0, algorithm=algorithm)
            assert total.shape == (300,) and total.dtype == none.dtype and not total.tobytes().strip(b"\0")
        if dtype == "int16":
            continue
        begun = comm.allreduce(none, "avg", order="exact", axis=0, async_op=True)
        for call in (begun.result, lambda none=none: comm.reduce_scatter(none, "avg", order="exact", axis=0)):
            with pytest.raises(ArgumentError, match="no rank has a row"):
                call()
        if comm.rank:
            assert comm.reduce(none, op="avg", order="exact", axis=0) is None
        else:
            with pytest.raises(ArgumentError, match="no rank has a row"):
                comm.reduce(none, op="avg", order="exact", axis=0)
        given = np.full((int(comm.rank == 0), 2), [-0.0, np.nan], none.dtype)
        found = comm.allreduce(given, "avg", order="exact", axis=0)
        assert np.signbit(found[0].real) and np.isnan(found[1])
    assert comm.allreduce(np.empty((0, 0)), "avg", order="exact", axis=0).shape == (0,)


@pytest.mark.parametrize("size", [1, 3])
def test_ranks_without_rows(size: int) -> None:
    spread(nobody_has_rows, size, "threads")


def alone(comm: Communicator) -> None:
    """One rank refuses what several do; and a program may ask before."""
    with pytest.raises(ArgumentError, match="adds as its library does"):
        comm.allreduce(np.ones(2), order="exact", algorithm="mpi")
    for call, promised in {"reduce_scatterv": "run", "allgatherv": "exact", "alltoallv": "exact"}.items():
        assert comm.reproducible(call, "float32") == promised
    for call in ("allreducev", "v", "send", None):
        with pytest.raises(ArgumentError, match="is not a collective"):
            comm.reproducible(call, "float32")  # type: ignore[arg-type]


def test_one_rank() -> None:
    spread(alone, 1, "threads")


def extremes(comm: Communicator) -> None:
    """-0 is less than 0, and there is one NaN: so the order of ranks does not show."""
    for shift in range(comm.size):
        for op, zero in (("min", True), ("max", False)):
            for algorithm in algorithms("allreduce", comm.size):
                x = np.roll(np.array([0.0, -0.0, 0.0]), shift)[comm.rank : comm.rank + 1]
                y = np.array([np.float64(comm.rank), np.nan if comm.rank == shift else 1.0])
                assert np.signbit(comm.allreduce(x.copy(), op, order="exact", algorithm=algorithm))[0] == zero
                assert bits(comm.allreduce(y, op, order="exact", algorithm=algorithm))[1] == 0x7FF8 << 48


def test_min_and_max() -> None:
    spread(extremes, 3, "threads")


def disagree(comm: Communicator) -> None:
    with pytest.raises(MismatchError, match="order='exact'"):
        comm.allreduce(np.ones(3), order="exact" if comm.rank else "any", algorithm="ring")


def test_ranks_that_disagree() -> None:
    spread(disagree, 3, "threads")
