"""The content of a recorder (system/record.h), as NumPy arrays: read from memory that nobody can trust.

    for rank in read(data):                     # one of them, unless ranks are threads
        for ring in rank.rings:
            for record in ring.records: ...     # the oldest first

A record is 32 bytes.  Fields that a kind does not use are 0, or NOBODY (peer, step, lane).

| kind | ns | seq, what | bytes | peer | step | lane |
|---|---|---|---|---|---|---|
| CALL, DONE | begin, end of a call | the call | of its vector | | | |
| CALLED | last time known | a call that began and ended, not timed | of its vector | | | |
| FAIL | when | the call | the code, as a positive number | culprit | | |
| WAIT_RECV, WAIT_SEND | since when nothing moved | the call | | awaited | merged step | peers of the wait |
| MOVED | when | the call | ns waited | | merged step | |
| MARK | when | 0, the name | a value | | | |
| MARK, a span | its end | the name of its group, its own name | ns that it took | | | SPAN |
| VERDICT | when | 0, its kind | | who reported | | |
| LEFT | when | | | who | | |
| LONG_WAIT | when | the call's number, its text | ns waited | awaited, if it is one | | |
| SUBMIT | when it was queued | the call | | | | |
| STEP | when it opened | the call | | | merged step | |
| SEND_READY, RECV_READY | first try, not held up | the call | of the message | peer | merged step | instruction |
| SEND_END, RECV_END | all of it has moved | the same | the same | peer | the same | the same |
| KERNEL | end of the step | seq: the call; what: ns in kernels | of what they wrote | | merged step | |
| NO_CORE | end of the wait | the call | ns without a core before it | | merged step | |
| LINK | when | 0, the communicator and the kind of its calls | the value | peer | | a Link |

Peers are ranks of the ring's communicator; in the rank's own ring (MARK, VERDICT, LEFT, LONG_WAIT,
LINK) they are ranks of the job.
Messages of one call between two ranks match in the order in which they end.
"""

from __future__ import annotations

import enum
import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.collectives.recording.recorder import fence
from hocket.collectives.recording.spans import AsData, understood
from hocket.errors import Error

MAGIC, VERSION = b"hocketR", 1
NOBODY = 0xFFFF
SPAN = 0
"""The `lane` of a MARK that tells how long something took, and not that a place was reached."""
RECORD = np.dtype([
    ("ns", "<u8"), ("seq", "<u4"), ("what", "<u4"), ("bytes", "<u8"),
    ("kind", "<u2"), ("peer", "<u2"), ("step", "<u2"), ("lane", "<u2"),
])  # fmt: skip
RING = np.dtype([("at", "<u8"), ("written", "<u8"), ("room", "<u4"), ("claimed", "<u4"), ("unused", "V40")])
HEAD = np.dtype([
    ("magic", "S8"), ("version", "<u4"), ("pid", "<u4"), ("rings", "<u4"), ("refused", "<u4"), ("traced", "<u4"),
    ("unnamed", "<u4"), ("monotonic_ns", "<u8"), ("realtime_ns", "<u8"), ("timens_ns", "<i8"), ("texts_at", "<u8"),
    ("texts_room", "<u8"), ("texts", "<u8"), ("boot_id", "S40"), ("host", "S64"),
])  # fmt: skip
HEADS_AT, ABOUT_AT, ABOUT, RINGS = 4096, 8192, 1024, 64
MOST_TEXTS, MOST_RECORDS = 64 << 20, 1 << 24
"""Bytes of texts, and records of a ring, that are read at most."""
LONGEST_TEXT = 4096
MOST_LINES = 1 << 18
LATEST = 1 << 62
"""ns; of times that make sense the difference of any two is a number of 64 bits."""
MOST_BYTES = 256 << 20
"""All rings of a file have no more, unless it takes as many of the disk: somebody else's file may be sparse."""
"""Characters of a text that are kept."""
MOST_SIDES = 64
"""NumPy's arrays have no more dimensions."""
MOST_MEMBERS = 600
"""Characters in which the members of a communicator are told, if they can be."""


