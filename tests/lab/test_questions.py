"""Programs that answer one question each, small: they print the tables of the pages.  Quiet machines measure."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

RUN = ["hocket", "run", "-n", "2", "--no-prefix", "--", sys.executable, "-m"]
OVERLAP = [
    r"start of an asynchronous allreduce, 8 B \| [\d.]+ \|", r"overlap -?\d+%, loss -?\d+%[^$]*overlap -?\d+%, loss",
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["hocket.lab.memory.circles", "--bytes", "4K"], [r"\| 128 KiB \|", r"\| 32768 KiB \|"]),
        (["hocket.lab.memory.copies", "--bytes", "16K"], [r"\| 0 \|", r"\| 16 \|", r"\| 4095 \|"]),
        (["hocket.lab.healing", "4096"], [r"\| 4096 \| [\d.]+, [\d.]+ \|.*\| 1.00, "]),
        (["hocket.lab.starting.cores", "--jobs", "1"], [r"\| jobs \|", r"\| 1 \|"]),
        ([*RUN, "hocket.lab.reading", "--end", "128K"], [r"\| 32 KiB \|", r"\| 128 KiB \|"]),
        pytest.param(
            ["hocket.lab.memory.ways", "--what", "broadcast", "--sizes", "1M", "--seconds", "0.1", "--shared",
             "--ways", "both cores", "reading"],
            [r"broadcast of 1 MiB, (near|far), shared, \d blocks: MPI \d+ us 1.00; hocket .*; both cores .*; reading"],
            marks=pytest.mark.more,
        ),
        ([*RUN, "hocket.lab.awaited"], [r"\| wait \|", r"\| await, 20 at once \|", r"\| torch future \|"]),
        ([*RUN, "hocket.lab.lanes", "--large", "4M"], [r"\| alone \|", r"\| on a lane \|", r"\| without lanes \|"]),
        ([*RUN, "hocket.lab.overlap.hidden", "--transport", "shm", "--bytes", "64K"], ["2 ranks, shm", *OVERLAP]),
        ([*RUN, "hocket.lab.overlap.hidden", "--transport", "tcp", "--bytes", "64K"], ["2 ranks, tcp", *OVERLAP]),
        (
            [*RUN, "hocket.lab.steady", "--calls", "2000"],
            [r"\| import \| \d+ ms \|\n\| init \| \d+ ms \|", r"(\| 2,000 calls of 8 B, [^$]*){4}", "slowest"],
        ),
    ],
    ids=["circles", "copies", "healing", "starts", "reading", "ways", "awaited", "lanes", "overlap shm", "overlap tcp",
         "steady"],
)
def test_a_question(words: list[str], found: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done
    assert all(re.search(each, done.stdout) for each in found), done.stdout
