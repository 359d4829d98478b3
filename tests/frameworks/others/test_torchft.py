"""torchft's Manager over hocket: replicas train together, one is killed, one goes on, a new one catches up."""

from __future__ import annotations

import inspect
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch.distributed as dist

from support.faulty import wait_for

REPLICA = """
import json, os, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer
import hocket.torch
from hocket.torch.torchft import ProcessGroupHocket
limit = timedelta(seconds=60)
if sys.argv[1] == "torchft's":
    pg = ProcessGroupHocket(limit)
elif sys.argv[1] == "its own":
    pg = hocket.torch.reconfigurable(limit)
else:
    dist.init_process_group("hocket", store=dist.HashStore(), rank=0, world_size=1, enable_reconfigure=True)
    pg = dist.group.WORLD
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)   # this replica's own
torch.manual_seed(os.getpid())                                  # weights come from a replica that has some
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
manager = Manager(
    pg=pg, min_replica_size=1, rank=0, world_size=1,
    store_addr="127.0.0.1", store_port=store.port, hostname="127.0.0.1", timeout=limit,
    load_state_dict=lambda state: (model.load_state_dict(state["model"]), optimizer.load_state_dict(state["optim"])),
    state_dict=lambda: {"model": model.state_dict(), "optim": optimizer.state_dict()},
)
ddp, sgd = DistributedDataParallel(manager, model), Optimizer(manager, optimizer)
while True:
    time.sleep(0.1)
    rows = torch.randn(16, 8)
    sgd.zero_grad()
    loss = torch.nn.functional.mse_loss(ddp(rows), rows[:, :4])
    loss.backward()
    sgd.step()
    print(json.dumps({"step": manager.current_step(), "replicas": manager.num_participants(),
                      "pg": type(getattr(manager._pg, "_pg", manager._pg)).__name__,
                      "weights": model.weight.detach().double().sum().item()}), flush=True)
"""
SECRET = os.urandom(32).hex()
"""The replicas of a job are programs that nobody has started together: one secret for all of them."""
KINDS = {"torchft's": {"HOCKET_SECRET": SECRET}, "its own": {}}
"""The way to meet anew -> the environment.  In its own way the handles have the key, and the lighthouse brings them."""
if "enable_reconfigure" in inspect.signature(dist.init_process_group).parameters:  # torch 2.14
    KINDS["the default group's"] = {}


class Replica:
    """A process that trains until it is killed; what it says of its steps is in a file."""

    def __init__(self, lighthouse: str, kind: str, place: pathlib.Path, name: str) -> None:
        self.out, self.err = place / f"{name}.out", place / f"{name}.err"
        env = {**os.environ, "TORCHFT_LIGHTHOUSE": lighthouse, **KINDS[kind]}
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen([sys.executable, "-c", REPLICA, kind], env=env, stdout=out, stderr=err)

    def steps(self) -> list[dict[str, Any]]:
        lines = self.out.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    def until(self, done: Callable[[dict[str, Any]], bool]) -> int:
        """Wait for a step of which this is true; returns its number."""
        try:
            wait_for(lambda: any(done(step) for step in self.steps()[-1:]), 60)
        except AssertionError:
            raise AssertionError(f"{self.steps()[-3:]}\n{self.err.read_text()[-3000:]}") from None
        return int(self.steps()[-1]["step"])


@contextmanager
def replica(*args: Any) -> Iterator[Replica]:
    made = Replica(*args)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_a_replica_is_killed_and_another_comes(kind: str, tmp_path: pathlib.Path) -> None:
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=500, heartbeat_timeout_ms=5000)
    with ExitStack() as stack:
        stack.callback(lighthouse.shutdown)
        first, second = (stack.enter_context(replica(lighthouse.address(), kind, tmp_path, name)) for name in "ab")
        first.until(lambda step: step["replicas"] == 2)
        second.process.kill()
        first.until(lambda step: step["replicas"] == 1)
        third = stack.enter_context(replica(lighthouse.address(), kind, tmp_path, "c"))
        again = first.until(lambda step: step["replicas"] == 2)
        first.until(lambda step: step["step"] > again + 20)
        third.until(lambda step: step["step"] > again + 20)
        assert {step["pg"] for step in first.steps()} == {"ProcessGroupHocket"}
        weights = [{s["step"]: s["weights"] for s in each.steps() if s["replicas"] == 2} for each in (first, third)]
        both = sorted(step for step in weights[0].keys() & weights[1].keys() if step > again + 1)
        assert len(both) > 10, "the new replica trained with the first"
        assert all(weights[0][step] == weights[1][step] for step in both), "replicas have different models"
