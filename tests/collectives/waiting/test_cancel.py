"""Work.cancel: a recv that nothing has come for is taken back; one that has its message keeps it."""

from __future__ import annotations

import time

import numpy as np
import pytest

import hocket
from support.worlds import spread


def taken_back(comm: hocket.Communicator) -> None:
    """The message goes to the next recv; others that wait beside it stay."""
    peer = comm.rank ^ 1
    if peer >= comm.size:
        for _ in range(3):
            comm.barrier()
        return
    first, out = np.zeros(3), np.zeros(3)
    for source in (peer, None):
        one, other = comm.recv(first, source, 5, async_op=True), comm.recv(out, source, 6, async_op=True)
        assert one.cancel() and one.result() is None and one.source is None and one.done()
        assert one.cancel() and one.result() is None
        comm.send(np.full(3, 6.0), peer, 6)
        assert (other.result() == 6).all() and not other.cancel()
    comm.barrier()
    late = comm.recv(first, peer, 7, async_op=True)
    assert late.cancel()
    comm.barrier()
    comm.send(np.full(3, comm.rank + 1.0), peer, 7)
    assert comm.recv(out, peer, 7)[0] == peer + 1 and (first == 0).all()
    comm.barrier()


@pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (3, "tcp"), (2, "threads")])
def test_a_recv_is_taken_back(size: int, transport: str) -> None:
    spread(taken_back, size, transport)


def test_either_it_is_cancelled_or_it_has_the_message() -> None:
    """Whichever comes first, no message is lost and none is taken twice."""

    def run(comm: hocket.Communicator) -> tuple[int, int]:
        x, out, cancelled = np.zeros(1), np.zeros(1), 0
        for n in range(1, 200):
            comm.barrier()  # or rank 0 would run ahead, and all messages would be there
            if comm.rank == 0:
                time.sleep(n % 5 * 1e-4)
                x[0] = n
                comm.send(x, 1)
                continue
            work = comm.recv(out, 0, async_op=True)
            time.sleep(n % 7 * 7e-5)
            if work.cancel():
                cancelled += 1
                comm.recv(out, 0)
            else:
                work.wait()
            assert out[0] == n
        return cancelled, 199

    cancelled, _ = hocket.local_world(2).run(run)[1]
    assert 0 < cancelled < 199


def test_a_recv_that_is_taken_back_is_no_call() -> None:
    """It is in no count, and neither is what it waited."""

    def run(comm: hocket.Communicator) -> list[tuple[int, int, bool]]:
        for _ in range(3):
            work = comm.recv(np.zeros(5), comm.rank, async_op=True)
            time.sleep(0.1)
            assert not work.done() and work.cancel()
        work = comm.recv(np.zeros(5), comm.rank, async_op=True)
        comm.send(np.zeros(5), comm.rank)
        work.wait()
        return [(s.calls, s.bytes, s.waited < 0.3) for s in comm.stats() if s.collective == "recv"]

    assert hocket.local_world(1).run(run)[0] == [(1, 40, True)]


def test_a_work_shows_what_users_need() -> None:
    def run(comm: hocket.Communicator) -> list[str]:
        work = comm.allreduce(np.ones(3), async_op=True)
        work.wait()
        return [name for name in dir(work) if not name.startswith("__")]

    wanted = ["cancel", "done", "result", "source", "stream", "tag", "then", "wait"]
    assert hocket.local_world(1).run(run)[0] == wanted


def test_other_calls_cannot_be_cancelled() -> None:
    def run(comm: hocket.Communicator) -> None:
        work = comm.allreduce(np.ones(3), async_op=True)
        with pytest.raises(hocket.ArgumentError, match="only a recv can be cancelled, and this is allreduce"):
            work.cancel()
        assert (work.result() == comm.size).all()

    hocket.local_world(2).run(run)
