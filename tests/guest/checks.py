"""The checks that every job of the guest must pass, whatever transport its bytes go.

A check is a function of a communicator that asserts; it may return arrays, with the same bits over every transport.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import test_async
import test_dtypes
import test_oracle

import hocket
from hocket.algorithms.language import registry
from support.worlds import same

CHECKS: dict[str, Callable[[Any], Any]] = {}
LARGE = (8 << 20) + 3
"""Bytes: more than one message of Soft-RoCE may have (max_msg_sz), and odd."""
NOISE = np.random.default_rng(0).integers(0, 256, 65_521, np.uint8)


def check(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    CHECKS[function.__name__] = function
    return function


def perform(only: tuple[str, ...] = ()) -> None:
    """All checks on this rank; print a line of JSON: check -> hash of the bits it returned, and seconds."""
    locked = pinned()
    comm = hocket.init()
    found, seconds = {}, {}
    for name, function in CHECKS.items():
        if only and name not in only:
            continue
        begin = time.monotonic()
        comm.barrier()
        bits = hashlib.blake2b(digest_size=12)
        for array in function(comm) or ():
            bits.update(np.ascontiguousarray(array))
        found[name], seconds[name] = bits.hexdigest(), round(time.monotonic() - begin, 2)
    transports = [comm.world.transport(p) for p in range(comm.size) if p != comm.rank]
    comm.close()
    assert pinned() == locked, f"{pinned()} of memory is still locked, before {locked}"
    print(json.dumps({"found": found, "seconds": seconds, "transports": transports, "groups": comm.groups}))


def pinned() -> tuple[str, ...]:
    """Memory of this process that is locked or pinned, as the kernel counts it."""
    with open("/proc/self/status") as file:
        return tuple(line.split(":")[1].strip() for line in file if line.startswith(("VmLck", "VmPin")))


def ramp(rank: int, count: int, salt: int = 0) -> Any:
    """Bytes in which a piece at the wrong place shows, or of the wrong rank: they repeat after a prime number."""
    start = rank * 4099 + salt * 7
    return np.resize(np.roll(NOISE, -start % NOISE.size), count)


# ------------------------------------------------------------------------------------------- every collective


@check
def every_collective_by_every_algorithm(comm: Any) -> None:
    for collective, algorithm in test_oracle.cases(comm.size):
        for salt, count in enumerate((0, 3, 1000)):
            test_oracle.check(comm, collective, algorithm, count, salt)
        if algorithm is None:
            test_oracle.check(comm, collective, algorithm, 70001, 5)


@check
def every_dtype(comm: Any) -> None:
    for row in test_dtypes.oracle.ROWS:
        ops = [op.name for op in test_dtypes.OPS if row.kind in op.kinds]
        test_dtypes.one_op(comm, row, ops[0], "direct", 1)
        test_dtypes.one_op(comm, row, ops[-1], "direct", 5003)
        test_dtypes.one_op(comm, row, ops[0], "ring", 5003)


@check
def sums_that_round(comm: Any) -> Iterator[Any]:
    """The same bits on every rank; and, as they are returned, over every transport."""
    for dtype in (np.float32, np.float64, np.float16):
        x = np.random.default_rng(comm.rank).standard_normal(30_011).astype(dtype)
        for name in registry.names("allreduce"):
            if registry.get("allreduce", name).requires(comm.size) is None:
                total = comm.allreduce(x, out=np.empty_like(x), algorithm=name)
                all_same(comm, total, f"{name}, {dtype.__name__}")
                yield total
        yield comm.reduce_scatter(x[: len(x) // comm.size * comm.size], algorithm="ring")
        yield comm.scan(x, out=np.empty_like(x))


def all_same(comm: Any, x: Any, what: str) -> None:
    mine = np.frombuffer(hashlib.blake2b(x.tobytes(), digest_size=16).digest(), np.uint8)
    assert len({row.tobytes() for row in comm.allgather(mine).reshape(comm.size, -1)}) == 1, what


# ---------------------------------------------------------------------------------------------- sizes and memory


@check
def many_small_calls(comm: Any) -> None:
    """More than any queue, credit or completion counter holds."""
    x = np.empty(1)
    for i in range(1500):
        x[0] = i + comm.rank
        assert comm.allreduce(x)[0] == comm.size * i + comm.size * (comm.size - 1) // 2, i
    for i in range(200):
        n = i % 9 * 8 + 1
        same(comm.broadcast(ramp(comm.rank, n, i), i % comm.size), ramp(i % comm.size, n, i), f"broadcast {i}")


@check
def sizes_around_every_edge(comm: Any) -> None:
    """A byte less, as many, and a byte more than what slots, MTUs, segments and thresholds are likely to be."""
    for power in range(6, 22, 2):
        for n in ((1 << power) - 1, 1 << power, (1 << power) + 1):
            root = power // 2 % comm.size
            same(comm.broadcast(ramp(comm.rank, n), root), ramp(root, n), f"broadcast of {n} bytes")
            ring(comm, n)


def ring(comm: Any, n: int) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    got = comm.sendrecv(ramp(comm.rank, n, 1), right, np.empty(n, np.uint8), left)
    same(got, ramp(left, n, 1), f"sendrecv of {n} bytes")


@check
def large_ones(comm: Any) -> None:
    same(comm.broadcast(ramp(comm.rank, 2 * LARGE), 1), ramp(1, 2 * LARGE), "broadcast")
    ring(comm, LARGE)
    inputs = [ramp(r, LARGE - 3).view(np.int32) for r in range(comm.size)]
    same(comm.allreduce(inputs[comm.rank].copy(), algorithm="direct"), sum(inputs), "allreduce in one step")
    same(comm.allreduce(inputs[comm.rank].copy()), sum(inputs), "allreduce")


@check
def crooked_memory(comm: Any) -> None:
    """At odd addresses, between guards, read-only."""
    for n in (1, 4095, 300_001, 1 << 20):
        for shift in (1, 3):
            room = np.full(n + 2 * 64, 7, np.uint8)
            inner = room[64 + shift : 64 + shift + n]
            inner[:] = ramp(comm.rank, n, shift)
            same(comm.broadcast(inner, 1), ramp(1, n, shift), f"{n} bytes at {shift}")
            assert (room[: 64 + shift] == 7).all() and (room[64 + shift + n :] == 7).all(), (n, shift)
        fixed = ramp(comm.rank, n)
        fixed.setflags(write=False)
        got = comm.allgather(fixed)
        same(got, np.concatenate([ramp(r, n) for r in range(comm.size)]), f"allgather of {n} read-only bytes")


@check
def memory_that_comes_and_goes(comm: Any) -> None:
    """A new mapping at the old one's address is other memory: what was known of that address must be forgotten."""
    addresses = set()
    for i in range(6):
        n = LARGE if i == 1 else 1 << 20
        held = mmap.mmap(-1, n)
        x = np.frombuffer(held, np.uint8)
        addresses.add(x.ctypes.data)
        x[:] = ramp(comm.rank, n, i)
        same(comm.broadcast(x, i % comm.size), ramp(i % comm.size, n, i), f"broadcast {i}")
        ring(comm, 1 << 18)
        del x
        held.close()
    shared = hocket.empty(100_003, np.uint8)
    shared[:] = ramp(comm.rank, 100_003)
    same(comm.broadcast(shared, 1), ramp(1, 100_003), "broadcast of hocket.empty")


