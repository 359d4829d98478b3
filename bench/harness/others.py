"""Further tables of `make compare`, besides collectives: tables of other programs, in a section's end."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

OTHERS = {
    "Messages": ["hocket.bench.messages", "PEERS"],
    "Starting": ["hocket.bench.first_barrier", "PEERS"],
    "Shared cores": [
        "hocket.bench.shared_cores", "--ranks", "4", "--busy", "0,1,2", "--threads", "1",
        "--transport", "shm,tcp",
    ],
    "Lists of arrays, halos, check_equal": [
        "hocket", "run", "-n", "2", "--no-prefix", "--", sys.executable, "-m", "hocket.bench.comforts",
    ],
}  # fmt: skip
"""Title -> what follows `python -m`; PEERS stands for the MPIs at hand."""


def measured(peers: Sequence[str]) -> dict[str, str]:
    """Title -> Markdown: the command, and what it has printed.  Some minutes.

    `peers`: as of `hocket bench`.  CalledProcessError: a program has failed, and has said why.
    """
    mpis = [text for text in peers if not text.partition("=")[0].endswith("-single") and text != "gloo"]
    found = {}
    for name, program in OTHERS.items():
        module, *arguments = [each for word in program for each in (mpis if word == "PEERS" else [word])]
        done = subprocess.run([sys.executable, "-m", module, *arguments], check=True, stdout=subprocess.PIPE, text=True)
        rows = [line for line in done.stdout.splitlines() if line.startswith("|")]
        spoken = ["python" if word == sys.executable else word for word in arguments]
        lines = [f"`{' '.join(['python -m', module, *spoken])}`, {time.strftime('%d %B %Y')}", "", *rows]
        found[name] = "\n".join(lines)
    return found


def words(found: Mapping[str, str]) -> str:
    """Markdown of what `measured` gave, to stand behind a table."""
    return "".join(f"\n\n**{name}**: {text}" for name, text in found.items())
