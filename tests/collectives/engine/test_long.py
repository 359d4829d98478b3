"""Long messages between processes: named where they lie, and read from there by the other side."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

import numpy as np
import pytest

from hocket.algorithms.language.registry import get
from hocket.collectives.communicator.communicator import Communicator
from hocket.transports.shm.channels import NO_MEMORY
from hocket.transports.shm.transport import ShmTransport
from hocket.transports.shm.window import read_memory
from support import jobs
from support.cases import more
from support.worlds import Program, path_to, same, spread

COUNTS = (4097, 16_384, 16_385, 40_000, 262_145)
"""Counts of float32 in one block: beyond what is copied in any case, beside a slot's end, and several pieces."""


def data(rank: int, n: int, seed: int) -> Any:
    return np.random.default_rng((rank, n, seed)).integers(-1000, 1000, n).astype(np.float32)


def moved(comm: Communicator) -> None:
    """Every collective that moves or adds long blocks; the arrays are changed right after each call."""
    p, r = comm.size, comm.rank
    assert "that process's memory can be read" in comm.explain() or p == 1 or not reads(comm)
    for n in COUNTS:
        for seed in range(2):
            mine = data(r, n, seed)
            every = [data(q, n, seed) for q in range(p)]
            blocks = [data(q, n * p, seed) for q in range(p)]
            same(comm.allgather(mine.copy()), np.concatenate(every), f"allgather {n}")
            x = blocks[r].copy()
            got = comm.alltoall(x)
            x[:] = -1  # nobody may still read it
            same(got, np.concatenate([b[r * n : (r + 1) * n] for b in blocks]), f"alltoall {n}")
            x = blocks[r].copy()
            got = comm.reduce_scatter(x)
            x[:] = -1
            same(got, sum(b[r * n : (r + 1) * n] for b in blocks), f"reduce_scatter {n}")
            for root in (0, p - 1):
                got = comm.gather(mine, root)
                mine[:] = -1
                assert (got is None) == (r != root)
                if got is not None:
                    same(got, np.concatenate(every), f"gather {n}")
                mine[:] = every[r]
                same(comm.scatter(blocks[root].copy(), root), blocks[root][r * n : (r + 1) * n], f"scatter {n}")
            for algorithm in ("ring", "halving_doubling", "tree", "one_shot", "direct"):
                same(comm.allreduce(mine.copy(), algorithm=algorithm), sum(every), f"allreduce {algorithm} {n}")
            left, right = (r - 1) % p, (r + 1) % p
            got = np.empty_like(mine)
            if p > 1:
                comm.sendrecv(mine, right, got, left)
                same(got, every[left], f"sendrecv {n}")


def reads(comm: Communicator) -> bool:
    memory = comm.world.transports.get("shm")
    return isinstance(memory, ShmTransport) and set(memory.pids) != {NO_MEMORY}


def read_here(comm: Communicator) -> None:
    assert reads(comm), "between two processes of one user this must work here"
    moved(comm)


def copied_twice(comm: Communicator) -> None:
    assert not reads(comm) and "does not let this process read" in comm.explain()
    moved(comm)


@pytest.mark.parametrize("size", [3, *more(2, 4)])
def test_between_processes(size: int) -> None:
    spread(read_here, size, "shm")


def cut_short(comm: Communicator) -> None:
    """Over TCP inside a host what is in flight stays in the caches; between hosts a ring goes whole (test_hosts.py)."""
    layout = comm.membership.main.layout
    assert (layout.across, layout.segment, layout.apart) == ("near tcp", 61440, False)
    assert get("allreduce", "ring").cut(1 << 20, layout.segment, layout.apart) == 61440


@pytest.mark.parametrize(("transport", "programs"), [("threads", [moved]), ("tcp", [moved, cut_short])])
def test_elsewhere(transport: str, programs: list[Program]) -> None:
    spread(programs, 3, transport)


