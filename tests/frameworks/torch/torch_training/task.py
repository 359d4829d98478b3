"""One task that everybody learns, on one process or several, and how results are compared."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.testing import assert_close


def rank() -> int:
    return dist.get_rank()


def size() -> int:
    return dist.get_world_size()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))


def batch(parts: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs and targets of all ranks."""
    made = torch.Generator().manual_seed(7)
    rows = 4 * (parts or size())
    return torch.randn(rows, 8, generator=made), torch.randn(rows, 4, generator=made)


def mine(whole: Tensor) -> Tensor:
    """This rank's share."""
    return whole.chunk(size())[rank()]


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def learn(model: Any, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


def learned(kind: Callable[[nn.Module], torch.optim.Optimizer] = adam, steps: int = 3) -> list[Tensor]:
    """The parameters after one process has learned from the whole batch."""
    model = network()
    learn(model, kind(model), *batch(), steps)
    return [each.detach() for each in model.parameters()]


def close(got: Iterable[Tensor], wanted: Iterable[Tensor], **tolerance: float) -> None:
    assert_close([each.detach() for each in got], [each.detach() for each in wanted], **tolerance)


def full(parameters: Iterable[Any]) -> list[Tensor]:
    """DTensors as whole tensors."""
    return [each.full_tensor() for each in parameters]


def alike(tensors: Iterable[Tensor]) -> None:
    """All ranks have the same bits."""
    flat = torch.cat([each.detach().reshape(-1) for each in tensors])
    everyones: list[Any] = [None] * size()
    dist.all_gather_object(everyones, flat)
    for theirs in everyones:
        assert torch.equal(flat, theirs), "ranks differ"


def gradients(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    model = copy.deepcopy(model)
    nn.functional.mse_loss(model(x), y).backward()
    return [each.grad for each in model.parameters()]  # type: ignore[misc]


def ranks_gradients(model: nn.Module) -> list[list[Tensor]]:
    """Each rank's own gradients, [rank][parameter]."""
    x, y = batch()
    return [gradients(model, *shares) for shares in zip(x.chunk(size()), y.chunk(size()), strict=True)]
