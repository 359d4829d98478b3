"""Two and three ranks submit tensors in different orders, with real processes and bytes."""

from __future__ import annotations

import pytest

from support import jobs
from support.worlds import PATH

START = """
import os, random, sys, time
import torch
import hocket.horovod.torch as hvd
hvd.init()
rank, size = hvd.rank(), hvd.size()
"""


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.more), pytest.param(2, marks=pytest.mark.more), 3])
def test_tensors_meet_by_name_whatever_the_order(size: int) -> None:
    source = START + """
names = [f"layer.{i}" for i in range(20)]
for step in range(4):  # from the second on they are known by number
    xs = {name: torch.full((i + 1,), float(i + rank + step)) for i, name in enumerate(names)}
    if step == 2:
        xs["layer.3"] = torch.arange(3.0)  # the same name with another shape
    order = sorted(names, key=lambda name: random.Random(f"{name} {rank} {step}").random())
    handles = {name: hvd.allreduce_async_(xs[name], name=name, op=hvd.Sum) for name in order}
    for name in reversed(names):
        made = hvd.synchronize(handles[name])
        i = names.index(name)
        want = torch.full((i + 1,), float(sum(i + r + step for r in range(size))))
        if step == 2 and i == 3:
            want = torch.arange(3.0) * size
        assert made is xs[name] and torch.equal(made, want), (step, name, made, want)
assert hvd.poll(handles["layer.0"])
"""
    jobs.run(size, source, 90)


def test_ranks_that_disagree_all_hear_of_it_and_go_on() -> None:
    source = START + """
import hocket
for shape, dtype, op in ((4 + rank, torch.float32, hvd.Sum), (4, (torch.float32, torch.int32)[rank], hvd.Sum),
                         (4, torch.float32, (hvd.Sum, hvd.Average)[rank])):
    try:
        hvd.allreduce(torch.ones(shape, dtype=dtype), name="w", op=op)
    except hvd.HorovodInternalError as error:
        assert isinstance(error, (hocket.MismatchError, RuntimeError)) and set(error.calls) == {0, 1}
        assert "'allreduce.w'" in str(error) and "rank 0 called" in str(error) and "rank 1 called" in str(error), error
    else:
        raise AssertionError("nobody noticed")
assert hvd.allreduce(torch.ones(2), name="w", op=hvd.Sum).tolist() == [2, 2]
"""
    jobs.run(2, source, 90)


def test_a_name_under_way_is_refused_here_alone() -> None:
    source = START + """
x = torch.ones(3)
refused = os.path.join(os.path.dirname(__file__), "refused")
if rank == 1:
    while not os.path.exists(refused):
        time.sleep(0.01)
first = hvd.allreduce_async(x, name="twice", op=hvd.Sum)
if rank == 0:
    try:
        hvd.allreduce_async(x, name="twice")
    except ValueError as error:
        assert "still under way" in str(error)
    else:
        raise AssertionError("nobody noticed")
    open(refused, "w").close()
hvd.barrier()
if rank == 1:
    time.sleep(0.1)
assert hvd.synchronize(first).tolist() == [2, 2, 2]
"""
    jobs.run(2, source, 90)


def test_nothing_is_burnt_while_ranks_wait() -> None:
    source = START + """
hvd.allreduce(torch.ones(1))
hvd.add_process_set([0]); hvd.add_process_set([1])
if rank == 0:
    time.sleep(0.5)                              # what comes of the calls before is over
    began = time.process_time()
    time.sleep(1)
    used = time.process_time() - began
    assert used < 0.05 * pace(), used
began = time.process_time()
hvd.allreduce(torch.ones(1), name="late")        # rank 1 waits for rank 0
used = time.process_time() - began
assert used < 0.1 * pace(), used
"""
    jobs.run(2, f"from support.pace import pace\n{source}", 90, PYTHONPATH=PATH)


def test_what_a_rank_that_has_left_does_not_bring() -> None:
    source = START + """
if rank == 1:
    hvd.shutdown()
else:
    try:
        hvd.allreduce(torch.ones(1), name="alone")
    except hvd.HorovodInternalError as error:
        assert "rank 1 has shut down" in str(error), error
    else:
        raise AssertionError("nobody noticed")
    hvd.shutdown()
assert not hvd.is_initialized()
try:
    hvd.rank()
except ValueError as error:
    assert "hvd.init()" in str(error)
hvd.init()
assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2
"""
    jobs.run(2, source, 90)


def test_a_rank_that_raises_tells_the_others_what() -> None:
    source = START + """
hvd.allreduce(torch.ones(1))
if rank == 1:
    raise ValueError("a bug of rank 1")
try:
    hvd.allreduce(torch.ones(1), name="alone")
except hvd.HorovodInternalError as error:
    assert "ValueError: a bug of rank 1" in str(error), error
    print("heard")
"""
    with jobs.Job(3, source) as job:
        ends = job.wait(90)
    assert [end.code for end in ends] == [0, 1, 0], "\n".join(end.err for end in ends)
    assert "heard" in ends[0].out and "heard" in ends[2].out
