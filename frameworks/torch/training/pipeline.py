"""Modules as stages of `hocket.training.Pipeline`, and losses of torch's behind the last one.

    pipe = Pipeline(Stage(module), mesh["pipe"], like, micro=8)         # like: an array, or a tensor's .numpy()
    pipe.step(x.numpy() if pipe.first else None, loss(torch.nn.functional.cross_entropy, targets.chunk(8)))

Tensors and arrays share their memory.  Of a module on a GPU, `like`, x and what travels are tensors there.  Gradients
are added up in the parameters' `grad`, as by `backward()`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

Tensor = torch.Tensor


class Stage:
    """A module of one tensor to one tensor, in host memory or on a GPU."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def forward(self, x: Any) -> tuple[Any, tuple[Tensor, Tensor]]:
        """The result as an array, and the graph."""
        given = torch.as_tensor(x)
        if given.is_floating_point():
            given.requires_grad_()
        y = self.module(_inside(given))
        return _array(y), (given, y)

    def random_state(self) -> list[Tensor]:
        """The state of torch's random numbers, which a pass that is made again draws anew: the host's, the GPU's."""
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(each) for each in self._gpus())]

    def set_random_state(self, state: list[Tensor]) -> None:
        torch.set_rng_state(state[0])
        for device, each in zip(self._gpus(), state[1:], strict=True):
            torch.cuda.set_rng_state(each, device)

    def _gpus(self) -> list[torch.device]:
        return sorted({p.device for p in self.module.parameters() if p.is_cuda}, key=str)

    def backward(self, dy: Any, kept: tuple[Tensor, Tensor]) -> Any:
        """The gradient of x as an array; zeros where x was of whole numbers, or not needed."""
        given, y = kept
        if y.requires_grad:  # a frozen embedding's does not
            torch.autograd.backward(y, torch.as_tensor(dy, dtype=y.dtype))  # NumPy's losses may make doubles
        return _array(torch.zeros_like(given) if given.grad is None else given.grad)


def _array(x: Tensor) -> Any:
    """The same memory as NumPy's array; of a GPU's as it is."""
    return x.detach() if x.is_cuda else x.detach().numpy()


def _inside(leaf: Tensor) -> Tensor:
    """A copy in the graph: what begins in place, as ReLU(inplace=True), may change that, but not a leaf."""
    return leaf.clone() if leaf.requires_grad else leaf


def loss(function: Callable[[Tensor, Tensor], Tensor], targets: Sequence[Tensor]) -> Callable[[Any, int], Any]:
    """function(y, target) as `Pipeline.step` takes it; `targets`: one for each micro-batch."""

    def each(y: Any, micro: int) -> tuple[Any, Any]:
        given = torch.as_tensor(y).requires_grad_()
        found = function(_inside(given), targets[micro])
        torch.autograd.backward(found)
        assert given.grad is not None
        return found.detach() if found.is_cuda else float(found.detach()), _array(given.grad)

    return each
