"""The averages of an optimizer's gradients, by Horovod's rules: what its DistributedOptimizer has for a scheduler."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from hocket.compression.entries import Rate, rate_of
from hocket.errors import ArgumentError
from hocket.horovod.basics import Average, Max
from hocket.horovod.process_sets import ProcessSet
from hocket.horovod.torch import calls
from hocket.horovod.torch.functions import broadcast_values
from hocket.training import Timing
from hocket.training.agreeing import Pending

Tensor = torch.Tensor
Groups = list[list[Tensor]]


def names_of(optimizer: torch.optim.Optimizer, named_parameters: Iterable[Any] | None) -> dict[Tensor, str]:
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
        raise ArgumentError(
            f"named_parameters lacks {len(without)} of the optimizer's parameters, of shapes {without[:5]}"
        )
    return names


class Averages:
    """Gradients by name; a group's go together when all are ready.  `names`: the parameters that are reduced here.

    `sparse`: may gradients be sparse?
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, names: dict[Tensor, str], compression: Any, op: int, predivide: float,
        groups: int | Groups | None, process_set: ProcessSet, sparse: bool,
    ) -> None:  # fmt: skip
        self.op, self.process_set, self.compression = op, process_set, compression
        self.scales = (1.0 / predivide, predivide) if op == Average else (1.0, 1.0)
        self.rates = optimizer.param_groups
        """The groups whose learning rates count."""
        self._place = {p: i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
        self._params = {name: p for p, name in names.items()}
        self._together = {name: [name] for name in self._params}
        if groups is not None and names:
            self._group(groups)
        self._kinds: dict[str, bool] | None = {} if sparse else None
        """Is it sparse?  By name, once some rank has had its gradient.  All ranks know the same."""
        self._sparse: set[str] = set()
        """Names of which this rank has had sparse gradients."""
        self._ready: dict[str, Tensor] = {}
        """Gradients that wait for others of their group."""
        self.under_way: dict[str, tuple[Pending, int, Any]] = {}
        """By name: the reduction, the gradient's place in it, and what its compression must know."""

    def declare(self, name: str, like: Tensor) -> None:
        """Names are enough."""

    def seal(self) -> None:
        """There is nothing to agree on."""

    def ready(self, name: str, grad: Tensor) -> None:
        """Reduce this gradient, when those of its group are there, too."""
        self._ready[name] = grad
        if grad.is_sparse:
            self._sparse.add(name)
        together = self._together[name]
        if all(each in self._ready for each in together):
            self._reduce(together)

    def step(self) -> list[str]:
        """Reduce what has not been: zeros where this rank has no gradient.  The names of these."""
        late = [name for name in self._params if name not in self.under_way and name not in self._ready]
        kinds = self._learned(set(late))
        for name in late:
            p = self._params[name]
            self.ready(name, _no_rows(p) if kinds.get(name) else torch.zeros_like(p))
        return late

    def _learned(self, late: set[str]) -> dict[str, bool]:
        """Which gradients are sparse: a rank without one must send the same kind as those that have it."""
        if self._kinds is None:
            return {}
        new = [name for name in self._params if name not in self._kinds]
        if new:
            sparse = [name in self._sparse for name in new]
            found = self.anywhere([name not in late for name in new] + sparse)
            self._kinds.update({name: found[len(new) + i] for i, name in enumerate(new) if found[i]})
        return self._kinds

    def anywhere(self, flags: list[bool]) -> list[bool]:
        """Is each flag set on some rank?"""
        made = torch.tensor(flags, dtype=torch.uint8)
        calls.reduced([made], "kinds of gradients", Max, 1.0, 1.0, self.process_set, in_place=True, waits=True).wait()
        return [bool(flag) for flag in made]

    def wait(self, name: str) -> Tensor:
        """The reduced gradient."""
        handle, place, ctx = self.under_way.pop(name)
        made: Tensor = handle.wait()[place]
        return made if made.is_sparse else self.compression.decompress(made, ctx)

    def report(self) -> list[Timing]:
        """Horovod's timeline has it."""
        return []

    def close(self) -> None:
        """Nothing of it is left."""
        self.reset()

    def reset(self) -> None:
        """End what is under way, and forget it."""
        for handle, _, _ in self.under_way.values():
            with contextlib.suppress(RuntimeError):
                handle.wait()
        self.under_way.clear()
        self._ready.clear()

    def _reduce(self, names: Sequence[str]) -> None:
        """Begin to reduce these gradients, as one if there are several."""
        grads = [self._ready.pop(name) for name in names]
        if len(grads) == 1 and grads[0].is_sparse:
            handle = calls.sparse_reduced(grads[0], names[0], self.op, self.process_set)
            self.under_way[names[0]] = handle, 0, None
            return
        small = [self.compression.compress(grad.to_dense() if grad.is_sparse else grad) for grad in grads]
        how = names[0], self.op, *self.scales, self.process_set
        rates = tuple(self._rate(self._params[name]) for name in names)
        codec = getattr(self.compression, "codec", "")
        tensors = [each for each, _ in small]
        handle = calls.reduced(tensors, *how, grouped=True, in_place=True, codec=codec, rates=rates)
        self.under_way.update({name: (handle, i, small[i][1]) for i, name in enumerate(names)})

    def _rate(self, p: Tensor) -> Rate:
        """A parameter's learning rate, which the next step will multiply its gradient by."""
        return rate_of(self.rates[self._place[p]])

    def _group(self, groups: int | Groups) -> None:
        """Which gradients are reduced together: in rank 0's order, so that it is the same on all ranks."""
        order = broadcast_values(list(self._params), (self.process_set.ranks or [0])[0], "groups", self.process_set)
        ordered = [name for name in order if name in self._params]
        if isinstance(groups, int):
            count = min(groups, len(ordered))
            cuts = [len(ordered) * i // count for i in range(count + 1)]
            made = [ordered[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]
        else:
            names = {p: name for name, p in self._params.items()}
            made = [[names[p] for p in group if p in names] for group in groups]
        for group in made:
            self._together.update(dict.fromkeys(group, group))


def _no_rows(p: Tensor) -> Tensor:
    """The gradient of an embedding of which nothing was used."""
    ids = torch.empty(1, 0, dtype=torch.int64, device=p.device)
    return torch.sparse_coo_tensor(ids, p.new_empty(0, *p.shape[1:]), p.shape, check_invariants=False)


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
