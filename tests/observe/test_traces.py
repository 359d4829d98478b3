"""Traces of real jobs: `comm.trace`, and `hocket run --trace`, also of one whose rank is killed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hocket import recording
from hocket.errors import ArgumentError
from hocket.observe.collecting import collect
from hocket.observe.files.reading import read
from hocket.observe.findings import find
from hocket.observe.timeline import Timeline
from hocket.tools import trace
from support.jobs import TESTS, run

PROGRAM = """
import os, signal, sys, time
import hocket, numpy as np
comm = hocket.init(transport="tcp")
x = np.ones(100_000, np.float32)
comm.allreduce(x)
{before}
for i in range(12):
    if comm.rank == 1: time.sleep(0.04)
    comm.mark("step", i)
    comm.allreduce(x)
    {inside}
{after}
comm.close()
"""


def program(before: str = "", inside: str = "pass", after: str = "") -> str:
    return PROGRAM.format(before=before, inside=inside, after=after)


def check(timeline: Timeline, calls: int) -> None:
    """Check what must be true of any trace of the program above."""
    made = timeline.of("calls")
    assert list(np.bincount(timeline.ranks(made))) == [calls] * 3
    sends, receives = timeline.of("sends"), timeline.of("receives")
    assert len(sends) and set(sends["flow"].tolist()) == set(receives["flow"].tolist()) and 0 not in sends["flow"]
    came = dict(zip(receives["flow"].tolist(), receives["end"].tolist(), strict=True))
    error = 1e9 * find(timeline).evidence.error
    for begin, held, flow in zip(*(sends[n].tolist() for n in ("begin", "held", "flow")), strict=True):
        assert came[flow] >= begin - held - error, "a message came before it was sent"
    found = find(timeline)
    for rank in found.ranks:
        assert rank.computing + rank.moving + rank.waiting == pytest.approx(rank.span, rel=0.02)
    late = found.blame.seconds.get(("late", 1), 0.0)
    assert late > 0.4, "12 times 40 ms for two ranks, but where a busy machine kept another one from coming"
    ranks = timeline.ranks(made)
    came = np.array([made["begin"][ranks == rank][np.argsort(made["seq"][ranks == rank])] for rank in range(3)])
    behind = (came - came.min(0)).sum(1) / 1e9
    for rank in range(3):
        assert found.blame.seconds.get(("late", rank), 0.0) < 2.2 * behind[rank] + 0.05, (rank, behind)


def test_one_of_several_jobs_in_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that was started again leaves its recordings beside the first one's."""
    source = """
        import hocket, numpy as np
        with hocket.init() as comm:
            for i in range(3): comm.allreduce(np.ones(5, np.float32))
    """
    for _ in range(2):
        run(2, source, HOCKET_TRACE=str(tmp_path))
    assert trace.main(["merge", str(tmp_path)]) == 1
    jobs = re.search(r"several jobs \((\w+), (\w+)\): say which: --job", capsys.readouterr().err)
    assert jobs is not None
    for job in jobs.groups():
        assert trace.main(["merge", str(tmp_path), "--job", job, "-o", str(tmp_path / f"{job}.json")]) == 0
        assert np.bincount(read(str(tmp_path / f"{job}.json")).of("calls")["seq"])[1:4].tolist() == [2, 2, 2]
    assert trace.main(["merge", str(tmp_path), "--job", "other"]) == 1
    assert "has no recordings of job other" in capsys.readouterr().err


