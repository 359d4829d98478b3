"""Tests that run in workers: one inner run, where one test passes, one fails, one dies, one hangs, one is late."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from support import jobs

INNER = '''
import os, signal, subprocess, sys, time
import pytest

@pytest.fixture(scope="module")
def made():
    subprocess.run(["true"])
    return 1

@pytest.mark.parametrize("n", [1, 2])
def test_passes(n, made):
    print("said by", n)
    assert n

def test_fails():
    print("said", "before")
    assert 1 == 2, "as it must"

def test_dies():
    os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.timeout(1)
def test_hangs():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])  # nothing of Python's own ends it
    while True:
        time.sleep(0.1)

@pytest.mark.timeout(0.5)
def test_waits():
    time.sleep(60)

def test_comes_after():
    pass

def test_reads_a_clock():
    began = time.monotonic()
    assert time.monotonic() - began < 2
'''


def test_what_fails_dies_or_hangs_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    """A run of its own: workers are forks of the process that collects."""
    (tmp_path / "test_inner.py").write_text(INNER)
    (tmp_path / "conftest.py").write_text(
        "from support.running import record, workers\nimport pathlib\nworkers.SLACK = 0.5\n"
        "record.PATH = pathlib.Path(__file__).parent / 'record.json'\nrecord.PATH.write_text('{}')\n"
    )
    words = ["-m", "pytest", "-p", "support.running.plugin", "-p", "no:cacheprovider", "--workers=2", "--record", "-rA"]
    env = {**os.environ, "PYTHONPATH": jobs.TESTS}
    done = subprocess.run(
        [sys.executable, *words, "--rootdir", str(tmp_path), str(tmp_path)],
        capture_output=True, text=True, timeout=60, cwd=tmp_path, env=env, cold=True,
    )  # fmt: skip
    assert done.returncode == 1 and "4 failed, 4 passed" in done.stdout, done.stdout
    assert re.search(r"test_dies: its worker ended with -9", done.stdout), done.stdout
    hung = done.stdout.partition("test_hangs: it hung")[2]
    assert "in test_hangs" in hung, "faulthandler tells where"
    assert "Failed: Timeout (>0.5s) from pytest-timeout" in done.stdout
    assert "as it must" in done.stdout and "said before" in done.stdout and done.stdout.count("said before") == 1
    lines = json.loads((tmp_path / "record.json").read_text())["test_inner.py"]
    assert lines["test_passes"][2:] == [2, []]  # both use the fixture that started something
    assert lines["test_reads_a_clock"][3] == ["clock"] and lines["test_comes_after"][2] == 0
