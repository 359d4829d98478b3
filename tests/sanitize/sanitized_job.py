"""The job of `sanitize.sh`: every collective, between threads and between processes, small and large."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np

import hocket
from hocket.compression import FP8, QSGD, Compressor, Int, Int8, Natural, OneBit, Sign, TernGrad
from hocket.errors import ArgumentError
from hocket.kernels.cpu import elias
from hocket.training import Client, Range, Rows, serve
from support import jobs

COUNTS = (0, 1, 7, 1000, 70001)


def everything(comm: Any) -> None:
    """Each collective at each size, with a result that is checked; asynchronous ones and messages among them."""
    p, r = comm.size, comm.rank
    total = p * (p + 1) // 2
    for n in COUNTS:
        ones = np.full(n, r + 1, np.float32)
        assert (comm.allreduce(ones.copy()) == total).all()
        comm.allreduce(np.ones(300_001, np.float32), codec="int8")
        assert (comm.allreduce(ones.copy(), op="max") == p).all()
        assert (comm.allreduce(hocket_copy(comm, ones)) == total).all()
        got = comm.reduce(ones, root=p - 1)
        assert got is None or (got == total).all()
        wide = np.tile(ones, p)
        assert (comm.reduce_scatter(wide) == total).all()
        assert (comm.allgather(ones).reshape(p, n) == np.arange(1, p + 1)[:, None]).all()
        assert (comm.alltoall(wide).reshape(p, n) == np.arange(1, p + 1)[:, None]).all()
        assert (comm.scan(ones.copy()) == (r + 1) * (r + 2) // 2).all()
        x = ones.copy()
        comm.broadcast(x, root=0)
        assert (x == 1).all()
        rows = comm.gather(ones, root=0)
        assert rows is None or (rows.reshape(p, n) == np.arange(1, p + 1)[:, None]).all()
        assert (comm.scatter(wide, root=0, out=np.empty_like(ones)) == 1).all()
        works = [comm.allreduce(ones.copy(), async_op=True) for _ in range(3)]
        assert all((w.result() == total).all() for w in works)
        comm.barrier()
        into = np.empty_like(ones)
        comm.sendrecv(ones, (r + 1) % p, into, (r - 1) % p)
        assert (into == (r - 1) % p + 1).all()
        first, second = np.zeros(n + 1, np.float32), np.zeros(n, np.float32)
        longer = np.ones(n + 1, np.float32)
        later = [comm.send(x, (r + 1) % p, tag, async_op=True) for tag, x in ((1, ones), (2, longer))]
        comm.recv(first, (r - 1) % p, tag=2)  # against the order: the other is set aside
        comm.recv(second, (r - 1) % p, tag=1)
        for work in later:
            work.wait()
        assert (first == 1).all() and (second == (r - 1) % p + 1).all()
        later = [comm.send(ones, (r + 1) % p, tag, async_op=True) for tag in (1, 2)]
        found = comm.probe(tag=None)
        assert found is not None and (found.source, found.tag, found.count) == ((r - 1) % p, 1, n)
        works = [comm.recv(np.zeros(n, np.float32), None, None, async_op=True) for _ in later]
        assert hocket.wait_any(works) is not None and hocket.wait_all([*works, *later])
        assert [work.tag for work in works] == [1, 2]
    comm.allreduce(np.ones(5, np.complex128))
    for algorithm in ("ring", "direct", "tree", "recursive_doubling", "halving_doubling", "double_binary_tree"):
        assert (comm.allreduce(np.ones(40000, np.int64), algorithm=algorithm) == p).all(), algorithm
    other = comm.dup()
    assert (other.allreduce(np.ones(3)) == p).all()
    other.close()


def on_lanes(comm: Any) -> None:
    """Calls on two lanes overtake each other; blocking ones, on a third, drive them while they wait."""
    p = comm.size
    urgent, other = comm.lane("urgent", 1), comm.lane("other")
    for n in (10, 3000, 200_000):
        works = [lane.allreduce(np.ones(n), async_op=True) for lane in (comm, urgent, comm, urgent)]
        assert (other.allreduce(np.ones(n)) == p).all()
        assert all((w.result() == p).all() for w in reversed(works))


def with_fewer_bits(comm: Any) -> None:
    """Every kind of codec, at lengths that end within a block; a call that is prepared; what Elias' codes are not."""
    for codec in (Int8(), FP8(), Int(5, 64), Sign(), OneBit(64), QSGD(4, 64), TernGrad(), Natural(), "fp16", "bf16"):
        for n in (1, 255, 70_001):
            comm.allreduce(np.linspace(-1, 1, n, dtype=np.float32), codec=codec)
    for method in ("shared:1", "elias:4", "topk:0.1", "doublesqueeze:sign"):
        Compressor(comm, method).allreduce(np.linspace(-1, 1, 5000, dtype=np.float32), "w")
    call = comm.prepare("allreduce", np.ones(100))
    for _ in range(3):
        call()
        call.start().wait()
    rng = np.random.default_rng(comm.rank)
    for _ in range(2000):
        with contextlib.suppress(ArgumentError):
            elias.restore(rng.integers(0, 256, rng.integers(0, 100), dtype=np.uint8), QSGD(4, 64, "l2"), 3)


def served(comm: Any) -> None:
    """A server, whose reader waits for all workers at once; frames that are short, and longer ones."""
    tables = {"w": Range(50_000), "e": Rows(4, rows=100)}
    with serve(comm, tables, on=[0]) if comm.rank == 0 else Client(comm, tables) as end:
        if isinstance(end, Client):
            for _ in range(30):
                end.push("e", np.ones((3, 4), np.float32), rows=[1, 2, 3])
                end.push_pull("w", np.ones(50_000, np.float32))
                end.tick()


def traced(comm: Any) -> None:
    with tempfile.TemporaryDirectory() as folder, comm.trace(f"{comm.share(folder)[0]}/all.json"):
        everything(comm)
        on_lanes(comm)


def hocket_copy(comm: Any, x: Any) -> Any:
    made = hocket.empty(x.shape, x.dtype, comm=comm)
    made[...] = x
    return made


def leave_at_once(comm: Any) -> None:
    other = comm.dup()
    assert (other.allreduce(np.ones(3), async_op=True).result() == comm.size).all()
    other.close()


def in_threads() -> None:
    for size in (2, 4):
        with hocket.local_world(size) as world:
            world.run(everything)
            world.run(on_lanes)
            world.run(with_fewer_bits)
            world.run(served)
            world.run(traced)
    for _ in range(40):
        with hocket.local_world(2) as world:
            world.run(leave_at_once)
        del world  # the engines go while hocket's own thread still looks for work


def in_processes() -> None:
    for transport in ("shm", "tcp"):
        source = """
            import hocket, sanitized_job
            with hocket.init() as comm:
                sanitized_job.everything(comm)
                sanitized_job.on_lanes(comm)
                sanitized_job.with_fewer_bits(comm)
                sanitized_job.served(comm)
                sanitized_job.traced(comm)
        """
        jobs.run(2, textwrap.dedent(source), seconds=240, HOCKET_TRANSPORT=transport)


PARTS: dict[str, Callable[[], None]] = {"threads": in_threads, "processes": in_processes}

if __name__ == "__main__":
    for name in sys.argv[1:]:
        PARTS[name]()
        print(f"{name}: ok", flush=True)
