"""Training that survives the loss of a rank: torchrun starts all ranks again, and they go on from a checkpoint.

    torchrun --nproc-per-node 2 --max-restarts 2 examples/pytorch/elastic.py circle.pt --die-at 70

With --die-at the last rank kills itself in that step of the first attempt.  The others are told at once (their call
raises an error that names the rank), end, and torchrun starts everybody again: a new process group, the checkpoint, and
on.  The weights at the end are, bit by bit, those of a run without --die-at.  (Started once more with the same file, it
finds nothing left to do.)

    start: step 0
    rank 1 ends itself in step 70
    start: step 60, from circle.pt (restart 1)
    accuracy: 97.0 % after 120 steps
    weights: SHA-256 ...
"""

import argparse
import hashlib
import os
import pathlib
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, EVERY, BATCH, RATE = 120, 20, 128, 0.5


def points(step, count=BATCH):
    """Points of a square, and whether they lie in a circle.  A step's batch depends on nothing but its number."""
    xy = 2 * torch.rand(count, 2, generator=torch.Generator().manual_seed(step)) - 1
    return xy, (xy.square().sum(1) < 0.5).float()


def save(path, step, model, optimizer):
    """All or nothing: a rank that dies while it writes leaves the last checkpoint as it was."""
    part = path.with_suffix(".part")
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, part)
    os.replace(part, path)


def load(path, model, optimizer):
    """The step to go on from."""
    if not path.exists():
        return 0
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["step"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=pathlib.Path, help="written here; if it is there, training goes on from it")
    parser.add_argument("--die-at", type=int, metavar="STEP")
    options = parser.parse_args()
    dist.init_process_group("hocket")
    rank, size = dist.get_rank(), dist.get_world_size()
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1), nn.Flatten(0))
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    start = load(options.checkpoint, model, optimizer)
    dist.barrier()  # nobody writes a checkpoint before all have read
    if rank == 0:
        origin = f", from {options.checkpoint} (restart {restarts})" if start else ""
        print(f"start: step {start}{origin}", flush=True)

    parallel = DistributedDataParallel(model)
    for step in range(start, STEPS):
        if step == options.die_at and restarts == 0 and rank == size - 1:
            print(f"rank {rank} ends itself in step {step}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        xy, inside = points(step)
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(parallel(xy[rank::size]), inside[rank::size])
        loss.backward()
        optimizer.step()
        if rank == 0 and (step + 1) % EVERY == 0:
            save(options.checkpoint, step + 1, model, optimizer)

    if rank == 0:
        xy, inside = points(STEPS, 10_000)
        with torch.no_grad():
            correct = ((model(xy) > 0) == inside).float().mean()
        weights = torch.cat([each.detach().reshape(-1) for each in model.parameters()]).numpy().tobytes()
        print(f"accuracy: {100 * correct:.1f} % after {STEPS} steps")
        print(f"weights: SHA-256 {hashlib.sha256(weights).hexdigest()[:16]}...")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
