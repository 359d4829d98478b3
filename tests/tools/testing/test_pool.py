"""Pools of ranks: what they return, over which transport, what they say of ranks that fail, and what they cost."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

import hocket
from hocket.tools.testing import pool
from hocket.tools.testing.pool import Failed, Pool


def total(comm: hocket.Communicator, factor: int = 1) -> int:
    return int(comm.allreduce(np.array([comm.rank * factor]))[0])


def told(comm: hocket.Communicator) -> tuple[int, str, list[str]]:
    """Its process, and what it was told."""
    return os.getpid(), os.environ["COLOR"], sorted(comm.stats())


def explained(comm: hocket.Communicator) -> str:
    total(comm)
    return comm.explain()


def fails(comm: hocket.Communicator) -> None:
    assert comm.rank, "none here"
    comm.barrier()


def gives_a_lock(comm: hocket.Communicator) -> object:
    return threading.Lock()


def dies(comm: hocket.Communicator) -> None:
    if comm.rank == 1:
        os.abort()
    comm.barrier()


def waits(comm: hocket.Communicator) -> None:
    if comm.rank == 0:
        time.sleep(100)
    comm.barrier()


@pytest.fixture(scope="module", autouse=True)
def zygote() -> Iterator[None]:
    """A zygote of this file's own, so that the functions above are in it.  This process has read its environment."""
    pool.close_all()
    hocket.init(make_default=False).close()
    pool.prepare()  # here, so that it counts for each test
    yield
    pool.close_all()


@pytest.fixture(scope="module")
def three() -> Iterator[Pool]:
    with Pool(3, {"COLOR": "red"}) as made:
        yield made
    assert not any(os.path.exists(f"/proc/{pid}") for pid in made.pids if pid)


def test_ranks_stay_for_the_next_call(three: Pool) -> None:
    assert three.call(total) == [3, 3, 3] and three.call(total, 5) == [15, 15, 15]
    first, second = (three.call(told) for _ in range(2))
    assert [each[:2] for each in first] == [(pid, "red") for pid in three.pids] and three.fit
    assert [each[0] for each in second] == three.pids


def test_ranks_that_wait_for_work_take_no_time(three: Pool) -> None:
    three.call(total)

    def ticks() -> int:
        found = 0
        for pid in three.pids:
            with open(f"/proc/{pid}/stat") as file:
                found += sum(map(int, file.read().rpartition(")")[2].split()[11:13]))
        return found

    taken = []
    while not taken or (taken[-1] > 1 and len(taken) < 10):  # on a busy machine they are not done with the call at once
        before = ticks()
        time.sleep(1.0)
        taken.append(ticks() - before)
    assert taken[-1] <= 1, taken


def test_what_cannot_be_pickled_is_an_error_of_the_call(three: Pool) -> None:
    with pytest.raises(Failed, match="cannot pickle '_thread.lock' object"):
        three.call(gives_a_lock)
    assert three.call(total) == [3, 3, 3]


def test_variables_choose_the_transport() -> None:
    with Pool(2, {"HOCKET_TRANSPORT": "tcp"}) as over_tcp:
        assert all("tcp" in said and "shm" not in said.partition("\n")[0] for said in over_tcp.call(explained))
    with pytest.raises(hocket.Error, match="rank 0 of a pool of 2 could not start:(?s:.*)transport 'pigeon' is not"):
        Pool(2, {"HOCKET_TRANSPORT": "pigeon"})


def test_a_pool_is_made_anew_where_ranks_failed_died_or_hang() -> None:
    kept = pool.pool_of(3)
    assert pool.pool_of(3) is kept
    said = []
    for function, seconds in ((fails, 60.0), (dies, 60.0), (waits, 4.0)):
        with pytest.raises(Failed) as failed:
            pool.pool_of(3).call(function, timeout=seconds)
        said.append(str(failed.value))
        assert pool.pool_of(3).call(total) == [3, 3, 3]
    assert pool.pool_of(3) is not kept
    assert said[0].startswith("rank 0:\nTraceback") and "AssertionError: none here\n" in said[0]
    assert said[0].count("Traceback") == 1 and "hocket/tools" not in said[0]
    assert said[1].startswith("rank 1 was killed by SIGABRT\n  File ") and said[1].endswith(" in dies")
    assert said[2].startswith("ranks 0-2 of 3 had not ended after 4 s; they wait for rank 0\n")


def test_a_rank_that_dies_between_calls_is_the_next_ones_error() -> None:
    with Pool(2) as made:
        made.call(total)
        os.kill(made.pids[1], signal.SIGKILL)
        with pytest.raises(Failed, match="rank 1 was killed by SIGKILL"):
            made.call(total, timeout=60)
        assert not made.fit
