"""The stall inspector, the timeline, settings, elastic training and the example."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from hocket.observe.collecting import collect
from hocket.observe.merging import merge
from support import jobs
from support.launcher import RUN

ROOT = pathlib.Path(__file__).parents[3]
START = """
import os, sys, time
import torch
import hocket.horovod.torch as hvd
hvd.init()
rank, size = hvd.rank(), hvd.size()
"""


def test_the_stall_inspector_names_tensors_and_ranks() -> None:
    source = START + """
import logging
told = os.path.join(os.path.dirname(__file__), "told")
logging.getLogger("hocket").addFilter(
    lambda record: "submitted" not in record.getMessage() or open(told, "w").close() is None)
hvd.barrier()
if rank == 1:
    while not os.path.exists(told): time.sleep(0.01)
    hvd.allreduce(torch.ones(1), name="common")
else:
    handle = hvd.allreduce_async(torch.ones(1), name="mine.0")
    other = hvd.allreduce_async(torch.ones(1), name="mine.1")
    hvd.allreduce(torch.ones(1), name="common")
hvd.barrier()
if rank == 1:
    handle = hvd.allreduce_async(torch.ones(1), name="mine.0")
    other = hvd.allreduce_async(torch.ones(1), name="mine.1")
hvd.synchronize(handle), hvd.synchronize(other)
"""
    with jobs.Job(3, source, env={"HOROVOD_STALL_CHECK_TIME_SECONDS": "2.5"}) as job:
        ends = job.wait(90)
    assert [end.code for end in ends] == [0, 0, 0], ends
    told = [line for line in ends[0].err.splitlines() if "submitted" in line]
    names = "allreduce.mine.0, allreduce.mine.1, allreduce.common"
    assert any(f"rank 1 has not submitted: {names}" in line for line in told), told
    line = source[: source.index("while not")].count("\n") + 1
    where = f"rank 1 is not in a call on this communicator, it is at rank.py:{line} in <module>"
    assert where in ends[0].err, ends[0].err
    assert re.search("did last: (.*)", ends[0].err), "the file of events"
    assert sum("mine.0" in line for line in told) == 1, "once is enough"
    assert "submitted" not in ends[1].err + ends[2].err


def test_what_stalls_too_long_fails() -> None:
    source = START + """
failed = os.path.join(os.path.dirname(__file__), "failed")
if rank == 0:
    try:
        hvd.allreduce(torch.ones(1), name="alone")
    except hvd.HorovodInternalError as error:
        assert "rank 1 did not submit it within 3 s" in str(error), error
    else:
        raise AssertionError("no error")
    open(failed, "w").close()
while not os.path.exists(failed):
    time.sleep(0.01)
assert hvd.allreduce(torch.ones(1), name="both", op=hvd.Sum).item() == 2
"""
    jobs.run(2, source, 90, HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="3", HOROVOD_STALL_CHECK_DISABLE="1")


def test_the_timeline(tmp_path: pathlib.Path) -> None:
    source = START + """
for turn in range(2):
    hvd.start_timeline(os.environ["PLACE"] + str(turn), mark_cycles=turn == 0)
    hvd.allreduce(torch.ones(3), name="weights")
    hvd.allgather(torch.ones(rank + 1), name="rows")
    time.sleep(0.05)