# ------------------------------------------------------------------------------------------------- many at once


@check
def asynchronous(comm: Any) -> None:
    test_async.in_flight(comm)
    test_async.mixed(comm)


@check
def several_communicators(comm: Any) -> None:
    """Each has its own queues: halves at the same time, and lanes that overtake each other."""
    half, again = comm.split(comm.rank % 2), comm.dup()
    n = 60_001
    for i in range(3):
        long = again.allreduce(np.full(n, comm.rank + i, np.int64), async_op=True)
        assert half.allreduce(np.array([comm.rank]))[0] == sum(range(comm.rank % 2, comm.size, 2))
        assert comm.allreduce(np.array([i]))[0] == i * comm.size
        assert (long.result() == comm.size * i + comm.size * (comm.size - 1) // 2).all()
    half.close()
    again.close()


@check
def every_pair(comm: Any) -> None:
    """Each rank sends to each other, all at once, small and not so small."""
    for n in (5, 100_001):
        works = [comm.send(ramp(comm.rank, n, p), p, async_op=True) for p in range(comm.size) if p != comm.rank]
        for p in range(comm.size):
            if p != comm.rank:
                same(comm.recv(np.empty(n, np.uint8), p), ramp(p, n, comm.rank), f"from {p}")
        for work in works:
            work.wait()
