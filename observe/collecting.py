"""The contents of ranks' folder: their recordings, also of those that were killed, and the pings between their hosts.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import IO, Any

from hocket.arguments import printable
from hocket.errors import ArgumentError
from hocket.observe.clocks import Ping
from hocket.recording import NotARecording, Part, Recorded, read

MOST_PINGS = 1 << 26
"""Bytes of their file."""
PINGS = "pings.json"
"""Rank -> its pings to rank 0, four times each."""


@dataclass
class Folder:
    """The contents of a folder."""

    recorded: list[Recorded] = field(default_factory=list)
    pings: dict[int, list[Ping]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """File -> why it is left out."""


def collect(path: str, job: str | None = None) -> Folder:
    """Every recording of a folder; other files are left out, with a reason.  `job`: of this one alone.

    Raises ArgumentError if there is none, or if they are of several jobs, or generations of one.
    """
    folders = generations(path, job)
    if len(folders) > 1:
        raise ArgumentError(f"{path!r} has recordings of several generations ({_names(folders)}): say which: --job")
    return next(iter(folders.values()))


def generations(path: str, job: str | None = None) -> dict[str, Folder]:
    """The same of each generation of an elastic job, by its name, JOB.GENERATION; of other jobs there is one.

    `job`: with its generation or without.  Raises ArgumentError if there is none, or if they are of several jobs.
    """
    whole = _read(path)
    jobs = {each.facts.job for each in whole.recorded}
    if not jobs:
        left = "".join(f"; {printable(name)}: {text}" for name, text in whole.refused.items())
        raise ArgumentError(f"{path!r} has no recordings{left}")
    wanted = [each for each in jobs if job is None or job in (each, _job(each))]
    if not wanted:
        raise ArgumentError(f"{path!r} has no recordings of job {job}; of {_names(jobs)}")
    if len({_job(each) for each in wanted}) > 1:
        raise ArgumentError(f"{path!r} has recordings of several jobs ({_names(map(_job, wanted))}): say which: --job")
    return {
        name: replace(whole, recorded=[each for each in whole.recorded if each.facts.job == name])
        for name in sorted(wanted, key=lambda name: (len(name), name))
    }


def jobs(path: str) -> list[str]:
    """The jobs of which a folder has recordings: several where ranks belonged to several at once."""
    return sorted({_job(each.facts.job) for each in _read(path).recorded})


def _job(name: str) -> str:
    return name.partition(".")[0]


def _names(jobs: Iterable[str]) -> str:
    return ", ".join(map(printable, sorted(set(jobs))))


def _read(path: str) -> Folder:
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
