"""codec=: less goes over the wire, every rank gets the same bits, and they are as near as the codec allows."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hocket
from hocket.algorithms import get, hierarchical, names
from hocket.collectives.calls.encodings import BY_NAME, COLLECTIVES
from hocket.collectives.communicator.communicator import Communicator
from hocket.compression import QSGD, Int, Int4, Int8, Natural, OneBit, Sign, TernGrad
from hocket.errors import ArgumentError, MismatchError
from hocket.kernels.codecs import HALVES
from support.cases import more
from support.codec_laws import BLOCKS, room, sent, wire_bytes
from support.worlds import Program, same, spread

Array = np.ndarray[Any, Any]
LENGTHS = (0, 1, 7, 4099, 130_003)
"""Nothing, less than ranks, odd and a short last block, and enough for segments."""
SEGMENTED: tuple[Any, ...] = ("bf16", "int8", Int(3), QSGD(4))
"""Codecs that are tried in segments wherever they move: the others are cut alike."""
PARAMETRISED = (Int8(64), Int(3), Sign(64), OneBit(), Natural(rounding="nearest"))


def lengths(codec: Any) -> tuple[int, ...]:
    return LENGTHS if codec in SEGMENTED else LENGTHS[:-1]


@functools.lru_cache(200)
def drawn(rank: int, n: int) -> Array:
    return np.random.default_rng(100 * rank + n % 97).standard_normal(n).astype(np.float32)


def vector(rank: int, n: int) -> Array:
    return drawn(rank, n).copy()


def agreed(comm: Communicator, x: Array) -> None:
    every = comm.allgather(x.view(np.uint32)).reshape(comm.size, -1)
    assert (every == every[0]).all(), "the ranks hold different bits"


def sums(comm: Communicator) -> None:
    """Two roundings with `direct`; no algorithm more than one for each rank."""
    p = comm.size
    for codec in BY_NAME:
        for n in LENGTHS:
            given = [vector(r, n) for r in range(p)]
            mine = given[comm.rank].copy()
            folded = sum((sent(x, codec) for x in given[1:]), sent(given[0], codec))
            right = sent(folded, codec) if p > 1 else folded
            for algorithm in [None, *names("allreduce")]:
                if algorithm in ("recursive_doubling", "halving_doubling") and p & (p - 1):
                    continue
                x = mine.copy()
                assert comm.allreduce(x, codec=codec, algorithm=algorithm) is x
                agreed(comm, x)
                if algorithm == "direct":
                    same(x, right, f"direct, {codec}, {n}")
                assert (np.abs(x - sum(given)) <= room(given, codec, p + 1)).all(), (algorithm, codec, n)
            out = np.empty_like(mine)
            assert comm.allreduce(mine, "avg", out, codec=codec, algorithm="direct") is out
            same(out, right * np.float32(1.0 / p), f"average, {codec}, {n}")
            same(mine, given[comm.rank], "x is left as it was")


def moved(comm: Communicator) -> None:
    """Moved elements are rounded once, on every rank alike: the owner's own too."""
    p, me = comm.size, comm.rank
    for codec in BY_NAME:
        for n in lengths(codec):
            given = [vector(r, p * n) for r in range(p)]
            x = given[me].copy()
            same(comm.broadcast(x, p - 1, codec=codec), sent(given[p - 1], codec), f"broadcast, {n}")
            every = np.concatenate([sent(each[:n], codec) for each in given])
            for algorithm in [None, *names("allgather")]:
                if algorithm == "recursive_doubling" and p & (p - 1):
                    continue
                same(comm.allgather(given[me][:n], codec=codec, algorithm=algorithm), every, f"allgather, {n}")
            mine = np.concatenate([sent(each[me * n : me * n + n], codec) for each in given])
            same(comm.alltoall(given[me], codec=codec), mine, f"alltoall, {n}")
            part = comm.reduce_scatter(given[me], codec=codec, algorithm="direct")
            blocks = [sent(each[me * n : me * n + n], codec) for each in given]
            same(part, sent(sum(blocks[1:], blocks[0]), codec) if p > 1 else blocks[0], f"reduce_scatter, {n}")


