"""Recordings are read as they are, and nothing in one is believed."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.collectives.recording import processes, records
from hocket.collectives.recording.records import (
    ABOUT_AT,
    HEAD,
    HEADS_AT,
    MAGIC,
    RING,
    RINGS,
    VERSION,
    Part,
    shortened,
    unshortened,
)
from hocket.recording import NOBODY, RECORD, HealedSpan, Kind, NotARecording, read, written

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
    assert ring.records["seq"].tolist() == [15, 16, 17, 18, 19, 20, 21] and ring.lost == 14, "the next is on its way"


class Changing(bytearray):
    """A recording in which something happens when `at` is read."""

    at, then = 0, staticmethod(lambda data: None)

    def __getitem__(self, part: object) -> object:
        found = super().__getitem__(part)  # type: ignore[call-overload]
        if isinstance(part, slice) and part.start == self.at:
            self.then(self)
        return found


def test_a_ring_that_gets_another_owner_meanwhile_is_left_out() -> None:
    """Its records and its description would be of two."""
    data = Changing(recording(5))
    data.at = RINGS_AT
    assert len(read(data)[0].rings) == 1
    data.then = lambda data: np.frombuffer(data, RING, RINGS, HEADS_AT)["claimed"].__setitem__(0, 2)
    assert read(data) == []


def test_a_line_of_the_table_that_comes_with_the_newest_record_is_read() -> None:
    data, line = Changing(recording(5, lines=LINES[:1])), json.dumps(LINES[1]).encode() + b"\n"

    def more(data: bytearray) -> None:
        head = np.frombuffer(data, HEAD, 1)
        data[TEXTS_AT + 3 : TEXTS_AT + 3 + len(line)] = line
        head["texts"] = 3 + len(line)

    data.at, data.then = RINGS_AT, more
    assert read(data)[0].what(1).text == "allreduce(float32[2])"


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


def test_rings_on_one_place_are_read_once_and_a_sparse_file_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of 28 KiB on the disk may say that it has gigabytes of records."""
    monkeypatch.setattr(records, "MOST_BYTES", 1 << 20)
    data = recording(21)
    rings = np.frombuffer(data, RING, RINGS, HEADS_AT)
    rings[1], rings[2] = rings[0], rings[0]
    rings["at"][2] += RECORD.itemsize
    np.frombuffer(data, HEAD, 1)["rings"] = 3
    for number in (1, 2):
        data[ABOUT_AT + number * 1024 :][:1024] = data[ABOUT_AT : ABOUT_AT + 1024]
        about = json.dumps({**ABOUT, "comm": f"c{number}"}).encode() + b"\n"
        data[ABOUT_AT + number * 1024 : ABOUT_AT + number * 1024 + len(about)] = about
    (rank,) = read(data)
    assert [len(ring.records) for ring in rank.rings] == [ROOM - 1, 0, 0] and rank.rings[1].lost == 21

    room = 1 << 15  # a ring of 1 MiB is as many as there are bytes for, without any on the disk
    rings["at"], rings["room"], rings["written"] = RINGS_AT, room, room * RECORD.itemsize
    rings["at"][1] = RINGS_AT + room * RECORD.itemsize
    path = tmp_path / "sparse"
    path.write_bytes(data[:RINGS_AT])
    with path.open("r+b") as file:
        file.truncate(RINGS_AT + 2 * room * RECORD.itemsize)
        (rank,) = read(Part(file.fileno()), newest=room - 1)
        assert [len(ring.records) for ring in rank.rings] == [room - 1, 0, 0]


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process is needed")
def test_root_does_not_read_what_other_users_hold() -> None:
    data, (ready, told), (go, end) = recording(5, {**ABOUT, "job": "anothers"}), os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.setuid(65534)
        held = os.memfd_create("hocket-recorder")
        os.write(held, data)
        os.write(told, b"!")
        os.read(go, 1)
        os._exit(0)
    os.read(ready, 1)
    try:
        jobs = [part.facts.job for each in processes.recorders() for part in each.parts]
        others = [part.facts.job for each in processes.recorders(others=True) for part in each.parts]
    finally:
        os.write(end, b"!")
        os.waitpid(child, 0)
        for each in (ready, told, go, end):
            os.close(each)
    assert "anothers" in others and "anothers" not in jobs


def test_lines_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MOST_LINES", 10)
    (rank,) = read(recording(3, ABOUT, [{"text": str(n)} for n in range(100)]))
    assert sorted(rank.table) == list(range(10)) and rank.what(50).text == ""


def test_of_another_job_no_more_is_read_than_the_heads() -> None:
    data = recording(5)
    assert [rank.facts.job for rank in read(data, job="j")] == ["j"] and read(data, job="other") == []
    data = bytearray(data)
    np.frombuffer(data, HEAD, 1)["texts"] = 1 << 40
    assert read(data, job="other") == []


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


TELLS = [
    {}, {"gradient": 1}, {"gradient": ["w", "4", "fifo", "o."]}, {"gradient": ["w", -1, "fifo", "o."]},
    {"gradient": ["w"]}, {"healed": [1, 0]}, {"healed": [1 << 63, True]}, {"healed": {"rank": 1, "flaps": True}},
]  # fmt: skip


def test_facts_that_a_span_tells_are_read_or_left_out() -> None:
    told = HealedSpan(2, True)
    (rank,) = read(recording(1, lines=[{}, {"text": "link to rank 2 flaps", **written(told)}, *TELLS]))
    assert rank.what(1).told == told
    assert [rank.what(2 + i).told for i in range(len(TELLS))] == [None] * len(TELLS)
