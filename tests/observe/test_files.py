"""Traces as files: what Perfetto's own classes find in them, what `read` takes back, and what it refuses."""

from __future__ import annotations

import collections
import gzip
import json
import os
import random
import stat
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.collectives.recording.records import LATEST
from hocket.errors import ArgumentError
from hocket.observe.files import chrome, perfetto, reading
from hocket.observe.files.names import SUFFIXES
from hocket.observe.files.reading import read
from hocket.observe.files.writing import write
from hocket.observe.findings import _calls, find
from hocket.observe.merging import merge
from hocket.observe.timeline import COUNT, Timeline, Track, in_line, slices
from hocket.recording import NOBODY, Recorded, Ring
from support.pace import pace
from support.ring_traces import computed, good, recorded, ring


def made(ranks: int, each: int, names: tuple[str, ...] = ("allreduce", "for rank 1")) -> Timeline:
    """Slices on two tracks of each rank, every fourth with an arrow, and a counter."""
    i, rank = np.repeat(np.arange(each), ranks), np.tile(np.arange(ranks), each)
    rows = slices(each * ranks)
    rows["begin"], rows["end"] = 2000 * i + rank, 2000 * i + 1500
    rows["flow"] = np.where(i % 4 == 0, 1 + i // 8 * ranks + np.where(i % 8 < 4, rank, (rank - 1) % ranks), 0)
    rows["track"], rows["name"] = 3 * rank + (i % 4 == 0), i % len(names)
    rows["seq"], rows["bytes"] = i // 4, i << 18
    rows["step"][i % 2 == 0], rows["peer"][i % 3 == 0] = 5, 0
    tracks = [Track(r, t, t == "moved", t, "world") for r in range(ranks) for t in ("calls", "waits", "moved")]
    counts = np.array([(2000 * k, 10 * k, 2) for k in range(each)], COUNT)
    about = {"job": "j", "clocks": [{"rank": 1, "error_us": 9.5}]}
    return Timeline({r: f"rank {r}" for r in range(ranks)}, tracks, list(names), rows, counts, about)


def decoded(path: Path) -> tuple[Any, dict[int, Any], dict[int, str]]:
    """The packets, track descriptors and names that Perfetto's own protobuf classes find."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    trace = Trace()
    data = path.read_bytes()
    trace.ParseFromString(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    tracks = {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")}
    names = {n.iid: n.name for p in trace.packet for n in p.interned_data.event_names}
    return trace.packet, tracks, names


@pytest.mark.parametrize("suffix", [".pftrace", ".pftrace.gz"])
def test_perfettos_classes_find_what_was_written(suffix: str, tmp_path: Path) -> None:
    wanted, path = made(3, 200), tmp_path / f"t{suffix}"
    write(str(path), wanted)
    packets, tracks, names = decoded(path)
    assert [t.process.process_name for t in tracks.values() if t.HasField("process")] == ["rank 0", "rank 1", "rank 2"]
    keys = {n.iid: n.name for p in packets for n in p.interned_data.debug_annotation_names}
    flows: collections.Counter[int] = collections.Counter()
    begun, events = iter(wanted.slices.tolist()), [p for p in packets if p.HasField("track_event")]
    open_row: Any = None
    for packet in events[1 : 1 + 2 * len(wanted.slices)]:
        event = packet.track_event
        if event.type == event.TYPE_SLICE_BEGIN:
            open_row = dict(zip(wanted.slices.dtype.names, next(begun), strict=True))
            assert packet.timestamp == open_row["begin"] and names[event.name_iid] == wanted.names[open_row["name"]]
            said = {keys[note.name_iid]: note.int_value for note in event.debug_annotations}
            said = {key: value for key, value in said.items() if not key.startswith("(no ")}
            shown = {"step": NOBODY, "peer": NOBODY, "bytes": 0, "seq": 0, "held": 0}
            assert said == {key: open_row[key] for key, nothing in shown.items() if open_row[key] != nothing}
            assert (event.flow_ids[0] == open_row["flow"]) == (open_row["flow"] != 0)
            flows.update(event.flow_ids)
            assert tracks[event.track_uuid].name == wanted.tracks[open_row["track"]].name
        else:
            assert event.type == event.TYPE_SLICE_END and packet.timestamp == open_row["end"]
    assert {flow for flow, ends in flows.items() if ends == 2} == set(wanted.slices["flow"].tolist()) - {0}
    assert set(flows.values()) == {1, 2} and next(begun, None) is None
    counted = [p for p in events if p.track_event.type == p.track_event.TYPE_COUNTER]
    assert [(p.timestamp, p.track_event.counter_value) for p in counted] == wanted.counts[["at", "value"]].tolist()
    assert all(tracks[p.track_event.track_uuid].HasField("counter") for p in counted)
    about = json.loads(events[0].track_event.debug_annotations[0].string_value)
    assert about["clocks"] == [{"rank": 1, "error_us": 9.5}] and about["version"] == 1


def test_chromes_json(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    write(str(path), made(2, 24))
    told = json.loads(path.read_text())
    kinds = collections.Counter(row["ph"] for row in told["traceEvents"])
    assert kinds["X"] == 48 and kinds["s"] == kinds["f"] == 6 and kinds["C"] == 24
    (row,) = [r for r in told["traceEvents"] if r["ph"] == "X" and r["pid"] == 1 and r["ts"] == 6.001]
    assert row["name"] == "for rank 1" and row["dur"] == 1.499 and row["args"] == {"bytes": 3 << 18, "peer": 0}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_written_is_read(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"t{suffix}"
    wanted = made(3, 9000 if "pf" in suffix else 300, ("</script><b>", "\x1b[31m\u202e\ud800"))
    write(str(path), wanted)
    found = read(str(path))
    assert (found.slices == wanted.slices).all() and (found.counts == wanted.counts).all()
    assert found.tracks == wanted.tracks and found.processes == wanted.processes and found.about["job"] == "j"
    assert found.names[0] == wanted.names[0]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and os.listdir(tmp_path) == [path.name]


@settings(deadline=None)
@given(st.lists(st.integers(0, (1 << 56) - 1)), st.lists(st.integers(0, (1 << 28) - 1)))
def test_numbers_of_fixed_length(wide: list[int], narrow: list[int]) -> None:
    for values, width in ((wide, 8), (narrow, 4)):
        array = np.array(values, np.uint64)
        packed = perfetto.number(array, width)
        assert perfetto.plain(packed).tolist() == values
        for value, raw in zip(values, packed.tolist(), strict=True):
            data = raw.to_bytes(width, "little")
            assert [byte >> 7 for byte in data] == [1] * (width - 1) + [0]
            assert sum((byte & 127) << 7 * i for i, byte in enumerate(data)) == value
    assert perfetto.plain(perfetto.number(np.array([1 << 60], np.uint64)))[0] == (1 << 56) - 1


def test_the_newest_slices_fit_into_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrome, "MOST", 100)
    path = tmp_path / "t.json"
    write(str(path), made(2, 300))
    found = read(str(path))
    assert len(found.slices) == 100 and found.about["left out"] == 500 and found.slices["seq"].min() == 62


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 100)), max_size=30))
def test_slices_of_one_track_follow_each_other(times: list[tuple[int, int]]) -> None:
    rows = slices(len(times))
    for row, (begin, length) in zip(rows, times, strict=True):
        row["begin"], row["end"] = begin, begin + length
    found = in_line(rows)
    assert (found["begin"] <= found["end"]).all() and (found["begin"][1:] >= found["end"][:-1]).all()
    ready = sorted((begin, begin + length) for begin, length in times)
    was_ready = (found["begin"] - found["held"].astype(int)).tolist()
    assert sorted(zip(was_ready, found["end"].tolist(), strict=True)) == ready


SHORT = b"""{"traceEvents": [],
    "otherData": {"hocket": {"version": 1, "processes": {}, "tracks": [], "names": [], "rows": [1, 0]}}}"""
REFUSED = {
    "empty": (b"", "not a trace of hocket's"),
    "foreign": (b"\x7fELF" + bytes(200), "not a trace of hocket's|cut off"),
    "text": (b"hello, this is some text\n", "not a trace of hocket's|cut off"),
    "another's trace": (b'{"traceEvents": []}', "not a trace of hocket's"),
    "another's packets": (perfetto.message(1, perfetto.SEQUENCE), "not a trace of hocket's"),
    "another version": (b'{"otherData": {"hocket": {"version": 99}}, "traceEvents": []}', "version 99"),
    "no events": (b'{"otherData": {"hocket": {"version": 1, "processes": {}, "tracks": [], "names": []}}}', "no sense"),
    "cut off at a row": (SHORT, "rows are missing"),
    "no tracks": (b'{"otherData": {"hocket": {"version": 1}}, "traceEvents": []}', "is damaged"),
    "deep": (b'{"a":' + b"[" * 100_000, "cut off, or not JSON"),
    "packed in part": (gzip.compress(bytes(10_000))[:-5], "cut off"),
    "packed and damaged": (b"\x1f\x8b\x08\x00" + bytes(100), "damaged|cut off"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_other_files_are_refused_with_a_reason(name: str, tmp_path: Path) -> None:
    path = tmp_path / "t.pftrace"
    path.write_bytes(REFUSED[name][0])
    with pytest.raises(ArgumentError, match=REFUSED[name][1]):
        read(str(path))


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hocket.observe.files.reading.MOST", 10 << 20)
    path = tmp_path / "t.pftrace.gz"
    path.write_bytes(gzip.compress(bytes(60 << 20)))
    with pytest.raises(ArgumentError, match="more than 10 MiB, unpacked"):
        read(str(path))


@pytest.mark.parametrize("suffix", [".pftrace", ".pftrace.gz", ".json"])
def test_broken_files_are_refused_and_nothing_else_happens(suffix: str, tmp_path: Path) -> None:
    """Cut off anywhere, or with bytes changed: either an ArgumentError, or a timeline whose rows make sense."""
    path = tmp_path / f"t{suffix}"
    write(str(path), made(2, 30))
    whole, r = path.read_bytes(), random.Random(5)
    for turn in range(400):
        data = bytearray(whole)
        if turn % 2:
            del data[r.randrange(len(data)) :]
        for _ in range(r.randrange(1, 4) if not turn % 2 else 0):
            data[r.randrange(len(data))] = r.randrange(256)
        path.write_bytes(data)
        try:
            found = read(str(path))
        except ArgumentError:
            continue
        assert (found.slices["track"] < len(found.tracks)).all()
        assert (found.slices["end"] >= found.slices["begin"]).all()
        assert turn % 2 == 0 and len(found.slices) == 60


def test_a_trace_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="cannot be written: No such file"):
        write(str(tmp_path / "no" / "t.json"), made(1, 1))
    with pytest.raises(ArgumentError, match="name that ends in"):
        write(str(tmp_path / "t.txt"), made(1, 1))
    with pytest.raises(ArgumentError, match="cannot be read: No such file"):
        read(str(tmp_path / "t.json"))
    if os.path.exists("/dev/full"):
        os.mkdir(tmp_path / "t.json")  # renaming fails
        with pytest.raises(ArgumentError, match="cannot be written"):
            write(str(tmp_path / "t.json"), made(1, 1))
    assert os.listdir(tmp_path) == ["t.json"]


def test_half_a_million_slices_take_seconds(tmp_path: Path) -> None:
    """8 million in 15 s is the target; `make test-trace` writes them and opens them in Perfetto."""
    rows, path = made(8, 62_500), tmp_path / "t.pftrace.gz"
    began = time.process_time()
    write(str(path), rows)
    used = time.process_time() - began
    assert used < 3 * pace()
    assert len(read(str(path)).slices) == 500_000


# ------------------------------------------------------------------------------------- files of somebody else's


def refused_soon(path: Path, why: str) -> None:
    began = time.process_time()
    with pytest.raises(ArgumentError, match=why):
        read(str(path))
    used = time.process_time() - began
    assert used < 4 * pace(), "a few kB on the disk"


def test_a_small_file_that_is_large_unpacked_costs_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in (("MOST_OPENED", 1 << 14), ("MOST_ITEMS", 1 << 17), ("MOST_TRACKS", 1 << 12)):
        assert getattr(reading, name) > most
        monkeypatch.setattr(reading, name, most)
    path = tmp_path / "t.json.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(b'{"a":[' + b"{}," * (1 << 15) + b"0]}")
    refused_soon(path, "more lists and objects")
    with gzip.open(path, "wb", 1) as file:
        file.write(b'{"a":[' + b"0," * (1 << 18) + b"0]}")
    refused_soon(path, "more lists and objects")
    path = tmp_path / "t.pftrace.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(b"\x0a\x00" * (1 << 20))
    refused_soon(path, "not a trace of hocket's")


def test_slices_and_counts_by_turns_are_read_in_time(tmp_path: Path) -> None:
    """Each run of rows is found without a look at all that follow."""
    whole = made(2, 4000)
    one, two = perfetto._slices(whole.slices, 0), perfetto._counts(whole.counts)
    a, b, n = perfetto.SLICES.size, perfetto.COUNTS.size, len(whole.counts)
    turns = b"".join(one[i * a : (i + 1) * a] + two[i * b : (i + 1) * b] for i in range(n)) + one[n * a :]
    path = tmp_path / "t.pftrace"
    path.write_bytes(perfetto.header(whole) + turns)
    began = time.process_time()
    got = read(str(path))
    used = time.process_time() - began
    assert used < 2 * pace()
    assert (len(got.slices), len(got.counts)) == (len(whole.slices), n)


def test_as_many_names_as_calls_take_no_square_of_time() -> None:
    n = 40_000
    rows = slices(n)
    rows["begin"], rows["end"], rows["name"], rows["seq"] = np.arange(n) * 2, np.arange(n) * 2 + 1, np.arange(n), 1
    rows["bytes"] = np.arange(n)
    line = Timeline({0: "rank 0"}, [Track(0, "calls", False, "calls", "world")], [str(i) for i in range(n)], rows)
    began = time.process_time()
    calls = _calls(line)
    used = time.process_time() - began
    assert used < 2 * pace()
    assert len(calls) == n and {each.count for each in calls} == {1}
    assert {int(each.name): each.nbytes for each in calls} == dict(zip(range(n), range(n), strict=True))


def test_records_of_any_bytes_become_a_timeline() -> None:
    for seed in range(10):
        random_bytes = np.random.default_rng(seed)
        parts = []
        for part in recorded(4, ring(4, 4 << 16, computed(4), good)):
            old = part.rings[0]
            records = old.records.copy()
            raw = records.view(np.uint8).reshape(len(records), -1)
            for row in random_bytes.integers(len(records), size=20):
                raw[row] = random_bytes.integers(0, 256, raw.shape[1])
            sound = records[records["ns"] < LATEST]
            parts.append(Recorded(part.facts, part.table, [Ring(old.comm, old.kind, old.index, old.members, sound)]))
        find(merge(parts))
