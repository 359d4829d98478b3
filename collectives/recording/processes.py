"""The recorders of this user's processes on this host, found in /proc: also of those that hang, or have died."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import NamedTuple

from hocket.collectives.recording import memory
from hocket.collectives.recording.records import NotARecording, Part, Recorded, read

STATES = {
    "T": "stopped by a signal", "t": "stopped by a debugger", "D": "in an uninterruptible wait of the kernel",
    "Z": "dead, and its parent has not noticed", "X": "dead", "R": "running", "S": "sleeping", "I": "idle",
}  # fmt: skip

NEWEST = 1024
"""Records of a ring that are read: a trace has many more."""


class ProcessRecord(NamedTuple):
    """One process's recorder."""

    pid: int | None
    """The process, as this one sees it; None: it has died, and its launcher keeps the recorder."""
    state: str
    """The state of the process in words, by /proc."""
    parts: list[Recorded]
    """The recorded parts, one a rank."""


def recorders(job: str | None = None, among: Iterable[int] | None = None, others: bool = False) -> list[ProcessRecord]:
    """All of this user's: of this job, and held by one of these processes, if any are named.

    `others`: other users' too, whom nobody should trust; root alone can.  Cost: a look at each descriptor of the
    processes; a tenth of a millisecond each.
    """
    holders: dict[tuple[int, int], list[tuple[int, str]]] = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()) if among is None else set(among):
        for path in _descriptors(pid):
            with contextlib.suppress(OSError):  # it has just been closed
                link = os.readlink(path)
                if link == memory.LINK or link.endswith(memory.TRACE_END):
                    about = os.stat(path)
                    if about.st_uid != os.geteuid() and not others:
                        continue
                    holders.setdefault((about.st_dev, about.st_ino), []).append((pid, path))
    processes = [each for held in holders.values() if (each := _read(held, job)) is not None and each.parts]
    traced = {(part.facts.job, part.facts.rank) for each in processes for part in each.parts if part.facts.traced}
    for each in processes:  # of a rank that is traced now, the trace alone
        old = [part for part in each.parts if not part.facts.traced and (part.facts.job, part.facts.rank) in traced]
        each.parts[:] = [part for part in each.parts if part not in old]
    return [each for each in processes if each.parts]


def _descriptors(pid: int) -> list[str]:
    try:
        return [f"/proc/{pid}/fd/{fd}" for fd in os.listdir(f"/proc/{pid}/fd")]
    except OSError:  # another user's, or it has just ended
        return []


def _read(held: list[tuple[int, str]], job: str | None) -> ProcessRecord | None:
    for _, path in held:
        with contextlib.suppress(OSError, NotARecording):
            parts = _parts(path, job)
            owner = next((pid for pid, _ in held if parts and parts[0].facts.pid == _own_number(pid)), None)
            return ProcessRecord(owner, "dead" if owner is None else state(owner), parts)
    return None


def without_one(processes: list[ProcessRecord]) -> list[int]:
    """Processes that have loaded hocket's engine, and whose recorder is not among these."""
    seen, own = {each.pid for each in processes}, os.getpid()
    unseen = []
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        with contextlib.suppress(OSError):
            if pid not in seen and pid != own and os.stat(f"/proc/{pid}").st_uid == os.geteuid():
                with open(f"/proc/{pid}/maps") as file:
                    if "/collectives/engine/engine." in file.read():
                        unseen.append(pid)
    return unseen


def _parts(path: str, job: str | None) -> list[Recorded]:
    """Copied, as nobody can be sure that a mapping of another's file stays as long as it is."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return read(Part(fd), NEWEST, job)
    finally:
        os.close(fd)


def _own_number(pid: int) -> int:
    """The number of a process in its own PID namespace, which its recorder has."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return pid


def described(processes: Iterable[ProcessRecord]) -> list[tuple[Recorded, str]]:
    """Each rank's part, with what its process does."""
    every = [(part, process) for process in processes for part in process.parts]
    return [(part, f"process {process.pid or part.facts.pid} is {process.state}") for part, process in every]


def ancestors(pid: int, most: int = 8) -> list[int]:
    """The process that started this one, and so on: one of them may be the launcher."""
    pids: list[int] = []
    with contextlib.suppress(OSError, IndexError, ValueError):
        while len(pids) < most and pid > 1:
            with open(f"/proc/{pid}/stat") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
            pids.append(pid)
    return pids


def state(pid: int) -> str:
    """The state of a process in words, by /proc."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            letter = file.read().rpartition(")")[2].split()[0]
        with open(f"/proc/{pid}/wchan") as file:
            place = file.read().strip("0\n")
    except (OSError, IndexError):
        return "dead"
    name = STATES.get(letter, letter)
    return f"{name} in {place}" if place and letter in "SD" else name
