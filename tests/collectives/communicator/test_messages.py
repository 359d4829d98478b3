"""send, recv, sendrecv: any order of tags, any size, both directions at once, on every transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from support.cases import more
from support.worlds import same, spread

SIZES = (0, 1, 8, 47, 48, 49, 1000, 4095, 4096, 65_536, 65_537, 300_000, 3_000_000)
"""Bytes: around the ring's inline and slot sizes, and far beyond any buffer."""
Array = np.ndarray[Any, Any]


def payload(nbytes: int, *seed: int) -> Array:
    return np.random.default_rng((nbytes, *seed)).integers(0, 256, nbytes, dtype=np.uint8)


def got(comm: Communicator, nbytes: int, source: int, tag: int = 0) -> Array:
    out = np.full(nbytes + 8, 77, np.uint8)
    assert comm.recv(out[:nbytes], source, tag) is not None
    assert (out[nbytes:] == 77).all(), "written behind out"
    return out[:nbytes]


def every_size(comm: Communicator) -> None:
    for n in SIZES:
        if comm.rank == 0:
            comm.send(payload(n, 0), 1)
            same(got(comm, n, 1), payload(n, 1), f"{n} bytes back")
        elif comm.rank == 1:
            same(got(comm, n, 0), payload(n, 0), f"{n} bytes")
            comm.send(payload(n, 1), 0)


def both_ways(comm: Communicator) -> None:
    """Both send first, in a sendrecv: nothing may wait for the other's recv."""
    peer = comm.rank ^ 1
    if peer >= comm.size:
        return
    for n in (*SIZES, *SIZES[::-1]):
        out = np.empty(n, np.uint8)
        comm.sendrecv(payload(n, comm.rank), peer, out, peer, tag=3)
        same(out, payload(n, peer), f"{n} bytes both ways")


def unequal_ways(comm: Communicator) -> None:
    peer = comm.rank ^ 1
    if peer < comm.size:
        mine, theirs = (3_000_000, 5) if comm.rank % 2 else (5, 3_000_000)
        out = np.empty(theirs, np.uint8)
        comm.sendrecv(payload(mine, comm.rank), peer, out, peer)
        same(out, payload(theirs, peer), "a long message against a short one")


def around_the_ring(comm: Communicator) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for n in (8, 1000, 200_000):
        x = payload(n, comm.rank)
        for step in range(comm.size):
            out = np.empty(n, np.uint8)
            comm.sendrecv(x, right, out, left)
            same(out, payload(n, (left - step) % comm.size), f"ring of {n}, step {step}")
            x = out


def tags_in_any_order(comm: Communicator) -> None:
    """All sent before the first recv, received by tag in another order; one tag's messages stay in order."""
    sizes = {0: 8, 1: 100_000, 2: 0, 7: 50, (1 << 31) - 1: 3000}
    order = [7, 1, (1 << 31) - 1, 0, 2, 0, 1]
    if comm.rank == 0:
        works = []
        for i, tag in enumerate(sorted(order)):
            works.append(comm.send(payload(sizes[tag], tag, i), 1, tag, async_op=True))
        for work in works:
            work.wait()
        comm.recv(np.empty(1, np.uint8), 1, 9)
    elif comm.rank == 1:
        sent = sorted(order)
        for tag in order:
            i = sent.index(tag)
            sent[i] = -1
            same(got(comm, sizes[tag], 0, tag), payload(sizes[tag], tag, i), f"tag {tag}, message {i}")
        comm.send(np.zeros(1, np.uint8), 0, 9)


def to_self(comm: Communicator) -> None:
    for n in (0, 9, 200_000):
        out = np.empty(n, np.uint8)
        comm.sendrecv(payload(n, 1), comm.rank, out, comm.rank)
        same(out, payload(n, 1), f"{n} bytes to self")
        work = comm.sendrecv(payload(n, 2), comm.rank, out, comm.rank, async_op=True)
        assert work.result() is out
        same(out, payload(n, 2), f"{n} bytes to self, asynchronous")
    comm.send(np.ones(1), comm.rank)  # test_probe.py has more of these
    same(comm.recv(np.zeros(1), comm.rank), np.ones(1), "sent and kept")