def ragged(comm: Communicator) -> None:
    """The v-variants: each part begins with a block of its own."""
    p, me = comm.size, comm.rank
    counts = [(37 * r * r + 5) % 700 for r in range(p)]
    ends = np.cumsum([0, *counts])
    for codec in (*BY_NAME, *PARAMETRISED):
        given = [vector(r, int(ends[-1])) for r in range(p)]
        every = np.concatenate([sent(each[:n], codec) for each, n in zip(given, counts, strict=True)])
        same(comm.allgatherv(given[me][: counts[me]], counts, codec=codec), every, f"allgatherv, {codec}")
        mine = slice(ends[me], ends[me + 1])
        blocks = [sent(each[mine], codec) for each in given]
        part = comm.reduce_scatterv(given[me], counts, codec=codec, algorithm="direct")
        right = sent(functools.reduce(np.add, blocks), codec) if p > 1 else blocks[0]
        same(part, right, f"reduce_scatterv, {codec}")
        come = comm.alltoallv(given[me], counts, [counts[me]] * p, codec=codec)
        same(come, np.concatenate(blocks), f"alltoallv, {codec}")


def asynchronous(comm: Communicator) -> None:
    p = comm.size
    how: dict[str, Any] = {"codec": "bf16", "async_op": True, "algorithm": "direct"}
    works = [comm.allreduce(vector(comm.rank, 5000 + i), **how) for i in range(9)]
    plain = comm.allreduce(np.ones(5, np.float32))
    for i, work in enumerate(works):
        given = [sent(vector(r, 5000 + i), "bf16") for r in range(p)]
        same(work.result(), sent(sum(given[1:], given[0]), "bf16"), f"asynchronous {i}")
    assert (plain == p).all()


RANDOM = (
    Int4(rounding="stochastic"), QSGD(4), QSGD(22, norm="l2"), TernGrad(float("inf")), Natural(),
    Int8(64, "stochastic", 5),
)  # fmt: skip


def parametrised(comm: Communicator) -> None:
    """Short last blocks in every chunk, too: only the caller's floats count for a mean."""
    for codec in PARAMETRISED:
        for n in lengths(codec):
            given = [vector(r, comm.size * n) for r in range(comm.size)]
            blocks = [sent(each[comm.rank * n :][:n], codec) for each in given]
            part = comm.reduce_scatter(given[comm.rank], codec=codec, algorithm="direct")
            right = sent(sum(blocks[1:], blocks[0]), codec) if comm.size > 1 else blocks[0]
            same(part, right, f"reduce_scatter, {codec}, {n}")
            mine = np.concatenate([sent(each[comm.rank * n :][:n], codec) for each in given])
            same(comm.alltoall(given[comm.rank], codec=codec), mine, f"alltoall, {codec}, {n}")
            for algorithm in ("ring", None):
                x = comm.allreduce(given[comm.rank][:n].copy(), codec=codec, algorithm=algorithm)
                agreed(comm, x)


GROUPS = {4: (((0, 1), (2, 3)), ((0, 2, 3), (1,)), ((0,), (1,), (2,), (3,))), 3: (((0, 1), (2,)),)}
"""Ranks as if on hosts."""


