"""The gradients of an optimizer: each is reduced as soon as backward() has made it, while that goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from hocket.compression.rates import Rate, rate_of
from hocket.errors import ArgumentError
from hocket.horovod.process_sets import ProcessSet
from hocket.horovod.torch import calls
from hocket.horovod.torch.basics import Average
from hocket.horovod.torch.functions import broadcast_values

Tensor = torch.Tensor
Groups = list[list[Tensor]]
TOO_OFTEN = (
    "gradients were computed more than backward_passes_per_step times before step() or synchronize(): say "
    "backward_passes_per_step=, so that gradients of several passes are added up on each rank first"
)


def named(optimizer: torch.optim.Optimizer, named_parameters: Iterable[Any] | None) -> dict[Tensor, str]:
    """The optimizer's parameters with their names, which all ranks must give alike.  ValueError if some have none."""
    groups = optimizer.param_groups
    if named_parameters is None:
        pairs = [(f"noname.{i}.{j}", p) for i, group in enumerate(groups) for j, p in enumerate(group["params"])]
    else:
        pairs = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise ArgumentError("named_parameters must be pairs of a name and a parameter, as model.named_parameters()")
    twice = [name for name, times in Counter(name for name, _ in pairs).items() if times > 1]
    if twice:
        raise ArgumentError(f"named_parameters has names more than once: {', '.join(sorted(twice))}")
    names = {p: name for name, p in pairs}
    without = [tuple(p.shape) for group in groups for p in group["params"] if p not in names]
    if without:
        raise ArgumentError(f"named_parameters lacks {len(without)} of the optimizer's, of shapes {without[:5]}")
    return names


class Reducer:
    """Reduces the gradients of these parameters, each after `passes` backward passes."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, names: dict[Tensor, str], compression: Any, passes: int, op: int,
        predivide: float, groups: int | Groups | None, sparse_as_dense: bool, process_set: ProcessSet,
    ) -> None:  # fmt: skip
        self.names, self.compression, self.op, self.process_set = names, compression, op, process_set
        self.passes, self.sparse_as_dense = passes, sparse_as_dense
        self.scales = (1.0 / predivide, predivide) if op == Average else (1.0, 1.0)
        self.codec = getattr(compression, "codec", "")
        self._optimizer = optimizer
        self._place = {p: i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
        self.under_way: dict[Tensor, Callable[[], None]] = {}
        """By parameter: waits for its reduction, and leaves the result in its gradient."""
        self.left: dict[Tensor, int] = {}
        """By parameter: backward passes until it is reduced."""
        self.group: dict[Tensor, list[Tensor]] = {}
        there = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        if not process_set.included() or process_set.size() == 1:
            there = []
        self.params = there
        if groups is not None and there:
            self._group(groups)
        self.reset()
        for p in there:
            p.register_post_accumulate_grad_hook(self._made)

    def reset(self) -> None:
        """Nothing is under way."""
        self.under_way.clear()
        self.left = dict.fromkeys(self.params, self.passes)

    def synchronize(self) -> None:
        """Reduce what has not been, also gradients that were not computed here; wait for all of it."""
        for p in self.params:
            if p not in self.under_way:
                self._reduce(self.group.get(p, [p]))
        for finish in list(dict.fromkeys(self.under_way.values())):
            finish()
        self.reset()

    def _made(self, p: Tensor) -> None:
        """backward() has added to its gradient."""
        if self.left[p] <= 0:
            raise AssertionError(TOO_OFTEN)
        self.left[p] -= 1
        together = self.group.get(p, [p])
        if all(self.left[each] == 0 for each in together):
            self._reduce(together)

    def _reduce(self, together: Sequence[Tensor]) -> None:
        """Begin to reduce the gradients of these parameters, as one if there are several."""
        for p in together:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        if len(together) == 1 and together[0].grad is not None and together[0].grad.is_sparse:
            self.under_way[together[0]] = self._sparse(together[0])
            return
        small = [self.compression.compress(_dense(p.grad)) for p in together]
        tensors, name = [each for each, _ in small], self.names[together[0]]
        how = name, self.op, *self.scales, self.process_set
        rates = tuple(map(self._rate, together))
        handle = calls.reduced(tensors, *how, grouped=True, in_place=True, codec=self.codec, rates=rates)

        def finish() -> None:
            for p, made, (_, ctx) in zip(together, calls.synchronize(handle), small, strict=True):
                self._take(p, self.compression.decompress(made, ctx))

        self.under_way.update(dict.fromkeys(together, finish))

    def _sparse(self, p: Tensor) -> Callable[[], None]:
        assert p.grad is not None
        if self.sparse_as_dense:
            dense, ctx = self.compression.compress(p.grad.to_dense())
            how = self.names[p], self.op, *self.scales, self.process_set
            handle = calls.reduced([dense], *how, in_place=True, codec=self.codec, rates=(self._rate(p),))
            return lambda: self._take(p, self.compression.decompress(calls.synchronize(handle), ctx).to_sparse())
        whole = calls.sparse_allreduce_async(p.grad, self.names[p], self.op, self.process_set)
        return lambda: self._take(p, whole())

    def _rate(self, p: Tensor) -> Rate:
        """Its learning rate, which the next step will multiply its gradient by."""
        return rate_of(self._optimizer.param_groups[self._place[p]])

    def _take(self, p: Tensor, made: Tensor) -> None:
        if made is not p.grad:
            p.grad = made

    def _group(self, groups: int | Groups) -> None:
        """Which parameters are reduced together: in rank 0's order, so that it is the same on all ranks."""
        by_name = {self.names[p]: p for p in self.params}
        order = broadcast_values(list(by_name), (self.process_set.ranks or [0])[0], "groups", self.process_set)
        ordered = [by_name[name] for name in order if name in by_name]
        if isinstance(groups, int):
            count = min(groups, len(ordered))
            cuts = [len(ordered) * i // count for i in range(count + 1)]
            made = [ordered[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]
        else:
            here = set(self.params)
            made = [[p for p in group if p in here] for group in groups]
        for group in made:
            self.group.update(dict.fromkeys(group, group))


def checked(groups: Any) -> int | Groups | None:
    """`groups=`, if it can be one.  ValueError."""
    if groups is None or (isinstance(groups, int) and groups > 0):
        return groups or None
    if groups == 0:
        return None
    if not isinstance(groups, list):
        raise ArgumentError("groups must be a number, or a list of lists of parameters")
    every = [p for group in groups for p in group]
    if any(not isinstance(p, Tensor) for p in every):
        raise ArgumentError("groups must hold parameters, not their names")
    if len({id(p) for p in every}) < len(every):
        raise ArgumentError("groups has a parameter more than once")
    return groups


def _dense(grad: Tensor | None) -> Tensor:
    assert grad is not None
    return grad.to_dense() if grad.is_sparse else grad
