"""Programs that `make compare` runs beside the collectives: small, each prints its table."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (
            ["hocket.bench.first_barrier", "openmpi", "-n", "3", "--turns", "1"],
            ["cores, 3 ranks |", "| hocket run |", "| hocket run --no-fork |", "| openmpi |"],
        ),
        (
            ["hocket.bench.messages", "openmpi", "--seconds", "0.05"],
            ["| openmpi: ping-pong 8 B |", "| openmpi: sendrecv 1,048,576 B |"],
        ),
        (
            ["hocket.bench.messages", "--seconds", "0.05", "--transport", "tcp", "--sizes", "9"],
            ["2 ranks, tcp |", "| openmpi: sendrecv 9 B |"],
        ),
    ],
    ids=["barrier", "messages", "messages over tcp"],
)
def test_a_question(words: list[str], found: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and all(each in done.stdout for each in found), done.stdout + done.stderr


def test_comforts() -> None:
    words = ["hocket", "run", "-n", "2", "--no-prefix", "--", sys.executable, "-m", "hocket.bench.comforts"]
    command = [sys.executable, "-m", *words, "--seconds", "0.02", "--gigabytes", "0.001"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done
    assert len(re.findall(r"^\| .* \| [\d.]+ \| [\d.]+ \| [\d.]+ \|$", done.stdout, re.M)) == 6, done.stdout
