"""The latest events of a host's ranks, merged into one file: for people, and the newest last."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from hocket.collectives.recording.processes import ProcessRecord
from hocket.collectives.recording.records import NOBODY, SPAN, Kind, Recorded, Ring
from hocket.collectives.recording.standing import printable, standings, words
from hocket.system.machine import clock_ahead, temporary

MOST = 1000
"""Events of each rank."""
KEPT = 20
"""Files that are kept in the folder; the oldest go."""
NAMES = {kind.value: kind.name.lower() for kind in Kind}
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Event(NamedTuple):
    """One record, for people."""

    ns: int
    rank: int
    text: str


def events(part: Recorded, most: int = MOST) -> list[Event]:
    """The last events of a rank, the oldest first.  Times are the kernel's, without what a time namespace adds."""
    ahead, rank = part.facts.timens_ns, part.facts.rank
    calls = {number: f"{what.text}{_at(what.site)}" for number, what in part.table.items()}
    every = [
        Event(record[0] - ahead, rank, _text(calls, ring, *record[1:]))
        for ring in part.rings for record in ring.records[-most:].tolist()
    ]  # fmt: skip
    return sorted(every, key=lambda each: each.ns)[-most:]


def _at(site: str) -> str:
    return f" at {site}" if site not in ("", "?") else ""


def _text(
    calls: dict[int, str], ring: Ring, seq: int, what: int, nbytes: int, kind: int, peer: int, step: int, lane: int
) -> str:
    """A record without its time, in words."""
    parts = [NAMES.get(kind, f"kind {kind}")]
    if ring.kind != "rank":
        parts.append(f"{ring.comm} {'tag ' if ring.kind == 'messages' else '#'}{seq}")
    parts.append(calls.get(what, ""))
    if kind == Kind.FAIL:
        parts.append(f"code -{nbytes}")
    elif kind in (Kind.MOVED, Kind.LONG_WAIT):
        parts.append(f"after {nbytes * 1e-6:.3f} ms")
    elif nbytes:
        took = f"took {nbytes * 1e-6:.3f} ms" if lane == SPAN else str(nbytes)
        parts.append(took if kind == Kind.MARK else f"{nbytes} bytes")
    other = ring.world_rank(peer) if peer != NOBODY else None
    parts += [f"rank {other}"] if other is not None else []
    parts += [f"step {step}"] if step != NOBODY else []
    return printable("  ".join(each for each in parts if each))


def text(processes: Sequence[ProcessRecord], now: int | None = None) -> str:
    """The file: where each rank stands, then the last events of all.  `now`: the kernel's CLOCK_MONOTONIC, ns."""
    now = time.monotonic_ns() - clock_ahead() if now is None else now
    parts = sorted(((part, each) for each in processes for part in each.parts), key=lambda pair: pair[0].facts.rank)
    lines = [f"hocket: what {len(parts)} ranks did last; seconds before {time.strftime('%Y-%m-%d %H:%M:%S')}"]
    for part, process in parts:
        facts = part.facts
        who = f"rank {facts.rank} of {facts.size}, pid {process.pid or facts.pid} on {printable(facts.host)}"
        lines.append("; ".join(filter(None, (f"{who}: {process.state}", facts.overflow))))
        lines += [f"    {words(each)}" for each in standings(part, now + facts.timens_ns)]
    merged = sorted((event for part, _ in parts for event in events(part)), key=lambda each: each.ns)
    lines += [f"{(each.ns - now) * 1e-9:12.6f}  rank {each.rank}  {each.text}" for each in merged]
    return "\n".join(lines) + "\n"


def folder() -> str:
    """This user's folder of such files, made if need be.  OSError: there is no safe place."""
    name = f"hocket-events-{os.geteuid()}"
    for base in temporary(os.environ):
        path = os.path.join(base, name)
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
            about = os.lstat(path)
            if stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077:
                return path
    raise OSError("no folder for the file of events can be made")


def write(path: str, content: Callable[[], str]) -> None:
    """A new file that only this user can read, whole or not at all.

    FileExistsError, before `content` is asked: another process writes it.
    """
    part = f"{path}.part"
    with open(os.open(part, NEW, 0o600), "w") as file:
        try:
            file.write(content())
        except BaseException:
            os.unlink(part)
            raise
    os.rename(part, path)


def forget_old(base: str, kept: int = KEPT) -> None:
    """Remove all but the newest files of the folder."""
    with contextlib.suppress(OSError):
        entries: Iterable[os.DirEntry[str]] = list(os.scandir(base))
        by_age = sorted(entries, key=lambda each: each.stat(follow_symlinks=False).st_mtime, reverse=True)
        for each in by_age[kept:]:
            with contextlib.suppress(OSError):
                os.unlink(each.path)
