"""residual=, owner_residual=: what was given, and was owed before, is what came and what is owed now; to the bit."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.algorithms import Algorithm, hierarchical, names
from hocket.collectives.calls.encodings import BY_NAME
from hocket.collectives.communicator.communicator import Communicator
from hocket.compression import QSGD, Int, Int4, Natural, OneBit, Sign
from hocket.errors import ArgumentError, MismatchError
from support.codec_laws import sent
from support.worlds import Program, same, spread

Array = np.ndarray[Any, Any]
LENGTHS = (0, 1, 255, 256, 257, 4099, 130_003)
"""Around a block, less than ranks, and enough for segments; those by codecs of halves, bytes and bits."""
CODECS = (*BY_NAME, Int(3), Sign(64), OneBit(), Natural(rounding="nearest"))
RANDOM = (Int4(rounding="stochastic"), QSGD(4))


def drawn(what: str, rank: int, n: int, scale: float = 1.0) -> Array:
    return _drawn(what, rank, n, scale).copy()


@functools.lru_cache(200)
def _drawn(what: str, rank: int, n: int, scale: float) -> Array:
    seed = [ord(what[0]), rank, n]
    return (np.random.default_rng(seed).standard_normal(n) * scale).astype(np.float32)


def nothing(n: int) -> Array:
    """An output that must be written, or is not touched."""
    return np.full(n, np.nan, np.float32)


def whole(comm: Communicator, owned: Array) -> Array:
    """The owners' elements; nobody else has touched them."""
    every = comm.allgather(owned.reshape(1, -1))
    there = ~np.isnan(every)
    assert (there.sum(0) == 1).all(), "an element has no owner, or two"
    return np.asarray(np.where(there, every, 0).sum(0, dtype=np.float32))


def sums(comm: Communicator) -> None:
    """x + before is encoded, and the sum of what came + the owner's before; what is lost is left."""
    p, me = comm.size, comm.rank
    for codec in CODECS:
        for n in LENGTHS if codec in ("bf16", "int8", Int(3)) else LENGTHS[:-1]:
            xs, befores = ([drawn(what, r, n, s) for r in range(p)] for what, s in (("x", 1), ("before", 0.1)))
            owed = drawn("owed", 0, n, 0.2)  # the same on all: whoever owns an element adds it
            given = [x + before for x, before in zip(xs, befores, strict=True)]
            total = functools.reduce(np.add, [sent(each, codec) for each in given])
            right = sent(total + owed, codec) if p > 1 else total
            x, before, after, owned, out = xs[me].copy(), befores[me].copy(), nothing(n), nothing(n), nothing(n)
            how: dict[str, Any] = {"codec": codec, "algorithm": "direct"}
            comm.allreduce(x, out=out, residual=(before, after), owner_residual=(owed, owned), **how)
            about = f"{codec}, {n}"
            same(out, right, about)
            same(after, given[me] - sent(given[me], codec), f"after, {about}")
            same(before, befores[me], f"before is not written, {about}")
            same(x, xs[me], f"x is not written, {about}")
            if p > 1:
                same(whole(comm, owned), total + owed - right, f"the owner's, {about}")
            mean, both = x.copy(), before.copy()
            comm.allreduce(mean, "avg", residual=both, **how)  # in place, one array for both, in units of x
            unowed = sent(total, codec) if p > 1 else total
            same(mean, unowed * np.float32(1 / p), f"average, {about}")
            same(both, after, f"one array for both, {about}")
            comm.allreduce(x, residual=(None, both), **how)
            same(both, xs[me] - sent(xs[me], codec), f"nothing was owed, {about}")
            x = xs[me].copy()
            comm.allreduce(x, out=out, residual=(None, x), **how)
            plain = functools.reduce(np.add, [sent(each, codec) for each in xs])
            same(out, sent(plain, codec) if p > 1 else plain, f"x becomes what was lost, {about}")
            same(x, both, f"in the place of x, {about}")


def equal_parts(comm: Communicator) -> None:
    """The r-th of whole blocks, however short these are on the wire, is rank r's."""
    for codec in ("int8", "bf16", Sign(64), Int(2, 64)):
        for blocks in (1, 50):
            part = blocks * 256
            x, owned = drawn("x", comm.rank, part * comm.size), nothing(part * comm.size)
            comm.allreduce(x, codec=codec, algorithm="direct", owner_residual=(None, owned))
            there = np.repeat(np.arange(comm.size) == comm.rank, part) & (comm.size > 1)
            assert np.array_equal(~np.isnan(owned), there), (codec, blocks)


