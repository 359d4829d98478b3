"""All ranks' records become one timeline, on the clock of rank 0's host."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.errors import ArgumentError
from hocket.observe.clocks import Clock, Gate, Ping, gates
from hocket.observe.events import Slices, label, links, parts
from hocket.observe.timeline import COUNT, Group, Timeline, Track, in_line, slices, stacked
from hocket.recording import Facts, Link, Recorded, written

MOST_GATES = 20_000
"""Messages that bind a clock; of more, every so-manyth."""


@dataclass
class _TrackSlices:
    """The slices of one track of the picture, from however many rings."""

    track: Track
    rank: int
    parts: list[tuple[Slices, Recorded]] = field(default_factory=list)
    slices: NDArray[Any] = field(default_factory=lambda: np.empty(0))
    names: list[str] = field(default_factory=list)


def merge(
    recorded: Sequence[Recorded],
    pings: Mapping[int, Sequence[Ping]] | None = None,
    about: Mapping[str, Any] | None = None,
) -> Timeline:
    """One timeline of what is there: ranks may be missing, and rings may have lost what was oldest; `about` says so.

    `pings`: of one rank of each host whose clock is another, to rank 0.  Without, messages between the hosts bind their
    clocks.  Cost: 1 us a record.
    """
    if not recorded:
        raise ArgumentError("there are no recordings")
    byrank = {each.facts.rank: each for each in sorted(recorded, key=lambda r: r.facts.pid, reverse=True)}
    lines = _lines(byrank)
    names = _named(lines)
    joined = _joined(lines)
    clocks = _clocks(byrank, pings or {}, joined)
    errors = _errors(lines, clocks)
    zero = _align(lines, clocks)
    timeline = Timeline(
        {rank: _process(each.facts) for rank, each in sorted(byrank.items())},
        [line.track for line in lines], names, stacked([line.slices for line in lines] or [slices(0)])
    )
    _count(timeline, byrank, clocks, zero)
    timeline.about = {**(about or {}), **_about(byrank, clocks, errors, timeline)}
    return timeline


def _process(facts: Facts) -> str:
    return f"rank {facts.rank} on {facts.host}, pid {facts.pid}"


def _lines(byrank: Mapping[int, Recorded]) -> list[_TrackSlices]:
    lines: dict[tuple[int, str, str], _TrackSlices] = {}
    for rank, each in sorted(byrank.items()):
        until = max((int(ring.records["ns"].max()) for ring in each.rings if len(ring.records)), default=0)
        several = len({label(ring) for ring in each.rings if ring.kind != "rank"}) > 1
        for ring in each.rings:
            for part in parts(each, ring, until):
                name = f"{part.name} ({label(ring)})" if several and ring.kind != "rank" else part.name
                track = Track(rank, name, False, part.group, label(ring), ring.kind == "messages")
                lines.setdefault((rank, name, part.group), _TrackSlices(track, rank)).parts.append((part, each))
    return list(lines.values())


def _named(lines: list[_TrackSlices]) -> list[str]:
    """Put each line's slices together, and say its names by number; all names."""
    numbers: dict[str, int] = {}
    for at, line in enumerate(lines):
        for part, recorded in line.parts:
            if isinstance(part.names, str):
                part.slices["name"] = numbers.setdefault(part.names, len(numbers))
            else:
                wanted, which = np.unique(part.names, return_inverse=True)
                texts = [recorded.what(int(number)).text or f"call {number}" for number in wanted]
                part.slices["name"] = np.array([numbers.setdefault(t, len(numbers)) for t in texts], np.uint32)[which]
        line.slices = stacked([part.slices for part, _ in line.parts])
        line.slices["track"] = at
    return list(numbers)


# ------------------------------------------------------------------------------------------------------------ messages


@dataclass
class _Joined:
    """Messages whose both ends are known: where their slices are."""

    sends: list[tuple[_TrackSlices, NDArray[Any]]] = field(default_factory=list)
    receives: list[tuple[_TrackSlices, NDArray[Any]]] = field(default_factory=list)


