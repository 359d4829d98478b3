"""A trace as JSON in the Trace Event Format: for chrome://tracing, and for programs of one's own.

Times are microseconds with three digits behind the point.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.observe.timeline import Timeline, Track, described
from hocket.recording import NOBODY

MOST = 1_000_000
"""Slices: chrome://tracing reads 256 MB, and a slice takes 200 bytes at most."""
BLOCK = 1 << 13
ARGUMENTS = {"bytes": 0, "seq": 0, "held": 0, "step": NOBODY, "peer": NOBODY}
"""Numbers of a slice, and what stands for nothing."""


def rows(timeline: Timeline) -> Iterator[bytes]:
    """The file, in pieces.  Of more than MOST slices the newest, and `about` tells how many are left out."""
    given, about = timeline.slices, described(timeline)
    if len(given) > MOST:
        about["left out"], about["rows"] = len(given) - MOST, [MOST, len(timeline.counts)]
        given = given[np.argsort(given["end"], kind="stable")[-MOST:]]
    yield b'{"displayTimeUnit":"ns","otherData":' + _json({"hocket": about}) + b',"traceEvents":[\n'
    yield b",\n".join(_json(row) for row in _said_once(timeline))
    names = [json.dumps(name) for name in timeline.names]
    where = [f'"pid":{track.process},"tid":{at + 1},"cat":"hocket"' for at, track in enumerate(timeline.tracks)]
    seen: set[int] = set()
    for at in range(0, len(given), BLOCK):
        yield "".join(_slices(given[at : at + BLOCK], names, where, timeline.tracks, seen)).encode()
    for at, value, number in timeline.counts.tolist():
        name = json.dumps(timeline.tracks[number].name)
        yield f',\n{{"ph":"C","name":{name},"ts":{_us(at)},{where[number]},"args":{{"value":{value}}}}}'.encode()
    yield b"\n]}\n"


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def _said_once(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for rank, name in sorted(timeline.processes.items()):
        yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
    for at, track in enumerate(timeline.tracks):
        yield {"ph": "M", "name": "thread_name", "pid": track.process, "tid": at + 1, "args": {"name": track.name}}


def _slices(
    given: NDArray[Any], names: list[str], where: list[str], tracks: list[Track], seen: set[int]
) -> Iterator[str]:
    roles = {"sends": "s", "receives": "f"}
    fields = given.dtype.names or ()
    for values in given.tolist():
        row = dict(zip(fields, values, strict=True))
        arguments = ",".join(f'"{name}":{row[name]}' for name, nothing in ARGUMENTS.items() if row[name] != nothing)
        times = f'"ts":{_us(row["begin"])},"dur":{_us(row["end"] - row["begin"])}'
        place = where[row["track"]]
        yield f',\n{{"ph":"X","name":{names[row["name"]]},{times},{place},"args":{{{arguments}}}}}'
        if flow := row["flow"]:
            ends = roles.get(tracks[row["track"]].group, "f" if flow in seen else "s") == "f"
            seen.add(flow)
            # A message may be awaited before it is sent, and an arrow must not lead back in time: it leads to the end.
            at = max(row["begin"], row["end"] - 1) if ends else row["begin"]
            yield f',\n{{"ph":"{"sf"[ends]}","bp":"e","id":{flow},"name":"message","ts":{_us(at)},{place}}}'
