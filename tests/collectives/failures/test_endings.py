"""The end of a job hides nothing: what the ranks' last calls disagree on is an error on all of them."""

from __future__ import annotations

import logging
import signal
import time
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from support.jobs import Ended, Job

START = """
import os, sys, time
import hocket, numpy as np
comm = hocket.init(timeout=60)
rank, x = comm.rank, np.ones(3)
"""

DIFFER = {
    "a broadcast of the root alone": (
        "if rank == 0: comm.broadcast(x)", "rank 0 called broadcast(float64[3], root=0), first made at rank.py:6"),
    "a reduce of another rank alone": (
        "if rank == 1: comm.reduce(x)", "rank 1 called reduce(float64[3], op='sum', root=0), first made at rank.py:6"),
    "an asynchronous call that nobody waits for": (
        "if rank == 1: comm.allreduce(x, async_op=True)", "rank 1 called allreduce(float64[3], op='sum') at rank.py:6"),
    "a broadcast that one waits for asynchronously": (
        "if rank == 1: comm.broadcast(x, async_op=True)", "rank 1 called broadcast(float64[3], root=0) at rank.py:6"),
    "different roots": ("comm.broadcast(x, rank)", "rank 1 called broadcast(float64[3], root=1)"),
    "a recv that nobody sends to": (
        "work = comm.recv(x, 0, async_op=True) if rank else None", "rank 1 has not finished recv(float64[3], source=0"),
    "several recvs that nobody sends to": (
        "for tag in range(10 * rank): comm.recv(x, 0, tag, async_op=True)",
        "tag=6) at rank.py:6 in <module>; has not finished recv(float64[3], source=0, tag=7) at rank.py:6 in <module>; "
        "has not finished 2 more"),
    "a message that nobody receives": (
        "comm.send(x, 1, tag=5) if rank == 0 else None", "rank 1 has not finished a message from rank 0 with tag 5"),
    "a message that was set aside": (
        "[comm.send(x, 1, t) for t in (6, 7)] if rank == 0 else comm.recv(x, 0, 7)",
        "rank 1 has not finished a message from rank 0 with tag 6"),
    "another communicator": (
        "inner = comm.dup(); rank == 0 and inner.broadcast(x)", "rank 0 made 1 calls on communicator"),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFER)
def test_a_process_that_ends_so_fails(name: str) -> None:
    """Nothing is closed; the interpreter just ends.  All ranks say the same, and none ends with 0."""
    line, text = DIFFER[name]
    with Job(2, START + line) as job:
        ends = job.wait()
    for end in ends:
        assert end.code == 1 and text in end.err, (end.code, end.err)
        assert end.err.count(text) == 1 and "Traceback" not in end.err, end.err


@pytest.mark.parametrize("encrypt", ["0", pytest.param("1", marks=pytest.mark.more)])
@pytest.mark.parametrize("count", [3, pytest.param(300_000, marks=pytest.mark.more)])
def test_a_message_over_a_stream_that_its_receiver_never_opened(count: int, encrypt: str) -> None:
    """Streams are opened at first use: a rank that never receives must look for what has been sent to it."""
    line = f"comm.send(np.ones({count}, np.float32), 1, tag=5) if rank == 0 else None"
    with Job(3, START + line, env={"HOCKET_TRANSPORT": "tcp", "HOCKET_ENCRYPT": encrypt}) as job:
        ends = job.wait()
    for end in ends:
        assert end.code == 1 and "rank 1 has not finished a message from rank 0 with tag 5" in end.err, end


def test_what_is_heard_of_between_calls_is_told_at_the_end() -> None:
    """No call raises it: rank 1's is asynchronous, and rank 0's end finds it out while rank 1 sleeps."""
    with Job(2, START + "if rank == 1: comm.allreduce(x, async_op=True); time.sleep(1)") as job:
        ends = job.wait()
    for end in ends:
        assert end.code == 1 and "rank 1 called allreduce(float64[3], op='sum') at rank.py:6" in end.err, end


def test_a_message_of_another_size_is_told_though_its_sender_is_at_its_end() -> None:
    with Job(2, START + "comm.recv(x, 0) if rank else comm.send(np.ones(4), 1)") as job:
        ends = job.wait()
    for end in ends:
        assert end.code == 1 and "a message must have the dtype and the size of its recv" in end.err, end
    assert "hocket.errors.MismatchError: recv(float64[3], source=0, tag=0)" in ends[1].err, ends[1]


WAYS = {
    "with": "with comm:\n    comm.broadcast(x, rank)\n",
    "close": "comm.broadcast(x, rank)\ncomm.close()\n",
}


