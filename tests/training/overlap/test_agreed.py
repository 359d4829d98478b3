"""The policy of programs that declare nothing: tensors meet by name (test_orders.py), whatever ranks have in a step."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import ArgumentError, MismatchError, PeerLostError, TimeoutError
from hocket.training import Scheduler
from support import jobs
from support.gradients import averages, gradients, raised
from support.worlds import same, spread


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
        ends = job.wait(90)
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
        ends = job.wait(100)
    assert "bfloat16, which NumPy does not have: import torch here" in ends[1].out and "bfloat16" in ends[0].out, ends