def grouped(comm: Communicator) -> None:
    """An all-to-all of isend and irecv in one group: the order in it does not matter."""
    for n in (8, 5000, 300_000):
        outs = {r: np.empty(n, np.uint8) for r in range(comm.size) if r != comm.rank}
        peers = sorted(outs, key=lambda r: (r * 7 + comm.rank) % 5)
        with hocket.group():
            for r in peers:
                comm.send(payload(n, comm.rank, r), r)
            for r in reversed(peers):
                comm.recv(outs[r], r)
        for r, out in outs.items():
            same(out, payload(n, r, comm.rank), f"group, {n} bytes from {r}")
        with hocket.group():
            for r in peers:
                comm.recv(outs[r], r)
            for r in peers:
                comm.send(payload(n, comm.rank, r, 1), r)
        for r, out in outs.items():
            same(out, payload(n, r, comm.rank, 1), f"group with recv first, {n} bytes from {r}")


def unexpected(comm: Communicator) -> None:
    """Many messages that nobody waits for yet, then another one behind them; then they."""
    count = 200
    if comm.rank == 0:
        works = [comm.send(payload(300 + i, i), 1, 5, async_op=True) for i in range(count)]
        comm.send(payload(70_000, 6), 1, 6)
        for work in works:
            assert work.wait()
    elif comm.rank == 1:
        same(got(comm, 70_000, 0, 6), payload(70_000, 6), "the message behind")
        for i in range(count):
            same(got(comm, 300 + i, 0, 5), payload(300 + i, i), f"unexpected message {i}")


def outstanding(comm: Communicator) -> None:
    """64 receives posted, then fed in the opposite order; a receive waits for its tag, not for its turn."""
    n = 4000
    if comm.rank == 0:
        outs = [np.empty(n, np.uint8) for _ in range(64)]
        works = [comm.recv(out, 1, tag, async_op=True) for tag, out in enumerate(outs)]
        assert not works[0].done()
        comm.send(np.zeros(1, np.uint8), 1, 99)
        for tag in (63, 0, *range(1, 63)):
            assert works[tag].result() is outs[tag]
            same(outs[tag], payload(n, tag), f"outstanding receive {tag}")
    elif comm.rank == 1:
        comm.recv(np.empty(1, np.uint8), 0, 99)
        for tag in reversed(range(64)):
            comm.send(payload(n, tag), 0, tag)


def from_any(comm: Communicator) -> None:
    """Whose message comes first is taken; its sender is told; of one sender the order stays."""
    for n in (8, 5000, 300_000):
        if comm.rank == 0:
            others, seen = comm.size - 1, []
            for _ in range(2 * others):
                out = np.empty(n, np.uint8)
                work = comm.recv(out, None, 7, async_op=True)
                assert work.wait(60) and work.source is not None
                seen.append(work.source)
                same(out, payload(n, work.source, seen.count(work.source)), f"{n} bytes from any, number {len(seen)}")
            assert sorted(seen) == sorted(2 * [*range(1, comm.size)])
            out = np.empty(n, np.uint8)
            assert others == 0 or comm.recv(out, None, 9) is out
        else:
            comm.send(payload(n, comm.rank, 1), 0, 7)
            comm.send(payload(n, 0), 0, 8)  # another tag, in between
            comm.send(payload(n, comm.rank, 2), 0, 7)
            if comm.rank == 1:
                comm.send(payload(n, 5), 0, 9)
        if comm.rank == 0:
            for r in range(1, comm.size):
                same(got(comm, n, r, 8), payload(n, 0), f"{n} bytes of another tag, from {r}")
        comm.barrier()  # the next size must not come before


def few_tags_outstanding(comm: Communicator) -> None:
    """Receives of one tag take the messages in the order in which both were issued, whatever arrives when."""
    for n in (100, 5000, 100_000) * 3:
        for tags in (1, 2):
            if comm.rank == 0:
                outs = [np.empty(n, np.uint8) for _ in range(12)]
                works = [comm.recv(out, 1, i % tags, async_op=True) for i, out in enumerate(outs)]
                for i, work in enumerate(works):
                    work.wait()
                    same(outs[i], payload(n, i), f"receive {i} of {tags} tags, {n} bytes")
            elif comm.rank == 1:
                for work in [comm.send(payload(n, i), 0, i % tags, async_op=True) for i in range(12)]:
                    work.wait()


def beside_collectives(comm: Communicator) -> None:
    """Messages have a queue of their own: collectives may be issued between a send and its recv."""
    peer = comm.rank ^ 1
    if peer >= comm.size:
        for _ in range(2):
            comm.allreduce(np.ones(1))
        return
    out = np.empty(50_000, np.uint8)
    work = comm.recv(out, peer, async_op=True)
    assert comm.allreduce(np.ones(1))[0] == comm.size
    comm.send(payload(50_000, comm.rank), peer)
    assert comm.allreduce(np.ones(1))[0] == comm.size
    work.wait()
    same(out, payload(50_000, peer), "a message around two collectives")


