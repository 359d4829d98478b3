"""HOCKET_CHECK=payload,shm: what memory damages between two ranks is an error, and nothing else is."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable

import numpy as np
import pytest

from hocket.conformance.ends import End, Side
from hocket.transports.shm.channels import RingChannels
from hocket.transports.shm.window import Window
from support import jobs

PATTERN = bytes(range(1, 255)) * 400


def flip(window: Window, at: int) -> None:
    """Turn a bit of what lies in a rank's window."""
    with mmap.mmap(window.fd, os.fstat(window.fd).st_size) as memory:
        where = memory.find(PATTERN[at : at + 200])
        assert where > 0, "the message is not in the window"
        memory[where] ^= 1


def a_recv(end: End) -> str:
    return end.recv(len(PATTERN) // 2)[0]


def a_reduction(end: End) -> str:
    return end.reduce(np.zeros(len(PATTERN) // 2, np.uint8), [0], 2)[0]


@pytest.mark.parametrize("takes", [a_recv, a_reduction])
@pytest.mark.parametrize(("checked", "at"), [(True, None), (True, 0), (True, 30_000), (False, 30_000)])
def test_a_bit_that_flips_in_memory_is_found(takes: Callable[[End], str], checked: bool, at: int | None) -> None:
    windows = [Window() for _ in range(2)]
    rings = [RingChannels(r, list(windows), None, checked) for r in range(2)]
    opened = [rings[r].open(1 - r, rings[1 - r].offer()) for r in range(2)]
    sender = End(0, [None, Side(*opened[0], (rings, windows))])
    receiver = End(1, [Side(*opened[1], (rings, windows)), None])
    data = np.frombuffer(PATTERN[: len(PATTERN) // 2], np.uint8).copy()
    assert sender.send(data) == "done"
    if at is not None:
        flip(windows[0], at)
    assert takes(receiver) == ("fault" if checked and at is not None else "done")


WHOLE = """
import mmap, os, sys
import numpy as np, hocket
sys.path.insert(0, {tests!r})
with hocket.init(timeout=20) as comm:
    other = 1 - comm.rank
    for n in (0, 1, 7, 1000, 20_000, 70_001, 1_000_000):
        x = np.arange(n, dtype=np.float32) + comm.rank
        assert (comm.allreduce(x, out=np.empty_like(x)) == 2 * np.arange(n) + 1).all(), n
        into = np.empty_like(x)
        comm.sendrecv(x, other, into, other)
        assert (into == np.arange(n) + other).all(), n
        assert (comm.allgather(x).reshape(2, -1)[other] == into).all(), n
        works = [comm.allreduce(x.copy(), async_op=True) for _ in range(3)]
        assert all((work.result() == 2 * np.arange(n) + 1).all() for work in works), n
    assert "checked: CRC32C" in comm.explain()
    data = np.frombuffer(bytes(range(1, 255)) * 100, np.uint8).copy()
    if comm.rank == 0:
        comm.send(data, 1)
        window = comm.world.transports["shm"].window
        with mmap.mmap(window.fd, os.fstat(window.fd).st_size) as memory:
            where = memory.find(data[:200].tobytes())
            memory[where + 5000] ^= 4
    comm.barrier()
    if comm.rank == 0:
        try:
            comm.recv(np.empty(1), 1)
        except hocket.Error as error:
            print(error)
            os._exit(0)
    if comm.rank == 1:
        try:
            comm.recv(np.empty_like(data), 0)
        except hocket.Error as error:
            print(error)
            os._exit(0)
    comm.barrier()
"""


def test_a_job_says_between_whom_and_in_which_call() -> None:
    outs = jobs.run(2, WHOLE.format(tests=jobs.TESTS), 40, HOCKET_CHECK="payload,shm")
    words = "rank 1 failed", "rank 0", "damaged through shared memory", "call number 0"
    assert all(word in outs[1] for word in words), outs
