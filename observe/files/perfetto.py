"""Perfetto's format from arrays, by NumPy alone: no protobuf library, no loop over events.

Protobuf allows numbers that are longer than they need be (Perfetto's own writer uses that for lengths).  So all slices
have the same length, and a table of bytes is filled column by column; what a slice does not have (a step, a peer) is
there under another name.  Field numbers are those of protos/perfetto/trace in Perfetto's source.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.observe.timeline import Timeline, described
from hocket.recording import NOBODY

BLOCK = 1 << 14
"""Rows that are made at once: 2 MB, which stay in a core's cache."""
ARGUMENTS = ("bytes", "seq", "held", "step", "peer")
"""Numbers of a slice, and the annotations' interned names."""
WIDE = ("bytes", "seq", "held")
"""Numbers of 8 bytes; the others have 4."""
ABOUT = "about this trace"
SEQUENCE, STATE = b"\x50\x01", b"\x68\x02"
"""trusted_packet_sequence_id 1; sequence_flags: needs what was said before."""
NOTHING = tuple(f"(no {name})" for name in ARGUMENTS)
"""Their names where they mean nothing: Perfetto counts fields that it does not know as errors."""
NO_ARROW = np.uint64(1 << 63)
"""Plus the slice's place: a flow with one end is not drawn."""
SMALLEST_UUID = 1 << 20
"""The least identifier of a track; a process's is 1 + its rank."""
PID = 1_000_000
"""Plus the rank: real process ids differ between hosts only by chance."""


def _field(name: str, width: int = 8) -> tuple[str, str]:
    return name, f"<u{width}"


def _constant(data: bytes) -> tuple[str, bytes]:
    return "", data


def _arguments() -> Iterator[Any]:
    for name in ARGUMENTS:
        width = 8 if name in WIDE else 4
        yield _constant(bytes([0x22, 3 + width, 0x08]))  # debug_annotations (4), its length; name_iid
        yield _field(f"{name} name", 1)
        yield _constant(b"\x20")  # int_value
        yield _field(name, width)


EVENT = [
    _constant(b"\x48\x01\x58"), _field("track", 4),  # type: begin; track_uuid
    _constant(b"\x50"), _field("name", 4),  # name_iid
    *_arguments(),
    _constant(b"\xf9\x02"), _field("flow"),  # flow_ids (47)
]  # fmt: skip


def _size(parts: list[Any]) -> int:
    return sum(len(kind) if isinstance(kind, bytes) else int(kind[2:]) for _, kind in parts)


def _packet(parts: list[Any]) -> list[Any]:
    return [_constant(bytes([0x0A, _size(parts)])), *parts]


def _timed(name: str, more: bytes, event: list[Any]) -> list[Any]:
    """A packet with a timestamp (8), `more`, and a track_event (11)."""
    head = [_constant(b"\x40"), _field(name), _constant(SEQUENCE + more + bytes([0x5A, _size(event)]))]
    return _packet([*head, *event])


ROW = [
    *_timed("begin", STATE, EVENT),
    *_timed("end", b"", [_constant(b"\x48\x02\x58"), _field("end track", 4)]),
]  # fmt: skip
"""A slice: where it begins, with all that is known of it, and where it ends."""
COUNTED = _timed("at", b"", [_constant(b"\x48\x04\x58"), _field("track", 4), _constant(b"\xf0\x01"), _field("value")])


class Form:
    """The form of rows in bytes."""

    def __init__(self, parts: list[Any]) -> None:
        self.size = _size(parts)
        self.template = np.zeros(self.size, np.uint8)
        self.fixed = np.zeros(self.size, bool)
        """The bytes that are the same in all rows."""
        names, kinds, places, at = [], [], [], 0
        for name, kind in parts:
            length = _size([(name, kind)])
            if isinstance(kind, bytes):
                self.template[at : at + length] = np.frombuffer(kind, np.uint8)
                self.fixed[at : at + length] = True
            else:
                names.append(name)
                kinds.append(kind)
                places.append(at)
            at += length
        self.dtype = np.dtype({"names": names, "formats": kinds, "offsets": places, "itemsize": self.size})

    def rows(self, count: int) -> NDArray[Any]:
        """So many, of `dtype`, with what is fixed."""
        encoded = np.empty((count, self.size), np.uint8)
        encoded[:] = self.template
        return encoded.reshape(-1).view(self.dtype)


SLICES, COUNTS = Form(ROW), Form(COUNTED)


