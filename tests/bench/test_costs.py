"""Small benches run under a launcher and print tables; the numbers are for quiet machines."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest


def table(*words: str) -> str:
    command = [sys.executable, "-m", "hocket", "run", "-n", "2", "--no-prefix", "--", sys.executable, "-m", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done
    return done.stdout


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_overlap(transport: str) -> None:
    out = table("hocket.bench.overlap.hidden", "--transport", transport, "--bytes", "64K")
    assert f"2 ranks, {transport}" in out
    assert re.search(r"start of an asynchronous allreduce, 8 B \| [\d.]+ \|", out), out
    assert len(re.findall(r"overlap -?\d+%, loss -?\d+%", out)) == 2, out


def test_steady() -> None:
    out = table("hocket.bench.steady", "--calls", "2000")
    assert re.search(r"\| import \| \d+ ms \|\n\| init \| \d+ ms \|", out), out
    assert out.count("| 2,000 calls of 8 B, ") == 4 and "slowest" in out


def test_comforts() -> None:
    out = table("hocket.bench.calls.comforts", "--seconds", "0.02", "--gigabytes", "0.001")
    assert len(re.findall(r"^\| .* \| [\d.]+ \| [\d.]+ \| [\d.]+ \|$", out, re.M)) == 6, out
