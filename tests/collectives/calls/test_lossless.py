"""codec="lossless": every call has the bits that it has without, in fewer bytes on the wire."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hocket
from hocket.algorithms import names
from hocket.collectives.calls.ask import Ask
from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import ArgumentError, MismatchError
from support.cases import more
from support.exact_sums import addends
from support.sockets import sent
from support.worlds import spread

DTYPES: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
KINDS = ("normal", "bits", "wide", "zeros", "special", "cancelling")
LENGTHS = (0, 1, 7, 63, 1000, 40_001)


def algorithms(collective: str, size: int) -> list[str]:
    return [name for name in names(collective) if hocket.algorithms.get(collective, name).requires(size) is None]


def the_same(comm: Communicator, collective: str, x: Any, counts: list[int] | None, how: dict[str, Any]) -> None:
    results = []
    for codec in (None, "lossless"):
        call = getattr(comm, collective)
        out = call(x.copy(), *([counts] if counts else []), codec=codec, **how)
        results.append(np.asarray(out).tobytes())
    assert results[0] == results[1], (collective, x.dtype, x.shape, how)


def cases(comm: Communicator) -> None:
    size, rng, of_all = comm.size, np.random.default_rng(comm.rank), np.random.default_rng(77)
    for i in range(40):
        dtype, kind, n = of_all.choice([*DTYPES]), of_all.choice(KINDS), int(of_all.choice(LENGTHS))
        collective = of_all.choice(["allreduce", "reduce_scatter", "allgather", "broadcast", "alltoall"])
        how: dict[str, Any] = {"algorithm": of_all.choice(algorithms(collective, size))}
        if collective in ("allreduce", "reduce_scatter"):
            how["op"] = of_all.choice(["sum", "avg", "max"])
        else:
            how["async_op"] = False
        x = addends(rng, dtype, (n * size if collective in ("reduce_scatter", "alltoall") else n,), kind)
        the_same(comm, collective, x, None, how)
        if i % 5 == 0:
            counts = [*range(size)]
            the_same(comm, "reduce_scatterv", addends(rng, dtype, (sum(counts), 3), kind), counts, {})
            the_same(comm, "allgatherv", addends(rng, dtype, (comm.rank, 3), kind), counts, {})
    sent = np.ones((size, 5), np.float32) * rng.normal()
    got = comm.alltoallv(sent, [1] * size, [1] * size, codec="lossless")
    assert got.tobytes() == comm.alltoallv(sent, [1] * size, [1] * size).tobytes()
    for length in (1 << 20, 300_007):  # segments, slots and slices
        x = rng.normal(size=length).astype(np.float32)
        for algorithm in algorithms("allreduce", size):
            the_same(comm, "allreduce", x, None, {"algorithm": algorithm})


@pytest.mark.parametrize(("size", "transport"), [(1, "threads"), (3, "tcp"), *more((4, "threads"), (3, "shm"))])
def test_the_same_bits(size: int, transport: str) -> None:
    spread(cases, size, transport)


def fewer(comm: Communicator) -> None:
    x = np.random.default_rng(comm.rank).normal(size=1 << 20)
    for dtype, most in (("float32", 0.86), ("bfloat16", 0.70), ("float16", 0.90)):
        given = x.astype(DTYPES[dtype])
        plain, packed = (sent(comm, comm.allgather, given, codec=codec) for codec in (None, "lossless"))
        assert packed < most * plain, (dtype, packed / plain)
    noise = np.random.default_rng(comm.rank).integers(0, 1 << 32, 1 << 18, np.uint32).view(np.float32)
    plain, packed = (sent(comm, comm.allgather, noise, codec=codec) for codec in (None, "lossless"))
    assert packed < 1.01 * plain + 4096


def test_fewer_bytes() -> None:
    spread(fewer, 2, "tcp")


def refusals(comm: Communicator) -> None:
    x = np.ones(4, np.float32)
    for told, call in {
        "takes float32, float16, bfloat16, got float64": lambda: comm.allreduce(np.ones(3), codec="lossless"),
        "loses nothing that a residual": lambda: comm.allreduce(x, codec="lossless", residual=np.zeros(4, "f4")),
        "exclude each other": lambda: comm.allreduce(x, codec="lossless", order="exact"),
        "reduce takes no codec": lambda: comm._call(x, None, Ask("reduce", "sum", codec="lossless")),
    }.items():
        with pytest.raises(ArgumentError, match=re.escape(told)):
            call()


def test_what_is_refused() -> None:
    spread(refusals, 2, "threads")


def disagree(comm: Communicator) -> None:
    with pytest.raises(MismatchError, match="codec='lossless'"):
        comm.allreduce(np.ones(3, np.float32), codec="lossless" if comm.rank else None, algorithm="ring")


def test_ranks_that_disagree() -> None:
    spread(disagree, 3, "threads")
