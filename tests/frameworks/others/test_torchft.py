"""torchft's Manager over hocket: replicas train together, one is killed, one goes on, a new one catches up."""

from __future__ import annotations

import json
import pathlib
import signal
import sys
import time
from typing import Any

import harness
import pytest
from worlds import PATH

REPLICA = """
import json, os, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
from torchft import Manager, Optimizer, DistributedDataParallel
from hocket.torch.torchft import ProcessGroupHocket
last = sys.argv[1]                      # when this file is there, it says how many steps to take
def enough():
    return os.path.exists(last) and manager.current_step() >= int(open(last).read())
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)   # this replica's own
torch.manual_seed(os.getpid())                                  # weights come from a replica that has some
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
manager = Manager(
    pg=ProcessGroupHocket(timeout=timedelta(seconds=60)), min_replica_size=1, rank=0, world_size=1,
    store_addr="127.0.0.1", store_port=store.port, hostname="127.0.0.1", timeout=timedelta(seconds=60),
    load_state_dict=lambda state: (model.load_state_dict(state["model"]), optimizer.load_state_dict(state["optim"])),
    state_dict=lambda: {"model": model.state_dict(), "optim": optimizer.state_dict()},
)
ddp, sgd = DistributedDataParallel(manager, model), Optimizer(manager, optimizer)
while not enough():
    time.sleep(0.1)
    rows = torch.randn(16, 8)
    sgd.zero_grad()
    loss = torch.nn.functional.mse_loss(ddp(rows), rows[:, :4])
    loss.backward()
    sgd.step()
    print(json.dumps({"step": manager.current_step(), "replicas": manager.num_participants(), "loss": loss.item(),
                      "pg": type(manager._pg._pg).__name__,
                      "weights": model.weight.detach().double().sum().item()}), flush=True)
manager.shutdown(wait=False)
"""


def replica(lighthouse: str, place: pathlib.Path) -> harness.Job:
    file = place / "replica.py"
    file.write_text(REPLICA)
    env = {"PYTHONPATH": PATH, "TORCHFT_LIGHTHOUSE": lighthouse, "HOCKET_SECRET": "of all replicas" * 3}
    return harness.Job(1, argv=[sys.executable, str(file), str(place / "last")], env=env)


def said(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def until(job: harness.Job, replicas: int, seconds: float = 100) -> list[dict[str, Any]]:
    """What it says until it trains with so many."""
    lines, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        line = job.processes[0].stdout.readline()  # type: ignore[union-attr]
        assert line, job.wait(1)
        lines += said(line)
        if lines and lines[-1]["replicas"] == replicas:
            return lines
    raise AssertionError(f"never {replicas} replicas: {lines}")


@pytest.mark.timeout(300)
def test_a_replica_is_killed_and_another_comes(tmp_path: pathlib.Path) -> None:
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=500, heartbeat_timeout_ms=5000)
    try:
        address = lighthouse.address()
        with replica(address, tmp_path) as first, replica(address, tmp_path) as second:
            until(first, 2)
            second.signal(0, signal.SIGKILL)
            alone = until(first, 1)
            with replica(address, tmp_path) as third:
                again = until(first, 2)
                (tmp_path / "new").write_text(str(again[-1]["step"] + 20))
                (tmp_path / "new").rename(tmp_path / "last")
                ends = first.wait(60)[0], third.wait(60)[0]
        assert [end.code for end in ends] == [0, 0], ends
        steps = [*alone, *again, *said(ends[0].out)]
        assert {each["pg"] for each in steps} == {"ProcessGroupHocket"}
        assert steps[-1]["step"] == again[-1]["step"] + 20
        weights = [{each["step"]: each["weights"] for each in said(end.out) if each["replicas"] == 2} for end in ends]
        both = sorted(weights[0].keys() & weights[1].keys())
        assert len(both) > 10, "the new replica trained with the first"
        assert all(weights[0][step] == weights[1][step] for step in both), "replicas have different models"
    finally:
        lighthouse.shutdown()
