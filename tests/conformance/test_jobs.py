"""Ranks that are started by hand: they meet, rank 0's lines come back, and nobody is left."""

from __future__ import annotations

import os
import sys

import pytest

from hocket.conformance.jobs.ranks import found_here, started
from support.launcher import until_dead

RANK = """
import json, os, sys, hocket
with hocket.init() as comm:
    assert os.environ["RANK"] == os.environ["LOCAL_RANK"] == str(comm.rank) and os.environ["WORLD_SIZE"] == "3"
    print("no JSON")
    print(json.dumps({"sum": comm.allreduce(comm.rank), "of": os.environ["OF"]}))
    sys.exit(comm.rank == int(os.environ["FAILS"]))
"""


def test_rank_0_says_what_was_found() -> None:
    found = found_here([sys.executable, "-c", RANK], 3, "sums", 60, OF="ranks", FAILS="-1")
    assert found == [{"sum": 3, "of": "ranks"}]


def test_a_rank_that_fails_is_told() -> None:
    with pytest.raises(SystemExit, match="sums: a rank failed"):
        found_here([sys.executable, "-c", RANK], 3, "sums", 60, OF="ranks", FAILS="2")


CHILD = "import subprocess, time; print(subprocess.Popen(['sleep', '100']).pid, flush=True); time.sleep(100)"


def test_all_are_gone_after_the_block() -> None:
    """The ranks, and what they have started."""
    with pytest.raises(ZeroDivisionError), started([([sys.executable, "-c", CHILD], os.environ)] * 2) as ranks:
        children = [int(rank.stdout.readline()) for rank in ranks if rank.stdout]
        raise ZeroDivisionError
    assert [rank.returncode for rank in ranks] == [-9, -9]
    until_dead(children)
