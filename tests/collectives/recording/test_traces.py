"""HOCKET_TRACE: every step and message of a call, in a file that outlives its process."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from hocket.recording import Kind, Part, Recorded, read
from support.jobs import Job, run

WAYS = {"to": (Kind.SEND_READY, Kind.SEND_END), "from": (Kind.RECV_READY, Kind.RECV_END)}
CALLS = """
import hocket, numpy as np
comm = hocket.init()
x = np.ones(30000)
for _ in range(3):
    comm.allreduce(x, algorithm="ring")
comm.allreduce(x, async_op=True).wait()
comm.mark("end")
comm.close()
print("ok")
"""


def traced(folder: Path) -> dict[int, Recorded]:
    found: dict[int, Recorded] = {}
    for path in folder.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
        fd = os.open(path, os.O_RDONLY)
        found.update({part.facts.rank: part for part in read(Part(fd))})
        os.close(fd)
    return found


def test_every_message_has_its_counterpart(tmp_path: Path) -> None:
    assert run(3, CALLS, HOCKET_TRACE=str(tmp_path / "parts")) == ["ok\n"] * 3
    parts = traced(tmp_path / "parts")
    rings = {r: next(g for g in part.rings if g.kind == "collectives").records for r, part in parts.items()}
    sizes = {}
    for rank, records in rings.items():
        assert (records["kind"] == Kind.CALL).sum() == (records["kind"] == Kind.DONE).sum() == 5  # and the close
        assert not (records["kind"] == Kind.CALLED).any() and (records["kind"] == Kind.SUBMIT).sum() == 1
        steps = records[records["kind"] == Kind.STEP]
        assert {1, 2, 3, 4} <= set(steps["seq"].tolist())
        kernels = records[records["kind"] == Kind.KERNEL]
        assert kernels["what"].min() > 0 and kernels["bytes"][kernels["seq"] == 1].sum() >= 2 * 80000
        for way, kinds in WAYS.items():
            both = [records[records["kind"] == kind] for kind in kinds]
            ready, ended = (sorted(each[["seq", "peer", "step", "lane"]].tolist()) for each in both)
            assert ready == ended != [], (rank, way)
            for peer in {0, 1, 2} - {rank}:
                of = both[1][both[1]["peer"] == peer]
                sizes[rank, way, peer] = list(zip(of["seq"].tolist(), of["bytes"].tolist(), strict=True))
    for (rank, way, peer), sent in sizes.items():
        if way == "to":
            assert sent == sizes[peer, "from", rank], "messages of two ranks match in the order in which they end"


def test_a_folder_that_cannot_be_made_ends_the_trace_and_not_the_job(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with Job(2, CALLS, env={"HOCKET_TRACE": str(tmp_path / "file" / "parts")}) as job:
        ends = job.wait()
    assert [(end.code, end.out) for end in ends] == [(0, "ok\n")] * 2 and "no trace in" in ends[0].err


def test_who_sleeps_in_a_wait_is_not_without_a_core(tmp_path: Path) -> None:
    """A trace counts no more as a missing core than the kernel's own count, and what yields took."""
    source = """
import time, hocket, numpy as np
comm = hocket.init()
def delay():
    return int(open("/proc/thread-self/schedstat").read().split()[1])
comm.barrier()
before = delay()
for _ in range(10):
    if comm.rank == 0:
        time.sleep(0.05)
    comm.allreduce(np.ones(3))
print(delay() - before)
comm.close()
"""
    said = run(2, source, HOCKET_TRACE=str(tmp_path / "parts"))
    records = next(g for g in traced(tmp_path / "parts")[1].rings if g.kind == "collectives").records
    waits, away = (records[records["kind"] == kind] for kind in (Kind.WAIT_RECV, Kind.NO_CORE))
    assert len(waits) >= 5, "it waited ten times, but where it was late itself"
    assert away["bytes"].sum() <= int(said[1]) + 100_000_000, "it slept for 500 ms"


def test_times_are_those_of_the_system(tmp_path: Path) -> None:
    """A trace counts the core's ticks between readings of the clock: no call begins earlier, or ends later."""
    source = """
import time, hocket, numpy as np
comm = hocket.init()
x, own = np.ones(1000), time.monotonic_ns
for pause in [0.0] * 300 + [0.0003, 0.001, 0.002] * 30 + [2.1] + [0.0] * 300:
    time.sleep(pause)
    began = own()
    comm.allreduce(x)
    print(began, own())
comm.close()
"""
    said = run(2, source, HOCKET_TRACE=str(tmp_path / "parts"))
    for rank, part in traced(tmp_path / "parts").items():
        bounds = np.array([line.split() for line in said[rank].splitlines()], np.int64)
        records = next(g for g in part.rings if g.kind == "collectives").records
        began, ended = (records["ns"][records["kind"] == kind].astype(np.int64) for kind in (Kind.CALL, Kind.DONE))
        off = np.concatenate([bounds[:, 0] - began[: len(bounds)], ended[: len(bounds)] - bounds[:, 1]])
        assert off.max() < 1000, f"{off.max()} ns"
        assert (np.diff(began) > 0).all() and (ended >= began).all()
