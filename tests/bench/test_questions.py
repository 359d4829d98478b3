"""The benchmarks that answer one question each run, and print the table that docs/performance.md shows."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

RUN = [sys.executable, "-m", "hocket", "run", "-n", "2", "--", sys.executable]


@pytest.mark.parametrize(
    ("command", "heads"),
    [
        ([sys.executable, "-m", "hocket.bench.memory.circles", "--bytes", "4K"], ["| 128 KiB |", "| 32768 KiB |"]),
        ([sys.executable, "-m", "hocket.bench.memory.copies", "--bytes", "16K"], ["| 0 |", "| 16 |", "| 4095 |"]),
        ([*RUN, "-m", "hocket.bench.reading", "--end", "128K"], ["| 32 KiB |", "| 128 KiB |"]),
        ([*RUN, "-m", "hocket.bench.awaited"], ["| wait |", "| await, 20 at once |", "| torch future |"]),
        ([*RUN, "-m", "hocket.bench.lanes", "--large", "4M"], ["| alone |", "| on a lane |", "| without lanes |"]),
        ([sys.executable, "-m", "hocket.bench.starting.cores", "--jobs", "1"], ["| jobs |", "| 1 |"]),
        (
            [sys.executable, "-m", "hocket.bench.starting.first_barrier", "openmpi", "-n", "3", "--turns", "1"],
            ["cores, 3 ranks |", "| hocket run |", "| hocket run --no-fork |", "| openmpi |"],
        ),
        (
            [sys.executable, "-m", "hocket.bench.messages", "openmpi", "--seconds", "0.05"],
            ["| openmpi: ping-pong 8 B |", "| openmpi: sendrecv 1,048,576 B |"],
        ),
        (
            [sys.executable, "-m", "hocket.bench.messages", "--seconds", "0.05", "--transport", "tcp", "--sizes", "9"],
            ["2 ranks, tcp |", "| openmpi: sendrecv 9 B |"],
        ),
    ],
    ids=["circles", "copies", "reading", "awaited", "lanes", "starts", "barrier", "messages", "messages over tcp"],
)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core")
def test_a_question(command: list[str], heads: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and all(head in done.stdout for head in heads), done.stdout + done.stderr
