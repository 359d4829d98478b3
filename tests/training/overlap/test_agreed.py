"""The policy of programs that declare nothing: tensors meet by name, whatever ranks have in a step."""

from __future__ import annotations

import json
import random
import threading
import time
from typing import Any

import numpy as np
import pytest

from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import ArgumentError, MismatchError, PeerLostError, TimeoutError
from hocket.training import Scheduler
from support import jobs
from support.gradients import averages, gradients, raised
from support.worlds import path_to, same, spread


def all_ready(s: Scheduler, grads: dict[str, Any], names: list[str]) -> None:
    for name in names:
        s.ready(name, grads[name])


def any_order(comm: Communicator) -> None:
    s, mine = Scheduler(comm, order="agreed", fuse=4096), random.Random(comm.rank)
    for step in range(6):
        grads = gradients(comm, step)
        names = mine.sample(list(grads), len(grads))
        threads = [threading.Thread(target=all_ready, args=(s, grads, names[i::2])) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert s.step() == []
        wanted = averages(comm, step)
        for name in mine.sample(names, len(names)):
            assert s.wait(name) is grads[name]
            same(grads[name], wanted[name], f"step {step}, {name}")
    assert all(row.bytes == grads[row.name].nbytes and row.sent >= 0 for row in s.report())
    s.close()


@pytest.mark.parametrize(("size", "transport"), [(1, "threads"), (2, "shm"), (4, "tcp")])
def test_tensors_meet_by_name(size: int, transport: str) -> None:
    spread(any_order, size, transport)


def others(comm: Communicator) -> None:
    """Each step some ranks alone have a tensor; one that the others never see is in no `declare`."""
    s = Scheduler(comm, order="agreed")
    for step in range(4):
        common, alone = np.full((2, 3), comm.rank + 1.0, np.float32), np.full(5, 4.0 + step)
        if comm.rank == step % comm.size:
            s.ready(f"alone.{step % 2}", alone)
        s.ready("common", common)
        late = s.step()
        assert late == [n for n in ("alone.0", "alone.1") if n in late], "known names alone"
        same(s.wait("common"), np.full((2, 3), (comm.size + 1) / 2, np.float32), "common")
        got = s.wait(f"alone.{step % 2}")
        assert got.dtype == np.float64 and got.tolist() == [(4.0 + step) / comm.size] * 5
        if step:
            assert s.wait(f"alone.{1 - step % 2}") is None, "no rank had it"
    s.ready("common", common)
    s.step()
    s.wait("common")
    s.close()


@pytest.mark.parametrize(("size", "transport"), [(2, "threads"), (4, "tcp")])
def test_what_a_rank_leaves_out_counts_as_zeros(size: int, transport: str) -> None:
    spread(others, size, transport)


def ahead(comm: Communicator) -> None:
    """Rank 0 has ended its step, and has the next one's tensor, before rank 1 has that of the first."""
    s, x = Scheduler(comm, order="agreed"), np.full(3, 2.0)
    s.seal()
    if comm.rank == 1:
        time.sleep(0.2)
        x[:] = 8
        s.ready("x", x)
    s.step()
    if comm.rank == 1:
        same(s.wait("x"), np.full(3, 4.0), "the first step: 8 and zeros")
        x[:] = 4
    s.ready("x", x)
    s.step()
    same(s.wait("x"), np.full(3, 3.0), "the second step: 2 and 4")
    s.close()


def fewer_bits(comm: Communicator) -> None:
    for options, tolerance in (({"codec": "bf16"}, 0.5), ({"compressor": "int8"}, 2.0)):
        s = Scheduler(comm, order="agreed", **options)
        for step in range(3):
            grads = gradients(comm, step)
            for name, grad in grads.items():
                s.ready(name, grad)
            s.step()
            for name, wanted in averages(comm, step).items():
                assert np.allclose(s.wait(name), wanted, atol=tolerance), (options, name)
            if step == 1 and "compressor" in options:
                kept = s.state_dict()
                s.close()
                s = Scheduler(comm, order="agreed", **options)
                s.load_state_dict(kept)
        s.close()


def wrong_calls(comm: Communicator) -> None:
    one = np.ones(2, np.float32)

    def fresh() -> Scheduler:
        s = Scheduler(comm.dup(), order="agreed")
        s.ready("a", one.copy())
        s.step()
        s.wait("a")
        return s

    s = fresh()
    s.ready("b", np.ones(2 + comm.rank, np.float32))
    text = raised(lambda: s.wait("b"), MismatchError)
    assert "'b'" in text and "rank 0 called" in text and "rank 1 called" in text, text
    s.ready("a", one.copy())
    s.step()
    same(s.wait("a"), one, "the others go on")
    for call, words in (
        (lambda s: s.wait("c"), "wait('c') was called before ready('c')"),
        (lambda s: [s.ready("a", one) for _ in range(2)], "ready('a') was called twice"),
        (lambda s: s.ready("a", [1.0]), "got a list"),
    ):  # fmt: skip
        s = fresh()
        if comm.rank == 0:
            assert words in raised(lambda s=s, call=call: call(s), ArgumentError)
        else:
            text = raised(lambda s=s: [s.ready("d", one), s.wait("d")], PeerLostError)
            assert words in text and text.startswith("d: "), text
    s = fresh()
    if comm.rank == 0:
        s.ready("late", one.copy())
        assert "late: its average has not come in time" in raised(lambda: s.wait("late", timeout=0.1), TimeoutError)
        comm.barrier()
    else:
        assert "not ready on this rank" in raised(lambda: s.wait("late", timeout=0.1), TimeoutError)
        comm.barrier()
        s.ready("late", one.copy())
    same(s.wait("late"), one, "late")


@pytest.mark.parametrize("program", [ahead, fewer_bits, wrong_calls], ids=lambda p: p.__name__)
def test_steps_codecs_and_bad_input(program: Any) -> None:
    spread(program, 2, "threads")


KILLED = """
import json, os, signal, time
import numpy as np
import hocket
from hocket.training import Scheduler
comm = hocket.init()
s = Scheduler(comm, order="agreed")
try:
    for step in range(1000):
        for name in "abc"[comm.rank:] + "abc"[:comm.rank]:
            s.ready(name, np.ones(1000, np.float32))
        if step == 20 and comm.rank == 1:
            print(json.dumps({"at": time.monotonic()}), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        s.step()
        for name in "abc":
            s.wait(name)
except hocket.PeerLostError as error:
    print(json.dumps({"at": time.monotonic(), "ranks": error.ranks, "text": str(error)}), flush=True)
"""


def test_a_lost_rank_is_named_by_all() -> None:
    with jobs.Job(3, KILLED, env={"PYTHONPATH": path_to(__file__)}) as job:
        ends = job.wait(60)
    told = [json.loads(end.out) for end in ends]
    for rank in (0, 2):
        assert ends[rank].code == 0 and told[rank]["ranks"] == [1], ends
        assert told[rank]["text"][:3] in ("a: ", "b: ", "c: "), told
        assert told[rank]["at"] - told[1]["at"] < 3.0


def test_a_program_that_closes_nothing_ends() -> None:
    source = """
import numpy as np
import hocket
from hocket.training import Scheduler
comm = hocket.init()
s = Scheduler(comm, order="agreed")
for step in range(3):
    s.ready("a", np.full(4, comm.rank, np.float32))
    s.step()
    assert s.wait("a").tolist() == [0.5] * 4
"""
    with jobs.Job(2, source) as job:
        ends = job.wait(40)
    assert [(end.code, end.err) for end in ends] == [(0, ""), (0, "")], ends


def test_a_dtype_that_numpy_has_not_is_named() -> None:
    """A rank without torch takes part in a tensor of bfloat16 that another rank has."""
    source = """
import numpy as np
import hocket
from hocket.training import Scheduler
comm = hocket.init()
s = Scheduler(comm, order="agreed")
if comm.rank == 0:
    import torch
    s.ready("a", torch.ones(4, dtype=torch.bfloat16))
try:
    s.step()
    s.ready("b", np.ones(1, np.float32))
    s.wait("b")
except hocket.Error as error:
    print(error)
"""
    with jobs.Job(2, source, env={"PYTHONHASHSEED": "0"}) as job:  # a warm rank would have torch
        ends = job.wait(60)
    assert "bfloat16, which NumPy does not have: import torch here" in ends[1].out and "bfloat16" in ends[0].out, ends