hvd.stop_timeline()
hvd.allreduce(torch.ones(3), name="later")
"""
    jobs.run(2, source, 90, PLACE=str(tmp_path / "trace"), HOROVOD_TIMELINE="DYNAMIC")
    for turn in range(2):
        events = json.loads((tmp_path / f"trace{turn}").read_text())
        assert "start_time_since_epoch_in_micros" in events[0]["args"]
        rows = {event["args"]["name"]: event["pid"] for event in events if event["name"] == "process_name"}
        assert set(rows) == {"allreduce.weights", "allgather.rows"}
        phases = [(e["name"], e["ph"]) for e in events if e["pid"] == rows["allreduce.weights"] and "ts" in e]
        assert phases == [(name, end) for name in ("NEGOTIATE_ALLREDUCE", "ALLREDUCE") for end in "BE"]
        times = [event["ts"] for event in events if "ts" in event]
        assert times == sorted(times)
        assert any(event["name"] == "CYCLE_START" for event in events) == (turn == 0)


def test_a_trace_of_hocket_has_the_tensors_of_all_ranks(tmp_path: pathlib.Path) -> None:
    source = START + 'hvd.allreduce(torch.ones(3), name="weights")\nhvd.allgather(torch.ones(1), name="rows")'
    jobs.run(2, source, 90, HOCKET_TRACE=str(tmp_path / "parts"))
    timeline = merge(collect(str(tmp_path / "parts")).recorded)
    spans = timeline.of("spans")
    found = {(rank, timeline.names[n]) for rank, n in zip(timeline.ranks(spans).tolist(), spans["name"], strict=True)}
    phases = {"ALLREDUCE allreduce.weights", "ALLGATHER allgather.rows"}
    assert found == {(r, way + name) for r in range(2) for name in phases for way in ("", "NEGOTIATE_")}


def test_a_timeline_from_the_beginning(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "trace"
    jobs.run(2, START + 'hvd.allreduce(torch.ones(3), name="weights")', 40, HOROVOD_TIMELINE=str(path))
    assert any(event["name"] == "ALLREDUCE" for event in json.loads(path.read_text()))


def test_settings_are_checked_and_ours_count_first() -> None:
    source = """
import os
from hocket.horovod import settings
import hocket
assert settings.read() == settings.Settings()
os.environ["HOROVOD_FUSION_THRESHOLD"] = "1000"
assert settings.read().fusion_threshold == 1000
os.environ["HOCKET_FUSION_THRESHOLD"] = "2000"
os.environ["HOROVOD_CYCLE_TIME"] = "0.5"
found = settings.read()
assert (found.fusion_threshold, found.cycle_time) == (2000, 0.5)
os.environ["HOROVOD_CYCLE_TIME"] = "soon"
try:
    settings.read()
except hocket.ArgumentError as error:
    assert "HOROVOD_CYCLE_TIME is 'soon'" in str(error)
else:
    raise AssertionError("not refused")
"""
    jobs.run(1, source, 90)


ELASTIC = """
import os, signal, sys, time
import torch
import hocket.horovod.torch as hvd
hvd.init()
first = hvd.rank()
dies = [int(r) for r in os.environ["PLACE"].split(",")]
model = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), model.named_parameters())
sampler = hvd.elastic.ElasticSampler(range(24), shuffle=False)
state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, step=0)
resets, steps = [], []
state.register_reset_callbacks([lambda: resets.append(hvd.size())])

@hvd.elastic.run
def train(state):
    while state.step < 8:
        if state.step == 5 and first in dies:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(torch.ones(4, 2) * (state.step + 1)).sum().backward()
        optimizer.step()
        steps.append(state.step)
        state.step += 1
        if state.step % 2 == 0:
            state.commit()
    return "done"

assert train(state) == "done"
size = int(os.environ["HOCKET_SIZE"])
left = size - len(dies)
# Step 4 again, from the last commit; a rank that had not seen the sum of the dead one's last step makes it once alone.
assert steps in ([0, 1, 2, 3, 4, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7]), steps
assert resets == [left] and hvd.size() == left, (resets, hvd.size())
assert hvd.rank() == [r for r in range(size) if r not in dies].index(first)
assert len(sampler) == 24 // left
weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
assert all(torch.equal(weights, each) for each in hvd.allgather(weights).view(left, -1))
assert hvd.allreduce(torch.tensor([first]), op=hvd.Sum).item() == sum(range(size)) - sum(dies)
print("went on")
"""


@pytest.mark.parametrize("elastic", ["0", "1"])
@pytest.mark.parametrize("dies", ["0", *(pytest.param(dies, marks=pytest.mark.more) for dies in ("3", "1,2"))])
def test_the_survivors_of_a_loss_go_on(dies: str, elastic: str) -> None:
    """In a job that outlives its ranks (HOCKET_ELASTIC) by `renew`, else they meet anew."""
    with jobs.Job(4, ELASTIC, env={"PLACE": dies, "HOCKET_ELASTIC": elastic}) as job:
        ends = job.wait(90)
    for r, end in enumerate(ends):
        if str(r) not in dies.split(","):
            assert end.code == 0 and "went on" in end.out, (r, end)


LOST_MEANWHILE = """
import os, signal, threading, time
import torch, hocket
import hocket.horovod.torch as hvd
from hocket.horovod import job
hvd.init()
first, anew, real = hvd.rank(), [], job.resume

