"""A program for Horovod, of which only the import was changed: handwritten digits, a small network, all ranks together.

    hocket run -n 2 -- examples/frameworks/horovod_digits.py   (or mpirun, torchrun, srun; or plain python: one rank)
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import hocket.horovod.torch as hvd  # was: import horovod.torch as hvd

EPOCHS, BATCH, RATE, CLIP = 12, 32, 0.05, 5.0


def data():
    """Training and test sets: images of 8 x 8 pixels, and their digits."""
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, digits = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(digits)[order]
    return TensorDataset(images[:1440], digits[:1440]), TensorDataset(images[1440:], digits[1440:])


def main():
    hvd.init()
    torch.manual_seed(hvd.rank())
    train, test = data()
    sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())
    batches = DataLoader(train, batch_size=BATCH, sampler=sampler)

    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for images, digits in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), digits)
            loss.backward()
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            with optimizer.skip_synchronize():
                optimizer.step()
            total += loss.detach() / len(batches)
        mean = hvd.allreduce(total, name="loss").item()
        if hvd.rank() == 0 and epoch % 4 == 3:
            print(f"epoch {epoch + 1}: loss {mean:.3f}")

    images, digits = test.tensors
    mine = slice(hvd.rank(), None, hvd.size())
    right = (model(images[mine]).argmax(1) == digits[mine]).sum()
    right = hvd.allreduce(right, op=hvd.Sum, name="right").item()
    if hvd.rank() == 0:
        print(f"test accuracy: {100 * right / len(digits):.1f} % by {hvd.size()} ranks")


if __name__ == "__main__":
    main()
