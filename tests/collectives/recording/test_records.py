"""Recordings are read as they are, and nothing in one is believed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.collectives.recording.records import (
    ABOUT_AT,
    HEAD,
    HEADS_AT,
    MAGIC,
    RING,
    RINGS,
    VERSION,
    shortened,
    unshortened,
)
from hocket.recording import NOBODY, RECORD, Kind, NotARecording, read

HEADER = Path(__file__).parents[3] / "system/record.h"
TEXTS_AT, RINGS_AT, ROOM = 73728, 90112, 8
ABOUT = {"rank": 3, "size": 4, "job": "j", "comm": "world", "kind": "collectives", "index": 3, "members": "0-3"}
LINES = [{}, {"text": "allreduce(float32[2])", "collective": "allreduce", "site": "train.py:7 in main"}]


def recording(written: int, about: object = ABOUT, lines: list[object] = LINES) -> bytearray:
    """One ring of 8 records, whose numbers of calls count up."""
    data = bytearray(RINGS_AT + ROOM * RECORD.itemsize)
    texts = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    head = np.frombuffer(data, HEAD, 1)
    head[0] = (MAGIC, VERSION, 77, 1, 0, 0, 0, 5, 6, 0, TEXTS_AT, 8192, len(texts), b"boot", b"host")
    for at, text in ((TEXTS_AT, texts), (ABOUT_AT, json.dumps(about).encode() + b"\n")):
        data[at : at + len(text)] = text
    rings = np.frombuffer(data, RING, RINGS, HEADS_AT)
    rings["at"][0], rings["written"][0], rings["room"][0], rings["claimed"][0] = (
        RINGS_AT, written * RECORD.itemsize, ROOM, 1)
    records = np.frombuffer(data, RECORD, ROOM, RINGS_AT)
    for n in range(max(0, written - ROOM), written):
        records[n % ROOM] = (100 + n, n + 1, 1, 8, Kind.CALLED, NOBODY, NOBODY, NOBODY)
    return data


def test_the_header_and_its_twin_say_the_same() -> None:
    numbers = dict(re.findall(r"HK_SAW_(\w+) = (\d+)", HEADER.read_text()))
    assert {kind.name: str(kind.value) for kind in Kind}.items() <= numbers.items()
    assert (RECORD.itemsize, RING.itemsize, HEAD.itemsize) == (32, 64, 184)


def test_the_oldest_comes_first_and_what_is_lost_is_counted() -> None:
    (rank,) = read(recording(5))
    assert (rank.facts.rank, rank.facts.size, rank.facts.host, rank.facts.pid) == (3, 4, "host", 77)
    (ring,) = rank.rings
    assert ring.records["seq"].tolist() == [1, 2, 3, 4, 5] and ring.lost == 0
    assert (ring.comm, ring.members, rank.what(1).text) == ("world", (0, 1, 2, 3), "allreduce(float32[2])")
    (ring,) = read(recording(21))[0].rings
    assert ring.records["seq"].tolist() == [14, 15, 16, 17, 18, 19, 20, 21] and ring.lost == 13


def test_another_file_is_refused_with_the_reason() -> None:
    data = recording(1)
    with pytest.raises(NotARecording, match="at least"):
        read(data[:100])
    for at, byte, why in ((0, 0x20, "does not begin"), (8, 9, "version 9")):
        other = bytearray(data)
        other[at] = byte
        with pytest.raises(NotARecording, match=why):
            read(other)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(8, TEXTS_AT + 400), st.binary(min_size=1, max_size=9)), max_size=12))
def test_scribbles_do_no_harm(changes: list[tuple[int, bytes]]) -> None:
    data = recording(21)
    for at, scribble in changes:
        data[at : at + len(scribble)] = scribble
    try:
        ranks = read(data)
    except NotARecording:
        return
    assert sum(len(ring.records) for rank in ranks for ring in rank.rings) <= ROOM * RINGS * len(ranks)


ODD = [
    None, 3, [], {"rank": "x", "members": "5-"}, {"rank": -1, "comm": 7, "priority": "high", "members": "0-999999"},
    {"text": 5, "bytes": -1, "fingerprint": "?", "members": [{}]},
]  # fmt: skip


@pytest.mark.parametrize("line", ODD)
def test_lines_of_another_shape_do_no_harm(line: object) -> None:
    (rank,) = read(recording(3, line, [{}, line]))
    assert rank.what(1).text == "" and rank.facts.rank == 0 and rank.rings[0].members == ()


@given(st.lists(st.integers(0, 99), unique=True, max_size=20))
def test_members_are_told_in_short(ranks: list[int]) -> None:
    assert list(unshortened(shortened(ranks))) == ranks