def kept(comm: Communicator, algorithm: str | Algorithm | None, codec: Any, n: int) -> None:
    """All that was given is all that came, and what is owed, within what float32 can tell."""
    p, me = comm.size, comm.rank
    x, before, owed = drawn("x", me, n), drawn("before", me, n), drawn("owed", me, n)
    after, owned, out = nothing(n), owed.copy(), nothing(n)
    comm.allreduce(
        x, out=out, codec=codec, algorithm=algorithm, residual=(before, after), owner_residual=(owed, owned)
    )
    given = comm.allreduce(x.astype(float) + before + owed)
    there = out + comm.allreduce(after.astype(float) + owned)
    off = np.abs(given - there).max(initial=0)
    assert off <= 1e-5 * (p + 1), (algorithm, codec, n, off)
    bits = comm.allgather(out.reshape(1, -1).view(np.uint32))
    assert (bits == bits[0]).all(), "the ranks hold different bits"


def whatever_the_algorithm(comm: Communicator) -> None:
    """Each keeps all, or is refused."""
    refused = set()
    for algorithm in (None, *names("allreduce")):
        for codec, n in (("int8", 4099), ("bf16", 1000), (Int(3), 300_007), (QSGD(4), 5000), ("sign", 1)):
            try:
                kept(comm, algorithm, codec, n)
            except ArgumentError as error:
                refused.add(algorithm)
                if "residual" in str(error):
                    assert str(error).endswith("or omit algorithm=") and "'direct'" in str(error)
    assert not refused & {None, "direct", "ring"}
    assert comm.size == 1 or refused >= {"recursive_doubling", "one_shot"}


GROUPS = {
    5: (((0, 1), (2, 3, 4)),), 4: (((0, 1), (2, 3)), ((0, 2, 3), (1,)), ((0,), (1,), (2,), (3,))), 3: (((0, 1), (2,)),),
    2: (((0,), (1,)),),
}  # fmt: skip


def between_hosts(comm: Communicator) -> None:
    """Each adds what it is owed to its host's sum, and who encodes this for the host gets what is lost."""
    p, me = comm.size, comm.rank
    for groups in GROUPS.get(p, ()):
        for codec in ("int8", "fp16", Int(3)):
            for n in (0, 1, 257, 4099, 300_007):
                for outer in ("direct", "ring"):
                    kept(comm, hierarchical("allreduce", groups, outer=outer), codec, n)
                xs, befores = ([drawn(what, r, n) for r in range(p)] for what in ("x", "before"))
                inside = [
                    functools.reduce(np.add, [xs[r] + befores[r] for r in group]) for group in groups
                ]
                after = nothing(n)
                way = hierarchical("allreduce", groups, outer="direct")
                x = comm.allreduce(xs[me].copy(), codec=codec, algorithm=way, residual=(befores[me], after))
                came = functools.reduce(np.add, [sent(each, codec) for each in inside])
                same(x, sent(came, codec) if len(groups) > 1 else came, f"{groups}, {codec}, {n}")
                lost = comm.allgather(after.reshape(1, -1))
                for group, total in zip(groups, inside, strict=True):
                    host = lost[list(group)]
                    assert (np.count_nonzero(host, 0) <= 1).all(), "more than one rank has it"
                    lacks = total - sent(total, codec)
                    assert np.array_equal(host.sum(0), lacks), f"lost, {groups}, {n}"
                part = np.empty(n, np.float32)
                every, row = drawn("x", me, p * n), drawn("before", me, p * n)
                comm.reduce_scatter(
                    every, out=part, codec=codec, algorithm=hierarchical("reduce_scatter", groups), residual=row
                )
                rows = comm.allreduce(drawn("x", me, p * n).astype(float) + drawn("before", me, p * n) - row)
                limit = 0.05 if codec != Int(3) else 8.0  # what the sum's encodings lose is not kept here
                assert (np.abs(rows[me * n : me * n + n] - part) <= limit * len(groups)).all()