def secret(nbytes: int) -> Any:
    """Memory that the system shows to nobody else, as a driver's; None if this kernel has none."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(447, 0)  # memfd_secret
    if fd < 0:
        return None
    os.ftruncate(fd, nbytes)
    return np.frombuffer(mmap.mmap(fd, nbytes), np.float32)


def hidden(comm: Communicator) -> None:
    n = 1 << 18
    mine = secret(4 * n)
    with pytest.raises(OSError, match="Bad address"):
        read_memory(os.getpid(), mine.ctypes.data, 8)
    mine[:] = comm.rank
    for _ in range(2):
        same(comm.allgather(mine), np.repeat(np.arange(comm.size, dtype=np.float32), n), "allgather of secret memory")
        x = np.full(n, comm.rank, np.float32)
        same(comm.allgather(x), np.repeat(np.arange(comm.size, dtype=np.float32), n), "allgather of ordinary memory")


@pytest.mark.skipif(secret(4096) is None, reason="this kernel has no memfd_secret")
def test_memory_that_nobody_else_can_read_is_copied() -> None:
    spread(hidden, 2, "shm")


FORBIDDEN = """
import ctypes
assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0  # PR_SET_DUMPABLE: only who may trace everybody reads this memory
import hocket
from test_long import copied_twice
with hocket.init(transport="shm") as comm:
    copied_twice(comm)
"""


def test_where_the_system_forbids_it() -> None:
    """Reads fall back to copies in a container without ptrace, or under Yama."""
    powerless = ["setpriv", "--bounding-set=-sys_ptrace", "--"] if os.geteuid() == 0 else []
    job = jobs.Job(2, FORBIDDEN, env={"PYTHONPATH": path_to(__file__)}, prefix={0: powerless, 1: powerless})
    with job:
        for rank, ended in enumerate(job.wait(100)):
            assert ended.code == 0, f"rank {rank}: {ended.err}"


LETS_GO = """
import time
import numpy as np
import hocket

def call(comm):
    x, out = np.ones(1 << 28, np.uint8), np.zeros(1 << 29, np.uint8)
    comm.barrier()
    try:
        if comm.rank == 1:
            time.sleep(0.18)  # comes when the other gives up
        comm.allgather(x, out, timeout=0.2)
    except hocket.Error as error:
        error.__traceback__ = None
        del error, x, out

with hocket.local_world(2) as world:
    world.run(call)
print("alive")
"""


def test_a_thread_whose_call_failed_may_let_go_of_its_arrays() -> None:
    """While the other thread is in the middle of the message."""
    assert jobs.run(1, LETS_GO, 60.0)[0].strip() == "alive"


HOLDS_THE_GIL = """
import os, threading, time
import numpy as np
import hocket

comm, x, y = hocket.init(), np.ones(1 << 20), np.zeros(1)
comm.allreduce(x)
data = [i * 7919 % 1000003 for i in range(4_000_000)] if comm.rank == 0 else []
for turn in range(3):  # on a busy machine not each will do
    comm.barrier()
    took, held, issued = 0.0, 0.0, f"{__file__}.{turn}"
    if comm.rank == 0:
        message = comm.recv(y, 1, async_op=True)
        waiter = threading.Thread(target=message.wait)
        waiter.start()
        time.sleep(0.3)
        unsorted = data.copy()
        work = comm.allreduce(x, async_op=True)
        open(issued, "w").close()
        begin = time.monotonic()
        unsorted.sort()  # in C, with the GIL held
        held = time.monotonic() - begin
        work.wait()
        waiter.join()
    else:
        while not os.path.exists(issued):
            time.sleep(0.01)
        time.sleep(0.1)
        begin = time.monotonic()
        comm.allreduce(x)
        took = time.monotonic() - begin
        comm.send(y, 0)
    took, held = comm.allreduce(np.array([took, held]))
    if took < held / 2:
        break
else:
    raise AssertionError(f"{took:.2f} s, of {held:.2f} s in which the other rank held its GIL")
"""


def test_calls_go_on_while_a_waiting_thread_cannot_have_the_gil() -> None:
    jobs.run(2, HOLDS_THE_GIL, 100.0)
