"""Ranks that tests start do not outlive the test run, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from support.launcher import alive
from support.warm import parent, popen
from support.worlds import PATH

RUN = """
import time
from support.jobs import Job
with Job(2, "import time; time.sleep(60)") as job:
    print(*(each.pid for each in job.processes), flush=True)
    time.sleep(60)
"""


def living(pids: list[int]) -> list[int]:
    """Processes that run; whoever adopts the others may leave them as zombies."""
    return [pid for pid in pids if alive(pid)]


def test_ranks_end_with_a_test_run_that_is_killed() -> None:
    env = {**os.environ, "PYTHONPATH": PATH, parent.RUN: f"{os.getpid()}-ends"}
    with popen.Popen([sys.executable, "-c", RUN], env=env, stdout=subprocess.PIPE, text=True, cold=True) as run:
        assert run.stdout is not None
        ranks = [int(each) for each in run.stdout.readline().split()]
        assert len(ranks) == 2 and living(ranks) == ranks
        run.kill()
    deadline = time.monotonic() + 20
    while (left := living(ranks)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left
