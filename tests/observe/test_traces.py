"""Traces of real jobs: `comm.trace`, and `hocket run --trace`, also of one whose rank is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from harness import run

from hocket.observe.files.reading import read
from hocket.observe.findings import find
from hocket.observe.timeline import Timeline

PROGRAM = """
import os, signal, sys, time
import hocket, numpy as np
comm = hocket.init(transport="tcp")
x = np.ones(100_000, np.float32)
comm.allreduce(x)
{before}
for i in range(12):
    if comm.rank == 1: time.sleep(0.02)
    comm.mark("step", i)
    comm.allreduce(x)
    {inside}
{after}
comm.close()
"""


def program(before: str = "", inside: str = "pass", after: str = "") -> str:
    return PROGRAM.format(before=before, inside=inside, after=after)


def check(timeline: Timeline, calls: int) -> None:
    """What must be true of any trace of the program above."""
    made = timeline.of("calls")
    assert list(np.bincount(timeline.ranks(made))) == [calls] * 3
    sends, receives = timeline.of("sends"), timeline.of("receives")
    assert len(sends) and set(sends["flow"].tolist()) == set(receives["flow"].tolist()) and 0 not in sends["flow"]
    came = dict(zip(receives["flow"].tolist(), receives["end"].tolist(), strict=True))
    error = 1e9 * find(timeline).evidence.error
    for begin, held, flow in zip(*(sends[n].tolist() for n in ("begin", "held", "flow")), strict=True):
        assert came[flow] >= begin - held - error, "a message came before it was sent"
    found = find(timeline)
    for rank in found.ranks:
        assert rank.computing + rank.moving + rank.waiting == pytest.approx(rank.span, rel=0.02)
    late = found.blame.seconds.get(("late", 1), 0.0)
    assert late > 0.2 and late > 3 * max(found.blame.seconds.get(("late", r), 0.0) for r in (0, 2))


def test_comm_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.pftrace.gz"
    end = "comm.allreduce(x); block.__exit__(None, None, None)"
    run(3, program(f"block = comm.trace({str(path)!r}); block.__enter__()", after=end), TMPDIR=str(tmp_path))
    timeline = read(str(path))
    check(timeline, 13)
    marks = timeline.of("marks")
    assert sorted(marks["bytes"].tolist()) == sorted([*range(12)] * 3)
    assert {timeline.names[n] for n in marks["name"]} == {"step"}
    assert os.listdir(tmp_path) == [path.name]  # the ranks' own files are gone


def hocket(tmp_path: Path, source: str, *words: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "program.py"
    script.write_text(source)
    command = [sys.executable, "-m", "hocket", *words, "-n", "3", str(script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_hocket_run_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    ended = hocket(tmp_path, program(), "run", "--trace", str(path))
    assert ended.returncode == 0, ended.stderr
    assert f"the trace is {path}" in ended.stderr and ended.stdout == ""
    check(read(str(path)), 14)  # close is one
    assert sorted(os.listdir(tmp_path)) == ["program.py", path.name]


def test_of_a_rank_that_is_killed_the_trace_has_what_it_did(tmp_path: Path) -> None:
    path = tmp_path / "t.pftrace.gz"
    die = "if comm.rank == 2 and i == 6: os.kill(os.getpid(), signal.SIGKILL)"
    ended = hocket(tmp_path, program(inside=die), "run", "--trace", str(path))
    assert ended.returncode == 137 and f"the trace is {path}" in ended.stderr, ended.stderr
    timeline = read(str(path))
    calls = timeline.of("calls")
    assert (timeline.ranks(calls) == 2).sum() == 8 and timeline.about["missing"] == []


def test_a_name_that_is_no_traces(tmp_path: Path) -> None:
    ended = hocket(tmp_path, program(), "run", "--trace", str(tmp_path / "t.txt"))
    assert ended.returncode == 2 and "must have a name that ends in .pftrace" in ended.stderr
    ended = hocket(tmp_path, program(), "run", "--trace", str(tmp_path / "no" / "t.json"))
    assert ended.returncode == 2 and "no such folder" in ended.stderr
    (tmp_path / "t.json.parts").mkdir()
    ended = hocket(tmp_path, program(), "run", "--trace", str(tmp_path / "t.json"))
    assert ended.returncode == 1 and "hocket trace merge" in ended.stderr