def only_between_hosts(comm: Communicator) -> None:
    """Inside a host nothing is rounded: what the hosts' sums lose is one encoding of each, and one of the result."""
    me, p = comm.rank, comm.size
    short = itertools.product(GROUPS.get(p, ()), (*BY_NAME, *PARAMETRISED), LENGTHS[1:-1])
    long = itertools.product(GROUPS.get(p, ()), SEGMENTED[:3], LENGTHS[-1:])
    for groups, codec, n in (*short, *long):
        given = [vector(r, p * n) for r in range(p)]

        def sums(part: slice, groups: Any = groups, given: Any = given, codec: Any = codec) -> Array:
            inside = [functools.reduce(np.add, [given[r][part] for r in group]) for group in groups]
            return sent(functools.reduce(np.add, [sent(x, codec) for x in inside]), codec)

        def call(name: str, *args: Any, groups: Any = groups, codec: Any = codec, **more: Any) -> Array:
            result: Array = getattr(comm, name)(*args, codec=codec, algorithm=hierarchical(name, groups), **more)
            return result

        about = f"{groups}, {codec}, {n}"
        whole, mine = slice(0, n), slice(me * n, me * n + n)
        x = call("allreduce", given[me][whole].copy())
        agreed(comm, x)
        if len(groups) == 2:  # a ring of more encodes at each
            same(x, sums(whole), f"allreduce, {about}")
            same(call("reduce_scatter", given[me]), sums(mine), f"reduce_scatter, {about}")
        out = np.empty_like(x)
        same(call("allreduce", given[me][whole], "avg", out), x * np.float32(1 / p), f"average, {about}")
        every = np.concatenate([sent(each[whole], codec) for each in given])
        same(call("allgather", given[me][whole]), every, f"allgather, {about}")
        for root in range(p):
            x = call("broadcast", given[me][whole].copy(), root)
            same(x, sent(given[root][whole], codec), f"broadcast from {root}, {about}")


def rounded_at_random(comm: Communicator) -> None:
    """Other bits in each call, the same on all ranks; their mean is what was given."""
    given = [vector(r, 300) for r in range(comm.size)]
    for codec in RANDOM:
        came = [comm.allreduce(given[comm.rank].copy(), codec=codec, algorithm="direct") for _ in range(200)]
        agreed(comm, np.concatenate(came))
        assert len({x.tobytes() for x in came}) == 200
        deviation = np.std(came, 0)
        differ = np.ptp(came, 0) > 0  # small elements may be zero in each, and others are multiples of the scale
        z = (np.mean(came, 0) - sum(given))[differ] / deviation[differ] * np.sqrt(200)
        assert np.abs(z).max() < 6, codec
        assert 0.8 < np.abs(z).mean() * np.sqrt(np.pi / 2) < 1.25, codec


def rounded_alike(comm: Communicator) -> None:
    """By every algorithm all ranks hold the same bits, also where several of them make the same sum."""
    ways = [None, *names("allreduce")]
    ways += [hierarchical("allreduce", groups, outer="recursive_doubling") for groups in GROUPS.get(comm.size, ())]
    for codec, way, n in ((each, way, n) for each in RANDOM for way in ways for n in lengths(each)[1:]):
        came = comm.allreduce(vector(comm.rank, n), codec=codec, algorithm=way)
        every = comm.allgather(came.view(np.uint32)).reshape(comm.size, -1)
        assert (every == every[0]).all(), f"the ranks hold different bits: {codec}, {way}, {n}"


