"""Ranks that share a core although there is one for each find their own (system/wait.h)."""

from __future__ import annotations

import json
import os

import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.collectives.job.cores import _home, crowded
from support import jobs
from support.worlds import spread

ROUNDS = 30
SHARE = f"""
    import json, os, time, hocket, numpy as np
    comm = hocket.init()
    cores, x, apart = os.sched_getaffinity(0), np.zeros(2, np.float32), 0
    for _ in range({ROUNDS}):
        os.sched_setaffinity(0, {{min(cores)}})             # both on one core ...
        comm.barrier()
        os.sched_setaffinity(0, cores)                      # ... where the kernel leaves them for a while
        for _ in range(300):                                # 1.5 ms, if they stay there
            comm.allreduce(x)
        mine = np.array([int(open("/proc/self/stat").read().rpartition(")")[2].split()[36])])
        apart += len(set(comm.allgather(mine).tolist())) == 2
        time.sleep(0.02)
    print(json.dumps([apart, sorted(os.sched_getaffinity(0)) == sorted(cores), comm.world.cores.home]))
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core")
def test_two_ranks_on_one_core_part() -> None:
    homes = sorted(os.sched_getaffinity(0))[:2]
    for _ in range(4):  # others may have had the second core all the time
        found = [json.loads(out) for out in jobs.run(2, SHARE)]
        assert [home for _, _, home in found] == homes
        assert all(free for _, free, _ in found), "where they may run is as it was"
        if found[0][0] > 2:  # without: 0 or 1; with it, on an idle machine, nearly all
            return
    raise AssertionError(found)


def test_who_has_a_core_of_its_own() -> None:
    def met(*ranks: dict[str, object]) -> list[dict[str, object]]:
        return [{"kernel": "k", "pid": i, "cores": [4, 5, 6, 7], **each} for i, each in enumerate(ranks)]

    assert [_home(met({}, {}), rank) for rank in (0, 1)] == [4, 5]
    assert _home(met({"kernel": "other"}, {}), 1) == 4
    assert _home(met({"cores": [4, 5]}, {"cores": [6, 7]}), 0) == -1, "a launcher has dealt them out"
    assert _home(met({"pid": 7}, {"pid": 7}), 0) == -1, "threads of one process"


def test_a_pair_shares_its_cores_with_the_job_of_either() -> None:
    two = [{"kernel": "k", "pid": pid, "cores": [0, 1], "usable": 2} for pid in (1, 2)]
    assert crowded(two) == set()
    assert crowded([two[0] | {"processes": [1, 2]}, two[1] | {"processes": []}]) == set()
    assert crowded([two[0] | {"processes": [1, 2, 3]}, two[1]]) == {"k"}
    elsewhere = two[1] | {"kernel": "l", "processes": [3, 4]}
    assert crowded([two[0], elsewhere]) == {"l"}


def in_a_job(comm: Communicator) -> None:
    """The job has as many processes as there are cores, and one more."""
    address = comm.share("" if comm.rank else (door := hocket.listen(transport="shm")).address)[0]
    if comm.rank < 2:
        pair = hocket.connect(address, transport="shm") if comm.rank else door.accept(20)
        assert pair.world.cores.crowded
        pair.close()


def test_a_pair_inside_a_job() -> None:
    spread(in_a_job, len(os.sched_getaffinity(0)) + 1, "shm")