def gathered_between_hosts(comm: Communicator) -> None:
    """Each rank encodes its own block, whoever sends it to other hosts: it alone has a place for what that loses."""
    p, me = comm.size, comm.rank
    counts = [(700, 0, 300)[r % 3] + r for r in range(p)]
    for groups in GROUPS.get(p, ()):
        for codec in ("int8", "bf16", Int(3)):
            given = [drawn("x", r, n) + drawn("before", r, n) for r, n in enumerate(counts)]
            before, after = drawn("before", me, counts[me]), nothing(counts[me])
            every = comm.allgatherv(
                drawn("x", me, counts[me]), counts, codec=codec, algorithm=hierarchical("allgather", groups),
                residual=(before, after),
            )  # fmt: skip
            same(every, np.concatenate([sent(each, codec) for each in given]), f"{groups}, {codec}")
            same(after, given[me] - sent(given[me], codec), f"lost, {groups}, {codec}")


def blocks(comm: Communicator) -> None:
    """reduce_scatter, allgather and alltoall, even and uneven, in place and not."""
    p, me = comm.size, comm.rank
    counts = [(37 * r * r + 5) % 700 for r in range(p)]
    ends = np.cumsum([0, *counts])
    mine, n = slice(ends[me], ends[me + 1]), int(ends[-1])
    for codec in ("int8", "bf16", Int(3)):
        xs, befores = ([drawn(what, r, n) for r in range(p)] for what in ("x", "before"))
        given = [x + before for x, before in zip(xs, befores, strict=True)]
        parts = [[each[a:b] for a, b in zip(ends, ends[1:], strict=False)] for each in given]
        lost = np.concatenate([part - sent(part, codec) for part in parts[me]])
        after, owned, owed = nothing(n), nothing(n), drawn("owed", me, n)
        part = comm.reduce_scatterv(
            xs[me], counts, codec=codec, algorithm="direct", residual=(befores[me], after), owner_residual=(owed, owned)
        )
        total = functools.reduce(np.add, [sent(each[me], codec) for each in parts])
        right = sent(total + owed[mine], codec) if p > 1 else total
        same(part, right, f"reduce_scatterv, {codec}")
        same(after, lost, f"what it lost, {codec}")
        if p > 1:
            same(owned[mine], total + owed[mine] - right, f"what its sum lost, {codec}")
            assert np.isnan(np.delete(owned, mine)).all()
        x, before, after = given[me][: counts[me]].copy(), drawn("before", me, counts[me]), nothing(counts[me])
        every = [given[r][: counts[r]] + drawn("before", r, counts[r]) for r in range(p)]
        right = np.concatenate([sent(each, codec) for each in every])
        for algorithm in names("allgather"):
            if algorithm == "recursive_doubling" and p & (p - 1):
                continue
            out = np.zeros(n, np.float32)
            for own in (x, out[mine]):  # in its place in out, too
                out[mine] = x
                comm.allgatherv(own, counts, out, codec=codec, algorithm=algorithm, residual=(before, after))
                same(out, right, f"allgatherv, {algorithm}, {codec}")
                same(after, every[me] - sent(every[me], codec), f"what allgatherv lost, {codec}")
        after = nothing(n)
        come = comm.alltoallv(xs[me], counts, [counts[me]] * p, codec=codec, residual=(befores[me], after))
        same(come, np.concatenate([sent(each[me], codec) for each in parts]), f"alltoallv, {codec}")
        same(after, lost, f"what alltoallv lost, {codec}")
        rows, before, after = drawn("x", me, p * 300), drawn("before", me, p * 300), nothing(p * 300)
        for algorithm in names("alltoall"):
            comm.alltoall(rows, codec=codec, algorithm=algorithm, residual=(before, after))
            right = np.concatenate([sent(row, codec) for row in np.split(rows + before, p)])
            same(after, rows + before - right, f"what alltoall lost, {algorithm}, {codec}")


def asynchronous(comm: Communicator) -> None:
    """Several at once, and in a group."""
    n, me, p = 5000, comm.rank, comm.size
    afters = [nothing(n) for _ in range(6)]
    xs = [drawn("x", me + p * i, n) for i in range(6)]
    how: dict[str, Any] = {"codec": "int8", "algorithm": "direct"}
    works = [
        comm.allreduce(x.copy(), residual=(None, after), async_op=True, **how)
        for x, after in zip(xs[:3], afters[:3], strict=True)
    ]
    for work in works:
        work.wait()
    with hocket.group():
        for x, after in zip(xs[3:], afters[3:], strict=True):
            comm.allreduce(x.copy(), residual=(None, after), **how)
    for x, after in zip(xs, afters, strict=True):
        same(after, x - sent(x, "int8"), "asynchronous")


