"""Pairs of calls that differ, one line each: what most ranks call, and what the odd one calls.  For test_mismatch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import hocket
from support.faulty import say

Function = Callable[[Any, Any], Any]
GUARD = 64


def f32(x: Any) -> Any:
    return x.astype(np.float32)


# fmt: off
PAIRS: dict[str, tuple[Function, Function]] = {
    "count": (
        lambda c, x: c.allreduce(x),
        lambda c, x: c.allreduce(x[:-1])),
    "count, small": (
        lambda c, x: c.allreduce(x[:3]),
        lambda c, x: c.allreduce(x[:2])),
    "count, one of them nothing": (
        lambda c, x: c.allreduce(x[:3]),
        lambda c, x: c.allreduce(x[:0])),
    "dtype": (
        lambda c, x: c.allreduce(x),
        lambda c, x: c.allreduce(f32(x))),
    "dtype of one size": (
        lambda c, x: c.allreduce(x),
        lambda c, x: c.allreduce(x.view(np.int64))),
    "op": (
        lambda c, x: c.allreduce(x),
        lambda c, x: c.allreduce(x, "max")),
    "op of a reduce": (
        lambda c, x: c.reduce(x, 0, "sum"),
        lambda c, x: c.reduce(x, 0, "prod")),
    "functions": (
        lambda c, x: c.allreduce(x, lambda a, b: a + b),
        lambda c, x: c.allreduce(x, lambda a, b: a * b)),
    "sum and avg": (
        lambda c, x: c.allreduce(x, "sum"),
        lambda c, x: c.allreduce(x, "avg")),
    "root": (
        lambda c, x: c.broadcast(x, 0),
        lambda c, x: c.broadcast(x, 1)),
    "root, small": (
        lambda c, x: c.broadcast(x[:1], 2),
        lambda c, x: c.broadcast(x[:1], 1)),
    "root of a reduce": (
        lambda c, x: c.reduce(x, 0),
        lambda c, x: c.reduce(x, 1)),
    "root of a gather": (
        lambda c, x: c.gather(x, 2),
        lambda c, x: c.gather(x, 0)),
    "root of a scatter": (
        lambda c, x: c.scatter(x, 2),
        lambda c, x: c.scatter(x, 1)),
    "collective": (
        lambda c, x: c.allreduce(x),
        lambda c, x: c.broadcast(x)),
    "allgather and reduce_scatter": (
        lambda c, x: c.allgather(x),
        lambda c, x: c.reduce_scatter(x)),
    "scan and exscan": (
        lambda c, x: c.scan(x),
        lambda c, x: c.exscan(x)),
    "allgather count": (
        lambda c, x: c.allgather(x),
        lambda c, x: c.allgather(x[:30])),
    "alltoall count": (
        lambda c, x: c.alltoall(x),
        lambda c, x: c.alltoall(x[:300])),
    "one in barrier": (
        lambda c, x: c.allreduce(x),
        lambda c, x: c.barrier()),
    "all but one in barrier": (
        lambda c, x: c.barrier(),
        lambda c, x: c.allgather(x)),
    "order of calls": (
        lambda c, x: (c.allreduce(x), c.broadcast(x)),
        lambda c, x: (c.broadcast(x), c.allreduce(x))),
    "order of asynchronous calls": (
        lambda c, x: [w.wait() for w in [c.allreduce(x, async_op=True), c.broadcast(x, async_op=True)]],
        lambda c, x: [w.wait() for w in [c.broadcast(x, async_op=True), c.allreduce(x, async_op=True)]]),
    "algorithm": (
        lambda c, x: c.allreduce(x, algorithm="ring"),
        lambda c, x: c.allreduce(x, algorithm="direct")),
    "counts of allgatherv": (
        lambda c, x: c.allgatherv(x[:200], [200, 200, 200]),
        lambda c, x: c.allgatherv(x[:200], [200, 200, 100] if c.rank < 2 else [100, 200, 200])),
    "counts of reduce_scatterv": (
        lambda c, x: c.reduce_scatterv(x, [200, 200, 200]),
        lambda c, x: c.reduce_scatterv(x, [100, 300, 200])),
    "counts of alltoallv": (
        lambda c, x: c.alltoallv(x, [200, 200, 200], [200, 200, 200]),
        lambda c, x: c.alltoallv(x[:500], [200 - 50 * (r != c.rank) for r in range(3)], [200, 200, 200])),
    "counts of alltoallv, none and some": (
        lambda c, x: c.alltoallv(x, [200, 200, 200], [200, 200, 200]),
        lambda c, x: c.alltoallv(x[:200], [200 * (r == c.rank) for r in range(3)], [200, 200, 200])),
    "counts of alltoallv, some and none": (
        lambda c, x: c.alltoallv(x, [200, 200, 200], [200, 200, 200]),
        lambda c, x: c.alltoallv(x, [200, 200, 200], [200 * (r == c.rank) for r in range(3)])),
    "alltoall and alltoallv": (
        lambda c, x: c.alltoall(x),
        lambda c, x: c.alltoallv(x, [200, 200, 200], [200, 200, 200])),
}
MESSAGES: dict[str, tuple[Function, Function]] = {
    "longer than recv": (
        lambda c, x: c.send(x, 1),
        lambda c, x: c.recv(x[:10], 0)),
    "shorter than recv": (
        lambda c, x: c.send(x[:10], 1),
        lambda c, x: c.recv(x, 0)),
    "dtype": (
        lambda c, x: c.send(x, 1),
        lambda c, x: c.recv(x.view(np.int64), 0)),
    "large and small": (
        lambda c, x: c.send(np.ones(1_000_000), 1),
        lambda c, x: c.recv(x, 0)),
    "set aside, then of the wrong size": (
        lambda c, x: (c.send(x[:5], 1, tag=7), c.send(x, 1, tag=8)),
        lambda c, x: (c.recv(x, 0, tag=8), c.recv(x, 0, tag=7))),
    "an earlier recv, beside a send": (
        lambda c, x: (c.send(x[:5], 1, tag=7), c.recv(x[:1], 1, tag=9)),
        lambda c, x: [c.recv(x.view(np.int64)[:5], 0, tag=7, async_op=True), c.send(x[:1], 0, tag=9)][0].wait()),
    "an earlier recv, beside a recv": (
        lambda c, x: (c.send(x[:5], 1, tag=7), c.recv(x[:1], 1, tag=9)),
        lambda c, x: (c.recv(x[:4], 0, tag=7, async_op=True), c.recv(x[:5], 0, tag=8))),
    "an earlier recv, beside an asynchronous one": (
        lambda c, x: (c.send(x[:5], 1, tag=7), c.recv(x[:1], 1, tag=9)),
        lambda c, x: (c.recv(x[:4], 0, tag=7, async_op=True), c.recv(x[:5], 0, tag=8, async_op=True).wait())),
    "a recv beside an earlier one": (
        lambda c, x: (c.send(x[:5], 1, tag=7), c.recv(x[:1], 1, tag=9)),
        lambda c, x: (c.recv(x[:5], 0, tag=8, async_op=True), c.recv(x[:4], 0, tag=7))),
}
# fmt: on


def site(function: Function) -> tuple[int, int]:
    """The first and last line of a pair's half."""
    lines = [line for _, _, line in function.__code__.co_lines() if line]
    return min(lines), max(lines)


