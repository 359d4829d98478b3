"""A pipeline on hocket: one stage of the network on each rank, microbatches on their way through it (1F1B).

    torchrun --nproc-per-node 3 examples/pytorch/pipeline.py

Activations go to the next rank and gradients to the one before, by send and recv; once the pipeline is full, a rank
alternates one forward with one backward.  The network learns which of ten directions a point lies in.  Every rank also
trains all of it alone, and compares its stage.  The last rank, which is the one that knows the loss, prints:

    step  0: loss 2.3071
    ...
    3 stages: as in a run of one process (largest difference 1.6e-07)
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

STEPS, MICROBATCHES, ROWS, RATE, INPUTS, WIDTH = 60, 8, 16, 0.5, 16, 64


def new_stages(size):
    """The network, cut: points enter the first stage, scores of the ten directions leave the last."""
    torch.manual_seed(1)
    stages = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(size)]
    stages[0].insert(0, nn.Linear(INPUTS, WIDTH))
    stages[-1].append(nn.Linear(WIDTH, 10))
    return stages


def batches(rows):
    """Points and their directions, the same on every rank."""
    generator = torch.Generator().manual_seed(2)
    directions = torch.randn(INPUTS, 10, generator=generator)
    for _ in range(STEPS):
        points = torch.randn(rows, INPUTS, generator=generator)
        yield points, (points @ directions).argmax(1)


def main():
    dist.init_process_group("hocket")
    rank, size = dist.get_rank(), dist.get_world_size()
    first, last = rank == 0, rank == size - 1
    microbatches = max(MICROBATCHES, size)  # fewer than stages would never fill the pipeline

    mine = new_stages(size)[rank]
    stage = PipelineStage(mine, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, microbatches, nn.functional.cross_entropy)
    optimizer = torch.optim.SGD(mine.parameters(), RATE)
    for step, (points, wanted) in enumerate(batches(ROWS * microbatches)):
        losses = []  # of each microbatch, on the last rank
        optimizer.zero_grad()
        schedule.step(*([points] if first else []), target=wanted if last else None, losses=losses if last else None)
        optimizer.step()
        if last and (step % 10 == 0 or step == STEPS - 1):
            print(f"step {step:2}: loss {torch.stack(losses).mean():.4f}", flush=True)

    stages = new_stages(size)
    whole = nn.Sequential(*stages)
    optimizer = torch.optim.SGD(whole.parameters(), RATE)
    for points, wanted in batches(ROWS * microbatches):
        optimizer.zero_grad()
        nn.functional.cross_entropy(whole(points), wanted).backward()
        optimizer.step()
    pairs = zip(mine.parameters(), stages[rank].parameters(), strict=True)
    difference = torch.stack([(a - b).detach().abs().max() for a, b in pairs]).max()
    dist.all_reduce(difference, dist.ReduceOp.MAX)
    assert difference < 1e-4, f"the ranks did not learn what one process learns: {difference}"
    if last:
        print(f"{size} stages: as in a run of one process (largest difference {difference:.1e})")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
