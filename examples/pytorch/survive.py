"""Data-parallel training that goes on when a rank dies, and lets newcomers in: no process starts again that lives.

    hocket run -n 3 --elastic --least 2 --most 3 examples/pytorch/survive.py

Kill a rank while it runs (its pid is printed): the others go on without it, within a second and from the step at which
it died, and `hocket run` starts a newcomer in its place.  More come by `hocket run -n 1 --join ADDRESS` with the same
HOCKET_SECRET.

    rank 2 of 3, pid 4711: from step 0
    rank 1 of 2, pid 4710: from step 71
    rank 2 of 3, pid 4720: from step 94
    rank 0 of 3: 96.9 % after 400 steps, weights ...
"""

import argparse
import os
import time
import zlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hocket
import hocket.torch

BATCH, RATE = 64, 0.5


def points(step, rank, count=BATCH):
    """Points of a square, and whether they lie in a circle."""
    xy = 2 * torch.rand(count, 2, generator=torch.Generator().manual_seed(1000 * step + rank)) - 1
    return xy, (xy.square().sum(1) < 0.5).float()


class Training:
    """The state that all ranks hold, bit for bit."""

    def __init__(self):
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1), nn.Flatten(0))
        self.optimizer = torch.optim.SGD(self.model.parameters(), RATE, momentum=0.9)
        self.step = 0

    def state(self):
        return {"step": self.step, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state):
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def begin(self, comm):
        """Take the state of the most advanced, if these ranks are not the first; the module that all train now."""
        steps = [-1 if info is None else info["step"] for info in comm.infos]
        if comm.generation:
            state = [self.state()]
            dist.broadcast_object_list(state, steps.index(max(steps)))  # of members, who have proven the job's secret
            self.load(state[0])
        print(f"rank {comm.rank} of {comm.size}, pid {os.getpid()}: from step {self.step}", flush=True)
        return DistributedDataParallel(self.model)

    def train(self, parallel, rank):
        xy, inside = points(self.step, rank)
        self.optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(parallel(xy), inside).backward()
        self.optimizer.step()
        self.step += 1


def somebody_waits(comm):
    """The same answer on all ranks."""
    waits = torch.tensor(float(comm.waiting > 0))
    dist.all_reduce(waits, dist.ReduceOp.MAX)
    return bool(waits)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=0.02, help="of a step, which a larger model would take")
    parser.add_argument("--ranks", type=int, default=1, help="train on while there are fewer of them")
    options = parser.parse_args()
    training, parallel = Training(), None
    comm = hocket.init(elastic=True)
    hocket.torch.use(comm)
    while training.step < options.steps or comm.size < options.ranks or parallel is None:
        try:
            if parallel is None:
                parallel = training.begin(comm)
            time.sleep(options.seconds)
            training.train(parallel, comm.rank)
            changes = somebody_waits(comm)
        except RuntimeError as error:  # a loss, also if it comes out of DDP's C++
            if not hocket.torch.is_loss(error):
                raise
            changes = True
        if changes:
            comm, parallel = hocket.torch.renew({"step": training.step}), None

    with torch.no_grad():
        xy, inside = points(-1, 0, 10_000)
        right = ((training.model(xy) > 0) == inside).float().mean()
        weights = torch.cat([each.reshape(-1) for each in training.model.parameters()]).numpy()
    print(f"rank {comm.rank} of {comm.size}: {right:.1%} after {training.step} steps, "
          f"weights {zlib.crc32(weights.data):08x}", flush=True)  # fmt: skip
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