def test_generations_of_an_elastic_job_are_traces_of_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files of processes that lived through several have all of them; `comm.trace` takes its own."""
    parts, inside = tmp_path / "parts", tmp_path / "inside.json"
    source = f"""
        import hocket, numpy as np
        comm = hocket.init(elastic=True)
        for calls in (3, 4):
            for i in range(calls): comm.allreduce(np.ones(5, np.float32))
            comm = comm.renew()
        with comm.trace({str(inside)!r}):
            for i in range(5): comm.allreduce(np.ones(5, np.float32))
        assert comm.recorder().job.endswith(".2")
        comm.close()
    """
    run(2, source, HOCKET_TRACE=str(parts))
    assert trace.main(["merge", str(parts), "-o", str(tmp_path / "whole.pftrace.gz")]) == 0
    assert re.findall("generation ([0-9]):", capsys.readouterr().out) == ["0", "1", "2"]
    for generation, calls in enumerate((3, 4)):
        made = read(str(tmp_path / f"whole.{generation}.pftrace.gz"))
        assert np.bincount(made.of("calls")["seq"])[1:].tolist() == [2] * calls
    with pytest.raises(ArgumentError, match=r"several generations \((\w+)\.0, \1\.1, \1\.2\): say which"):
        collect(str(parts))
    assert np.bincount(read(str(inside)).of("calls")["seq"]).max() == 2


def test_comm_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.pftrace.gz"
    end = "comm.allreduce(x); block.__exit__(None, None, None)"
    run(3, program(f"block = comm.trace({str(path)!r}); block.__enter__()", after=end), TMPDIR=str(tmp_path))
    timeline = read(str(path))
    check(timeline, 13)
    marks = timeline.of("marks")
    assert sorted(marks["bytes"].tolist()) == sorted([*range(12)] * 3)
    assert {timeline.names[n] for n in marks["name"]} == {"step"}
    assert os.listdir(tmp_path) == [path.name]  # the ranks' own files are gone


def hocket(tmp_path: Path, source: str, *words: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "program.py"
    script.write_text(source)
    command = [sys.executable, "-m", "hocket", *words, "-n", "3", str(script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_hocket_run_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    ended = hocket(tmp_path, program(), "run", "--trace", str(path))
    assert ended.returncode == 0, ended.stderr
    assert f"the trace is {path}" in ended.stderr and ended.stdout == ""
    check(read(str(path)), 14)  # close is one
    assert sorted(os.listdir(tmp_path)) == ["program.py", path.name]


def test_of_a_rank_that_is_killed_the_trace_has_what_it_did(tmp_path: Path) -> None:
    path = tmp_path / "t.pftrace.gz"
    die = "if comm.rank == 2 and i == 6: os.kill(os.getpid(), signal.SIGKILL)"
    ended = hocket(tmp_path, program(inside=die), "run", "--trace", str(path))
    assert ended.returncode == 137 and f"the trace is {path}" in ended.stderr, ended.stderr
    timeline = read(str(path))
    calls = timeline.of("calls")
    assert (timeline.ranks(calls) == 2).sum() == 8 and timeline.about["missing"] == []


def test_merging_a_folder_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rank whose file is gone, and a file that is none; a large trace is not summed up, but its gaps are named."""
    parts = tmp_path / "parts"
    run(3, program(), HOCKET_TRACE=str(parts))
    for path in parts.iterdir():
        fd = os.open(path, os.O_RDONLY)
        if [each.facts.rank for each in recording.read(recording.Part(fd))] == [1]:
            path.unlink()
        os.close(fd)
    (parts / "notes.txt").write_text("x" * 9000)
    merge = [sys.executable, "-m", "hocket", "trace", "merge", str(parts), "-o", str(tmp_path / "t.json")]
    ended = subprocess.run(merge, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0 and "There are no records of rank 1." in ended.stdout, ended
    assert "left out: notes.txt: it does not begin as hocket's recordings do" in ended.stderr
    assert read(str(tmp_path / "t.json")).about["missing"] == [1]
    monkeypatch.setattr(trace, "MANY", 10)
    assert trace.main(merge[4:]) == 0
    said = capsys.readouterr().out
    assert "slices: `hocket report` tells who waited" in said and "There are no records of rank 1." in said


def test_a_name_that_is_no_traces(tmp_path: Path) -> None:
    ended = hocket(tmp_path, program(), "run", "--trace", str(tmp_path / "t.txt"))
    assert ended.returncode == 2 and "must have a name that ends in .pftrace" in ended.stderr
    ended = hocket(tmp_path, program(), "run", "--trace", str(tmp_path / "no" / "t.json"))
    assert ended.returncode == 2 and "no such folder" in ended.stderr
    (tmp_path / "t.json.parts").mkdir()
    ended = hocket(tmp_path, program(), "run", "--trace", str(tmp_path / "t.json"))
    assert ended.returncode == 1 and "hocket trace merge" in ended.stderr


def test_links_tell_what_the_kernel_knows_of_them(tmp_path: Path) -> None:
    path = tmp_path / "t.pftrace"
    end = "time.sleep(1.0); block.__exit__(None, None, None)"
    run(3, program(f"block = comm.trace({str(path)!r}); block.__enter__()", after=end), TMPDIR=str(tmp_path))
    timeline = read(str(path))
    tracks = [track for track in timeline.tracks if track.group == "link"]
    names = {(track.process, track.name.rpartition(" (")[0]) for track in tracks if "world collectives" in track.name}
    wanted = {(a, f"rtt_us to {b}") for a in range(3) for b in range(3) if a != b}
    assert wanted <= names, names
    counts = {timeline.tracks[track].name.partition(" ")[0] for track in timeline.counts["track"].tolist()}
    assert {"rtt_us", "busy_us", "retransmits"} <= counts
    rtt = [n for n, track in enumerate(timeline.tracks) if track.name.startswith("rtt_us")]
    values = timeline.counts["value"][np.isin(timeline.counts["track"], rtt)]
    assert (values > 0).all() and (values < 5e6).all()
    assert len(timeline.counts) < 3000, "a connection is looked at ten times a second at most"


SPANS = """
import os, time
import torch
import hocket, numpy as np, hocket.torch
comm = hocket.init()
def note(name, begin, end, group):
    comm.recorder().span(name, base + begin * 10**6, base + end * 10**6, group)

with comm.trace({path!r}):
    base = time.monotonic_ns()
    comm.allreduce(np.ones(1000))
    for name, begin, end in [("outer", 0, 9), ("inner", 2, 5), ("last", 5, 9), ("across", 8, 12)]:
        note(name, begin, end, "mine")
    note("alone", 1, 2, "other")
    with torch.profiler.profile(on_trace_ready=hocket.torch.into_trace(comm)):
        with torch.profiler.record_function("layer 1"):
            torch.ones(100) @ torch.ones(100)
    comm.allreduce(np.ones(7))
assert not comm.recorder().traced
note("not traced", 0, 1, "mine")
comm.close()
"""


def test_spans_of_the_program_and_of_torchs_profiler(tmp_path: Path) -> None:
    path = tmp_path / "t.pftrace"
    run(1, SPANS.format(path=str(path)), TMPDIR=str(tmp_path))
    timeline = read(str(path))
    spans = timeline.of("spans")
    rows = [(timeline.tracks[s["track"]], timeline.names[s["name"]], int(s["end"] - s["begin"])) for s in spans]
    mine = {(track.name, name): ns for track, name, ns in rows if track.name in ("mine", "mine 2", "other")}
    times = {("mine", "outer"): 9, ("mine", "inner"): 3, ("mine", "last"): 4, ("mine 2", "across"): 4}
    times["other", "alone"] = 1
    assert mine == {key: ms * 10**6 for key, ms in times.items()}, "those that lie in each other share a row"
    seen = {name for track, name, _ in rows if track.name.startswith("torch thread")}
    assert {"layer 1", "aten::ones", "aten::matmul"} <= seen
    layer = next(s for s in spans if timeline.names[s["name"]] == "layer 1")
    inner = [s for s in spans if timeline.names[s["name"]] == "aten::matmul" and s["track"] == layer["track"]]
    assert len(inner) == 1 and layer["begin"] <= inner[0]["begin"] < inner[0]["end"] <= layer["end"]
    calls = timeline.of("calls")
    one, other = calls
    assert one["end"] <= layer["begin"] <= layer["end"] <= other["begin"], "on the same clock as the calls"
    assert timeline.names[other["name"]] == "allreduce(float64[7], op='sum')", "its kind is younger than the spans"
    assert len(timeline.of("marks")) == 0


THREADS = """
import hocket, numpy as np
with hocket.local_world(3) as world:
    def traced(comm):
        with comm.trace({path!r}):
            for i in range(5):
                comm.mark("step", i)
                comm.allreduce(np.ones(1000))
        comm.allreduce(np.ones(10))
        with comm.trace({path!r}):
            comm.allreduce(np.ones(1000))
        return len(comm.recorder().recorded().rings)
    print(world.run(traced))
"""


def test_ranks_that_are_threads_of_a_process(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    run(1, THREADS.format(path=str(path)), TMPDIR=str(tmp_path))
    timeline = read(str(path))
    assert list(np.bincount(timeline.ranks(timeline.of("calls")))) == [1] * 3 and timeline.about["missing"] == []
    assert len(timeline.of("sends")) and not len(timeline.of("marks")), "the first trace has ended"
    assert os.listdir(tmp_path) == [path.name]


REFUSED = """
import os, time, hocket, numpy as np
from support import limited
comm = hocket.init()
{before}
began = time.monotonic()
try:
    with comm.trace({path!r}):
        comm.mark("there")
        comm.allreduce(np.ones(1000))
        {inside}
    print("written")
except hocket.ArgumentError as error:
    print(error)
print(time.monotonic() - began < 30, comm.allreduce(np.ones(1))[0])
comm.close()
"""


def refused(tmp_path: Path, path: Path, before: str = "", inside: str = "") -> list[list[str]]:
    source = REFUSED.format(path=str(path), before=before, inside=inside)
    return [each.splitlines() for each in run(3, source, TMPDIR=str(tmp_path), PYTHONPATH=TESTS)]


def test_a_file_that_rank_0_cannot_write_ends_the_trace_on_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    remove = f"if comm.rank == 0: os.rmdir({str(tmp_path / 'gone')!r})"
    for said, after in refused(tmp_path, tmp_path / "gone" / "t.json", inside=remove):
        assert "cannot be written: No such file" in said and "hocket trace merge" in said
        assert after == "True 3.0"
    assert len(list(tmp_path.glob("hocket-trace-*/*.ring"))) == 3, "what was recorded is not lost"


def test_a_disk_without_room_for_a_rank_refuses_the_trace_on_all_ranks(tmp_path: Path) -> None:
    small = f"if comm.rank == 1: limited.hide({str(tmp_path)!r}, 1 << 19)"
    for said, after in refused(tmp_path, tmp_path / "t.json", small):
        assert "cannot begin on rank 1" in said and "No space left" in said and after == "True 3.0"
    assert os.listdir(tmp_path) == []


def test_a_disk_that_becomes_full_ends_the_trace_and_not_the_job(tmp_path: Path) -> None:
    """One ring of 32 MiB has room, for marks, but no other."""
    (tmp_path / "small").mkdir()
    small = f"if comm.rank == 1: limited.hide({str(tmp_path / 'small')!r}, 40 << 20); "
    small += f"import tempfile; tempfile.tempdir = {str(tmp_path / 'small')!r}"
    assert refused(tmp_path, tmp_path / "t.json", small) == [["written", "True 3.0"]] * 3
    timeline = read(str(tmp_path / "t.json"))
    assert list(np.bincount(timeline.ranks(timeline.of("calls")), minlength=3)) == [1, 0, 1]
    assert list(np.bincount(timeline.ranks(timeline.of("marks")))) == [1, 1, 1]


def test_a_disk_without_room_for_the_file_ends_the_trace_and_not_the_job(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    small = f"if comm.rank == 0: limited.hide({str(tmp_path / 'small')!r}, 4096)"
    for said, after in refused(tmp_path, tmp_path / "small" / "t.json", small):
        assert "cannot be written: No space left" in said and after == "True 3.0"