known = os.path.join(os.path.dirname(__file__), "rank 2 knows of rank 0's death")

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def knows(gone):
    while not gone.lost:
        time.sleep(0.01)
    open(known, "w").close()

def resume(comm, *more):
    anew.append(comm.size)
    if first == 2 and len(anew) == 2:
        die()                       # while rank 3 waits for it in its second rebuild
    real(comm, *more)
    if first == 0:
        die()                       # rank 2 trains already
    if first == 2 and len(anew) == 1:
        threading.Thread(target=knows, args=(comm.world.gone,), daemon=True).start()
    if first == 3 and len(anew) == 1:
        while not (comm.world.gone.lost and os.path.exists(known)):
            time.sleep(0.01)
        job.abandon()
        raise hocket.PeerLostError("rank 3 has not made its job", [0])

job.resume = resume

@hvd.elastic.run
def train(state):
    while state.step < 6:
        if first == 1 and state.step == 3:
            die()
        if state.step == 3 and not anew:
            hvd.add_process_set([0])        # rank 1 does not come to it
        state.total = hvd.allreduce(torch.tensor(float(first)), name="x", op=hvd.Sum).item()
        state.step += 1
        state.commit()
    return state.total

print(train(hvd.elastic.TorchState(step=0, total=0.0)), anew, hvd.size())
"""


def test_ranks_are_lost_while_the_others_make_their_job_anew() -> None:
    """Rank 1 dies; rank 0 when they have met, as rank 2 is done and rank 3 is not; rank 2 when these two have met."""
    with jobs.Job(4, LOST_MEANWHILE) as run:
        ends = run.wait(90)
    assert ends[3].code == 0 and ends[3].out == "3.0 [3, 2, 1] 1\n", ends[3]


def test_hocket_run_lets_survivors_go_on(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ELASTIC)
    env = {**os.environ, "PLACE": "1", "PYTHONPATH": jobs.SOURCES}
    run = [*RUN, "--elastic", "--restarts", "0", "-n", "2", "--", sys.executable, str(script)]
    ended = subprocess.run(run, env=env, capture_output=True, text=True, timeout=100, stdin=subprocess.DEVNULL)
    assert ended.returncode == 0, ended
    assert ended.stdout.count("went on") == 1 and "rank 1" in ended.stderr and "--elastic" in ended.stderr


def test_an_error_that_is_no_loss_is_raised() -> None:
    source = START + """
calls = []
@hvd.elastic.run
def train(state):
    calls.append(1)
    hvd.allreduce(torch.ones(1 + rank), name="differs")
try:
    train(hvd.elastic.TorchState(step=0))
except hvd.HorovodInternalError as error:
    assert "shapes" in str(error) and calls == [1]
else:
    raise AssertionError("no error")
"""
    jobs.run(2, source, 90)


def test_a_sampler_deals_out_what_is_left() -> None:
    source = START + """
sampler = hvd.elastic.ElasticSampler(range(10), seed=3)
seen = hvd.allgather_object(list(sampler))
assert sorted(seen[0] + seen[1]) == list(range(10)) and len(sampler) == 5
sampler.record_batch(0, 2)
before = {i for part in seen for i in part[:2]}
other = hvd.elastic.ElasticSampler(range(10), seed=3)
other.load_state_dict(sampler.state_dict())
rest = hvd.allgather_object(list(other))
assert sorted(rest[0] + rest[1]) == sorted(set(range(10)) - before)
sampler.set_epoch(1)
assert list(sampler) != seen[rank] and len(sampler) == 5
assert len(list(hvd.elastic.ElasticSampler(range(3)))) == 2
"""
    jobs.run(2, source, 90)


@pytest.mark.more
def test_the_example_learns() -> None:
    run = [*RUN, "-n", "2", "--", sys.executable, str(ROOT / "examples" / "frameworks" / "horovod_digits.py")]
    ended = subprocess.run(run, capture_output=True, text=True, timeout=100, stdin=subprocess.DEVNULL,
                           env={**os.environ, "PYTHONPATH": jobs.SOURCES})  # fmt: skip
    assert ended.returncode == 0, ended
    assert "test accuracy: 9" in ended.stdout, ended.stdout


def test_only_the_interface_for_torch_knows_torch() -> None:
    for path in (ROOT / "frameworks" / "horovod").glob("*.py"):
        assert "import torch" not in path.read_text().replace("`import hocket.horovod.torch", ""), path.name