def try_pair(comm: Any, function: Function, rows: int = 600) -> dict[str, Any]:
    """Make the call; say what came of it, and whether memory beside the call's has changed."""
    room = np.full(rows + 2 * GUARD, -5.0)
    x = room[GUARD:-GUARD]
    x[:] = np.arange(rows) + comm.rank
    began = time.monotonic()
    said: dict[str, Any] = {"error": "none"}
    try:
        function(comm, x)
        for _ in range(3):  # what was sent may have been buffered, and nobody waited for; the next calls say so
            comm.barrier()
    except hocket.Error as error:
        said = {"error": type(error).__name__, "text": str(error), "calls": getattr(error, "calls", {})}
        try:
            comm.barrier()
            said["again"] = "no error"
        except hocket.Error as second:
            said["again"] = type(second).__name__
    said["guards"] = bool((room[:GUARD] == -5).all() and (room[-GUARD:] == -5).all())
    said["took"] = time.monotonic() - began
    return said


def go_through(
    transport: str, pairs: dict[str, tuple[Function, Function]], odd_one: Callable[[int], int | None]
) -> None:
    """Every pair, each on a communicator of its own; the job itself stays whole."""
    with hocket.init(transport=transport) as comm:
        for number, (name, (most, odd)) in enumerate(pairs.items()):
            c = comm.dup()
            turn = odd_one(number)
            function = odd if comm.rank == turn else most
            if turn is None:  # messages: 0 sends, 1 receives, 2 does nothing
                function = (most, odd, lambda c, x: None)[comm.rank]
            say(**{name: try_pair(c, function)})
            c.close()
        assert comm.allreduce(np.ones(5))[0] == comm.size
