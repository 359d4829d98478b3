"""Calls that hocket itself makes inside a call of the user's are told as that call."""

from __future__ import annotations

import numpy as np
import pytest

import hocket
from support.jobs import Job


def test_a_split_that_only_some_make() -> None:
    """It is an allgather inside; an allgather of the same shape is another call."""

    def call(comm: hocket.Communicator) -> None:
        comm.allgather(np.array([7]))
        comm.allgather(np.array([7]))
        with pytest.raises(hocket.MismatchError, match=r"rank 1 called allgather\(int64\[1\].*within split\(\)"):
            comm.split(0) if comm.rank else comm.allgather(np.array([7]))
            comm.barrier()

    with hocket.local_world(2) as world:
        world.run(call)


FULL = """
import os, resource, time
import hocket, numpy as np
comm = hocket.init(transport="tcp")
comm.barrier()
began = time.monotonic()
try:
    inner = comm.dup()  # rank 1 may still be in here when rank 0 has failed
    if comm.rank == 0:
        top = max(map(int, os.listdir("/proc/self/fd")))
        while os.dup(0) < top:  # no number below is free
            pass
        resource.setrlimit(resource.RLIMIT_NOFILE, (top + 1, 4096))
    inner.allreduce(np.ones(3), timeout=20)
except hocket.Error as error:
    print(type(error).__name__, time.monotonic() - began < 15, "ulimit -n" in str(error), flush=True)
os._exit(0)
"""


def test_out_of_descriptors_is_said_at_once() -> None:
    with Job(2, FULL) as job:
        ends = job.wait()
    assert ends[0].out == "TransportError True True\n", ends
    assert ends[1].out.startswith("PeerLostError True"), ends