def chosen(comm: Communicator) -> None:
    """codec="auto" is float32 or what is faster; all ranks take the same, and say why."""
    x = np.ones(3 << 18, np.float32)
    with hocket.group():
        together = comm.allreduce(x.copy(), codec="auto")
    assert (together == comm.size).all()
    said = comm.explain("allreduce", x.nbytes, codec="auto")
    near = len(comm.groups) == 1
    assert ("on one rank" if comm.size == 1 else "in shared memory" if near else "not measured yet") in said
    for call in (comm.allreduce, comm.allgather, comm.broadcast, comm.alltoall, comm.reduce_scatter):
        for _ in range(2):
            agreed(comm, np.ravel(call(x.copy(), codec="auto"))[:8].copy())
    assert (comm.allreduce(x.copy(), "avg", codec="auto", async_op=True).result() == 1).all()
    small = comm.allreduce(np.full(3, 1 / 3, np.float32), codec="auto")
    assert (small == comm.allreduce(np.full(3, 1 / 3, np.float32))).all(), "too short for a codec"
    counts = [512, *[1 << 18] * (comm.size - 1)]  # so many rows as rank 0 has are known to be float32's
    for _ in range(2):
        comm.allgather(np.ones(counts[0], np.float32), codec="auto")
    rows = comm.allgatherv(np.full(counts[comm.rank], 2.0, np.float32), counts, codec="auto")
    assert len(rows) == sum(counts) and (abs(rows - 2) < 0.05).all()
    if not near:
        said = comm.explain("allreduce", x.nbytes, codec="auto")
        assert re.search(r"codec='auto': (float32|bf16|int8), .*predicted: float32 .* ms, bf16 .* ms, int8 .* ms", said)
    for _ in range(2):  # the way of those that are known to be float32's, too
        for wrong in (np.ones(8, int), np.ones(3 << 17)):
            with pytest.raises(ArgumentError, match="codec='auto' takes float32, float16, bfloat16, got (int|float)64"):
                comm.allreduce(wrong, codec="auto")
        with pytest.raises(ArgumentError, match="the ops sum and avg, not with 'max'"):
            comm.allreduce(x.copy(), "max", codec="auto")
    with pytest.raises(ArgumentError, match="only codec='auto' is explained"):
        comm.explain(codec="auto")
    for half in (np.arange(1 << 16).astype(np.float16), np.arange(1 << 16).astype(ml_dtypes.bfloat16)):
        for call in (comm.allreduce, comm.allgather):
            assert call(half.copy(), codec="auto").tobytes() == call(half.copy()).tobytes()


def special(comm: Communicator) -> None:
    """NaN and infinity come back as such, or as NaN; so does what is too large for fp16."""
    x = np.array([np.nan, np.inf, -np.inf, 1e30, 0.0, -0.0], np.float32)
    x.view(np.uint32)[0] = 0x7FFFFFFF  # a NaN that carelessly rounded would become -0
    for codec in BY_NAME:
        got = comm.broadcast(x.copy(), codec=codec)
        if codec in BLOCKS:  # all that have a scale with it are lost
            assert np.isnan(got).all()
            continue
        assert np.isnan(got[0]) and got[1] == np.inf and got[2] == -np.inf
        assert not np.signbit(got[4]) and np.signbit(got[5])
        assert got[3] == (np.inf if codec == "fp16" else sent(x[3:4], codec)[0])


def sums_by_fp16_fit(comm: Communicator) -> None:
    """A sum that is larger than halves are has the digits of a half; where all are small, none loses any."""
    p = comm.size
    ways = [None, *(name for name in names("allreduce") if get("allreduce", name).requires(p) is None)]
    ways += [hierarchical("allreduce", groups) for groups in GROUPS.get(p, ())]
    large = np.repeat(np.float32([50_000, 65_504, 3e38 / p, -65_504, 2**-24, 1e-5]), 256)
    for way, op in itertools.product(ways, ("sum", "avg")):
        right = large * np.float32(p if op == "sum" else 1)
        digits = np.where(np.abs(large) < 2**-14, 2**-24 * p, np.abs(right) * 2**-11 * (p + 1))
        for how in ({}, {"residual": np.zeros_like(large)}) if way in (None, "direct") else ({},):
            x = comm.allreduce(large.copy(), op, codec="fp16", algorithm=way, **how)
            agreed(comm, x)
            assert (np.abs(x - right) <= digits).all(), (way, op, x[::256])
    x = comm.allreduce(np.float32([np.inf, -np.inf, np.nan, 1.5]), "avg", codec="fp16")
    assert x[0] == np.inf and x[1] == -np.inf and np.isnan(x[2]) and x[3] == 1.5


