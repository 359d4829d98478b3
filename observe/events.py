"""The records of one engine, as slices: a record says that something began or ended, a slice is from when to when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hocket.observe.timeline import Group, slices, taken
from hocket.recording import NOBODY, SPAN, Kind, Recorded, Ring

ENDS = (Kind.DONE, Kind.FAIL)
Rows = NDArray[Any]


class Slices(NamedTuple):
    """Slices of one track, in the clock of their rank; `names`: of each, a number in the table of the rank's texts, or
    one name for all."""

    group: Group
    name: str
    """The name of the track."""
    slices: Rows
    names: Rows | str


def label(ring: Ring) -> str:
    """Which calls these are: equal on all ranks that make them together."""
    kind = "" if ring.kind == "collectives" else f" {ring.kind}"
    lane = f" priority {ring.priority}" if ring.priority else ""
    return f"{ring.comm}{kind}{lane}{f' over {ring.transport}' if ring.transport else ''}"


def parts(of: Recorded, ring: Ring, until: int) -> list[Slices]:
    """All that a ring tells.  `until`: when what has not ended ends in the picture; ns of this rank's clock."""
    records = taken(ring.records, np.argsort(ring.records["ns"], kind="stable"))
    marks = _is(records, Kind.MARK)
    peers = _world(ring)
    every = [
        *_calls(records, until),
        _steps(records, until),
        *_waits(records, until, peers),
        *_messages(records, "send", until, peers),
        *_messages(records, "recv", until, peers),
        _ending(records, Kind.KERNEL, Group.KERNELS, "kernel", records["what"]),
        _ending(records, Kind.NO_CORE, Group.NO_CORE, "no core", records["bytes"]),
        *_moments(records, marks[marks["lane"] != SPAN], peers),
        *_spans(marks[marks["lane"] == SPAN], of),
    ]
    return [part for part in every if len(part.slices)]


def _world(ring: Ring) -> NDArray[np.uint16]:
    """From a peer to its rank in the job."""
    known = [ring.world_rank(peer) for peer in range(len(ring.members))]
    table = np.full(NOBODY + 1, NOBODY, np.uint16)
    if ring.kind == "rank":
        return np.arange(NOBODY + 1, dtype=np.uint16)
    table[: len(known)] = [NOBODY if rank is None else min(rank, NOBODY) for rank in known]
    return table


def _is(records: Rows, *kinds: int) -> Rows:
    return taken(records, np.isin(records["kind"], kinds))


def _key(records: Rows, *fields: str) -> Rows:
    """One number of the call's and of some 16 bits each."""
    key = records["seq"].astype(np.uint64)
    for name in fields:
        key = key << np.uint64(16) | records[name].astype(np.uint64)
    return key


def _made(records: Rows, begin: Rows, end: Rows) -> Rows:
    spans = slices(len(records))
    spans["begin"], spans["end"] = begin, np.maximum(begin.astype(np.int64), end.astype(np.int64))
    for name in ("seq", "bytes", "step"):
        spans[name] = records[name]
    return spans


def _ends(begun: Rows, ended: Rows, until: int, *fields: str) -> Rows:
    """When each of `begun` ended: the first of `ended` with the same call and fields; else `until`."""
    ends = np.full(len(begun), until, np.int64)
    _, at, of = np.intersect1d(_key(begun, *fields), _key(ended, *fields), return_indices=True)
    ends[at] = ended["ns"][of]
    return ends


def _calls(records: Rows, until: int) -> list[Slices]:
    begun, ended = _is(records, Kind.CALL), _is(records, *ENDS)
    spans = _made(begun, begun["ns"], _ends(begun, ended, until))
    spans["step"] = NOBODY
    submitted = _is(records, Kind.SUBMIT)
    queued = _made(submitted, submitted["ns"], _ends(submitted, begun, until))
    queued["step"] = NOBODY
    short = _is(records, Kind.CALLED)
    untimed = _made(short, short["ns"], short["ns"])
    untimed["step"] = NOBODY
    return [
        Slices(Group.CALLS, "calls", spans, begun["what"]),
        Slices(Group.QUEUE, "queue", queued, submitted["what"]),
        Slices(Group.UNTIMED, "calls, not timed", untimed, short["what"]),
    ]


def _steps(records: Rows, until: int) -> Slices:
    """A step ends where the next begins, or the call ends."""
    rows = _is(records, Kind.STEP, *ENDS)
    ends = np.append(rows["ns"][1:].astype(np.int64), until)
    steps = rows["kind"] == Kind.STEP
    begun = taken(rows, steps)
    return Slices(Group.STEPS, "steps", _made(begun, begun["ns"], ends[steps]), "step")


def _waits(records: Rows, until: int, peers: Rows) -> list[Slices]:
    """One for each peer that was waited for; several peers may be waited for at once, and the first ends it."""
    rows = _is(records, Kind.WAIT_RECV, Kind.WAIT_SEND, Kind.MOVED, *ENDS)
    stops = rows["kind"] != Kind.WAIT_RECV
    stops &= rows["kind"] != Kind.WAIT_SEND
    at = np.where(stops, np.arange(len(rows)), len(rows))
    following = np.minimum.accumulate(at[::-1])[::-1]
    ends = np.append(rows["ns"].astype(np.int64), until)[following]
    waits = []
    for kind, group, name, what in (
        (Kind.WAIT_RECV, Group.WAITS, "waits", "wait for a message"),
        (Kind.WAIT_SEND, Group.ROOM, "waits for room", "wait until it is taken"),
    ):
        mine = rows["kind"] == kind
        begun = taken(rows, mine)
        spans = _made(begun, begun["ns"], ends[mine])
        spans["peer"], spans["bytes"] = peers[begun["peer"]], 0
        waits.append(Slices(group, name, spans, what))
    return waits


