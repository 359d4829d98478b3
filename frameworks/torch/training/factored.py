"""Poseidon's choice: each fully connected layer's gradient goes dense, or as the two matrices whose product it is.

The gradient of a `Linear`'s weight after K samples is dy^T x.  Where the ranks' x and dy are fewer bytes than an
allreduce of the weight (`hocket.training.large.factors`), ranks send these, and each multiplies all of them: the
average to rounding, and the same bits on all ranks where their CPUs and BLAS are.

    step 1         all gradients go dense; a layer whose gradient is dy^T x here may change
    from step 2    by what all ranks have told: chosen layers on a lane of their own, the others by a scheduler

Messages have room for the largest K of step 1; fewer samples are filled with zeros, which add nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hocket.torch.errors import ArgumentError
from hocket.torch.training.hooks import Hook
from hocket.training import Timing
from hocket.training.large.factors import costs

Tensor = torch.Tensor
CLOSE = 1e-4
"""The product's largest error, of the gradient's largest element, with which a layer may change."""


class FactoredLinear:
    """A `Linear`, and the samples of a step: what went in, and the gradient of what came out."""

    def __init__(self, name: str, module: torch.nn.Linear) -> None:
        self.name, self.weight, self.bytes = name, module.weight, 0
        self.pairs: list[list[Tensor]] = []
        self.handle = module.register_forward_hook(Hook(self, "_ran"))
        self.room = 0
        """Samples of a message."""
        self.begun: tuple[Any, Tensor, Tensor] | None = None
        """The call, what it sends, and what it receives."""
        self.grad: Tensor | None = None
        """The tensor that takes the average; it may be that of a step before, for which nobody has waited."""
        self.fresh = False
        """Is it ready in this step?"""

    def _ran(self, module: Any, given: tuple[Any, ...], result: Tensor) -> None:
        """forward() has ended."""
        if torch.is_grad_enabled() and result.requires_grad:
            pair = [given[0].detach()]
            self.pairs.append(pair)
            result.register_hook(lambda dy: pair.append(dy.detach()))  # type: ignore[no-untyped-call]

    def samples(self) -> tuple[Tensor, Tensor] | None:
        """x and dy of this step; None: it has none, or its passes are not all back."""
        pairs, self.pairs = [pair for pair in self.pairs if len(pair) == 2], []
        if not pairs:
            return None
        out, inner = self.weight.shape
        x, dy = (torch.cat([pair[i].reshape(-1, n) for pair in pairs]) for i, n in enumerate((inner, out)))
        return x, dy

    def fits(self, grad: Tensor) -> int:
        """The samples of this step, if the gradient is their product: it has no other part, and is not autocast's."""
        found = self.samples()
        if found is None or grad.is_sparse or found[0].dtype != grad.dtype or found[1].dtype != grad.dtype:
            return 0
        off = (found[1].T @ found[0] - grad).abs().max()
        return len(found[0]) if bool(off <= CLOSE * grad.abs().max()) else 0

    def message(self, grad: Tensor | None) -> Tensor:
        """The vector that this rank sends: was it ready, x and dy."""
        out, inner = self.weight.shape
        made = self.weight.new_zeros(1 + self.room * (out + inner))
        found = None if grad is None else self.samples()
        self.pairs = []
        if found is not None:
            count = len(found[0])
            if count > self.room:
                raise ArgumentError(
                    f"{self.name}: {count} samples in a step, and factors= has room for {self.room}, the most of the "
                    "first step on any rank: make the DistributedOptimizer anew, or leave factors= out"
                )
            made[0] = 1
            made[1 : 1 + count * inner] = found[0].reshape(-1)
            begin = 1 + self.room * inner
            made[begin : begin + count * out] = found[1].reshape(-1)
        return made

    def average(self, size: int) -> Tensor | None:
        """Wait for all ranks' factors, and multiply; None: no rank had any."""
        if self.begun is None:
            return None
        work, _, came = self.begun
        self.begun = None
        work.wait()
        out, inner = self.weight.shape
        rows = came.reshape(size, -1)
        if not bool((rows[:, 0] > 0).any()):
            return None
        x = rows[:, 1 : 1 + self.room * inner].reshape(-1, inner)
        dy = rows[:, 1 + self.room * inner :].reshape(-1, out)
        grad = self.grad if self.grad is not None else torch.empty_like(self.weight)
        torch.mm(dy.T, x, out=grad)
        grad /= size
        return grad


