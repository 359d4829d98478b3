"""Calls with codecs on GPU arrays against the same calls on NumPy arrays, by the same ranks: the same bits.

All of it runs in the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hocket.algorithms import hierarchical
from hocket.collectives.arrays import staging
from hocket.collectives.communicator import planner
from hocket.collectives.gpu.meeting import KERNELS
from hocket.compression import FP8, QSGD, Int, Natural, OneBit
from hocket.errors import ArgumentError
from hocket.kernels.codecs import CODECS, HALVES, Codec
from support.gpu.arrays import put
from support.gpu.beside_numpy import algorithms, check, of, same, values

LONG = FP8(1024)
"""The one for messages of several slots: its elements are the longest."""
RANDOM = (QSGD(4), Natural(64))
BLOCKS = (*CODECS, *HALVES.values(), Int(3, 192), OneBit(64), LONG, *RANDOM)
"""All whose kernels are used."""
NAMED: tuple[str | Codec, ...] = ("fp16", "bf16", *(codec.name for codec in CODECS), Int(3, 192), OneBit(64))
"""Codecs without dice: the bits of a call are those of any other like it."""


@contextmanager
def nothing_is_staged() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "to_host", None)
        yield


def every_collective(comm: Any) -> None:
    p = comm.size
    for codec in NAMED:
        for count in (0, 1, 255, 4099):
            for name in algorithms("allreduce", p):
                check(comm, "allreduce", of(comm, "allreduce", count), codec=codec, algorithm=name)
            check(comm, "allreduce", of(comm, "allreduce", count), op="avg", codec=codec, out=count)
            check(comm, "broadcast", of(comm, "broadcast", count), codec=codec, root=p - 1)
            for collective in ("reduce_scatter", "allgather", "alltoall"):
                check(comm, collective, of(comm, collective, count), codec=codec)
        with_counts(comm, codec)


def with_counts(comm: Any, codec: str | Codec) -> None:
    p, rank = comm.size, comm.rank
    counts = [0 if r == 1 else 700 + 13 * r for r in range(p)]
    check(comm, "allgatherv", values(rank, counts[rank], "float32"), (counts,), codec=codec)
    check(comm, "reduce_scatterv", values(rank, sum(counts), "float32"), (counts,), codec=codec)
    sent, received = counts, [counts[rank]] * p
    check(comm, "alltoallv", values(rank, sum(sent), "float32"), (sent, received), codec=codec)


def asynchronous(comm: Any) -> None:
    given = [values(comm.rank, 3001 + i, "float32") for i in range(6)]
    there = [put(x) for x in given]
    works = [comm.allreduce(x, codec=codec, async_op=True) for x, codec in zip(there, NAMED, strict=False)]
    for x, y, work, codec in reversed(list(zip(given, there, works, NAMED, strict=False))):
        work.wait()
        same(y, comm.allreduce(x, codec=codec), f"asynchronous, {codec}")


def hosts(size: int) -> tuple[tuple[int, ...], ...]:
    """Ranks as if on two hosts."""
    return tuple(range(size // 2)), tuple(range(size // 2, size))


def between_hosts(comm: Any, groups: tuple[tuple[int, ...], ...], counts: tuple[int, ...] = (5, 4099)) -> None:
    """Encoded in some steps only."""
    for codec in NAMED:
        for count in counts:
            for collective in ("allreduce", "reduce_scatter", "allgather", "broadcast"):
                way = hierarchical(collective, groups)
                check(comm, collective, of(comm, collective, count), codec=codec, algorithm=way)
            x, way = of(comm, "allreduce", count), hierarchical("allreduce", groups)
            check(comm, "allreduce", x, out=count, op="avg", codec=codec, algorithm=way)


def beside_kernels_that_meet(comm: Any) -> None:
    for codec in ("fp16", "int8"):
        for collective, name in KERNELS:
            for count in (5, 4099):
                check(comm, collective, of(comm, collective, count))
                check(comm, collective, of(comm, collective, count), codec=codec, algorithm=name)
    assert comm.gpus.why_apart == ""


def in_slots_of(comm: Any, nbytes: int) -> None:
    """Messages of two, none of which holds a whole number of these elements."""
    check(comm, "allreduce", of(comm, "allreduce", nbytes + 4099), codec=LONG, algorithm="tree")


def rounded_at_random(comm: Any) -> None:
    """By the same dice as on a host, if the calls have one number and are told to be the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "zlib", SimpleNamespace(crc32=lambda data: 77))
        one, other = comm.dup(), comm.dup()
        other.allreduce(put(np.ones(1, np.float32)))
        numbers = [each.membership.main.engine for each in (one, other)]
        for codec in RANDOM:
            for name in ("direct", "ring"):
                x = values(comm.rank, 5001, "float32")
                there = put(x)
                while numbers[0].sequence < numbers[1].sequence:
                    one.barrier()
                first = one.allreduce(x, codec=codec, algorithm=name)
                same(other.allreduce(there, codec=codec, algorithm=name), first, f"{codec}, {name}")
                again = one.allreduce(values(comm.rank, 5001, "float32"), codec=codec, algorithm=name)
                other.barrier()
                assert (again != first).any(), "the next call rounds by other numbers"
        one.close()
        other.close()


