"""Ranks that are started by hand: they meet, rank 0's lines come back, and nobody is left."""

from __future__ import annotations

import os
import sys

import pytest

from hocket.conformance.jobs.ranks import found_here, started

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


def test_all_are_gone_after_the_block() -> None:
    words = [sys.executable, "-c", "import time; print('there', flush=True); time.sleep(100)"]
    with pytest.raises(ZeroDivisionError), started([(words, os.environ)] * 2) as ranks:
        assert [rank.stdout.readline() for rank in ranks if rank.stdout] == ["there\n"] * 2
        raise ZeroDivisionError
    assert [rank.returncode for rank in ranks] == [-9, -9]
