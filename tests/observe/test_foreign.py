"""Traces of torch's profiler and of Horovod's timeline: what is known in them is reported, what is not is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hocket.errors import ArgumentError
from hocket.observe.files.reading import read
from hocket.observe.findings import find
from hocket.observe.page.make import page
from hocket.observe.sentences import summary
from hocket.tools import report
from support import jobs

TORCH = """
import os, time
import torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
rank, place = int(os.environ["HOCKET_RANK"]), os.environ["PLACE"]
dist.init_process_group("gloo", init_method=f"file://{place}/meet", rank=rank, world_size=2)
x = torch.ones(1 << 16)
dist.all_reduce(x)
with profile(activities=[ProfilerActivity.CPU]) as told:
    for step in range(4):
        time.sleep(0.1 * rank)
        dist.all_reduce(x)
told.export_chrome_trace(f"{place}/rank{rank}.json")
dist.barrier()
dist.destroy_process_group()
"""


def test_torchs_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On Gloo, rank 1 comes 100 ms late to each call, as both files together tell; one of them knows no waits."""
    jobs.run(2, TORCH, 60, PLACE=str(tmp_path))
    paths = [str(tmp_path / f"rank{rank}.json") for rank in range(2)]
    found = find(read(*paths))
    assert [rank.calls for rank in found.ranks] == [4, 4] and found.ranks[0].inside > 0.2
    (calls,) = found.calls
    assert calls.count == 8 and calls.name == "gloo:all_reduce"
    assert found.blame.pairs[0, 1] > 0.2 and found.blame.seconds["late", 1] > 0.2
    assert found.links == []
    assert report.main([*paths, "-o", str(tmp_path / "page.html")]) == 0
    assert "2 ranks on 1 host, " in capsys.readouterr().out
    assert report.main([*paths, "--what-if", "link 0-1 x2"]) == 1
    assert "only a run that hocket traced" in capsys.readouterr().err
    assert report.main(paths[:1]) == 0
    assert "known where the traces of all ranks are read together" in capsys.readouterr().out
    with pytest.raises(ArgumentError, match="two traces are of rank 0"):
        read(paths[0], paths[0])


def on_gpu(rank: int, told: bool) -> dict[str, Any]:
    """Rows as Kineto makes them of NCCL, a call as the CPU's and as the card's; rank 1's kernels begin 9 ms earlier.

    Old torch says neither groups, nor what a kernel is.
    """
    about = {
        "Collective name": "allreduce", "In msg nelems": 1024, "dtype": "Half", "Process Group Name": "0"
    } if told else {}  # fmt: skip
    rows: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}}]
    for at in (20_000.0, 40_000.0):
        rows.append({"ph": "X", "cat": "cpu_op", "name": "c10d::allreduce_", "ts": at - 15_000, "dur": 20.0})
        if told:
            rows.append({"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "ts": at, "dur": 9.0, "args": about})
        kernel = "ncclKernel_AllReduce_RING_LL_Sum_half(ncclDevComm*, unsigned long, ncclWork*)"
        begin = at - 9000 * rank
        rows.append({"ph": "X", "cat": "kernel", "name": kernel, "ts": begin, "dur": at + 1000 - begin, "args": about})
    whole = {"pg_config": [{"pg_name": "0", "ranks": [0, 1]}]} if told else {}
    return {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2} | whole, "traceEvents": rows}


@pytest.mark.parametrize("told", [True, False])
def test_torchs_ranks_on_gpus(told: bool, tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{rank}.json") for rank in range(2)]
    for rank, path in enumerate(paths):
        Path(path).write_text(json.dumps(on_gpu(rank, told)))
    found = find(read(*paths))
    assert [round(rank.inside, 9) for rank in found.ranks] == [0.002, 0.020]
    (calls,) = found.calls
    name, nbytes = ("allreduce", 2048) if told else ("ncclKernel_AllReduce_RING_LL_Sum_half", 0)
    assert (calls.name, calls.count, calls.nbytes) == (name, 4, nbytes)
    assert set(found.blame.pairs) == ({(1, 0)} if told else set()), "of kernels in unknown groups nobody is blamed"


def horovod(late: int, ranks: int = 3, calls: int = 4) -> list[dict[str, Any]]:
    """Rows as its coordinator writes them: a tensor is a process, ranks that are ready are ticks, and E has no name."""
    rows: list[dict[str, Any]] = [{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time": 1}}]
    for tensor in (1, 2):
        rows.append({"name": "process_name", "ph": "M", "pid": tensor, "args": {"name": f"grad.{tensor}"}})
    for call in range(calls):
        at = 10_000 * call
        for tensor in (1, 2):
            begin = at + 1000 * tensor
            ready = [(begin + (3000 if rank == late else 10 * rank), rank) for rank in range(ranks)]
            rows.append({"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": begin, "pid": tensor})
            rows += [{"ph": "X", "name": str(r), "ts": t, "pid": tensor, "dur": 0} for t, r in sorted(ready)]
            done = max(ready)[0]
            rows.append({"ph": "E", "ts": done, "pid": tensor})
            rows.append({"ph": "B", "name": "ALLREDUCE", "ts": done, "pid": tensor})
            rows.append({"ph": "B", "name": "MPI_ALLREDUCE", "ts": done, "pid": tensor})
            rows.append({"ph": "E", "ts": done + 500, "pid": tensor})
            rows.append({"ph": "E", "ts": done + 600, "pid": tensor, "args": {"dtype": "float32", "shape": "[8, 4]"}})
    return rows


def test_horovods_timeline(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    path.write_text(json.dumps(horovod(late=2)))
    found = find(read(str(path)))
    words = "\n".join(summary(found))
    assert "Horovod's timeline knows calls" in words and "Rank 2 made the others wait" in words
    assert [rank.calls for rank in found.ranks] == [8, 8, 8]
    assert {(each.name, each.count, each.nbytes) for each in found.calls} == {
        ("ALLREDUCE grad.1", 12, 128), ("ALLREDUCE grad.2", 12, 128)
    }  # fmt: skip
    assert set(found.blame.pairs) == {(0, 2), (1, 2)} and "grad.2" in page(found)
    path.write_text(json.dumps([row for row in horovod(late=2) if row["ph"] != "X"]))  # tensors that all knew already
    found = find(read(str(path)))
    assert [rank.rank for rank in found.ranks] == [0] and found.ranks[0].calls == 8


CALL = {"ph": "X", "name": "c10d::allreduce_", "ts": 1, "dur": 1}
REFUSED: list[tuple[Any, str]] = [
    ([], "saw no collective call"),
    ([1], "no sense"),
    ([{"ph": "B", "pid": "x"}], "no sense"),
    ({"traceEvents": []}, "not a trace of hocket's, torch's profiler's or Horovod's"),
    ({"distributedInfo": {"rank": 0}, "traceEvents": []}, "saw no collective call"),
    ({"distributedInfo": {"rank": 70_000}, "traceEvents": [CALL]}, "it has a rank 70000"),
    ({"distributedInfo": {}, "traceEvents": [CALL]}, "no sense"),
    ({"distributedInfo": {"rank": 0}, "traceEvents": 3}, "no sense"),
    *(
        ({"distributedInfo": {"rank": 0}, "traceEvents": [{**CALL, "ts": ts}]}, "no sense")
        for ts in (float("inf"), 1e300, "x")
    ),
]


@pytest.mark.parametrize(("document", "why"), REFUSED)
def test_others_are_refused(document: Any, why: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ArgumentError, match=why):
        read(str(path))
