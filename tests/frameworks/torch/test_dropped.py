"""A group that is dropped, not destroyed, leaves the job: torchft does so with the groups of ranks that fail."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

from support import jobs
from support.worlds import PATH

DROPS = """
import json, os, time
from datetime import timedelta
import torch, torch.distributed as dist
import hocket
from hocket.torch.group.process_group import ProcessGroupHocket
rank, size = int(os.environ["HOCKET_RANK"]), int(os.environ["HOCKET_SIZE"])
store = dist.FileStore(os.environ["PLACE"], size)
group = ProcessGroupHocket.alone(store, rank, size, timedelta(seconds=60), "it")
x = torch.ones(3)
group.allreduce([x]).wait()
work = group.allreduce([x])
if rank == {victim}:
    del group
    work.wait()
    for other in {0, 1, 2} - {rank}:  # this process stays until they have noticed
        while not os.path.exists(f"{os.environ['PLACE']}.{other}"):
            time.sleep(0.01)
    print(json.dumps(dict(sum=x[0].item())))
else:
    work.wait()
    total = x[0].item()
    try:
        group.allreduce([x]).wait()
    except hocket.PeerLostError as error:
        print(json.dumps(dict(sum=total, ranks=error.ranks, text=str(error))))
    open(f"{os.environ['PLACE']}.{rank}", "w").close()
"""


@pytest.mark.parametrize("victim", [2, pytest.param(0, marks=pytest.mark.more)])
def test_peers_notice_at_once(victim: int, tmp_path: pathlib.Path) -> None:
    """Its call under way ends well.  Rank 0's process holds the coordinator, which stays until the others have left."""
    source = DROPS.replace("{victim}", str(victim))
    with jobs.Job(3, source, env={"PYTHONPATH": PATH, "PLACE": str(tmp_path / "store")}) as job:
        ends = job.wait(90)
    assert all(end.code == 0 for end in ends), ends
    for rank, end in enumerate(ends):
        said = json.loads(end.out)
        assert said["sum"] == 9, ends
        if rank != victim:
            assert said["ranks"] == [victim] and "has left the job" in said["text"], said


KEPT = """
import builtins, datetime, importlib, sys
import torch.distributed as dist
import hocket.torch
from hocket.torch.group.process_group import ProcessGroupHocket
from hocket.collectives.failures import states
builtins.states = states  # so Python takes its names away before it drops this, the last of them
states.last = ProcessGroupHocket.alone(dist.HashStore(), 0, 1, datetime.timedelta(seconds=9), "it")
"""


def test_a_group_that_lives_as_long_as_python_ends_without_a_word() -> None:
    command, env = [sys.executable, "-c", KEPT], {**os.environ, "PYTHONPATH": PATH}
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, cold=True)
    assert (ended.returncode, ended.stderr) == (0, ""), ended
