"""Errors as users of torch.distributed see them: who, which call, on which line; and a clean end."""

from __future__ import annotations

import importlib
import pathlib
import pickle
import signal
import time

import pytest

import hocket
from hocket import errors
from support.faulty import wait_for
from support.torch_ranks import facts, job, run

KILLED = """
start()
x = torch.ones(1000)
dist.all_reduce(x)
open(f"{{os.environ['PLACE']}} is left by {{rank}}", "w").close()
if rank == 1:
    time.sleep(100)
try:
    {call}
except Exception as error:
    tell(error)
began = time.monotonic()
dist.destroy_process_group()
say(left=time.monotonic() - began)
"""
CALLS = {
    "all_reduce": "dist.all_reduce(x)",
    "async": "dist.all_reduce(x, async_op=True).wait()",
    "future": "dist.all_reduce(x, async_op=True).get_future().wait()",
    "recv": "dist.recv(x, 1)",
    "DDP": "torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))(torch.ones(1, 3)).sum().backward()",
}


@pytest.mark.parametrize(
    "name", ["all_reduce", "DDP", *(pytest.param(each, marks=pytest.mark.more) for each in ("async", "future", "recv"))]
)
def test_a_killed_rank(name: str, tmp_path: pathlib.Path) -> None:
    with job(3, KILLED.format(call=CALLS[name]), tmp_path) as run:
        wait_for(lambda: all((tmp_path / f"store is left by {rank}").exists() for rank in range(3)))
        time.sleep(0.2)
        run.signal(1, signal.SIGKILL)
        ends = run.wait(90)
    for rank in (0, 2):
        said = facts(ends[rank])
        assert "rank 1 is gone" in said["text"], said
        wanted = {"hocket.errors.PeerLostError", "torch.distributed.DistNetworkError", "builtins.RuntimeError"}
        if name == "future":  # torch makes its own error of what a future ends with
            assert "builtins.RuntimeError" in said["kinds"] and "PeerLostError" in said["text"], said
        else:
            assert said["ranks"] == [1] and wanted <= set(said["kinds"]), said
        assert said["left"] < 30 and ends[rank].code == 0, ends[rank]


LEFT = """
start()
if rank == 0:
    try:
        dist.irecv(torch.ones(1), 1).get_future().wait()
    except RuntimeError as error:
        tell(error)
dist.destroy_process_group()
"""


def test_a_future_of_a_rank_that_has_left(tmp_path: pathlib.Path) -> None:
    """Nobody waits for the work itself; still somebody notices."""
    ends = run(2, LEFT, tmp_path)
    assert "it has left the job" in facts(ends[0])["text"], ends[0]


MISMATCH = """
start()
def step(count):
    x = torch.ones(count)
    {call}
for _ in range(2):
    step(4)
try:
    step(4 if rank else 5)
except RuntimeError as error:
    tell(error)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("call", ["dist.all_reduce(x)", "dist.all_reduce(x, async_op=True).wait()"])
def test_ranks_that_differ(call: str, tmp_path: pathlib.Path) -> None:
    ends = run(2, MISMATCH.format(call=call), tmp_path)
    for end in ends:
        text = facts(end)["text"]
        assert "rank 0 called allreduce(float32[5], op='sum') at rank.py:" in text, text
        assert "rank 1 called allreduce(float32[4], op='sum') at rank.py:" in text and "in step" in text, text


LATE = """
start(timeout=timedelta(seconds=4))
if rank == 1:
    for other in (0, 2):
        while not os.path.exists(os.environ["PLACE"] + str(other)):
            time.sleep(0.01)
began = time.monotonic()
try:
    {call}
except Exception as error:
    tell(error)
    say(waited=time.monotonic() - began)
open(os.environ["PLACE"] + str(rank), "w").close()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    "call",
    ["dist.all_reduce(torch.ones(3))", pytest.param("hocket.torch.monitored_barrier()", marks=pytest.mark.more)],
)
def test_a_rank_that_is_late(call: str, tmp_path: pathlib.Path) -> None:
    ends = run(3, LATE.format(call=call), tmp_path)
    for rank in (0, 2):
        said = facts(ends[rank])
        assert said["ranks"] == [1] and "rank 1" in said["text"] and said["waited"] > 3.9, said
        assert "a longer limit: the timeout of init_process_group" in said["text"]
        assert {"hocket.errors.TimeoutError", "torch.distributed.DistBackendError"} <= set(said["kinds"])


ABORT = """
start()
if rank == 0:
    time.sleep(0.2)
    dist.group.WORLD.abort()
    say(text="", left=0)
else:
    try:
        dist.all_reduce(torch.ones(3))
    except RuntimeError as error:
        tell(error)
began = time.monotonic()
dist.destroy_process_group()
say(left=time.monotonic() - began)
"""


def test_abort_ends_the_others_calls(tmp_path: pathlib.Path) -> None:
    ends = run(2, ABORT, tmp_path)
    assert "abort() was called" in facts(ends[1])["text"]
    assert all(facts(end)["left"] < 30 and end.code == 0 for end in ends), ends


FAILS = """
start()
if rank == 1:
    raise ValueError("mine")
try:
    dist.all_reduce(torch.ones(3))
except RuntimeError as error:
    tell(error)
"""


def test_a_rank_that_raises_is_heard(tmp_path: pathlib.Path) -> None:
    """Without destroy_process_group, as scripts end that fail."""
    ends = run(2, FAILS, tmp_path)
    assert "ValueError: mine" in facts(ends[0])["text"] and "ValueError: mine" in ends[1].err


DESTROYED = """
start()
group = dist.new_group()
try:
    if rank == 0:
        raise ValueError("bad batch")
    dist.all_reduce(torch.ones(3), group=group)
except (ValueError, dist.DistError):
    pass
if rank == 0:
    dist.broadcast(torch.ones(3), 0)
dist.destroy_process_group()
assert not dist.is_initialized()
"""
MEETS_AGAIN = """
start()
x = torch.ones(1)
dist.all_reduce(x)
say(again=x.item())
dist.destroy_process_group()
"""


@pytest.mark.parametrize("again", [False, True])
def test_a_group_whose_last_calls_differ_is_destroyed(again: bool, tmp_path: pathlib.Path) -> None:
    """Both groups' mismatch is told: logged, and in the exit code unless the program goes on and ends well."""
    ends = run(2, DESTROYED + MEETS_AGAIN * again, tmp_path)
    for end in ends:
        assert end.code == (0 if again else 1) and facts(end) == ({"again": 2} if again else {}), end
        assert "rank 0 called broadcast(float32[3], root=0), first made at rank.py:" in end.err, end
        assert "Traceback" not in end.err, end
    assert "destroy_process_group(): the ranks called different things (communicator 'world/1'" in ends[0].err, ends


@pytest.mark.parametrize("turn", ["hocket.torch.errors.as_torch", "hocket.horovod.exceptions.as_horovod"])
def test_errors_of_frameworks_are_pickled(turn: str) -> None:
    module, _, function = turn.rpartition(".")
    for kind in errors.KINDS:
        made = getattr(importlib.import_module(module), function)(kind("rank 1"))
        assert isinstance(made, kind) and isinstance(made, (RuntimeError, hocket.ArgumentError))
        again = pickle.loads(pickle.dumps(made))
        assert type(again) is type(made) and str(again) == "rank 1"