def not_finite(comm: Communicator) -> None:
    """The caller, who sees it in the result, keeps `before`."""
    x, before, after = drawn("x", comm.rank, 1000), drawn("before", comm.rank, 1000), nothing(1000)
    if comm.rank == comm.size - 1:
        x[300] = np.nan
    was = before.copy()
    comm.allreduce(x, codec="int8", residual=(before, after))
    assert np.isnan(x[256:512]).all() and np.isfinite(np.delete(x, range(256, 512))).all()
    assert np.isnan(after).any() == (comm.rank == comm.size - 1)
    same(before, was, "before")


def wrong(comm: Communicator) -> None:
    """Refused on this rank alone, before anybody is disturbed."""
    x, r, s = (np.ones(8 * comm.size, np.float32) for _ in range(3))
    frozen = np.frombuffer(np.ones(8 * comm.size, np.float32).tobytes(), np.float32)
    odd = np.ones(16 * comm.size, np.float32)[::2]
    calls = [
        (lambda: comm.allreduce(x, residual=r), "residual= keeps what an encoding loses: pass a codec too"),
        (lambda: comm.allreduce(x, codec="auto", residual=r), "codec='auto' may choose float32"),
        (lambda: comm.allreduce(x, codec="int8", residual=(r, s, s)), r"must be \(before, after\), .*; got 3 arrays"),
        (lambda: comm.allreduce(x, codec="int8", residual=r[:7]), r"residual\[0\] must be float32.*, as x; got .*7"),
        (lambda: comm.allreduce(x, codec="int8", residual=(r, s.astype(float))), r"residual\[1\] must be .* float64"),
        (lambda: comm.allreduce(x, codec="int8", residual=(r, frozen)), r"residual\[1\] is read-only"),
        (lambda: comm.allreduce(x, codec="int8", residual=x), "shares memory with the result"),
        (lambda: comm.allreduce(x, codec="int8", out=s, residual=(r, s)), "shares memory with the result"),
        (lambda: comm.allreduce(x, codec="int8", residual=r, owner_residual=r), "or the other residual"),
        (lambda: comm.allreduce(x[:7], codec="int8", residual=(r[:7], r[1:8])), "a residual overlaps x, or"),
        (lambda: comm.allreduce(x, codec="int8", residual=(r, odd)), "is not contiguous"),
        (lambda: comm.alltoall(x, codec="int8", owner_residual=r), "takes? no owner_residual|unexpected keyword"),
    ]  # fmt: skip
    if comm.size > 2:
        named = lambda: comm.allreduce(x, codec="int8", residual=r, algorithm="recursive_doubling")  # noqa: E731
        calls.append((named, "'recursive_doubling' of . ranks encodes an element .* ask for 'direct' or .*'ring'"))
    for call, text in calls:
        with pytest.raises((ArgumentError, TypeError), match=text):
            call()
    same(comm.allreduce(x.copy(), codec="fp16"), x * comm.size, "the communicator is as before")


CHECKS: tuple[Program, ...] = (
    sums, equal_parts, whatever_the_algorithm, between_hosts, gathered_between_hosts, blocks, asynchronous, not_finite,
    wrong,
)  # fmt: skip


@pytest.mark.parametrize(
    ("size", "transport"),
    [
        (1, "threads"), (3, "tcp"),
        *(pytest.param(*each, marks=pytest.mark.more)
          for each in ((2, "shm"), (2, "reference"), (4, "shm"), (5, "threads"))),
    ],
)  # fmt: skip
def test_between_ranks(size: int, transport: str) -> None:
    spread(CHECKS, size, transport)


def test_ranks_that_do_not_agree() -> None:
    def check(comm: Communicator) -> None:
        x, r = np.ones(8, np.float32), np.zeros(8, np.float32)
        with pytest.raises(MismatchError, match=r"allreduce.*residual=\.\.\."):
            comm.allreduce(x, codec="int8", residual=r if comm.rank else None)

    hocket.local_world(2).run(check)
