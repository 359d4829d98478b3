"""Findings of a review: each of these gave wrong data, a crash or a hang."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.transports.shm.window import Window
from support.jobs import Job
from support.worlds import spread


def half_sent(comm: Communicator) -> None:
    """A send that ran out of time half-way must not be continued by the next one's bytes."""
    n, beside = 4 << 20, comm.dup()
    if comm.rank == 0:
        first = comm.send(np.zeros(n), 1, async_op=True, timeout=0.3)
        second = comm.send(np.ones(n), 1, async_op=True, timeout=60)
        with pytest.raises(hocket.Error):
            first.wait()
        with pytest.raises(hocket.Error):
            second.wait()
        beside.barrier()
    else:
        beside.barrier()
        with pytest.raises(hocket.Error):
            comm.recv(np.empty(n), 0, timeout=60)


@pytest.mark.parametrize("transport", ["threads", "shm", "tcp"])
def test_a_message_left_in_the_middle_ends_the_communicator(transport: str) -> None:
    spread(half_sent, 2, transport)


def test_threads_allocate_separate_memory() -> None:
    window = Window()
    with ThreadPoolExecutor(8) as pool:
        offsets = list(pool.map(lambda _: window.alloc(1 << 16), range(400)))
    assert len(set(offsets)) == 400


def test_a_buffer_in_use_cannot_be_resized() -> None:
    def rank(comm: Communicator) -> None:
        data = bytearray(1000)
        if comm.rank == 0:
            work = comm.recv(data, 1, async_op=True)
            with pytest.raises(BufferError):
                data.extend(b"x" * 100000)
            comm.barrier()
            work.wait()
        else:
            comm.barrier()
            comm.send(data, 0)

    hocket.local_world(2).run(rank)


def test_premul_sum_of_an_exscan_leaves_rank_0_alone() -> None:
    def call(comm: Communicator) -> tuple[float, float, float]:
        x, y = np.ones(3), np.full(3, 7.0)
        comm.exscan(x, hocket.premul_sum(4.0), y)
        comm.exscan(x, hocket.premul_sum(4.0))
        return x[0], y[0], comm.exscan(np.ones(3), hocket.premul_sum(4.0), async_op=True).result()[0]

    with hocket.local_world(3) as world:
        assert world.run(call) == [(1, 7, 1), (4, 4, 4), (8, 8, 8)]


def test_premul_sum_of_one_rank() -> None:
    """Some schedules have no step then."""
    for name in ("ring", "double_binary_tree", "direct"):
        x = np.ones(3)
        with hocket.local_world(1) as world:
            world.run(lambda comm, x=x, name=name: comm.allreduce(x, hocket.premul_sum(0.5), algorithm=name))
        assert (x == 0.5).all(), name


def test_premul_sum_by_zero_leaves_a_rank_out() -> None:
    def rank(comm: Communicator) -> Any:
        return comm.allreduce(np.ones(3), hocket.premul_sum(float(comm.rank))).tolist()

    assert hocket.local_world(2).run(rank) == [[1.0] * 3] * 2


@pytest.mark.parametrize("transport", ["threads", "tcp"])
def test_a_function_of_elements_of_any_size(transport: str) -> None:
    spread(odd_elements, 2, transport)


def odd_elements(comm: Communicator) -> None:
    x = np.zeros(20000, [("a", "f4"), ("b", "f4"), ("c", "f4")])
    x["b"] = comm.rank + 1

    def add(p: Any, q: Any) -> Any:
        total = p.copy()
        for field in "abc":
            total[field] += q[field]
        return total

    assert (comm.allreduce(x, add, timeout=60)["b"] == 3).all()


def test_wait_of_no_time_is_one_try() -> None:
    def rank(comm: Communicator) -> None:
        if comm.rank == 0:
            work = comm.recv(np.empty(3), 1, async_op=True)
            assert work.wait(0) is False  # nothing is sent before this has returned
            comm.barrier()
            assert work.wait(60) is True
        else:
            comm.barrier()
            comm.send(np.ones(3), 0)

    hocket.local_world(2).run(rank)