class Factored:
    """The `Averages` of an optimizer: some by factors, the others by a scheduler of `make()`.

    `given`: "auto", or names of weights that go by factors whatever is cheaper.
    """

    def __init__(self, comm: Any, model: torch.nn.Module, given: Any, make: Callable[[], Any]) -> None:
        self.comm, self._given, self._make = comm, given, make
        every = dict(model.named_modules()).items()
        weights = {f"{name}.weight".lstrip("."): module for name, module in every if hasattr(module, "weight")}
        linear = {name: module for name, module in weights.items() if type(module) is torch.nn.Linear}
        for name in () if given == "auto" else given:
            if name not in linear:
                kind = type(weights[name]).__name__ if name in weights else "no module"
                raise ArgumentError(
                    f"factors= names {name!r}, a weight of {kind}: only gradients of torch.nn.Linear's weights are "
                    f"products of two matrices; leave it out, or take codec= or compressor= for it"
                )
        wanted = linear if given == "auto" else {name: linear[name] for name in given}
        self._layers = {name: FactoredLinear(name, module) for name, module in wanted.items()}
        self._scheduler = make()
        self._declared: dict[str, Any] = {}
        self._row: list[FactoredLinear] = []
        """Layers that go by factors, in the order of their calls."""
        self._next, self._steps = 0, 0
        self._fits: dict[str, int] = {}
        self._lane: Any = None

    def declare(self, name: str, like: Any) -> None:
        self._declared[name] = like
        self._scheduler.declare(name, like)

    def seal(self) -> None:
        for name in self._layers.keys() - self._declared.keys():
            self._layers.pop(name).handle.remove()  # it is frozen
        self._scheduler.seal()

    def ready(self, name: str, grad: Tensor) -> None:
        if self._steps == 1 and self._lane is None:
            self._choose()
        layer = self._layers.get(name)
        if layer is None:
            return self._scheduler.ready(name, grad)  # type: ignore[no-any-return]
        if self._lane is None:
            self._fits[name] = layer.fits(grad)
            return self._scheduler.ready(name, grad)  # type: ignore[no-any-return]
        layer.grad, layer.fresh = grad, True
        while self._next < len(self._row) and self._row[self._next].fresh:
            self._send(self._row[self._next])
        return None

    def _choose(self) -> None:
        """By what all ranks have told of the first step."""
        names = [name for name in reversed(self._declared) if name in self._layers]
        rows = self.comm.share([self._fits.get(name, 0) for name in names], "DistributedOptimizer(factors=)")
        for name, *counts in zip(names, *rows, strict=True):
            layer = self._layers[name]
            layer.room, mean = max(counts), sum(counts) / len(counts)
            out, inner = layer.weight.shape
            way = costs(inner, out, mean, self.comm.size).way
            if min(counts) and (self._given != "auto" or way == "factors"):
                self._row.append(layer)
                layer.bytes = (1 + layer.room * (out + inner)) * layer.weight.element_size()
                continue
            if self._given != "auto":
                raise ArgumentError(
                    f"factors= names {name!r}, whose gradient is not the product of its module's input and output "
                    "gradient on all ranks (autocast, another use of the weight, a hook): leave it out"
                )
            self._layers.pop(name).handle.remove()
        self._lane = self.comm.dup()
        if self._row:
            self._scheduler.close()
            self._scheduler = self._make()
            for name, like in self._declared.items():
                if name not in self._layers:
                    self._scheduler.declare(name, like)
            self._scheduler.seal()

    def _send(self, layer: FactoredLinear) -> None:
        message, layer.fresh = layer.message(layer.grad if layer.fresh else None), False
        came = message.new_empty(self.comm.size * message.numel())
        layer.begun = self._lane.allgather(message, out=came, async_op=True), message, came
        self._next += 1

    def step(self) -> list[str]:
        if self._steps == 1 and self._lane is None:
            self._choose()
        late = [layer.name for layer in self._row[self._next :] if not layer.fresh]
        while self._next < len(self._row):
            self._send(self._row[self._next])
        self._next, self._steps = 0, self._steps + 1
        return [*late, *self._scheduler.step()]

    def wait(self, name: str) -> Any:
        layer = self._layers.get(name)
        if layer is None or self._lane is None:
            return self._scheduler.wait(name)
        found = layer.average(self.comm.size)
        layer.grad = None
        return found

    def report(self) -> list[Timing]:
        """The scheduler's, and the bytes of a rank's message for those that go by factors."""
        return [*self._scheduler.report(), *(Timing(each.name, each.bytes, 0, 0, 0, None) for each in self._row)]

    def close(self) -> None:
        for layer in self._layers.values():
            layer.handle.remove()
        self._scheduler.close()
        if self._lane is not None:
            self._lane.close()