def first_of_all(comm: Communicator) -> None:
    """No rank's first message waits for its peer's first call: rank 0 starts both sends before rank 2 can receive."""
    fresh = comm.dup()
    if comm.size < 3 or comm.rank > 2:
        fresh.barrier()
        return
    out = np.empty(1000, np.uint8)
    if comm.rank == 0:
        for work in [fresh.send(payload(1000, peer), peer, async_op=True) for peer in (1, 2)]:
            work.wait()
    elif comm.rank == 1:
        fresh.send(payload(1000, 12), 2)
        same(fresh.recv(out, 0), payload(1000, 1), "from rank 0")
    else:
        same(fresh.recv(out, 0), payload(1000, 2), "from rank 0")
        same(fresh.recv(out, 1), payload(1000, 12), "from rank 1")
    fresh.barrier()


def to_nobody(comm: Communicator) -> None:
    """A line of ranks: at its ends no message goes, and `out` stays as it is."""
    null = hocket.PROC_NULL
    before, after = comm.rank - 1 if comm.rank else null, comm.rank + 1 if comm.rank < comm.size - 1 else null
    for n in (8, 100_000):
        for async_op in (False, True, False):
            out = np.full(n, 7, np.uint8)
            work = comm.sendrecv(payload(n, comm.rank), after, out, before, async_op=async_op)
            assert (work.result() if async_op else work) is out
            same(out, payload(n, comm.rank - 1) if comm.rank else np.full(n, 7, np.uint8), f"along a line, {n}")
    assert comm.send(out, null) is None and comm.recv(out, np.int64(null), None) is out
    assert comm.prepare("send", out, dest=null)() is None
    came = comm.recv(out, null, async_op=True)
    assert came.result() is out and came.source is None
    comm.send_object({}, null)
    assert comm.recv_object(null) is None
    found = comm.probe(null, None)
    assert found is not None and (found.source, found.count) == (null, 0)
    with pytest.raises(hocket.ArgumentError, match="not a rank"):
        comm.send(out, -1)
    with pytest.raises(hocket.ArgumentError, match="not a rank"):
        comm.broadcast(out, null)


EXCHANGES: tuple[Callable[[Communicator], None], ...] = (
    every_size, both_ways, unequal_ways, around_the_ring, tags_in_any_order, to_self, grouped, unexpected,
    outstanding, from_any, few_tags_outstanding, beside_collectives, first_of_all,
    to_nobody,
)  # fmt: skip


def everything(comm: Communicator) -> None:
    for exchange in EXCHANGES:
        exchange(comm)
        comm.barrier()


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda f: str(f.__name__))
def test_between_threads(exchange: Callable[[Communicator], None]) -> None:
    spread(exchange, 3, "threads")


@pytest.mark.parametrize(("size", "transport"), [(4, "shm"), (3, "tcp"), *more((2, "shm"), (3, "reference"))])
def test_between_ranks(size: int, transport: str) -> None:
    spread(everything, size, transport)


def test_any_array_is_a_message() -> None:
    """Shapes may differ between the two ends; size and dtype may not."""

    def call(comm: Communicator) -> None:
        if comm.rank == 0:
            comm.send(np.arange(6.0).reshape(2, 3), 1)
            comm.send(bytearray(b"hocket"), 1)
        else:
            out, text = np.empty(6), bytearray(6)
            comm.recv(out, 0)
            comm.recv(text, 0)
            assert out.tolist() == [0, 1, 2, 3, 4, 5] and text == b"hocket"

    with hocket.local_world(2) as world:
        world.run(call)


def test_items_of_several_sizes_and_one_shape() -> None:
    """Items without a dtype of their own are bytes, of any length."""

    def program(comm: Communicator) -> None:
        for dtype in ("V15", "m8[ms]", "S3", "V15"):
            x = np.arange(2 * np.dtype(dtype).itemsize, dtype=np.uint8).view(dtype)
            if comm.rank == 0:
                comm.send(x, 1)
            else:
                out = np.zeros(2, dtype)
                comm.recv(out, 0)
                assert out.tobytes() == x.tobytes(), dtype

    with hocket.local_world(2) as world:
        world.run(program)
