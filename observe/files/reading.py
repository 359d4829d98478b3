"""A trace from its file.  Nothing in it is believed: what is not as `write` makes it is refused, with a reason.

hocket's own traces tell about themselves (`about`); foreign.py makes of others what they know.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.errors import ArgumentError
from hocket.observe.files import perfetto
from hocket.observe.files.foreign import adopted
from hocket.observe.files.packing import unpack
from hocket.observe.timeline import COUNT, VERSION, Timeline, Track, slices
from hocket.recording import NOBODY

MOST = 4 << 30
"""Bytes, unpacked."""
MOST_TRACKS = 1 << 18
MOST_JSON, MOST_OPENED, MOST_ITEMS = 256 << 20, 1 << 22, 1 << 25
"""Bytes, unpacked, and how often a list or an object begins in them, and how many commas they have: Python's objects
take up to thirty times as much memory as their text."""
LONGEST = 4096
"""Characters of a name that are kept."""
SAID_ONCE = ("version", "processes", "tracks", "names")
FOREIGN = "it is not a trace of hocket's"


def read(*paths: str) -> Timeline:
    """The trace in a file: .pftrace or .json, packed or not, whatever its name; or torch's, of one rank in each file.

    Raises ArgumentError for a file that is cut off, damaged, of another version or of another program.  Cost: 0.2 us a
    slice; JSON 10 us, and ten times the file's size of memory: 256 MiB of it are read.
    """
    documents = [_with_path(path, partial(_content, path)) for path in paths]
    if len(documents) == 1 and isinstance(documents[0], Timeline):
        return documents[0]
    made: Timeline = _with_path(paths[0], lambda: sensible(lambda: adopted(documents)))
    return made


def _with_path(path: str, make: Callable[[], Any]) -> Any:
    """Return what `make` does; its errors name the file."""
    try:
        return make()
    except OSError as why:
        raise ArgumentError(f"{path!r} cannot be read: {why.strerror}") from why
    except ArgumentError as why:
        raise ArgumentError(f"{path!r} cannot be read: {why}") from None


def _content(path: str) -> Any:
    """The timeline, if it is hocket's, or what another program's JSON says."""
    with open(path, "rb") as file:
        packed = file.peek(2)[:2] == b"\x1f\x8b"
        if os.fstat(file.fileno()).st_size > MOST:
            raise ArgumentError(f"it is larger than {MOST >> 30} GiB")
        data = unpack(file, MOST) if packed else bytearray(file.read())
    return _chrome(data) if data[:64].lstrip().startswith((b"{", b"[")) else _perfetto(data)


def sensible(make: Callable[[], Any]) -> Any:
    """Return what `make` finds in a document of which nothing is believed."""
    try:
        return make()
    except ArgumentError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise ArgumentError("its events make no sense") from None


# ---------------------------------------------------------------------------------------------- what it says of itself


def structure(header: Any) -> Timeline:
    """A timeline without slices, of what `described` made."""
    if not isinstance(header, dict) or "version" not in header:
        raise ArgumentError(FOREIGN)
    if header["version"] != VERSION:
        raise ArgumentError(f"it is of version {header['version']!r:.20} of the format; this hocket reads {VERSION}")
    about = {name: value for name, value in header.items() if name not in SAID_ONCE}
    try:
        processes = {int(rank): str(name)[:LONGEST] for rank, name in header["processes"].items()}
        tracks = [_track(*each) for each in header["tracks"]]
        names = [str(name)[:LONGEST] for name in header["names"]]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise ArgumentError("its list of tracks is damaged") from None
    if len(tracks) > MOST_TRACKS or not all(track.process in processes for track in tracks):
        raise ArgumentError("it has tracks of processes that it does not list")
    return Timeline(processes, tracks, names, slices(0), about=about)


def _track(
    process: Any, name: Any, counter: Any, group: Any, comm: Any, messages: Any = False, peer: Any = NOBODY,
    counts: Any = -1,
) -> Track:  # fmt: skip
    name, group, comm = (str(text)[:LONGEST] for text in (name, group, comm))
    return Track(int(process), name, bool(counter), group, comm, bool(messages), int(peer), int(counts))


def checked(timeline: Timeline) -> Timeline:
    """Every slice and count is on a track that is there, and has a time and a name."""
    for rows, counter in ((timeline.slices, False), (timeline.counts, True)):
        kinds = np.array([track.counter for track in timeline.tracks] or [not counter], bool)
        sound = rows["track"] < len(timeline.tracks)
        sound[sound] = kinds[rows["track"][sound]] == counter
        if not counter:
            sound &= (rows["begin"] >= 0) & (rows["end"] >= rows["begin"]) & (rows["name"] < len(timeline.names))
        if not sound.all():
            raise ArgumentError(f"{int((~sound).sum())} of its {len(rows)} rows make no sense")
    if timeline.about.pop("rows", None) != [len(timeline.slices), len(timeline.counts)]:
        raise ArgumentError("it is cut off: rows are missing")
    return timeline


# -------------------------------------------------------------------------------------------------- Perfetto's format


def _perfetto(data: bytearray) -> Timeline:
    table = np.frombuffer(data, np.uint8)
    timeline, at, heads = None, 0, 0
    runs: dict[perfetto.Form, list[NDArray[Any]]] = {perfetto.SLICES: [], perfetto.COUNTS: []}
    while at < len(data):
        rows, form = next(((r, f) for f in runs if timeline and len(r := _run(table, at, f))), (None, None))
        if rows is not None and form is not None:
            runs[form].append(rows)
            at += rows.nbytes
        elif timeline is None:
            heads += 1
            if heads > 2 * MOST_TRACKS:
                raise ArgumentError(FOREIGN)
            at, header = _packet(data, at)
            timeline = structure(header) if header is not None else None
        else:
            raise ArgumentError(f"it is cut off or damaged at byte {at}")
    if timeline is None:
        raise ArgumentError(FOREIGN)
    timeline.slices = _slices([rows.view(perfetto.SLICES.dtype).reshape(-1) for rows in runs[perfetto.SLICES]])
    timeline.counts = _counts([rows.view(perfetto.COUNTS.dtype).reshape(-1) for rows in runs[perfetto.COUNTS]])
    return checked(timeline)


def _run(table: NDArray[np.uint8], at: int, form: perfetto.Form) -> NDArray[np.uint8]:
    """The rows of this form that begin here, a block of them at most.  Looks at more the longer they are alike."""
    most, count, known = min((len(table) - at) // form.size, perfetto.BLOCK), 8, 0
    while known < most:
        rows = table[at + known * form.size : at + min(count, most) * form.size].reshape(-1, form.size)
        alike = (rows[:, form.fixed] == form.template[form.fixed]).all(axis=1)
        if not alike.all():
            known += int(np.argmin(alike))
            break
        known, count = min(count, most), 8 * count
    return table[at : at + known * form.size].reshape(known, form.size)


def _slices(parts: list[NDArray[Any]]) -> NDArray[Any]:
    spans = slices(sum(map(len, parts)))
    at = 0
    for rows in parts:
        into = spans[at : at + len(rows)]
        for name in ("begin", "end", "bytes", "seq", "held", "step", "peer"):
            into[name] = perfetto.plain(rows[name])
        into["track"] = _less(rows["track"], perfetto.SMALLEST_UUID)
        into["name"] = _less(rows["name"], 1)
        into["flow"] = np.where(rows["flow"] < perfetto.NO_ARROW, rows["flow"], 0)
        at += len(rows)
    return spans


def _counts(parts: list[NDArray[Any]]) -> NDArray[Any]:
    counts = np.zeros(sum(map(len, parts)), COUNT)
    at = 0
    for rows in parts:
        into = counts[at : at + len(rows)]
        into["at"], into["value"] = perfetto.plain(rows["at"]), perfetto.plain(rows["value"])
        into["track"] = _less(rows["track"], perfetto.SMALLEST_UUID)
        at += len(rows)
    return counts


def _less(numbers: NDArray[Any], first: int) -> NDArray[Any]:
    """Counted from `first`; smaller ones become too large for any list."""
    return (perfetto.plain(numbers).astype(np.int64) - first) & 0xFFFFFFFF


def _packet(data: bytearray, at: int) -> tuple[int, Any]:
    """Past a packet of the header; what the trace tells about itself, if it stands there."""
    end, fields = _fields(data, at, len(data), 1)
    if not fields or fields[0][0] != 1 or not isinstance(fields[0][1], slice):
        raise ArgumentError(FOREIGN)
    for event in _inside(data, fields[0][1], 11):
        for note in _inside(data, event, 4):
            names, texts = _inside(data, note, 10), _inside(data, note, 6)
            if names and texts and data[names[0]] == b"hocket":
                try:
                    return end, json.loads(data[texts[0]].decode())
                except (ValueError, RecursionError):
                    raise ArgumentError("its header cannot be read") from None
    return end, None


def _inside(data: bytearray, place: slice, wanted: int) -> list[slice]:
    """Where the fields `wanted` with a length lie in a message."""
    _, fields = _fields(data, place.start, place.stop, 1 << 20)
    return [value for number, value in fields if number == wanted and isinstance(value, slice)]


def _fields(data: bytearray, at: int, end: int, most: int) -> tuple[int, list[tuple[int, int | slice]]]:
    """A message's fields by number: integers, and where longer ones lie; at most `most`, and where the next begins."""
    fields: list[tuple[int, int | slice]] = []
    while at < end and len(fields) < most:
        tag, at = _varint(data, at, end)
        kind, value = tag & 7, 0
        if kind == 0:
            value, at = _varint(data, at, end)
            fields.append((tag >> 3, value))
            continue
        if kind == 2:
            length, at = _varint(data, at, end)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ArgumentError(FOREIGN)
        if at + length > end:
            raise ArgumentError("it is cut off")
        fields.append((tag >> 3, slice(at, at + length)))
        at += length
    return at, fields


