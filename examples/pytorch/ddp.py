"""DistributedDataParallel on hocket: handwritten digits, every rank trains on its share of each batch.

    torchrun --nproc-per-node 2 examples/pytorch/ddp.py

The one line that differs from a program for Gloo or NCCL is `init_process_group("hocket")`.  Rank 0 prints how the loss
falls; then it trains once more alone, and compares; and all ranks prove that they hold the same bits:

    epoch  0: loss 2.1699
    ...
    test accuracy: 96.4 % by 2 ranks, 96.4 % by one process
    weights: the same bits on all 2 ranks (SHA-256 ...)
"""

import hashlib

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

EPOCHS, BATCH, RATE = 20, 96, 0.3


def data():
    """Training and test images (pixels from 0 to 1) with their digits, in the same random order on every rank."""
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, digits = torch.tensor(images / 16, dtype=torch.float32)[order], torch.tensor(digits)[order]
    return images[:1440], digits[:1440], images[1440:], digits[1440:]


def new_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def train(model, images, digits, batch, rank=0, size=1, report=lambda epoch, loss: None):
    """Gradient descent; this rank takes every size-th image of each batch."""
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    order = torch.Generator().manual_seed(2)  # the same batches on every rank
    for epoch in range(EPOCHS):
        total, batches = torch.zeros(()), 0
        for chosen in torch.randperm(len(images), generator=order).split(batch):
            if len(chosen) < batch:
                break
            mine = chosen[rank::size]
            loss = nn.functional.cross_entropy(model(images[mine]), digits[mine])
            optimizer.zero_grad()
            loss.backward()  # under DDP: averages the gradients over the ranks
            optimizer.step()
            total, batches = total + loss.detach(), batches + 1
        report(epoch, total / batches)


def accuracy(model, images, digits):
    with torch.no_grad():
        return 100 * (model(images).argmax(1) == digits).float().mean().item()


def main():
    dist.init_process_group("hocket")
    rank, size = dist.get_rank(), dist.get_world_size()
    images, digits, test_images, test_digits = data()
    batch = max(BATCH // size, 1) * size  # every rank gets equally many images

    def report(epoch, loss):
        dist.all_reduce(loss, dist.ReduceOp.AVG)
        if rank == 0 and (epoch % 5 == 0 or epoch == EPOCHS - 1):
            print(f"epoch {epoch:2}: loss {loss:.4f}", flush=True)

    model = DistributedDataParallel(new_model())
    train(model, images, digits, batch, rank, size, report)

    weights = torch.cat([each.detach().reshape(-1) for each in model.parameters()])
    digests = [None] * size
    dist.all_gather_object(digests, hashlib.sha256(weights.numpy().tobytes()).hexdigest())
    if rank == 0:
        train(alone := new_model(), images, digits, batch)
        together, by_one = (accuracy(each, test_images, test_digits) for each in (model, alone))
        print(f"test accuracy: {together:.1f} % by {size} ranks, {by_one:.1f} % by one process")
        assert abs(together - by_one) <= 0.5, "the ranks did not learn what one process learns"
        assert len(set(digests)) == 1, "the ranks hold different weights"
        print(f"weights: the same bits on all {size} ranks (SHA-256 {digests[0][:16]}...)")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
