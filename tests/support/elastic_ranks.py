"""The programs of the ranks of an elastic job in tests, and their output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from typing import Any

from support.jobs import Ended, Job
from support.worlds import PATH

BEGIN = """
import json, os, signal, sys, threading, time
import numpy as np
import hocket
comm = hocket.init(elastic=True)
me = comm.rank
def note(name):
    open(os.path.join(os.path.dirname(__file__), name), "w").close()
def await_note(name):
    while not os.path.exists(os.path.join(os.path.dirname(__file__), name)):
        time.sleep(0.005)
def after_all(dies):
    "A rank that dies now waits for all others, which may still be in their last call."
    note(f"{me} is out")
    for rank in range(comm.size * dies):
        await_note(f"{rank} is out")
def told(made, **more):
    total = made.allreduce(np.full(1000, float(me + 1)))
    assert (total == total[0]).all()
    print(json.dumps({"rank": made.rank, "size": made.size, "generation": made.generation, "infos": made.infos,
                      "previous": made.previous_ranks, "previous_lost": made.previous_lost, "sum": total[0],
                      "lost": comm.lost, **more}), flush=True)
def die_in_calls(comm):     # not before all have come to these, out of the barrier before
    for _ in range(2):
        comm.allreduce(np.ones(100000))
    os.kill(os.getpid(), signal.SIGKILL)
def until_lost(comm):
    try:
        while True:
            comm.allreduce(np.ones(100000))
    except hocket.PeerLostError as error:
        return error.ranks
"""
NEWCOMER = """
import json, os, sys, time
import numpy as np
import hocket
"""
HOST = BEGIN + """
if me == 0:
    with open(os.path.join(os.path.dirname(__file__), "door~"), "w") as file:
        file.write(",".join([comm.door] * 2))
    os.rename(file.name, file.name[:-1])
def until_waiting(n):
    while comm.waiting < n:
        time.sleep(0.005)
    comm.barrier()
"""


class Newcomer:
    """A process that is told where the job is, and runs `source`."""

    def __init__(self, job: Job, source: str, **env: str) -> None:
        keep = {name: value for name, value in os.environ.items() if not name.startswith("HOCKET_")}
        text = NEWCOMER + f"directory = {job.directory!r}\n" + textwrap.dedent("""
            while not os.path.exists(os.path.join(directory, "door")):
                time.sleep(0.005)
            door = open(os.path.join(directory, "door")).read()
        """) + textwrap.dedent(source)
        self.process = subprocess.Popen(
            [sys.executable, "-c", text], env={**keep, "PYTHONPATH": PATH, "OMP_NUM_THREADS": "1", **env},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip

    def end(self, code: int = 0) -> list[str]:
        try:
            out, err = self.process.communicate(timeout=60)
        finally:
            self.process.kill()
        assert self.process.returncode == code, (self.process.returncode, err)
        return out.splitlines()


def said(ends: list[Ended], *ranks: int) -> list[dict[str, Any]]:
    for rank in ranks:
        assert ends[rank].code == 0, f"rank {rank}: {ends[rank].err}"
    return [json.loads(ends[rank].out.splitlines()[-1]) for rank in ranks]


def wait_for(job: Job, name: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not os.path.exists(os.path.join(job.directory, name)):
        assert time.monotonic() < deadline, f"no {name}"
        time.sleep(0.005)


def mark(job: Job, name: str) -> None:
    open(os.path.join(job.directory, name), "w").close()