def number(values: NDArray[Any], width: int = 8) -> NDArray[Any]:
    """Varints of `width` bytes, 4 or 8: seven bits a byte, the lowest first, all but the last marked by 128.

    Numbers that are too large (2^28, 2^56) become the largest.
    """
    x = np.minimum(values.astype(np.uint64), np.uint64((1 << 7 * width) - 1))
    x = x & 0x000000000FFFFFFF | (x & 0x00FFFFFFF0000000) << np.uint64(4)
    x = x & 0x00003FFF00003FFF | (x & 0x0FFFC0000FFFC000) << np.uint64(2)
    x = x & 0x007F007F007F007F | (x & 0x3F803F803F803F80) << np.uint64(1)
    return (x | np.uint64(0x80808080808080 >> 8 * (8 - width))).astype(f"<u{width}")


def plain(x: NDArray[Any]) -> NDArray[Any]:
    """The numbers that `number` was made of."""
    x = x.astype(np.uint64) & 0x7F7F7F7F7F7F7F7F
    x = x & 0x007F007F007F007F | (x & 0x7F007F007F007F00) >> np.uint64(1)
    x = x & 0x00003FFF00003FFF | (x & 0x3FFF00003FFF0000) >> np.uint64(2)
    return x & 0x000000000FFFFFFF | (x & 0x0FFFFFFF00000000) >> np.uint64(4)


def packets(timeline: Timeline) -> Iterator[bytes]:
    """The file, in pieces."""
    yield header(timeline)
    for at in range(0, len(timeline.slices), BLOCK):
        yield _slices(timeline.slices[at : at + BLOCK], at)
    for at in range(0, len(timeline.counts), BLOCK):
        yield _counts(timeline.counts[at : at + BLOCK])


def _slices(given: NDArray[Any], first: int) -> bytes:
    rows = SLICES.rows(len(given))
    rows["begin"], rows["end"] = number(given["begin"]), number(given["end"])
    rows["track"] = rows["end track"] = number(given["track"].astype(np.uint64) + np.uint64(SMALLEST_UUID), 4)
    rows["name"] = number(given["name"].astype(np.uint64) + np.uint64(1), 4)
    for name in ARGUMENTS:
        values = given[name]
        rows[name] = number(values, 8 if name in WIDE else 4)
        shown = values != NOBODY if name in ("step", "peer") else values != 0
        place = ARGUMENTS.index(name) + 1
        rows[f"{name} name"] = np.where(shown, place, place + len(ARGUMENTS))
    alone = NO_ARROW | np.arange(first, first + len(given), dtype=np.uint64)
    rows["flow"] = np.where(given["flow"] != 0, given["flow"], alone)
    return rows.tobytes()


def _counts(given: NDArray[Any]) -> bytes:
    rows = COUNTS.rows(len(given))
    rows["at"], rows["value"] = number(given["at"]), number(np.maximum(given["value"], 0))
    rows["track"] = number(given["track"].astype(np.uint64) + np.uint64(SMALLEST_UUID), 4)
    return rows.tobytes()


# ----------------------------------------------------------------------------- what is said once, at the beginning


def header(timeline: Timeline) -> bytes:
    """Processes, tracks, names by number, and `about` as the text of a first event, which people see too."""
    out = bytearray(message(1, SEQUENCE + integer(13, 1) + integer(87, 1)))  # first packet: forget what was before
    for rank, name in sorted(timeline.processes.items()):
        process = message(3, integer(1, PID + rank) + message(6, name))
        out += message(1, message(60, integer(1, 1 + rank) + process))
    for at, track in enumerate(timeline.tracks):
        counter = message(8, b"") if track.counter else b""
        parts = integer(1, SMALLEST_UUID + at) + message(2, track.name) + integer(5, 1 + track.process) + counter
        out += message(1, message(60, parts))
    names = [message(2, integer(1, i) + message(2, name)) for i, name in enumerate(timeline.names, 1)]
    names += [message(3, integer(1, i) + message(2, name)) for i, name in enumerate([*ARGUMENTS, *NOTHING], 1)]
    out += message(1, SEQUENCE + STATE + message(12, b"".join(names)))
    out += message(1, message(60, integer(1, SMALLEST_UUID - 1) + message(2, ABOUT)))
    note = message(4, message(10, "hocket") + message(6, json.dumps(described(timeline), separators=(",", ":"))))
    event = integer(9, 3) + integer(11, SMALLEST_UUID - 1) + message(23, ABOUT) + note
    out += message(1, integer(8, 0) + SEQUENCE + STATE + message(11, event))
    return bytes(out)


def varint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def integer(field: int, n: int) -> bytes:
    return varint(field << 3) + varint(n)


def message(field: int, data: bytes | str) -> bytes:
    """A field with a length: bytes, or text."""
    data = data.encode(errors="replace") if isinstance(data, str) else data
    return varint(field << 3 | 2) + varint(len(data)) + data