def bytes_are_fewer(comm: Communicator) -> None:
    """The bytes are those of the formula."""

    def counted() -> int:
        return sum(stat.bytes for stat in comm.stats() if stat.collective == "allreduce")

    x = np.ones(10_000, np.float32)
    for codec in BY_NAME:
        begin = counted()
        comm.allreduce(x, codec=codec)
        wanted = HALVES["float16"].nbytes(10_000) if codec == "fp16" else wire_bytes(10_000, codec)
        assert counted() - begin == wanted


def read_only(comm: Communicator) -> None:
    """The root's own x is rounded too, so it must be writable."""
    x = np.frombuffer(np.ones(8, np.float32).tobytes(), np.float32)
    with pytest.raises(ArgumentError, match="read-only"):
        comm.broadcast(x, comm.rank, codec="fp16")


def wrong(comm: Communicator) -> None:
    """Refused on this rank alone, before anybody is disturbed."""
    x = np.ones(8, np.float32)
    first, come = [8, *[0] * (comm.size - 1)], [8 * (comm.rank == 0)] * comm.size
    for call, text in (
        (lambda: comm.allreduce(x, codec="bf61"), "'bf61' is unknown; known: fp16, bf16, .* did you mean 'bf16'"),
        (lambda: comm.allreduce(x, codec=16), "codec=16 is neither a name nor made by hocket.compression"),
        (lambda: comm.allreduce(np.ones(8), codec="fp16"), "takes float32, got float64"),
        (lambda: comm.allreduce(np.ones(8, int), codec="fp16"), "takes float32, got int64"),
        (lambda: comm.allreduce(x, "max", codec="fp16"), "the ops sum and avg, not with 'max'"),
        (lambda: comm.allreduce(x, np.add, codec="fp16"), "the ops sum and avg"),
        (lambda: comm.alltoallv(x, first, come, codec="auto"), "alltoallv has none: name a codec"),
    ):
        with pytest.raises(ArgumentError, match=text):
            call()
    assert comm.allreduce(x.copy(), codec="fp16")[0] == comm.size


CHECKS: tuple[Program, ...] = (
    sums, moved, parametrised, only_between_hosts, rounded_at_random, rounded_alike, chosen, ragged,
    asynchronous, special, sums_by_fp16_fit, bytes_are_fewer, read_only, wrong,
)  # fmt: skip


@pytest.mark.parametrize(
    ("size", "transport"),
    [
        (1, "threads"), (3, "tcp"),
        *more((2, "shm"), (4, "shm"), (2, "reference")),
    ],
)  # fmt: skip
def test_between_ranks(size: int, transport: str) -> None:
    spread(CHECKS, size, transport)


def test_what_is_rounded_at_random_is_the_same_in_each_run() -> None:
    def run(comm: Communicator) -> bytes:
        x = vector(comm.rank, 200_000)
        return b"".join(comm.allreduce(x.copy(), codec=QSGD(4), algorithm=how).tobytes() for how in ("direct", "ring"))

    first, second = (hocket.local_world(3).run(run) for _ in range(2))
    assert first == second


def differs(comm: Communicator) -> None:
    with pytest.raises(MismatchError, match="codec='fp16'"):
        comm.allreduce(np.ones(8, np.float32), codec="fp16" if comm.rank else "bf16")


def one_has_none(comm: Communicator) -> None:
    with pytest.raises(MismatchError, match="codec='fp16'"):
        comm.allreduce(np.ones(8, np.float32), codec="fp16" if comm.rank else None)


@pytest.mark.parametrize("program", [differs, one_has_none])
def test_ranks_with_different_codecs(program: Program) -> None:
    spread(program, 2, "threads")


def test_every_collective_says_so() -> None:
    def check(comm: Communicator) -> None:
        for name in COLLECTIVES:
            getattr(comm, name)(np.ones(2 * comm.size, np.float32), codec="bf16")

    hocket.local_world(2).run(check)
