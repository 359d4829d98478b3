"""The words between ranks need no pickle: a job that refuses objects (HOCKET_OBJECTS=0) trains all the same."""

from __future__ import annotations

import fractions
import math

from hocket.horovod import plain
from support import jobs


def test_values_come_back_as_they_were() -> None:
    for value in (
        None, True, 0, -(1 << 70), 0.1, math.inf, "ö\n", [], (), {}, [1, (2.5, [None])], ("list", "dict"), ["other", 1],
        {"a": {1: (True, {2.5: "x"})}, (1, "b"): [], None: ()}, [["dict", ["x", 1]]],
    ):  # fmt: skip
        told = plain.text(value, lambda x: 1 / 0)
        assert repr(plain.value(told, lambda x: 1 / 0)) == repr(value)
    half = {"x": [fractions.Fraction(1, 2), 3]}
    assert plain.value(plain.text(half, str), fractions.Fraction) == half


SOURCE = """
import collections, os, sys
os.environ["HOCKET_OBJECTS"] = "0"
import torch
import hocket.horovod.torch as hvd
hvd.init()
rank = hvd.rank()

def refused(call, *args):
    try:
        call(*args)
    except ValueError as error:
        assert "this job refuses objects (HOCKET_OBJECTS=0)" in str(error), error
    else:
        raise AssertionError(f"rank {rank}: nobody refused {args}")

torch.manual_seed(rank)
model = torch.nn.Linear(3, 2)
adam = torch.optim.Adam(model.parameters(), 0.1 + rank, betas=(0.5, 0.25 * (rank + 1)))
if rank == 0:
    model(torch.ones(1, 3)).sum().backward()
    adam.step()
    kept = adam.state[model.bias]
    kept["ordered"] = collections.OrderedDict(a=torch.ones(3), b=[collections.defaultdict(int, x=torch.ones(2))])
    kept["named"] = collections.namedtuple("Named", "low high")(torch.zeros(2), 5)
hvd.broadcast_parameters(model.state_dict(), 0)
hvd.broadcast_optimizer_state(adam, 0)
group, kept = adam.param_groups[0], adam.state[model.bias]
assert kept["ordered"]["a"].tolist() == [1, 1, 1] and kept["ordered"]["b"][0]["x"].tolist() == [1, 1]
assert kept["named"][0].tolist() == [0, 0] and kept["named"][1] == 5
assert group["lr"] == 0.1 and group["betas"] == (0.5, 0.25) and group["foreach"] is None
optimizer = hvd.DistributedOptimizer(adam, model.named_parameters(), groups=1)
alone = hvd.add_process_set([1])
sampler = hvd.elastic.ElasticSampler(range(8))
sampler.record_batch(0, 1 + rank)
state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=3 + rank, best=[0.5, (rank,)])
state.sync()
assert (state.epoch, state.best, sampler.processed_num) == (3, [0.5, (0,)], 2)
optimizer.zero_grad()
model(torch.ones(1, 3) * rank).sum().backward()
optimizer.step()
everywhere = hvd.allgather(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
assert torch.equal(*everywhere.view(2, -1)) and len(adam.state) == 2 and alone.size() == 1
"""
ALL_REFUSE = """
refused(hvd.allgather_object, rank)
if rank == 0:
    refused(hvd.broadcast_object, {}, 0)
    group["odd"] = object()
    refused(hvd.broadcast_optimizer_state, adam, 0)
    refused(hvd.elastic.TorchState(what={1, 2}).sync)
"""
RECEIVER_REFUSES = """
call = hvd.broadcast_object if rank == 0 else lambda *args: refused(hvd.broadcast_object, *args)
call({"from": rank}, 0)
state = hvd.elastic.TorchState(what={1, 2})
state.sync() if rank == 0 else refused(state.sync)
"""


def test_a_job_without_objects_trains() -> None:
    jobs.run(2, SOURCE + ALL_REFUSE, 40)


def test_a_rank_that_refuses_objects_unpickles_none() -> None:
    """Although the sender's setting allows them."""
    jobs.run(2, SOURCE.replace('= "0"', '= "01"[os.environ["HOCKET_RANK"] == "0"]', 1) + RECEIVER_REFUSES, 40)