def _joined(lines: list[_TrackSlices]) -> _Joined:
    """Give the two ends of a message the same `flow`.  Those of one call between two ranks match in order."""
    ends: dict[tuple[str, int, int], dict[str, _TrackSlices]] = defaultdict(dict)
    for line in lines:
        if line.track.group in (Group.SENDS, Group.RECEIVES) and len(line.slices):
            peer = int(line.slices["peer"][0])
            source, dest = (line.rank, peer) if line.track.group == Group.SENDS else (peer, line.rank)
            ends[line.track.comm, source, dest][line.track.group] = line
    joined, flow = _Joined(), 1
    for both in ends.values():
        if len(both) == 2:
            send, receive = both[Group.SENDS], both[Group.RECEIVES]
            a, b = _match(send.slices, receive.slices, alike=not send.track.messages)
            send.slices["flow"][a] = receive.slices["flow"][b] = np.arange(flow, flow + len(a))
            flow += len(a)
            joined.sends.append((send, a))
            joined.receives.append((receive, b))
    return joined


def _match(sends: NDArray[Any], receives: NDArray[Any], alike: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """Places of the same messages.  `alike`: both ranks number their calls alike, as all but messages are.

    A call of which one end has lost messages is left out.
    """
    a, b = (np.argsort(rows["end"], kind="stable") for rows in (sends, receives))
    if not alike:
        return (a, b) if len(a) == len(b) else (a[:0], b[:0])
    a, b = a[np.argsort(sends["seq"][a], kind="stable")], b[np.argsort(receives["seq"][b], kind="stable")]
    (calls, sent), (others, received) = (np.unique(r["seq"], return_counts=True) for r in (sends, receives))
    both, i, j = np.intersect1d(calls, others, return_indices=True)
    whole = both[sent[i] == received[j]]
    return a[np.isin(sends["seq"][a], whole)], b[np.isin(receives["seq"][b], whole)]


# -------------------------------------------------------------------------------------------------------------- clocks


def _clock_of(facts: Facts) -> tuple[str, int]:
    """Ranks with the same have one clock."""
    return facts.boot_id, facts.timens_ns


def _clocks(
    byrank: Mapping[int, Recorded], pings: Mapping[int, Sequence[Ping]], joined: _Joined
) -> dict[tuple[str, int], Clock]:
    """The clock of each host against the first rank's."""
    first = _clock_of(byrank[min(byrank)].facts)
    clocks = {first: Clock.same()}
    given: dict[tuple[str, int], list[Gate]] = defaultdict(list)
    for rank, some in pings.items():
        if rank in byrank:
            given[_clock_of(byrank[rank].facts)] += gates(some)
    for host, gate in _gates_of_messages(byrank, first, joined):
        given[host].append(gate)
    for each in byrank.values():
        host = _clock_of(each.facts)
        if host not in clocks:
            clocks[host] = _fitted(given[host], each.facts, byrank[min(byrank)].facts)
    return clocks


def _fitted(some: list[Gate], facts: Facts, first: Facts) -> Clock:
    """By messages; where there are none, by the hosts' wall clocks, which promise nothing."""
    try:
        return Clock.fit(some)
    except ArgumentError:
        ahead = (first.monotonic_ns - first.realtime_ns) - (facts.monotonic_ns - facts.realtime_ns)
        return Clock.unknown(ahead)


def _gates_of_messages(
    byrank: Mapping[int, Recorded], first: tuple[str, int], joined: _Joined
) -> Iterator[tuple[tuple[str, int], Gate]]:
    """No message arrives before it is sent: those between the first host and another bind the other's clock."""
    for (send, a), (receive, b) in zip(joined.sends, joined.receives, strict=True):
        sender, receiver = _clock_of(byrank[send.rank].facts), _clock_of(byrank[receive.rank].facts)
        if (sender == first) == (receiver == first):
            continue
        every = slice(None, None, max(1, len(a) // MOST_GATES))
        sent, came = send.slices["begin"][a][every].tolist(), receive.slices["end"][b][every].tolist()
        for left, arrived in zip(sent, came, strict=True):
            if receiver == first:
                yield sender, Gate(left, arrived - left, True)
            else:
                yield receiver, Gate(arrived, left - arrived, False)


def _errors(lines: list[_TrackSlices], clocks: Mapping[tuple[str, int], Clock]) -> dict[int, float]:
    """By rank: by how much its clock may be wrong at its first or its last event.  ns."""
    errors: dict[int, float] = defaultdict(float)
    for line in lines:
        clock = clocks[_clock_of(line.parts[0][1].facts)]
        for t in (int(line.slices["begin"].min()), int(line.slices["end"].max())):
            errors[line.rank] = max(errors[line.rank], clock.error(t))
    return errors


def _align(lines: list[_TrackSlices], clocks: Mapping[tuple[str, int], Clock]) -> int:
    """All slices on the first clock, from 0 on; and what was 0."""
    for line in lines:
        clock = clocks[_clock_of(line.parts[0][1].facts)]
        line.slices["begin"], line.slices["end"] = (clock.align(line.slices[name]) for name in ("begin", "end"))
    zero = min((int(line.slices["begin"].min()) for line in lines), default=0)
    for line in lines:
        line.slices["begin"] -= zero
        line.slices["end"] -= zero
        line.slices = line.slices if line.track.group == Group.SPANS else in_line(line.slices)
    return zero


# --------------------------------------------------------------------------------------------------- what is said of it


def _count(
    timeline: Timeline, byrank: Mapping[int, Recorded], clocks: Mapping[tuple[str, int], Clock], zero: int
) -> None:
    """Counters: what TCP says of the links."""
    counts = [timeline.counts]
    for rank, each in sorted(byrank.items()):
        clock = clocks[_clock_of(each.facts)]
        for ring in each.rings:
            for peer, what, lane, rows in links(ring):
                name = Link(lane).name.lower() if lane in set(Link) else f"number {lane}"
                comm = each.what(what).text
                about = f"{name} to {peer} ({comm})"
                timeline.tracks.append(Track(rank, about, True, Group.LINK, comm, peer=peer, counts=lane))
                counted = np.zeros(len(rows), COUNT)
                counted["at"] = np.maximum(0, clock.align(rows["ns"].astype(np.int64)) - zero)
                counted["value"], counted["track"] = rows["bytes"], len(timeline.tracks) - 1
                counts.append(counted)
    timeline.counts = np.concatenate(counts)


def _about(
    byrank: Mapping[int, Recorded],
    clocks: Mapping[tuple[str, int], Clock],
    errors: Mapping[int, float],
    timeline: Timeline,
) -> dict[str, Any]:
    first = byrank[min(byrank)].facts
    size = max(first.size, *(rank + 1 for rank in byrank))
    ranks = {}
    for rank, each in sorted(byrank.items()):
        facts, clock = each.facts, clocks[_clock_of(each.facts)]
        error = errors.get(rank, 0.0)
        ranks[str(rank)] = {
            "clock": list(clocks).index(_clock_of(facts)), "host": facts.host,
            "pid": facts.pid, "clock_error_us": round(error / 1e3, 1) if error < math.inf else None,
            "drift_ppm": [round(each, 2) for each in clock.drift],
            "steps_of_clock_us": [round(each.ns / 1e3, 1) for each in clock.breaks],
            "lost": sum(ring.lost for ring in each.rings), "overflow": facts.overflow,
        }  # fmt: skip
    comms = {label(ring): list(ring.members) for each in byrank.values() for ring in each.rings if ring.kind != "rank"}
    return {
        "job": first.job, "size": size, "missing": [rank for rank in range(size) if rank not in byrank],
        "realtime_ns": first.realtime_ns, "monotonic_ns": first.monotonic_ns, "ranks": ranks, "comms": comms,
        "calls": _calls(byrank, timeline.names), "spans": _spans(byrank, timeline.names),
    }  # fmt: skip


def _calls(byrank: Mapping[int, Recorded], names: list[str]) -> dict[str, dict[str, Any]]:
    """By name: what the calls were."""
    wanted, calls = set(names), {}
    for each in byrank.values():
        for what in each.table.values():
            if what.collective and what.text in wanted:
                calls[what.text] = {
                    "collective": what.collective, "algorithm": what.algorithm, "transports": what.transports,
                    "bytes": what.bytes, "site": what.site, "dtype": what.dtype,
                }  # fmt: skip
    return calls


def _spans(byrank: Mapping[int, Recorded], names: list[str]) -> dict[str, dict[str, Any]]:
    """By name: what spans tell as data."""
    wanted = set(names)
    every = (what for each in byrank.values() for what in each.table.values())
    return {what.text: written(what.told) for what in every if what.told is not None and what.text in wanted}