class Kind(enum.IntEnum):
    """The kind of a record; system/record.h has the same numbers."""

    CALL = 1
    DONE = 2
    CALLED = 3
    FAIL = 4
    WAIT_RECV = 5
    WAIT_SEND = 6
    MOVED = 7
    MARK = 8
    VERDICT = 9
    LEFT = 10
    LONG_WAIT = 11
    SUBMIT = 16
    STEP = 17
    SEND_READY = 18
    SEND_END = 20
    RECV_READY = 21
    RECV_END = 23
    KERNEL = 24
    NO_CORE = 25
    LINK = 26


class Link(enum.IntEnum):
    """The `lane` of a LINK record: which number of TCP_INFO it has."""

    RTT_US = 0
    BUSY_US = 1
    RWND_LIMITED_US = 2
    SNDBUF_LIMITED_US = 3
    RETRANSMITS = 4


class NotARecording(Error):
    """This is no recording, or not one that this version reads; the text says why."""


@dataclass(frozen=True)
class Facts:
    """Facts about a process's recorder, and about one rank in it."""

    rank: int
    size: int
    job: str
    """The same on all ranks of a job, and of no other job of the host."""
    pid: int
    """In the process's own PID namespace."""
    host: str
    boot_id: str
    timens_ns: int
    """Nanoseconds that its time namespace adds to CLOCK_MONOTONIC.  Ranks with this and the boot id in common have one
    clock."""
    monotonic_ns: int
    realtime_ns: int
    """CLOCK_MONOTONIC and CLOCK_REALTIME, read together when the recorder was made."""
    traced: bool = False
    refused: int = 0
    """Engines of the process that found no ring free: their calls are not recorded."""
    unnamed: int = 0
    """Texts of the process for which there was no room: records of these have `what` 0."""

    @property
    def overflow(self) -> str:
        """Things that there was no room for, in words; "": nothing."""
        engines = f"{self.refused} engines have no ring, and their calls are not seen" if self.refused else ""
        return "; ".join(filter(None, (engines, f"{self.unnamed} texts had no room" if self.unnamed else "")))


@dataclass(frozen=True)
class What:
    """A line of the table: what `what` means.  `text` says it for people; the rest is of calls alone."""

    text: str = ""
    collective: str = ""
    algorithm: str = ""
    transports: str = ""
    """The transports: "shm+tcp"."""
    bytes: int = 0
    fingerprint: int = 0
    site: str = ""
    """The line of the user's program that made it first."""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    """The array that this rank gave; without dtype there is none."""
    dest: int | None = None
    source: int | None = None
    """The ends of a message, ranks of the job; None: nobody, or any."""
    told: AsData | None = None
    """The facts of a span, as data."""

    @property
    def count(self) -> int:
        """Elements of that array."""
        return math.prod(self.shape) if self.dtype else 0


NOTHING = What()


@dataclass(frozen=True)
class Ring:
    """The records of one engine; or of the rank itself: `kind` "rank"."""

    comm: str
    """The communicator's name."""
    kind: str
    """collectives, messages, gpu; or rank"""
    index: int
    """This rank's place among the members."""
    members: tuple[int, ...]
    """World ranks, by rank of the communicator; () if there are too many to tell."""
    records: NDArray[Any]
    """Records of dtype RECORD, the oldest first."""
    lost: int = 0
    """Older ones that were overwritten."""
    priority: int = 0
    transport: str = ""
    """The one that its calls asked for; "": any."""

    def world_rank(self, peer: int) -> int | None:
        """The rank in the job of a peer in these records; None: nobody, or not known."""
        if self.kind == "rank":
            return None if peer == NOBODY else peer
        return self.members[peer] if peer < len(self.members) else None


@dataclass(frozen=True)
class Recorded:
    """One rank's part."""

    facts: Facts
    table: dict[int, What]
    rings: list[Ring] = field(default_factory=list)

    def what(self, number: int) -> What:
        """A line of the table; an empty one if it is not there."""
        return self.table.get(number, NOTHING)