def closed_at_once(comm: Communicator) -> None:
    """A message that one communicator has not read yet is not given to the next."""
    for i in range(50):
        pair = comm.split(comm.rank // 2)
        assert pair is not None
        assert pair.allreduce(np.full(3000, float(i))).tolist()[0] == i * pair.size
        pair.close()


def test_memory_of_a_closed_communicator_is_read_to_its_end() -> None:
    spread(closed_at_once, 4, "shm")


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        ((np.ones(2), None), {}, "is not a reduction"),
        ((np.ones(2), "sum", np.float64(3)), {}, "out .*is a NumPy scalar, whose value cannot change"),
        ((np.ones(2),), {"order": "rnk"}, "is not one of 'any', 'rank' and 'exact'"),
        ((np.ones(2),), {"timeout": 0}, "above 0"),
    ],
)
def test_is_refused(arguments: tuple[Any, ...], options: dict[str, Any], text: str) -> None:
    with hocket.local_world(1) as world, pytest.raises(hocket.ArgumentError, match=text):
        world.run(lambda comm: comm.allreduce(*arguments, **options))


def roots_apart(comm: Communicator) -> None:
    """Each rank's small broadcast is buffered and over before anybody can see that the roots differ."""
    parted = comm.dup()
    with pytest.raises(hocket.MismatchError) as caught:
        parted.broadcast(np.ones(1), root=comm.rank % 2)
        comm.barrier()  # on the parent: all have made, and left, the call in question
        for _ in range(3):
            parted.allreduce(np.ones(1))
    for r in range(comm.size):
        assert f"root={r % 2}" in caught.value.calls[r], caught.value


@pytest.mark.parametrize("transport", ["threads", "shm", "tcp"])
def test_a_mismatch_names_the_call_where_the_ranks_parted(transport: str) -> None:
    spread(roots_apart, 3, transport)


NO_ROOM = """
import resource
import numpy as np
import hocket
comm = hocket.init()
x = np.zeros(1 << 24, np.float32)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
given = bytes(48 << 20) if comm.rank == 0 else None
def told(call):
    try:
        call()
    except hocket.Error as error:
        print(type(error).__name__, error)
def limit(room):
    resource.setrlimit(resource.RLIMIT_AS, (used + room, resource.RLIM_INFINITY))
limit(64 << 10)
told(lambda: comm.allreduce(x, codec="int8"))
if comm.rank == 0:
    told(lambda: comm.allreduce(x, codec="int8"))
    told(lambda: comm.allreduce(x, codec="int8"))
told(lambda: comm.allreduce(x, codec="int8", async_op=True).wait())
told(lambda: comm.allreduce(x[::2]))
limit(resource.RLIM_INFINITY - used if comm.rank == 0 else 32 << 20)
told(lambda: comm.broadcast_object(given))
"""


def test_what_there_is_no_memory_for_is_said() -> None:
    with Job(2, NO_ROOM) as job:
        ends = job.wait(60)
    for end, calls in zip(ends, (4, 2), strict=True):  # rank 0 tries it twice more: it is no call ahead by that
        lines = end.out.splitlines()
        for line in lines[:calls]:
            assert re.match(r"MemoryError allreduce\(float32\[16777216\], .*\) needs \d{8} bytes to work in", line), end
        wanted = "MemoryError x is not contiguous, and there is not enough memory for a copy"
        assert lines[calls].startswith(wanted), ends
    assert re.search("Error there is not enough memory for an incoming object of 503\\d{5} bytes", ends[1].out), ends
    assert "PeerLostError rank 1 failed: Error: there is not enough" in ends[0].out, ends


def test_a_strided_tensor_that_there_is_no_memory_for() -> None:
    torch = pytest.importorskip("torch")
    wanted = "copy of its 2814749767106560 bytes"
    with hocket.local_world(1) as world, pytest.raises(hocket.errors.MemoryError, match=wanted):
        world.run(lambda comm: comm.allgather(torch.zeros(1).expand(10 << 46)))