def _varint(data: bytearray, at: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            raise ArgumentError("it is cut off")
        value |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return value, at
    raise ArgumentError(FOREIGN)


# ------------------------------------------------------------------------------------------------------ Chrome's JSON


def _chrome(data: bytearray) -> Any:
    if len(data) > MOST_JSON:
        raise ArgumentError(f"it has more than {MOST_JSON >> 20} MiB of JSON: record .pftrace.gz")
    if data.count(b"{") + data.count(b"[") > MOST_OPENED or data.count(b",") > MOST_ITEMS:
        raise ArgumentError("it has more lists and objects than a trace of that size")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as why:
        raise ArgumentError(f"it is cut off, or not JSON ({why!s:.80})") from None
    other = document.get("otherData") if isinstance(document, dict) else None
    if not isinstance(other, dict) or "hocket" not in other:
        return document
    timeline = structure(other["hocket"])
    sensible(lambda: _take(timeline, document.get("traceEvents")))
    return checked(timeline)


def _take(timeline: Timeline, rows: list[dict[str, Any]]) -> None:
    """Slices (X), the arrows that begin and end with them (s, f), and counts (C)."""
    names = {name: number for number, name in enumerate(timeline.names)}
    spans: list[tuple[int, ...]] = []
    counts: list[tuple[int, int, int]] = []
    for row in rows:
        kind = row["ph"]
        if kind == "X":
            begin, arguments = _ns(row["ts"]), row["args"]
            numbers = [int(arguments.get(name, NOBODY if name in ("step", "peer") else 0)) for name in _TOLD]
            spans.append((begin, begin + _ns(row["dur"]), 0, *numbers, int(row["tid"]) - 1, names[row["name"]]))
        elif kind in "sf":
            spans[-1] = (*spans[-1][:2], int(row["id"]), *spans[-1][3:])
        elif kind == "C":
            counts.append((_ns(row["ts"]), int(row["args"]["value"]), int(row["tid"]) - 1))
    timeline.slices = slices(len(spans))
    for name, values in zip(("begin", "end", "flow", *_TOLD, "track", "name"), zip(*spans, strict=True), strict=False):
        timeline.slices[name] = values
    timeline.counts = np.array(counts, COUNT)


_TOLD = ("bytes", "held", "seq", "peer", "step")


def _ns(us: Any) -> int:
    return round(float(us) * 1000)