def read(data: Any, newest: int = MOST_RECORDS, job: str | None = None) -> list[Recorded]:
    """Every rank's part of one process's recorder: of a file's bytes, a mapping, or a `Part`; it may still change.

    `newest`: records of each ring at most.  `job`: ranks of this one alone; where there is none, no more is read than
    the rings' heads.  Nothing in it is believed: what is out of bounds, and a ring on another's place, is left out.
    Raises NotARecording.
    """
    size = len(data)
    if size < HEADS_AT + RINGS * RING.itemsize:
        raise NotARecording(f"a recording has at least {HEADS_AT + RINGS * RING.itemsize} bytes, and this has {size}")
    if bytes(data[0 : len(MAGIC)]) != MAGIC:
        raise NotARecording("it does not begin as hocket's recordings do")
    fence()  # a writer stores the magic last, and what counts others behind what it counts
    head = _array(data, HEAD, 0, 1)[0]
    if int(head["version"]) != VERSION:
        raise NotARecording(f"it is of version {int(head['version'])} of the format; this hocket reads {VERSION}")
    claimed = _array(data, RING, HEADS_AT, RINGS)["claimed"][: int(head["rings"])]
    fence()
    abouts = {number: _about(data, number) for number in np.flatnonzero(claimed).tolist()}
    if job is not None:
        abouts = {number: about for number, about in abouts.items() if _text(about.get("job")) == job}
    if not abouts:
        return []
    table, ranks = dict[int, What](), dict[tuple[int, str], Recorded]()
    places = RingPlaces(max(MOST_BYTES, getattr(data, "stored", size)))
    for number, about in abouts.items():
        newest_of = _newest(data, number, int(claimed[number]), newest, places)
        if newest_of is None:
            continue
        owner = _whole(about.get("rank")), _text(about.get("job"))
        if owner not in ranks:
            ranks[owner] = Recorded(_facts(head, about), table)
        ranks[owner].rings.append(_ring(about, *newest_of))
    texts = int(_array(data, HEAD, 0, 1)["texts"][0])  # now: the newest records may name new lines
    fence()
    lines = _lines(data, int(head["texts_at"]), min(texts, int(head["texts_room"]), MOST_TEXTS))
    table.update(enumerate(map(_what, lines)))
    return list(ranks.values())


class RingPlaces:
    """Where a file's rings lie: each on a place of its own, and not more bytes together than this."""

    def __init__(self, most: int) -> None:
        self._left, self._taken = most, list[tuple[int, int]]()

    def take(self, at: int, room: int, count: int) -> bool:
        """Is there a ring of `room` bytes, of which `count` are read?"""
        if count > self._left or any(at < end and begin < at + room for begin, end in self._taken):
            return False
        self._left -= count
        self._taken.append((at, at + room))
        return True


class Part:
    """A file that is read piece by piece: it may be long, and be cut short meanwhile."""

    def __init__(self, fd: int) -> None:
        status = os.fstat(fd)
        self._fd, self._size = fd, status.st_size
        self.stored = status.st_blocks * 512
        """Bytes of the disk, or of memory, that it takes."""

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        return os.pread(self._fd, part.stop - part.start, part.start)


def _array(data: Any, dtype: np.dtype[Any], at: int, count: int) -> NDArray[Any]:
    """A copy of `count` at this place; of fewer where the file has become shorter."""
    content = bytes(data[at : at + count * dtype.itemsize])
    return np.frombuffer(content[: len(content) - len(content) % dtype.itemsize], dtype)


def _lines(data: Any, at: int, used: int) -> list[dict[str, Any]]:
    """The table.  Line 0 stands for nothing."""
    if not 0 < at <= at + used <= len(data):
        return []
    return [_parsed(line) if line else {} for line in bytes(data[at : at + used]).split(b"\n", MOST_LINES)[:-1]]


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _about(data: Any, number: int) -> dict[str, Any]:
    at = ABOUT_AT + number * ABOUT
    return _parsed(bytes(data[at : at + ABOUT]).partition(b"\n")[0])


