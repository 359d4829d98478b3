"""Dumps for torch's `torchfrtrace`, of ranks that hang in six ways: it names the ranks that `hocket top` names."""

from __future__ import annotations

import contextlib
import io
import logging
import pickle
import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.observe.files.flight import dump
from hocket.tools import top
from support.jobs import Job

CASE = """
import time
import numpy as np
import hocket
comm = hocket.init()
rank, x = comm.rank, np.ones(4, np.float32)
pair = comm.create_group([1, 2], "pair") if rank else None
for _ in range(3):
    comm.allreduce(x)
comm.allgather(x)
comm.reduce_scatter(np.ones(6))
comm.barrier()
try:
    {case}
except hocket.Error as error:
    pass
print("over", flush=True)
time.sleep(60)
"""
# What the ranks do -> the ranks that torchfrtrace names, and those that `hocket top` holds responsible (None: errors
# have said it, and no rank waits); how many wait, or have failed.
CASES: dict[str, tuple[str, set[int], set[int] | None, int]] = {
    "a rank is late": ("time.sleep(60) if rank == 1 else comm.allreduce(x)", {1}, {1}, 2),
    "another collective": ("comm.broadcast(x, 0) if rank == 1 else comm.allreduce(x)", {0, 1, 2}, None, 2),
    "another size": ("comm.allreduce(np.ones(4 + (rank == 1), np.float32))", {0, 1, 2}, None, 2),
    "missing from a subgroup": ("pair.allreduce(x) if rank == 1 else time.sleep(60)", {2}, {2}, 1),
    "a rank is dead": ("time.sleep(60) if rank == 1 else comm.allreduce(x)", {1}, None, 2),
    "crossed messages": ("comm.recv(x, 1 - rank) if rank < 2 else time.sleep(60)", {0, 1}, {0, 1}, 2),
}


def traced(folder: Path) -> set[int]:
    """The ranks that torch's program names in these dumps."""
    pytest.importorskip("torch")
    from torch.distributed.flight_recorder import fr_trace

    said = io.StringIO()
    handler = logging.StreamHandler(said)
    logging.getLogger().addHandler(handler)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            fr_trace.main(["--allow-incomplete-ranks", "--prefix", "hocket_", str(folder)])
    finally:
        logging.getLogger().removeHandler(handler)
    text = said.getvalue()
    missing = re.findall(r"(?:missing ranks: |missed FR dumps from ranks \()\{([\d, ]+)\}", text)
    found = [int(rank) for each in missing for rank in each.split(",")]
    found += [int(rank) for rank in re.findall(r"Culprit rank (\d+)", text)]
    found += [int(rank) for each in re.findall(r"send (\d)->|recv (\d)<-", text) for rank in each if rank]
    wrong = re.findall(r"expected ranks: \{([\d, ]+)\}[^\n]*\n(?:.*\n)*?error msg", text)
    return set(found) | {int(rank) for each in wrong for rank in each.split(",")}


@pytest.mark.parametrize("name", CASES)
def test_torchfrtrace_names_the_ranks_that_top_names(name: str, tmp_path: Path) -> None:
    case, ranks, waited_for, least = CASES[name]
    with Job(3, CASE.format(case=case)) as job:
        pids = {process.pid for process in job.processes}
        deadline, held = time.monotonic() + 60, None
        while time.monotonic() < deadline:
            there = top.look(among=pids)
            rows = [row for job_rows in there.jobs.values() for row in job_rows if row.pid]
            inside = [each for row in rows for each in row.standings if each.inside and each.since > 0.2]
            failed = [row for row in rows if row.verdict and any(each.failed for each in row.standings)]
            if name == "a rank is dead" and [each.seq for each in inside] == [7, 7]:
                # Sooner, and the last call may find the job broken: such a one is not recorded.
                job.signal(1, signal.SIGKILL)
            if len(failed if waited_for is None else inside) >= least:
                # What these processes did before, for other tests, may still be read, as jobs of their own.
                name_of_job = max(there.jobs, key=lambda name, there=there: sum(
                    each.failed or each.inside for row in there.jobs[name] for each in row.standings))  # fmt: skip
                held = set(there.held_up_by[name_of_job]) | {r for circle in there.circles[name_of_job] for r in circle}
                if waited_for in (None, held):  # a rank without a core may be late in a call before that one
                    break
            time.sleep(0.05)
        assert waited_for in (None, held), top.as_text(there)
        assert top.as_text(there).count("it heard of a failure (lost)") == (2 if name == "a rank is dead" else 0)
        assert top.write_flight(str(tmp_path), [name_of_job]) == 0
    said: dict[str, Any] = {path.name: pickle.loads(path.read_bytes()) for path in tmp_path.iterdir()}
    entries = said["hocket_0"]["entries"]
    assert [each["profiling_name"] for each in entries][:6] == [
        *["gloo:all_reduce"] * 3, "gloo:_all_gather_base", "gloo:_reduce_scatter_base", "gloo:barrier",
    ]  # fmt: skip
    assert entries[4]["input_sizes"] == [[6]] and entries[4]["output_sizes"] == [[2]]
    assert entries[0]["input_dtypes"] == ["Float"] and entries[0]["frames"][0]["line"] > 0
    assert traced(tmp_path) == ranks


@pytest.mark.usefixtures("empty_recorder")
def test_a_message_in_a_part_of_the_job_has_ranks_of_the_job() -> None:
    def under_way(comm: hocket.Communicator) -> str:
        pair, x = comm.split(comm.rank > 0), np.ones(1)
        work = pair.recv(x, 1 - pair.rank, async_op=True) if comm.rank else None
        said = str(dump(comm.recorder().recorded())["pg_config"])
        if work is not None:
            pair.barrier()  # a message that has come is no longer shown
            pair.send(x, 1 - pair.rank)
            work.wait()
        return said

    assert all("ranks 1 and 2" in said for said in hocket.local_world(3).run(under_way)[1:])
