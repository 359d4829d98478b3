"""Real programs start and use ranks: multiprocessing, forks of a live rank, threads.  Launchers: test_launchers.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hocket.collectives.communicator.communicator import Communicator
from support import jobs
from support.cases import more
from support.worlds import PATH, in_threads, spread

BARE = ("HOCKET_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "OMPI_", "PMI", "PRTE", "SLURM_")

POOL = """
import multiprocessing, os, sys
import numpy as np
import hocket

def rank(r, size, address, results):
    with hocket.init(rank=r, size=size, address=address) as comm:
        results.put((r, comm.allreduce(np.full(10_000, r + 1.0))[-1], comm.size))

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    results = context.Queue()
    args = [(r, 3, f"unix:{sys.argv[2]}/meet", results) for r in range(3)]
    processes = [context.Process(target=rank, args=a) for a in args]
    for p in processes: p.start()
    got = sorted(results.get(timeout=60) for _ in processes)
    for p in processes: p.join(30)
    assert got == [(0, 6.0, 3), (1, 6.0, 3), (2, 6.0, 3)], got
    assert [p.exitcode for p in processes] == [0, 0, 0]
"""


def clean_environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(BARE)}
    return {**kept, "PYTHONPATH": PATH, "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(method: str, tmp_path: Path) -> None:
    script = tmp_path / "pool.py"
    script.write_text(POOL)
    done = subprocess.run(
        [sys.executable, str(script), method, str(tmp_path)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------------------------------------ a fork of a rank

FORKS = """
import gc, os, signal, time, traceback
import numpy as np
import hocket

comm = hocket.init(transport={transport!r})
assert comm.allreduce(np.ones(3))[0] == comm.size
comm.allreduce(np.ones(3), async_op=True).wait()
twin, dropped = comm.dup(), comm.dup()

def passes(on, value):
    if comm.rank == 0:
        on.send(np.full(64, value), 1)
    elif comm.rank == 1:
        got = np.empty(64)
        on.recv(got, 0, timeout=10)
        assert (got == value).all(), got

def in_the_fork():
    global dropped
    for name, call in dict(
        allreduce=lambda: comm.allreduce(np.ones(3)), default=lambda: hocket.barrier(), twin=lambda: twin.barrier(),
        send=lambda: comm.send(np.ones(3), 0), split=lambda: comm.split(0), empty=lambda: hocket.empty(3),
        work=lambda: comm.allreduce(np.ones(3), async_op=True),
    ).items():
        try:
            call()
        except hocket.ArgumentError as error:
            assert "fork" in str(error) and "spawn" in str(error), error
        else:
            raise AssertionError(name + " was not refused")
    dropped = None
    gc.collect()
    twin.close()
    comm.close()

def fork(seconds):
    child = os.fork()
    if child == 0:
        try:
            in_the_fork()
            time.sleep(seconds)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child

passes(dropped, 1.0)
comm.barrier()
assert os.waitpid(fork(0), 0)[1] == 0, "the fork failed"
comm.barrier()
if comm.rank == 0:
    passes(dropped, 7.0)
    dropped = None
    gc.collect()
for value in range(4):  # in memory that rank 0 would have taken back
    passes(comm.dup(), float(value))
comm.barrier()
if comm.rank == 1:
    passes(dropped, 7.0)
stays = fork(60)
try:
    for i in range(100):
        assert comm.allreduce(np.full(1000, float(i)))[0] == i * comm.size
        assert comm.allreduce(np.full(9, float(i)), async_op=True).result()[0] == i * comm.size
        assert twin.allreduce(np.full(9, float(i)))[0] == i * comm.size
    comm.barrier()
    open(f"{{__file__}}.{{comm.rank}}", "w").close()
    if comm.rank == 1:
        print(stays, flush=True)
        while not all(os.path.exists(f"{{__file__}}.{{rank}}") for rank in (0, 2)):  # which may be in the barrier still
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)  # its fork lives on and holds its descriptors
    began = time.monotonic()
    try:
        while True:
            comm.allreduce(np.ones(1000))
    except hocket.PeerLostError as error:
        assert error.ranks == (1,), error
        assert time.monotonic() - began < 25, "noticed late"
finally:
    os.kill(stays, signal.SIGKILL)
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_fork_of_a_rank_is_refused_and_the_job_goes_on(transport: str) -> None:
    with jobs.Job(3, FORKS.format(transport=transport), env={"PYTHONPATH": PATH, "HOCKET_TIMEOUT": "60"}) as job:
        job.processes[1].wait(60)
        assert job.processes[1].stdout is not None
        orphan = job.processes[1].stdout.readline()  # its output stays open as long as its fork lives
        ends = [job.processes[r].communicate(timeout=60) for r in (0, 2)]
        if orphan:
            os.kill(int(orphan), signal.SIGKILL)
    assert [p.returncode for p in job.processes] == [0, -9, 0], (ends, job.processes[1].communicate(timeout=60))


# ------------------------------------------------------------------------------------------------ threads of a rank


def all_at_once(comm: Communicator) -> None:
    """Equal calls from four threads, blocking and not: in whatever order they come, each sum is whole."""

    def call(blocking: bool) -> None:
        for _ in range(150):
            made = comm.allreduce(np.ones(500), async_op=not blocking)
            got = made if blocking else made.result()
            assert (got == comm.size).all(), got[got != comm.size]

    in_threads(*[lambda b=b: call(b) for b in (True, True, False, True)])
    assert comm.allreduce(np.ones(1))[0] == comm.size


def one_sends_one_receives(comm: Communicator) -> None:
    """A thread that waits in recv does not keep another one from sending what the peer waits for."""
    peer = comm.rank ^ 1
    rounds = 40

    def sends() -> None:
        for i in range(rounds):
            time.sleep(0.001 * (i % 3))
            comm.send(np.full(300 if i % 2 else 60_000, float(i)), peer)

    def receives() -> None:
        for i in range(rounds):
            out = np.empty(300 if i % 2 else 60_000)
            comm.recv(out, peer)
            assert (out == i).all(), f"message {i}"

    in_threads(sends, receives)
    began = time.monotonic()
    out = np.empty(1)

    def late() -> None:
        time.sleep(0.3)  # the recv sleeps by now
        comm.send(np.ones(1), peer)

    in_threads(late, lambda: comm.recv(out, peer))
    assert out[0] == 1 and time.monotonic() - began < 20


def threads_of_a_rank(comm: Communicator) -> None:
    all_at_once(comm)
    one_sends_one_receives(comm)


@pytest.mark.parametrize("transport", ["threads", "shm", "tcp", *more("reference")])
@pytest.mark.timeout(100)
def test_threads_may_use_one_communicator_at_once(transport: str) -> None:
    spread(threads_of_a_rank, 2, transport, 90, HOCKET_TIMEOUT="40")
