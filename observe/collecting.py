"""What ranks left in a folder: their recordings, also of those that were killed, and the pings between their hosts."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from hocket.errors import ArgumentError
from hocket.observe.clocks import Ping
from hocket.observe.words import printable
from hocket.recording import NotARecording, Part, Recorded, read

MOST_PINGS = 1 << 26
"""Bytes of their file."""
PINGS = "pings.json"
"""Rank -> its pings to rank 0, four times each."""


@dataclass
class Folder:
    """What was found."""

    recorded: list[Recorded] = field(default_factory=list)
    pings: dict[int, list[Ping]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """File -> why it is left out."""


def collect(path: str, job: str | None = None) -> Folder:
    """Every recording of a folder; other files are left out, with a reason.  `job`: of this one alone.

    Raises ArgumentError if there is none, or if they are of several jobs.
    """
    folder = Folder()
    try:
        names = sorted(os.listdir(path))
    except OSError as why:
        raise ArgumentError(f"{path!r} cannot be read: {why.strerror}") from why
    for name in names:
        try:
            with _opened(os.path.join(path, name)) as file:
                if name == PINGS:
                    folder.pings = _pings(file.read(MOST_PINGS))
                else:
                    folder.recorded += read(Part(file.fileno()))
        except (NotARecording, ArgumentError) as why:
            folder.refused[name] = str(why)
        except OSError as why:
            folder.refused[name] = f"it cannot be read: {why.strerror}"
    jobs = sorted({each.facts.job for each in folder.recorded})
    told = ", ".join(map(printable, jobs))
    if job is not None and jobs:
        if job not in jobs:
            raise ArgumentError(f"{path!r} has no recordings of job {job}; of {told}")
        folder.recorded, jobs = [each for each in folder.recorded if each.facts.job == job], [job]
    if not jobs:
        left = "".join(f"; {printable(name)}: {text}" for name, text in folder.refused.items())
        raise ArgumentError(f"{path!r} has no recordings{left}")
    if len(jobs) > 1:
        raise ArgumentError(f"{path!r} has recordings of several jobs ({told}): say which: --job")
    return folder


@contextlib.contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ArgumentError("it is not a plain file")
        yield file


def _pings(data: bytes) -> dict[int, list[Ping]]:
    try:
        by_rank: Any = json.loads(data)
        return {int(rank): [Ping(*map(int, each)) for each in some] for rank, some in by_rank.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise ArgumentError("its pings cannot be read") from None