@pytest.mark.parametrize("way", WAYS)
def test_closing_raises_it(way: str) -> None:
    source = START + WAYS[way].replace("\n", "\n    ").join(["try:\n    ", ""]).rstrip() + """
except hocket.MismatchError as error:
    assert "in close() at rank.py:" in str(error), error
    print("raised")
"""
    with Job(2, source) as job:
        ends = job.wait()
    assert [(end.code, end.out) for end in ends] == [(0, "raised\n")] * 2, ends


def test_what_is_raised_comes_first() -> None:
    source = START + "with comm:\n    comm.broadcast(x, rank)\n    raise ZeroDivisionError('mine')\n"
    with Job(2, source) as job:
        ends = job.wait()
    for end in ends:
        assert end.code == 1 and "ZeroDivisionError: mine" in end.err and "MismatchError" not in end.err, end.err


def test_the_code_that_the_program_chose_stays() -> None:
    with Job(2, START + "if rank == 0: comm.broadcast(x)\nsys.exit(3)") as job:
        assert [end.code for end in job.wait()] == [3, 3]


PREEMPTED = START + """
import signal, threading
from hocket.collectives.failures import reporting
reporting.SAME_SIGNAL = {same}  # seconds that the ranks' signals may be apart, for busy machines
def end(number, frame):
    time.sleep({saving} * (rank == 0))
    sys.exit({code})
def tell():
    while rank == 0 and comm.reporter.account()["state"] != "in call":
        time.sleep(0.005)
    print("ready", flush=True)
signal.signal(signal.SIGTERM, end)
threading.Thread(target=tell, daemon=True).start()
{call}
for _ in range(2400):
    time.sleep(0.05)    # one long sleep would miss a signal that comes just before it begins: Python looks behind it
"""
IN_A_CALL, IN_STEPS = "comm.allreduce(x)", "while True: comm.allreduce(x)"
NOT_ALL = "if rank == 0: comm.allreduce(x)"
WAITED = "if rank == 0: comm.allreduce(x, async_op=True).wait()"


def preempt(ranks: tuple[int, ...], late: float = 0.0, **how: Any) -> list[Ended]:
    """Two ranks end if these get SIGTERM: at the same moment, or `late` seconds apart."""
    with Job(2, PREEMPTED.format(same=4.0 if late else 0.5, **how)) as job:
        for process in job.processes:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for number in (signal.SIGTERM,) if late else (signal.SIGSTOP, signal.SIGTERM, signal.SIGCONT):
            for rank in ranks:
                job.signal(rank, number)
                time.sleep(late)
        return job.wait()


@pytest.mark.parametrize(("call", "saving"), [(NOT_ALL, 0), (NOT_ALL, 0.8), (IN_STEPS, 0), (WAITED, 0)])
def test_ranks_that_a_signal_ends_keep_their_code(call: str, saving: float) -> None:
    """Their handlers raise SystemExit, out of a call or beside it."""
    assert [(end.code, end.err) for end in preempt((0, 1), call=call, saving=saving, code=0)] == [(0, "")] * 2


@pytest.mark.parametrize("call", [NOT_ALL, IN_STEPS, pytest.param(WAITED, marks=pytest.mark.more)])
@pytest.mark.parametrize("ranks", [(0, 1), (1, 0)])
def test_the_signal_may_reach_them_apart(call: str, ranks: tuple[int, ...]) -> None:
    """The first is at its end, or gone, when the others get it."""
    ends = preempt(ranks, 0.15, call=call, saving=0, code=0)
    assert [(end.code, end.err) for end in ends] == [(0, "")] * 2, ends


def test_a_rank_that_ends_in_a_call_is_heard_of() -> None:
    call = "while rank and comm.reporter.state.verdict is None: time.sleep(0.01)\n" + IN_A_CALL
    ends = preempt((0,), call=call, saving=0, code=5)
    assert ends[0].code == 5 and ends[0].err == "", ends
    assert ends[1].code == 1 and "PeerLostError: rank 0 has ended: SystemExit: 5" in ends[1].err, ends


def test_a_good_end_is_silent() -> None:
    source = START + """
inner, half = comm.dup(), comm.split(rank)
inner.allreduce(x)
half.allreduce(x)
late = comm.recv(np.empty(3), 1 - rank, 5, async_op=True)
comm.send(x, 1 - rank, 5)
comm.allreduce(x, async_op=True)
time.sleep(0.3 * rank)
"""
    with Job(2, source) as job:
        ends = job.wait()
    assert [(end.code, end.err) for end in ends] == [(0, "")] * 2, ends


def test_a_peer_that_died_ends_the_wait() -> None:
    """Its goodbye is not waited for."""
    source = START + """
comm.barrier()
open(f"{__file__}.{rank}", "w").close()
if rank == 1:
    while not all(os.path.exists(f"{__file__}.{other}") for other in (0, 2)):   # which may be in the barrier still
        time.sleep(0.01)
    os._exit(0)
while not comm.lost:
    time.sleep(0.01)
began = time.monotonic()
comm.close()
print(time.monotonic() - began)
"""
    with Job(3, source) as job:
        ends = job.wait()
    for rank in (0, 2):
        assert ends[rank].code == 0 and float(ends[rank].out) < 10, ends[rank]


