"""A thread that makes calls in order, and holds up nobody's end."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest

import hocket
from hocket.training.worker import Worker
from support.jobs import Job, run


def test_calls_are_made_in_order_and_errors_come_back() -> None:
    worker, made = Worker("hocket-test"), list[int]()
    futures = [worker.submit(made.append, i) for i in range(100)]
    with pytest.raises(ZeroDivisionError):
        worker.submit(divmod, 1, 0).result(60)
    assert made == [*range(100)] and all(future.done() for future in futures)
    worker.close()
    assert not any(each.name == "hocket-test" for each in threading.enumerate())


def test_a_worker_that_is_dropped_ends_its_thread() -> None:
    worker = Worker("hocket-dropped")
    worker.submit(int).result(60)
    del worker
    gc.collect()
    until = time.monotonic() + 30
    while any(each.name == "hocket-dropped" for each in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_job_that_is_closed_waits_for_what_a_thread_has_begun() -> None:
    """One rank's thread is late; the other's call needs it."""

    def program(comm: hocket.Communicator) -> Future[Any]:
        lane = comm.dup()
        worker = Worker("hocket-late")
        if comm.rank:
            worker.submit(time.sleep, 0.5)
        return worker.submit(lane.allreduce, 1.0, comm=lane)

    with hocket.local_world(2) as world:
        sums = world.run(program)
    assert [each.result(0) for each in sums] == [2.0, 2.0]


FAILS = """
import os, time, numpy as np, hocket
from hocket.training import Scheduler, StreamingDiLoCo
comm = hocket.init()
g = {"a": np.ones(4, np.float32), "b": np.ones(4, np.float32)}
if HOW == "outer":
    outer = StreamingDiLoCo(comm, g, every=4, fragments=2, delay=1, momentum=0.5)
else:
    scheduler = Scheduler(comm, compressor="int8")
    scheduler.declare("a", g["a"])
    scheduler.seal()
if comm.rank == 0:
    try:
        comm.allreduce(1.0)
    except hocket.PeerLostError as error:
        print(error)
    os._exit(0)
if HOW == "outer":
    g["a"] -= 1; outer.step(); outer.step()
else:
    scheduler.ready("a", g["a"]); scheduler.step()
raise ERROR
"""


@pytest.mark.parametrize("how, error", [("outer", "KeyError('a bug')"), ("lanes", "KeyboardInterrupt('a bug')")])
def test_a_rank_that_raises_while_its_thread_is_in_a_call_ends_at_once(how: str, error: str) -> None:
    source = FAILS.replace("HOW", repr(how)).replace("ERROR", error)
    began = time.monotonic()
    with Job(2, source, env={"HOCKET_TIMEOUT": "200"}) as job:
        ends = job.wait(100)
    assert time.monotonic() - began < 60 and ends[1].code != 0, ends
    assert "a bug" in ends[0].out and "at ?" not in ends[0].out, ends[0]


def test_what_is_under_way_ends_where_the_program_ends_well() -> None:
    """Nobody waits for the round that has begun; the other rank gets its part of it."""
    source = """
import time, numpy as np, hocket
from hocket.training import StreamingDiLoCo
comm = hocket.init()
theta = {"a": np.ones(4, np.float32), "b": np.ones(4, np.float32)}
outer = StreamingDiLoCo(comm, theta, every=8, fragments=2, delay=1, momentum=0.5)
if comm.rank == 0:
    time.sleep(1)
for _ in range(4):
    theta["a"] -= 1
    outer.step()
if comm.rank == 0:
    outer._flight.ended.result()
    print("has ended")
"""
    assert "has ended" in run(2, source, 90)[0]