def kept(comm: Any, collective: str, n: int, codec: str | Codec, **how: Any) -> None:
    """A call with residuals on host arrays and on the GPU's: the result, and what is owed by x and by sums."""
    sums = collective in ("allreduce", "reduce_scatter")
    x, owed = of(comm, collective, n), of(comm, collective, n) * np.float32(0.1)
    host = x, owed.copy(), np.zeros_like(x), owed.copy()
    there = tuple(map(put, host))
    results = []
    for mine, before, after, owned in (host, there):
        more = {"owner_residual": owned} if sums else {}
        if collective == "allreduce":
            more["out"] = x.copy() if mine is x else put(x)
        results.append(getattr(comm, collective)(mine, codec=codec, residual=(before, after), **more, **how))
    what = f"{collective} of {n}, {codec}, {how}"
    for got, want, name in zip((results[1], *there), (results[0], *host), ("result", "x", "before", "after", "owned"),
                               strict=True):  # fmt: skip
        same(got, want, f"{name} of {what}")


def residuals(comm: Any, groups: tuple[tuple[int, ...], ...] | None = None) -> None:
    """Residuals in GPU memory have the bits of the host's."""
    for codec in NAMED:
        for n in (0, 1, 255, 4099):
            if groups is not None:
                kept(comm, "allreduce", n, codec, algorithm=hierarchical("allreduce", groups, outer="direct"))
                continue
            kept(comm, "allreduce", n, codec, op="avg")
            kept(comm, "allreduce", n, codec, algorithm="direct")
            for collective in ("reduce_scatter", "allgather", "alltoall"):
                kept(comm, collective, n, codec)
        x = of(comm, "allreduce", 4099)
        here, both = put(x), put(np.zeros_like(x))
        want, owed = x.copy(), np.zeros_like(x)
        for _ in range(3):  # x becomes the average, and one array is both
            comm.allreduce(here, "avg", codec=codec, residual=both, async_op=True).wait()
            comm.allreduce(want, "avg", codec=codec, residual=owed)
        same(here, want, f"three averages, {codec}")
        same(both, owed, f"what they owe, {codec}")
    apart = put(np.zeros(4099, np.float32)), np.zeros(4099, np.float32)
    with pytest.raises(ArgumentError, match="these arrays are in GPU 0 and host memory"):
        comm.allreduce(apart[0], codec="int8", residual=(None, apart[1]))


def auto(comm: Any) -> None:
    """On one host it is float32."""
    x = values(comm.rank, 100_003, "float32")
    same(comm.allreduce(put(x), codec="auto", algorithm="ring"), comm.allreduce(x, algorithm="ring"), "auto")


def everything(comm: Any) -> None:
    comm.allreduce(put(np.ones(1, np.float32)))  # makes the queue
    with nothing_is_staged():
        for part in (every_collective, asynchronous, auto, rounded_at_random, residuals):
            part(comm)
            comm.barrier()
        between_hosts(comm, hosts(comm.size))
        residuals(comm, hosts(comm.size))
    assert comm.gpus.why_staged == ""