def test_threads_are_told_too() -> None:
    with pytest.raises(hocket.MismatchError, match="different things"), hocket.local_world(2) as world:
        world.run(lambda comm: comm.broadcast(np.ones(3), comm.rank))


OUTLIVED = """
import gc
inner = comm.dup()
inner.allreduce(x)
inner.sendrecv(x, 1 - rank, np.empty(3), 1 - rank)
comm.close()
for call in (lambda: inner.allreduce(x), lambda: inner.send(x, 1 - rank), lambda: inner.allreduce(x, async_op=True)):
    try:
        call()
    except hocket.ArgumentError as error:
        assert "is closed, as its job has ended" in str(error), error
        print("refused")
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_what_was_made_of_a_job_ends_with_it(transport: str) -> None:
    """Its transports are closed: a call on another communicator would touch freed memory."""
    with Job(2, START + OUTLIVED, env={"HOCKET_TRANSPORT": transport, "PYTHONMALLOC": "debug"}) as job:
        ends = job.wait()
    assert [(end.code, end.out) for end in ends] == [(0, "refused\n" * 3)] * 2, ends


def test_a_function_that_does_not_return_keeps_its_memory() -> None:
    """Another thread closes the communicator meanwhile; what that run still uses is given to nobody else."""
    source = START + """
import threading
inner = comm.dup()
def slow(a, b):
    time.sleep(1.2)
    return a + b
def reduce():
    try:
        inner.allreduce(np.ones(20_000), slow)
    except hocket.Error:
        pass
thread = threading.Thread(target=reduce)
thread.start()
time.sleep(0.3)
try:
    inner.close(timeout=0.5)
except hocket.Error:
    pass
for _ in range(10):
    comm.dup().allreduce(np.ones(20_000))
thread.join()
assert comm.allreduce(np.ones(3))[0] == 2
"""
    with Job(2, source) as job:
        ends = job.wait()
    assert [end.code for end in ends] == [0, 0], ends


def test_a_job_ends_while_its_own_thread_is_held_up() -> None:
    """Messages that nobody took end with it, whoever has them in hand, and are not touched behind it."""
    source = START + """
import threading
called, over = threading.Event(), threading.Event()
def slow(a, b):
    called.set()
    if rank == 0:
        over.wait(30)
    return a + b
busy, lane = comm.dup(), comm.dup()
if rank == 1:
    try:
        busy.allreduce(np.ones(20_000), slow)
        comm.barrier()
    except hocket.Error:
        pass
    raise SystemExit
works = [lane.send(np.ones(1 << 20), 1, async_op=True) for _ in range(3)]
time.sleep(0.3)                     # long enough to be recorded as waits
later = busy.allreduce(np.ones(20_000), slow, async_op=True)
assert called.wait(30)
comm.abort(ValueError("the test is over"))
comm.close()
print(*(work.done() for work in works))
over.set()
latest = time.monotonic() + 10
while any(thread.name == "hocket-pool" for thread in threading.enumerate()) and time.monotonic() < latest:
    time.sleep(0.01)
"""
    with Job(2, source) as job:
        ends = job.wait()
    assert [(end.code, end.out) for end in ends] == [(0, "True True True\n"), (0, "")], ends


FINISHED = START + """
if rank == 0:
    comm.broadcast(7 * x)
    raise ValueError("a bug of rank 0")
while comm.reporter.state.verdict is None:
    time.sleep(0.01)
assert comm.broadcast(x)[0] == 7
try:
    comm.barrier()
except hocket.PeerLostError as error:
    print(error)
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_call_that_the_failed_rank_has_finished_ends_well(transport: str) -> None:
    with Job(2, FINISHED, env={"HOCKET_TRANSPORT": transport}) as job:
        ends = job.wait()
    assert "ValueError: a bug of rank 0" in ends[1].out and ends[1].code == 0, ends


def test_an_end_that_may_not_raise_does_not_where_nothing_can_be_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """It happens by `destroy_process_group` after `sys.stderr.close()`."""

    def closed(*args: object) -> None:
        raise ValueError("I/O operation on closed file")

    monkeypatch.setattr(logging.getLogger("hocket"), "error", closed)

    def program(comm: Communicator) -> None:
        comm.barrier()
        if comm.rank:
            comm.allreduce(np.ones(1), async_op=True)
        comm.close(5.0, log_as="destroy_process_group()")
        assert comm.world.unraised

    hocket.local_world(2).run(program)
