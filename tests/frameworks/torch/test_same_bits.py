"""DistributedOptimizer(exact=True): the same micro-batches end in the same bits on any number of ranks."""

from __future__ import annotations

from typing import Any

import torch

import hocket
from hocket.torch import DistributedOptimizer

MICRO_BATCHES = 12


def trained(comm: hocket.Communicator, exact: bool, **how: Any) -> bytes:
    model = torch.nn.Sequential(torch.nn.Linear(30, 50), torch.nn.Tanh(), torch.nn.Linear(50, 3))
    own = torch.Generator().manual_seed(0)  # ranks are threads, which share torch's
    for p in model.parameters():
        p.data = 0.1 * torch.randn(p.shape, generator=own)
    passes = MICRO_BATCHES // comm.size
    sgd = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    optimizer = DistributedOptimizer(sgd, model, group=comm, passes=passes, exact=exact, **how)
    for step in range(4):
        for i in range(comm.rank * passes, (comm.rank + 1) * passes):
            x = torch.randn(4, 30, generator=torch.Generator().manual_seed(100 * step + i))
            (model(x) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.close()
    return b"".join(p.detach().numpy().tobytes() for p in model.parameters())


def everywhere(exact: bool, sizes: tuple[int, ...] = (1, 2, 3, 4), **how: Any) -> set[bytes]:
    found = set()
    for size in sizes:
        with hocket.local_world(size) as world:
            found |= set(world.run(lambda comm: trained(comm, exact, **how)))
    return found


def test_the_same_bits_on_any_number_of_ranks() -> None:
    assert len(everywhere(True)) == 1


def test_whatever_the_slices_and_buckets_are() -> None:
    assert everywhere(True, (2,)) == everywhere(True, (3,), slice=256, fuse=0, lanes=1)


def test_without_it_they_differ() -> None:
    assert len(everywhere(False, (1, 4))) > 1
