"""A rank that stops, is late, or is interrupted: who waits for whom is said, and nobody hangs."""

from __future__ import annotations

import pathlib
import re
import signal
import threading
import time

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from support.cases import more
from support.faulty import all_ready, facts, job

STOPPED = """
comm = hocket.init(transport={transport!r})
x = np.arange(1000.0)
comm.allreduce(x.copy())
if comm.rank == {victim}:
    ready()
await_file("stopped")
with telling():
    comm.allreduce(x.copy(), timeout=4)
    comm.barrier()  # rank 0 finds the others' data when it goes on
if comm.rank != {victim}:
    ready("raised")
comm.close()
say(ended=True)
"""


@pytest.mark.parametrize(("victim", "transport"), [(1, "tcp"), (0, "shm"), *more((1, "shm"), (0, "tcp"))])
def test_stopped_rank_does_not_answer(victim: int, transport: str, tmp_path: pathlib.Path) -> None:
    """Rank 0 holds the coordinator: nobody can ask, and the others still raise in time and name it."""
    others = [rank for rank in range(3) if rank != victim]
    with job(3, STOPPED.format(transport=transport, victim=victim), tmp_path) as run:
        all_ready(tmp_path, [victim])
        run.signal(victim, signal.SIGSTOP)
        (tmp_path / "signs" / "stopped").touch()
        began = time.monotonic()
        all_ready(tmp_path, others, "raised")
        assert time.monotonic() - began < 30
        run.signal(victim, signal.SIGCONT)
        ends = run.wait()
    for rank in others:
        said = facts(ends[rank])
        assert said["error"] == "TimeoutError" and victim in said["missing"], said
        assert said["missing"] == [1] or not victim, said
        assert f"rank {victim} does not answer" in said["text"] and said["ended"], said
        assert not victim or "HOCKET_TIMEOUT" in said["text"] and "rank.py:11 in" in said["text"], said
    said = facts(ends[victim])
    assert said["error"] in ("TimeoutError", *["PeerLostError"] * (not victim)) and said["ended"], said


DROPPED = """
import os
comm = hocket.init(transport={transport!r})
part = comm.dup()

def elsewhere():
    ready("elsewhere")
    while not os.path.exists(os.path.join(os.environ["FAULTY"], "raised-0")):
        time.sleep(0.01)

with telling():
    if comm.rank == 1:
        del part
        elsewhere()
    else:
        await_file("elsewhere-1")
        part.{call}
if comm.rank == 0:
    ready("raised")
comm.close()
"""


@pytest.mark.parametrize("call", ["allreduce(np.ones(9), timeout=0.5)", "recv(np.ones(9), 1, timeout=0.5)"])
@pytest.mark.parametrize("transport", ["shm", *more("tcp")])
def test_a_rank_has_dropped_the_communicator(transport: str, call: str, tmp_path: pathlib.Path) -> None:
    """It says so, and where it is: it is not late, it will never come."""
    with job(2, DROPPED.format(transport=transport, call=call), tmp_path) as run:
        ends = run.wait()
    said = facts(ends[0])
    assert said["error"] == "TimeoutError" and said["missing"] == [1], said
    assert "rank 1 no longer has this communicator (closed or dropped), it is at rank.py:" in said["text"], said
    assert "in elsewhere" in said["text"] and "error" not in facts(ends[1]), said


MESSAGE = """
comm = hocket.init(transport={transport!r})
comm.barrier()
with telling():
    if comm.rank == 0:
        comm.recv(np.empty(10), 2, timeout=0.5)
    while comm.reporter.state.verdict is None:
        time.sleep(0.01)
    comm.barrier()
comm.close()
"""


@pytest.mark.parametrize("transport", ["shm", *more("tcp")])
def test_a_message_that_does_not_come(transport: str, tmp_path: pathlib.Path) -> None:
    with job(3, MESSAGE.format(transport=transport), tmp_path) as run:
        ends = run.wait()
    for rank in range(3):
        said = facts(ends[rank])
        assert said["error"] == "TimeoutError" and said["missing"] == [2], said
        assert "recv(float64[10], source=2, tag=0)" in said["text"], said


