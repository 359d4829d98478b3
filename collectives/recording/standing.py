"""Where a rank stands, by what it recorded: in which call, since when, and for whom it waits."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hocket.collectives.recording.records import NOBODY, Kind, Recorded, Ring
from hocket.system.machine import clock_ahead

ENDS = (Kind.DONE, Kind.CALLED, Kind.FAIL)
WAITS = (Kind.WAIT_RECV, Kind.WAIT_SEND)


class Standing(NamedTuple):
    """The standing of one rank on one communicator."""

    comm: str
    kind: str
    """collectives, messages or gpu"""
    inside: bool
    """Is it in a call?  Else this is the last one that it made."""
    seq: int
    """The call's number; of a message its tag."""
    call: str
    """The call in words."""
    site: str
    """The line that made such a call first; "" if that is not known."""
    since: float
    """Seconds that it has waited; or since the call began, or ended: of short calls at most that."""
    waits_for: tuple[int, ...]
    """Ranks of the job."""
    sends: bool
    """Does it wait for these to take what it sends?  Else for what they send."""
    failed: bool
    """Did the call end with an error?"""


def standings(part: Recorded, now: int | None = None) -> list[Standing]:
    """The standing of each of a rank's engines that made a call; the latest first.  `now`: CLOCK_MONOTONIC of that
    rank, ns."""
    now = ahead(part) if now is None else now
    every = [standing for ring in part.rings if ring.kind != "rank" and (standing := _of(part, ring, now))]
    return sorted(every, key=lambda each: (not each.inside, each.since))


def ahead(part: Recorded) -> int:
    """CLOCK_MONOTONIC as that rank has it now, on this host, ns."""
    return time.monotonic_ns() - clock_ahead() + part.facts.timens_ns


def _of(part: Recorded, ring: Ring, now: int) -> Standing | None:
    """By the last call of the ring that has not ended; else by the last that has."""
    under_way: dict[int, list[int]] = {}
    last = -1
    kinds, numbers = ring.records["kind"].tolist(), ring.records["seq"].tolist()
    for place, (kind, number) in enumerate(zip(kinds, numbers, strict=True)):
        if kind == Kind.CALL:
            under_way.setdefault(number, []).append(place)
        elif kind in ENDS:
            last = place
            if kind != Kind.CALLED and under_way.get(number):
                under_way[number].pop(0)
    open_ones = [place for places in under_way.values() for place in places]
    if not open_ones and last < 0:
        return None
    place = min(open_ones, default=last)
    record, what = ring.records[place], part.what(int(ring.records[place]["what"]))
    since, awaited, sends = int(record["ns"]), list[int](), False
    for later in ring.records[place + 1 :] if open_ones else ():
        if later["seq"] != record["seq"]:
            continue
        if later["kind"] == Kind.MOVED:
            since, awaited = int(later["ns"]), []
        elif later["kind"] in WAITS:
            since, sends = int(later["ns"]), bool(later["kind"] == Kind.WAIT_SEND)
            peer = ring.world_rank(int(later["peer"]))
            awaited += [peer] if peer is not None and later["peer"] != NOBODY else []
    return Standing(
        ring.comm, ring.kind, bool(open_ones), int(record["seq"]), what.text, what.site, max(0, now - since) * 1e-9,
        tuple(dict.fromkeys(awaited)), sends, bool(record["kind"] == Kind.FAIL),
    )  # fmt: skip


def printable(text: str) -> str:
    """A text of a stranger's as it may be shown: no control characters, and not long."""
    shown = text[:200]
    return shown if shown.isprintable() else "".join(each if each.isprintable() else "?" for each in shown)


def words(standing: Standing) -> str:
    """The standing in words: "in call 7, allreduce(float32[2]) at train.py:3 in main, waits for rank 2 since 3.1 s"."""
    number = f"tag {standing.seq}" if standing.kind == "messages" else f"call {standing.seq}"
    call = printable(standing.call) or "a call"
    site = f" at {printable(standing.site)}" if standing.site not in ("", "?") else ""
    where = f" on {printable(standing.comm)!r}" if standing.comm != "world" else ""
    if not standing.inside:
        how = "failed in" if standing.failed else "has finished"
        return f"{how} {number}, {call}{site}{where}, at most {standing.since:.1f} s ago; it is in no call"
    names = ", ".join(map(str, standing.waits_for))
    ranks = f"rank{'s' * (len(standing.waits_for) > 1)} {names}"
    waits = f", waits for {ranks} {'to take what it sends ' * standing.sends}since {standing.since:.1f} s"
    return f"in {number}, {call}{site}{where}" + (waits if standing.waits_for else f", for {standing.since:.1f} s")


def seen(parts: Iterable[tuple[Recorded, str]], comm: str) -> dict[int, str]:
    """By rank of the job: what its process does, as given, and what it did last on a communicator."""
    texts: dict[int, str] = {}
    for part, process in parts:
        last = next((each for each in standings(part) if each.comm == comm), None)
        what = f"; it {'is ' * last.inside}{words(last)}" if last is not None else ""
        texts[part.facts.rank] = f"{process}{what}"
    return texts


def apart(parts: Sequence[Recorded], comm: str) -> dict[int, int]:
    """By rank, how many collectives it has begun on a communicator."""
    return {
        part.facts.rank: int(ring.records["seq"].max()) for part in parts for ring in part.rings
        if ring.comm == comm and ring.kind == "collectives" and not ring.transport and len(ring.records)
    }  # fmt: skip


def holding_up(parts: Sequence[Recorded], now: int | None = None) -> list[int]:
    """The ranks of a job that hold the others up: waited for, directly or not, and waiting for nobody themselves.

    If all that are waited for wait in turn, those that are waited for by most.
    """
    awaited = awaits(parts, now)
    wanted = [rank for ranks in awaited.values() for rank in ranks]
    roots = sorted({rank for rank in wanted if not awaited.get(rank)})
    most = max((wanted.count(rank) for rank in wanted), default=0)
    return roots or sorted({rank for rank in wanted if wanted.count(rank) == most})


def awaits(parts: Sequence[Recorded], now: int | None = None) -> dict[int, tuple[int, ...]]:
    """By rank of a job, those that it waits for now."""
    latest = {part.facts.rank: next(iter(standings(part, now)), None) for part in parts}
    return {rank: at.waits_for if at is not None and at.inside else () for rank, at in latest.items()}


def circles(awaited: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """The ranks that wait for each other, directly or not; `awaited`: by rank, for whom each waits."""
    reached: dict[int, set[int]] = {}
    for rank in awaited:
        ahead, met = list(awaited[rank]), set[int]()
        while ahead:
            if (other := ahead.pop()) not in met:
                met.add(other)
                ahead += awaited.get(other, ())
        reached[rank] = met
    found = {tuple(sorted(other for other in met if rank in reached.get(other, ()))) for rank, met in reached.items()}
    return sorted([*ranks] for ranks in found if len(ranks) > 1)


def each_other(ranks: Sequence[int]) -> str:
    """Text such as "ranks 0 and 1 wait for each other"."""
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]} wait for each other"
