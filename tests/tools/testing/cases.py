"""Tests on ranks, as users write them, some to fail: test_plugin.py has pytest run them, and looks at what it says."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hocket

ranks = pytest.mark.ranks(3)
made: list[int] = []


@pytest.fixture(scope="module")
def rows() -> Iterator[list[int]]:
    """Once on each rank; its end is a collective, too."""
    made.append(os.getpid())
    comm = hocket.communicator()
    yield comm.allgather(np.array([comm.rank])).tolist()
    comm.barrier()


@pytest.fixture
def begins_badly(comm: hocket.Communicator) -> Iterator[None]:
    assert comm.rank != 1, "at the beginning"
    yield
    comm.barrier()


@pytest.fixture
def ends_badly(comm: hocket.Communicator) -> Iterator[None]:
    yield
    assert comm.rank != 2, "at the end"


@ranks
def test_passes(comm: hocket.Communicator) -> None:
    assert comm is hocket.communicator()
    assert comm.allreduce(np.ones(1)) == comm.size == 3


@ranks
@pytest.mark.parametrize("n", [1, 300_000])
def test_with_parameters(rows: list[int], n: int) -> None:
    assert rows == [0, 1, 2] and len(made) == 1
    assert (hocket.allreduce(np.ones(n)) == 3).all()


def test_without_ranks() -> None:
    assert not made


@pytest.mark.ranks(2)
class TestOnTwo:
    def test_size(self, comm: hocket.Communicator) -> None:
        assert comm.size == 2 and os.environ["HOCKET_SIZE"] == "2"


@ranks
def test_paths(comm: hocket.Communicator, tmp_path: Path) -> None:
    every = comm.allgather_object(tmp_path)
    assert [path.parent.name for path in every] == ["rank-0", "rank-1", "rank-2"] and tmp_path.is_dir()


@ranks
def test_random_numbers_differ(comm: hocket.Communicator) -> None:
    assert len(set(comm.allgather(np.random.random(1)).tolist())) == 3  # noqa: NPY002


@ranks
def test_with_a_job_of_its_own(comm: hocket.Communicator) -> None:
    with hocket.init() as own:
        assert own is not comm and hocket.allreduce(np.ones(1)) == 3


@ranks
@pytest.mark.skip(reason="not today")
def test_skipped() -> None:
    raise AssertionError


@ranks
def test_skipped_inside() -> None:
    pytest.skip("not here")


@ranks
@pytest.mark.xfail(strict=True)
def test_expected_on_one(comm: hocket.Communicator) -> None:
    assert comm.rank != 1
    comm.barrier()


@ranks
@pytest.mark.xfail(strict=True)
def test_unexpected() -> None:
    pass


@ranks
def test_warns() -> None:
    warnings.warn("careful", stacklevel=1)


@ranks
def test_fails_on_one(comm: hocket.Communicator) -> None:
    print("hello from", comm.rank)
    print("the same from all", file=sys.stderr)
    value = [1, 2, 3]
    assert comm.rank != 1 or value == [1, 2, 4]
    comm.barrier()


@ranks
def test_fails_alike(comm: hocket.Communicator) -> None:
    assert comm.rank == 5


@ranks
def test_fails_differently(comm: hocket.Communicator) -> None:
    if comm.rank == 0:
        assert 1 == 2
    elif comm.rank == 1:
        raise ValueError("another thing") from KeyError("its cause")
    comm.barrier()


@ranks
def test_fails_in_another_job(comm: hocket.Communicator) -> None:
    own = hocket.init(make_default=False)
    assert own.rank != 1
    own.barrier()


@ranks
def test_calls_differ(comm: hocket.Communicator) -> None:
    if comm.rank == 0:
        comm.barrier()
    else:
        comm.allreduce(np.ones(2))


@ranks
def test_goes_on_after_a_subtest(comm: hocket.Communicator, subtests: pytest.Subtests) -> None:
    for n in range(3):
        with subtests.test(n=n):
            assert n + comm.rank != 2
    time.sleep(0.5)
    comm.barrier()


@ranks
def test_is_interrupted(comm: hocket.Communicator) -> None:
    if comm.rank == 0:
        raise KeyboardInterrupt("by itself")
    comm.barrier()


@ranks
def test_begins_badly(begins_badly: None, comm: hocket.Communicator) -> None:
    comm.barrier()


@ranks
def test_ends_badly(ends_badly: None) -> None:
    pass


@ranks
def test_leaves_a_message(comm: hocket.Communicator) -> None:
    if comm.rank == 0:
        comm.send(np.ones(1), 1)


@ranks
def test_leaves_a_call(comm: hocket.Communicator) -> None:
    if comm.rank == 0:
        comm.allreduce(np.ones(1), async_op=True)


@ranks
def test_is_not_disturbed(comm: hocket.Communicator) -> None:
    assert comm.allreduce(np.full(1, 2.0)) == 6
    assert comm.probe(None, None, 0) is None


@ranks
def test_dies(comm: hocket.Communicator) -> None:
    if comm.rank == 2:
        os.kill(os.getpid(), signal.SIGSEGV)
    comm.barrier()


@ranks
def test_exits(comm: hocket.Communicator) -> None:
    if comm.rank == 0:
        os._exit(3)
    comm.barrier()


@pytest.mark.ranks(3, timeout=4)
def test_hangs(comm: hocket.Communicator) -> None:
    if comm.rank == 1:
        time.sleep(100)
    comm.barrier()


@ranks
@pytest.mark.timeout(4)
def test_hangs_in_a_loop(comm: hocket.Communicator) -> None:
    while comm.rank == 2:
        pass


@ranks
def test_lives(comm: hocket.Communicator) -> None:
    comm.barrier()


def test_has_no_ranks(comm: hocket.Communicator) -> None:
    raise AssertionError