def _text(value: Any) -> str:
    return value[:LONGEST_TEXT] if isinstance(value, str) else ""


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 63 else 0


def _what(line: dict[str, Any]) -> What:
    if not line:
        return NOTHING
    text, collective, algorithm, over, site, dtype = (
        _text(line.get(k)) for k in ("text", "collective", "algorithm", "transports", "site", "dtype"))  # fmt: skip
    nbytes, fingerprint, shape = _whole(line.get("bytes")), _whole(line.get("fingerprint")), line.get("shape")
    sides = tuple(map(_whole, shape[:MOST_SIDES])) if isinstance(shape, list) else ()
    dest, source = (_whole(line[k]) if k in line else None for k in ("dest", "source"))
    told = understood(line)
    return What(text, collective, algorithm, over, nbytes, fingerprint, site, dtype, sides, dest, source, told)


def _facts(head: Any, about: dict[str, Any]) -> Facts:
    host, boot = (bytes(head[name]).decode(errors="replace") for name in ("host", "boot_id"))
    return Facts(
        _whole(about.get("rank")), _whole(about.get("size")), _text(about.get("job")), int(head["pid"]), host, boot,
        int(head["timens_ns"]), int(head["monotonic_ns"]), int(head["realtime_ns"]), bool(head["traced"]),
        int(head["refused"]), int(head["unnamed"]),
    )  # fmt: skip


def _ring(about: dict[str, Any], records: NDArray[Any], lost: int) -> Ring:
    priority = about.get("priority")
    return Ring(
        _text(about.get("comm")), _text(about.get("kind")), _whole(about.get("index")),
        unshortened(_text(about.get("members"))), records, lost, priority if isinstance(priority, int) else 0,
        _text(about.get("transport")),
    )  # fmt: skip


def shortened(ranks: Sequence[int]) -> str:
    """Ranks as "0-7,9", or "" if that is long."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return text if len(text) <= MOST_MEMBERS else ""


def unshortened(text: str) -> tuple[int, ...]:
    """The ranks of such a text; none if it makes no sense."""
    if len(text) > MOST_MEMBERS or not re.fullmatch(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*", text):
        return ()
    runs = [list(map(int, run.split("-"))) for run in text.split(",")]
    if sum(run[-1] - run[0] + 1 for run in runs) > NOBODY:
        return ()
    return tuple(rank for run in runs for rank in range(run[0], run[-1] + 1))


def _newest(data: Any, number: int, claim: int, most: int, places: RingPlaces) -> tuple[NDArray[Any], int] | None:
    """A ring's records, oldest first, and how many are lost; None: meanwhile the ring was given to another engine."""
    ring = _array(data, RING, HEADS_AT, RINGS)[number]
    fence()
    at, room, written = int(ring["at"]), int(ring["room"]), int(ring["written"]) // RECORD.itemsize
    if not 0 < room <= MOST_RECORDS or at + room * RECORD.itemsize > len(data):
        return np.empty(0, RECORD), 0
    count = min(written, room, most)
    if not places.take(at, room * RECORD.itemsize, count * RECORD.itemsize):
        return np.empty(0, RECORD), written
    first = (written - count) % room
    ahead = min(count, room - first)  # records before the ring begins again
    pieces = [_array(data, RECORD, at + first * RECORD.itemsize, ahead), _array(data, RECORD, at, count - ahead)]
    copied = np.concatenate(pieces)
    fence()
    ring = _array(data, RING, HEADS_AT, RINGS)[number]
    if int(ring["claimed"]) != claim:
        return None
    # Meanwhile the oldest may have been overwritten, and one more may be on its way.
    gone = min(max(0, int(ring["written"]) // RECORD.itemsize + 1 - room - (written - count)), len(copied))
    return copied[gone:][copied["ns"][gone:] < LATEST], written - count + gone