def _messages(records: Rows, way: str, until: int, peers: Rows) -> list[Slices]:
    """A track for each peer: a channel carries one message after the other."""
    ready, ended = (Kind.SEND_READY, Kind.SEND_END) if way == "send" else (Kind.RECV_READY, Kind.RECV_END)
    group, words = (Group.SENDS, "to") if way == "send" else (Group.RECEIVES, "from")
    every, over, done = _is(records, ready), _is(records, ended), _is(records, *ENDS)
    messages = []
    for peer in np.unique(every["peer"]).tolist():
        begun = taken(every, every["peer"] == peer)
        ends = _ends(begun, taken(over, over["peer"] == peer), -1, "step", "lane")
        spans = _made(begun, begun["ns"], np.where(ends >= 0, ends, _ends_of_calls(begun, done, until)))
        spans["peer"] = peers[peer]
        messages.append(Slices(group, f"{words} {int(peers[peer])}", spans, way))
    return messages


def _ends_of_calls(begun: Rows, done: Rows, until: int) -> Rows:
    """For messages whose own end is not there."""
    calls, whose = np.unique(begun["seq"], return_inverse=True)
    last = np.full(len(calls), until, np.int64)
    _, at, of = np.intersect1d(calls, done["seq"], return_indices=True)
    last[at] = done["ns"][of]
    ends: Rows = last[whose]
    return ends


def _ending(records: Rows, kind: Kind, group: Group, name: str, ns: Rows) -> Slices:
    """Slices that are recorded when they have ended, with their length."""
    wanted = records["kind"] == kind
    rows = taken(records, wanted)
    end = rows["ns"].astype(np.int64)
    spans = _made(rows, np.maximum(0, end - ns[wanted].astype(np.int64)), end)
    spans["bytes"][:] = rows["bytes"] if kind == Kind.KERNEL else 0
    return Slices(group, group.value, spans, name)


MOST_ROWS = 32
"""Rows of spans of one group that overlap: the others come into the last."""
MOMENTS = {
    Kind.MARK: (Group.MARKS, "marks"), Kind.VERDICT: (Group.EVENTS, "verdict"), Kind.LEFT: (Group.EVENTS, "left"),
    Kind.LONG_WAIT: (Group.LONG_WAITS, "long waits"), Kind.FAIL: (Group.EVENTS, "failed"),
}  # fmt: skip


def _moments(records: Rows, marks: Rows, peers: Rows) -> list[Slices]:
    moments = []
    for kind, (group, name) in MOMENTS.items():
        rows = marks if kind == Kind.MARK else _is(records, kind)
        spans = _made(rows, rows["ns"], rows["ns"])
        spans["peer"], spans["step"] = peers[rows["peer"]], NOBODY
        if kind == Kind.LONG_WAIT:
            spans["begin"], spans["bytes"] = rows["ns"] - np.minimum(rows["ns"], rows["bytes"]), 0
        moments.append(Slices(group, name, spans, rows["what"] if kind in (Kind.MARK, Kind.LONG_WAIT) else name))
    return moments


def _spans(records: Rows, of: Recorded) -> list[Slices]:
    """A track for those of each group that lie in each other; more where they overlap."""
    ends = records["ns"].astype(np.int64)
    spans = _made(records, np.maximum(0, ends - records["bytes"].astype(np.int64)), ends)
    spans["seq"], spans["bytes"], spans["step"] = 0, 0, NOBODY
    tracks = []
    for group in np.unique(records["seq"]).tolist():
        mine = np.flatnonzero(records["seq"] == group)
        mine = mine[np.lexsort((-spans["end"][mine], spans["begin"][mine]))]
        rows = _rows(spans["begin"][mine].tolist(), spans["end"][mine].tolist())
        for row in range(max(rows) + 1):
            kept = mine[np.array(rows) == row]
            name = f"{of.what(group).text or 'spans'}{f' {row + 1}' if row else ''}"
            tracks.append(Slices(Group.SPANS, name, spans[kept], records["what"][kept]))
    return tracks


def _rows(begins: Sequence[int], ends: Sequence[int]) -> list[int]:
    """The first row for each in which it follows all others or lies in them; in the order of their beginnings."""
    under_way: list[list[int]] = []
    rows = []
    for begin, end in zip(begins, ends, strict=True):
        for row, open_ones in enumerate(under_way):
            while open_ones and open_ones[-1] <= begin:
                open_ones.pop()
            if not open_ones or end <= open_ones[-1] or row == MOST_ROWS - 1:
                break
        else:
            row = len(under_way)
            under_way.append([])
        under_way[row].append(end)
        rows.append(row)
    return rows


def links(ring: Ring) -> Sequence[tuple[int, int, int, Rows]]:
    """The counters of connections: (peer in the job, the text that names it, which counter (Link), its records)."""
    rows, peers = _is(ring.records, Kind.LINK), _world(ring)
    keys = sorted(set(zip(*(rows[name].tolist() for name in ("peer", "what", "lane")), strict=True)))
    return [
        (int(peers[p]), what, lane, rows[(rows["peer"] == p) & (rows["what"] == what) & (rows["lane"] == lane)])
        for p, what, lane in keys
    ]