INTERRUPTED = """
import threading
before = faulty.held()
comm = hocket.init(transport={transport!r})
x = np.arange(1000.0)
def tell():
    while comm.reporter.account()["state"] != "in call":
        time.sleep(0.005)
    ready()
{warm}
with telling():
    if comm.rank == 2:
        await_file("struck")
        {last}
    threading.Thread(target=tell, daemon=True).start()
    {call}
comm.close()
say(left=sorted(set(faulty.held()) - set(before)))
"""
CALLS = {
    "blocking": ("comm.allreduce(x)", "comm.allreduce(x)"),
    "asynchronous": ("comm.allreduce(x)", "comm.allreduce(x, async_op=True).wait()"),
    "recv": ("comm.allreduce(x)", "comm.recv(x, 2)"),
    "first": ("pass", "comm.allreduce(x, algorithm='ring')"),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(("victim", "transport"), [(0, "shm"), *more((1, "tcp"))])
def test_interrupt(name: str, victim: int, transport: str, tmp_path: pathlib.Path) -> None:
    """Ctrl-C on one rank while it and another wait in a call: KeyboardInterrupt there, PeerLostError elsewhere."""
    warm, call = CALLS[name]
    last = "time.sleep(0.2); " + call.replace("recv(x, 2", "recv(x, 0")
    source = INTERRUPTED.format(transport=transport, warm=warm, call=call, last=last)
    with job(3, source, tmp_path) as run:
        all_ready(tmp_path, range(2))
        time.sleep(0.2)
        struck = time.monotonic()
        run.signal(victim, signal.SIGINT)
        (tmp_path / "signs" / "struck").touch()
        ends = run.wait()
    for rank in range(3):
        said = facts(ends[rank])
        if rank == victim:
            assert said["error"] == "KeyboardInterrupt", said
        else:
            assert said["error"] == "PeerLostError" and said["ranks"] == [victim], said
            assert f"rank {victim} was interrupted" in said["text"], said
        if rank != 2:  # who came later
            assert said["at"] - struck < 4.0, (said["at"] - struck, said)
        assert said["left"] == [], said


NEVER_CAME = """
import os
before = faulty.held()
if os.environ["HOCKET_RANK"] == "1":
    raise SystemExit
with telling():
    hocket.init(timeout=4)
say(left=sorted(set(faulty.held()) - set(before)))
"""


def test_a_rank_that_never_came(tmp_path: pathlib.Path) -> None:
    with job(3, NEVER_CAME, tmp_path) as run:
        ends = run.wait()
    for rank in (0, 2):
        said = facts(ends[rank])
        assert said["error"] == "TimeoutError" and said["missing"] == [1] and said["left"] == [], said


class Odd:
    """A user's object that answers no question."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(f"{name}: not now")

    def receive(self, comm: hocket.Communicator) -> None:
        comm.recv(np.empty(3), 0)


def test_a_users_object_is_asked_nothing() -> None:
    """To find the line of a call its thread's frames are looked at; their `self` may be anything."""

    def each(comm: hocket.Communicator) -> str:
        with pytest.raises(hocket.Error) as caught:
            comm.allreduce(np.ones(3), timeout=2) if comm.rank == 0 else Odd().receive(comm)
        return str(caught.value)

    with hocket.local_world(2) as world:
        texts = world.run(each)
    assert all("source=0, tag=0) at test_timeout.py" in text for text in texts), texts


@pytest.mark.parametrize("stays", [True, False])
def test_threads_are_where_they_are(stays: bool) -> None:
    """Not where the main thread is, which waits for them."""
    over = threading.Event()

    def late_elsewhere(comm: Communicator) -> str:
        if comm.rank == 1:
            over.wait(60 * stays)
            return ""
        with pytest.raises(hocket.TimeoutError) as error:
            comm.allreduce(np.ones(3), timeout=1.5)
        over.set()
        return str(error.value)

    with hocket.local_world(2) as world:
        text = world.run(late_elsewhere)[0]
    place = r", it is at test_timeout.py:\d+ in late_elsewhere" if stays else ""
    assert re.search(rf"\n  rank 1 is not in a call on this communicator{place}\n", text), text
