"""A million small calls: nothing hangs, nothing grows."""

from __future__ import annotations

import os
import time
from operator import le
from typing import Any

import numpy as np
import pytest

from hocket.collectives.communicator.communicator import Communicator
from support.worlds import Program, spread

CALLS = 1_000_000


def resident() -> int:
    """Bytes of memory in use."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def held() -> tuple[int, int, int]:
    """(descriptors, threads, mappings)."""
    with open("/proc/self/maps") as file:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), len(file.readlines())


def steady(before: tuple[int, tuple[int, int, int]], what: str) -> None:
    memory, counts = before
    grown = resident() - memory
    assert grown < 4 << 20, f"{what}: {grown} bytes more memory"
    allowed = counts[0], counts[1], counts[2] + 5
    now = held()
    assert all(map(le, now, allowed)), f"{what}: {counts} became {now}"


def a_million_allreduces(comm: Communicator) -> None:
    x = np.zeros(1)
    for _ in range(2000):  # plans, buffers, arenas
        comm.allreduce(x)
    before = resident(), held()
    x[0] = 1
    began = time.monotonic()
    for i in range(CALLS):
        x[0] = comm.rank + i
        comm.allreduce(x)
        if x[0] != 2 * i + 1:
            raise AssertionError(f"call {i} gave {x[0]}")
    print(f"{(time.monotonic() - began) / CALLS * 1e6:.2f} us a call")
    steady(before, "a million allreduces")


def mixed_sends(comm: Communicator, messages: int) -> None:
    """Sizes, tags, blocking or not, in one random order that both ranks know."""
    source = np.random.default_rng(7)
    sizes = np.array([1, 40, 100, 1000, 6000, 70_000])[source.choice(6, messages, p=[0.3, 0.3, 0.2, 0.15, 0.04, 0.01])]
    tags, ahead = source.integers(0, 4, messages), source.random(messages) < 0.1
    from_0 = source.random(messages) < 0.5
    buffer, out, works, before = np.arange(70_000, dtype=np.uint8), np.empty(70_000, np.uint8), [], (0, (0, 0, 0))
    for i in range(messages):
        n, tag = int(sizes[i]), int(tags[i])
        if i == messages // 5:
            before = resident(), held()
        if from_0[i] == (comm.rank == 0):
            shifted = buffer[i % 200 : i % 200 + n] if n < 60_000 else buffer[:n]
            if ahead[i]:
                works.append(comm.send(shifted, 1 - comm.rank, tag, async_op=True))
            else:
                comm.send(shifted, 1 - comm.rank, tag)
        else:
            comm.recv(out[:n], 1 - comm.rank, tag)
            first = i % 200 if n < 60_000 else 0
            if out[0] != first or out[n - 1] != (first + n - 1) % 256:
                raise AssertionError(f"message {i} of {n} bytes, tag {tag}, is wrong")
        if len(works) > 50:
            for work in works:
                work.wait()
            works.clear()
    for work in works:
        work.wait()
    comm.barrier()
    steady(before, "mixed sends")


def mixed_on_lanes(comm: Communicator, calls: int) -> None:
    """Lanes, collectives, blocking or not, waited for in any order: one random order of calls that all ranks know."""
    lanes = [comm, comm.lane("urgent", 2), comm.lane("second")]
    source = np.random.default_rng(9)
    lane, kind = source.integers(0, 3, calls).tolist(), source.choice(4, calls, p=[0.5, 0.3, 0.1, 0.1]).tolist()
    length = source.choice([1, 5, 300, 9000], calls, p=[0.5, 0.3, 0.19, 0.01]).tolist()
    later = source.random(calls) < 0.4
    ahead: list[Any] = []
    before = 0, (0, 0, 0)
    for i in range(calls):
        if i == calls - calls // 5:  # the lanes have all the memory that they take
            before = resident(), held()
        there, n, p = lanes[lane[i]], length[i], comm.size
        if kind[i] == 0:
            work, wanted = there.allreduce(np.full(n, comm.rank + i), async_op=bool(later[i])), p * i + p * (p - 1) // 2
        elif kind[i] == 1:
            work, wanted = there.broadcast(np.full(n, comm.rank + i), i % p, async_op=bool(later[i])), i % p + i
        elif kind[i] == 2:
            work, wanted = there.allgather(np.full(n, comm.rank + i), async_op=bool(later[i])), i
        else:
            work, wanted = there.barrier(async_op=bool(later[i])), None
        if later[i]:
            ahead.append((i, work, wanted))
        elif wanted is not None and work[0] != wanted:
            raise AssertionError(f"call {i} gave {work[0]}, not {wanted}")
        if len(ahead) > 40:
            source.shuffle(ahead)  # the same on all ranks, though nothing asks for that
            for which, work, wanted in ahead:
                if work.result() is not None and wanted is not None and work.result()[0] != wanted:
                    raise AssertionError(f"call {which} gave {work.result()[0]}, not {wanted}")
            ahead.clear()
    for _, work, _ in ahead:
        work.wait()
    comm.barrier()
    steady(before, "mixed on lanes")


@pytest.mark.timeout(150)
def test_a_million_allreduces() -> None:
    spread(a_million_allreduces, 2, "shm", 140)


def some_sends(comm: Communicator) -> None:
    mixed_sends(comm, 25_000)


def a_hundred_thousand_sends(comm: Communicator) -> None:
    mixed_sends(comm, 100_000)


@pytest.mark.timeout(100)
@pytest.mark.parametrize("program", [some_sends, pytest.param(a_hundred_thousand_sends, marks=pytest.mark.more)])
def test_messages(program: Program) -> None:
    spread(program, 2, "shm", 90)


def some_on_lanes(comm: Communicator) -> None:
    mixed_on_lanes(comm, 30_000)


def fewer_on_lanes(comm: Communicator) -> None:
    """What a lane keeps is the same over any transport; a stream's own would show in fewer calls."""
    mixed_on_lanes(comm, 12_000)


def a_million_on_lanes(comm: Communicator) -> None:
    mixed_on_lanes(comm, 1_000_000)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("program", "transport"),
    [(some_on_lanes, "shm"), (fewer_on_lanes, "tcp"), pytest.param(a_million_on_lanes, "shm", marks=pytest.mark.more)],
)
def test_lanes(program: Program, transport: str) -> None:
    spread(program, 2, transport, 390)
