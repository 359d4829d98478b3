"""What the stages of `Sharded` have in common: units, this rank's shard of each vector, and the step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from hocket.arguments import choices
from hocket.errors import ArgumentError
from hocket.training.flat import Array, Flat, digest, flat
from hocket.training.large.agreeing import agree
from hocket.training.large.sharding import states
from hocket.training.large.sharding.cutting import Unit, checked, cut
from hocket.training.norm import norm
from hocket.training.optimizers import Optimizer


class Shards:
    """An optimizer in shards.  `gradient`, `w` (parameters) and the slots are this rank's."""

    stage: ClassVar[int]
    flat: Flat

    def __init__(
        self, optimizer: Optimizer, comm: Any, parameters: Any, *, units: Sequence[Sequence[str]] | None = None,
        clip: float | None = None, order: str = "rank", codec: Any = None,
    ) -> None:  # fmt: skip
        self.optimizer, self.comm, self.clip, self.order, self.codec = optimizer, comm, clip, order, codec
        agree(comm, "Sharded", lambda: self._said(parameters, units))
        self.units = cut(self.flat, self._groups(units), comm.rank, comm.size)
        self.of = {name: unit for unit in self.units for name in unit.names}
        self.size = sum(unit.counts[comm.rank] for unit in self.units)
        """Elements of this rank's shard."""
        self.w, self.gradient = (np.empty(self.size, self.flat.dtype) for _ in "wg")
        self.slots = {name: np.zeros_like(self.w) for name in optimizer.slots}
        self.steps = 0
        self._begin()

    # --- what each stage says

    def _groups(self, units: Sequence[Sequence[str]] | None) -> list[list[str]]:
        """The names that are sent together."""
        return [[*self.flat.arrays]] if units is None else checked(self.flat, units)

    def _spread(self) -> None:
        """Every rank has the parameters anew, where it keeps them."""
        for unit in self.units:
            self.flat.write(unit.names, self._gathered(unit))

    # --- one step

    def _update(self) -> float | None:
        """Change this rank's shard by the averaged gradient.  The norm before clipping, if it clips."""
        length = None
        if self.clip is not None:
            length = norm(self.gradient, self.comm)
            if not math.isfinite(length):
                raise ArgumentError(f"Sharded: step {self.steps + 1}: the gradient's norm is {length}; nothing changed")
            if length > self.clip:
                self.gradient *= self.gradient.dtype.type(self.clip / length)
        self.steps += 1
        self.optimizer.apply(self.w, self.gradient, self.slots, self.steps)
        return length

    def _averaged(self, unit: Unit, whole: Array, **how: Any) -> Any:
        """Average a unit's gradient over all ranks, into this rank's shard."""
        out = self.gradient[unit.shard]
        return self.comm.reduce_scatterv(whole, unit.counts, "avg", out, order=self.order, **self._coded(), **how)

    def _gathered(self, unit: Unit) -> Array:
        """A unit's parameters."""
        whole = np.empty(unit.size, self.flat.dtype)
        self._gather(unit, whole)
        return whole

    def _gather(self, unit: Unit, whole: Array, **how: Any) -> Any:
        return self.comm.allgatherv(self.w[unit.shard], unit.counts, out=whole, **self._coded(), **how)

    def _coded(self) -> dict[str, Any]:
        return {} if self.codec is None else {"codec": self.codec}

    def _read(self, names: Sequence[str], gradients: Mapping[str, Any]) -> Array:
        """These arrays in a vector."""
        self.flat.held.check(names if self.flat.arrays else ())
        lacking = [name for name in names if name not in gradients]
        if lacking:
            raise ArgumentError(f"Sharded: there is no gradient of {lacking[0]!r}")
        for name in names:
            shape, wanted = tuple(gradients[name].shape), self.flat.shapes[name]
            if shape != wanted:
                raise ArgumentError(f"Sharded: the gradient of {name!r} has shape {shape}, the parameter {wanted}")
        whole = np.empty(self.flat.count(names), self.flat.dtype)
        self.flat.read(names, whole, gradients)
        return whole

    # --- the beginning, and checkpoints

    def _begin(self) -> None:
        """Take this rank's shard; all begin as rank 0."""
        digests = [digest(self._take(unit)) for unit in self.units]
        for unit, *of_ranks in zip(self.units, *self.comm.share(digests, "Sharded"), strict=True):
            if len(set(of_ranks)) > 1:
                self._take(unit, from_first=True)

    def _take(self, unit: Unit, from_first: bool = False) -> Array:
        """A unit's parameters, of which the shard gets its piece: this rank's, or on all ranks the first one's."""
        whole = np.empty(unit.size, self.flat.dtype)
        self.flat.read(unit.names, whole)
        if from_first:
            self.comm.broadcast(whole, 0)
            self.flat.write(unit.names, whole)
        begin = sum(unit.counts[: self.comm.rank])
        self.w[unit.shard] = whole[begin : begin + unit.counts[self.comm.rank]]
        return whole

    def _said(self, parameters: Any, units: Any) -> dict[str, Any]:
        """What has to be the same on all ranks."""
        self.flat = flat(parameters)
        if not (hasattr(self.optimizer, "slots") and hasattr(self.optimizer, "apply")):
            raise ArgumentError(f"optimizer={self.optimizer!r} must be one of hocket.training's: Adam, SGD, Adagrad")
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ArgumentError(f"clip={self.clip!r} must be a number above 0: the largest norm")
        if self.order not in ("rank", "any"):
            raise ArgumentError(f"order={self.order!r} is unknown; {choices(self.order, ['rank', 'any'])}")
        return {
            "stage": self.stage, "optimizer": repr(self.optimizer), "clip": self.clip, "order": self.order,
            "codec": str(self.codec), "dtype": str(self.flat.dtype), "units": self._groups(units),
            "parameters": [[name, list(shape)] for name, shape in self.flat.shapes.items()],
        }  # fmt: skip

    @property
    def vectors(self) -> dict[str, Array]:
        """This rank's shards that a checkpoint holds."""
        return {"parameters": self.w, **self.slots}

    def state_dict(self) -> dict[str, Any]:
        """{"kind": "sharded/1", "size", "rank", "step", "arrays": {"m/NAME": this rank's part}, "numbers"}."""
        return states.saved(self)

    def load_state_dict(self, saved: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Go on from `state_dict()`: this rank's; or those of all ranks, in order, of a group of any size and stage.

        All ranks call it.  The parameters become those of the state.
        """
        states.load(self, [saved] if isinstance(saved, dict) else [*saved])
        self._spread()
