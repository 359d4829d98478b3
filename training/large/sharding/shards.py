"""The common base of the stages of `Sharded`: units, this rank's shard of each vector, and the step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from hocket.arguments import choices, kind, seen_through
from hocket.compression.memory import chosen, namespace, put, saved
from hocket.errors import ArgumentError
from hocket.extending import InOrder, in_order
from hocket.training.flat import Array, Flat, digest, flat
from hocket.training.large.agreeing import agree, ranks
from hocket.training.large.sharding import checkpoints
from hocket.training.large.sharding.around import Alike, Around, refuse
from hocket.training.large.sharding.cutting import Unit, checked, cut, pieces
from hocket.training.large.sharding.pieces import Pieces
from hocket.training.layered import Layered
from hocket.training.norm import norm
from hocket.training.optimizers import Optimizer

ORDERS = ("rank", "any", "exact")


class Shards:
    """An optimizer in shards.  `gradient`, `w` (parameters) and the slots are this rank's."""

    stage: ClassVar[int]
    flat: Flat

    def __init__(
        self, optimizer: Optimizer, comm: Any, parameters: Any, *, units: Sequence[Sequence[str]] | None = None,
        clip: float | None = None, order: str = "rank", codec: Any = None, alike: Alike | None = None,
        shards: str | None = None, states: Sequence[dict[str, Any]] | None = None,
    ) -> None:  # fmt: skip
        self.optimizer, self.comm, self.clip, self.order, self.codec = optimizer, comm, clip, order, codec
        self._calls = InOrder("Sharded")
        self.axes: list[Any] = []
        """Axes along which the model is cut besides `comm`: norms go over them, too."""
        layered = isinstance(optimizer, Layered)
        around = self._around_it = self._around(parameters, units, alike) if layered or clip is not None else None
        begins = {"states": states is not None}
        agree(comm, "Sharded", lambda: {**self._said(parameters, units, shards), **begins})
        self.inside, self.outside = _apart(comm, shards)
        """Ranks that have the other shards; and those that have this one, too, if there are any."""
        me, size = self.inside.rank, self.inside.size
        self.units = cut(self.flat, self._groups(units), me, size)
        self.of = {name: unit for unit in self.units for name in unit.names}
        self.size = sum(unit.counts[me] for unit in self.units)
        """Elements of this rank's shard."""
        self.w, self.gradient = (self.flat.empty(self.size) for _ in "wg")
        self.slots = {name: self.flat.zeros(self.size) for name in optimizer.slots}
        self.steps = 0
        self.own = pieces(self.flat, self.units, me)
        """This rank's pieces."""
        coded = codec is not None or getattr(self.inside, "codec", None) is not None  # an axis of a Mesh may have one
        self._exact = self.flat.exact() and not coded
        """Do the parameters show all bits of `w`?"""
        self._coarse: Array | None = self.flat.empty(self.size) if coded else None
        """The values of `w` that all ranks have got by a codec."""
        if states is None:
            self._begin()
        else:
            self._load(states)
        self._counted = self.own
        """The part of the shard that counts on this rank in the norm."""
        if around is not None:
            counted, wrong = around.counted()
            self._tell(wrong)
            self._counted = [piece for piece in self.own if piece.name in counted]
        joined = [] if around is None or not layered else around.joined()
        self._pieces = (Pieces(self.flat, self.own, self.inside, joined),) if layered else ()
        self._calls.mark(self.w)

    # --- what each stage says

    def _groups(self, units: Sequence[Sequence[str]] | None) -> list[list[str]]:
        """The names that are sent together."""
        return [[*self.flat.arrays]] if units is None else checked(self.flat, units)

    def _spread(self) -> None:
        """Every rank has the parameters anew, where it keeps them."""
        for unit in self.units:
            whole = self._gathered(unit)
            self.flat.write(unit.names, whole)
            if self._coarse is not None:
                self._coarse[unit.shard] = self._mine(unit, whole)

    def _take_changes(self) -> None:
        """Take parameters that others have loaded, clamped, masked or averaged since the last step."""
        for name, first, where in self.own:
            w = self.w[where]
            if self._exact:
                w[...] = self.flat.piece(name, first, len(w))
                continue
            now = self.flat.piece(name, first, len(w))
            before = self.flat.rounded(name, w if self._coarse is None else self._coarse[where])
            w[...] = chosen(now != before, now, w)  # where nobody has, it may have more bits than they

    # --- one step

    def _update(self) -> float | None:
        """Change this rank's shard by the averaged gradient.  The norm before clipping, if it clips."""
        if self.outside is not None and self.outside.size > 1:
            self.outside.allreduce(self.gradient, "avg", order=self.order, **self._coded())
        length = None
        if self.clip is not None:
            length = norm(self._once(), self.inside, *self.axes)
            if not math.isfinite(length):
                raise ArgumentError(f"Sharded: step {self.steps + 1}: the gradient's norm is {length}; nothing changed")
            if length > self.clip:
                self.gradient *= float(self.clip / length)
        self._take_changes()
        self.steps += 1
        self.optimizer.apply(self.w, self.gradient, self.slots, self.steps, *self._pieces)
        return length

    def _once(self) -> Array:
        """The gradient, without what other ranks count."""
        if len(self._counted) == len(self.own):
            return self.gradient
        xp, parts = namespace(self.gradient), [self.gradient[piece.shard] for piece in self._counted]
        return xp.concatenate([self.gradient[:0], *parts])

    def _averaged(self, unit: Unit, whole: Array, **how: Any) -> Any:
        """Average a unit's gradient over the ranks of all shards, into this rank's."""
        out = self.gradient[unit.shard]
        if whole.ndim > 1:
            how["axis"] = 0
        return self.inside.reduce_scatterv(whole, unit.counts, "avg", out, order=self.order, **self._coded(), **how)

    def _gathered(self, unit: Unit) -> Array:
        """A unit's parameters."""
        whole = self.flat.empty(unit.size)
        self._gather(unit, whole)
        return whole

    def _gather(self, unit: Unit, whole: Array, **how: Any) -> Any:
        return self.inside.allgatherv(self.w[unit.shard], unit.counts, out=whole, **self._coded(), **how)

    def _coded(self) -> dict[str, Any]:
        return {} if self.codec is None else {"codec": self.codec}

    def _read(self, names: Sequence[str], gradients: Mapping[str, Any]) -> Array:
        """These arrays in a vector."""
        whole = self.flat.zeros(self.flat.count(names))
        if all(gradients.get(name) is not None for name in names):
            self.flat.read(names, whole, gradients)
            return whole
        ends = np.cumsum([0, *(self.flat.sizes[name] for name in names)])
        for name, begin, end in zip(names, ends, ends[1:], strict=False):
            if gradients.get(name) is not None:
                self.flat.read([name], whole[begin:end], gradients)
        return whole

    def _wrong(self, gradients: Mapping[str, Any], wanted: Sequence[str]) -> str:
        """In words, what is wrong with gradients that should be these; None is one of zeros."""
        if wrong := self.flat.held.wrong():
            return wrong
        due = set(wanted)
        for name, gradient in gradients.items():
            if gradient is not None and (wrong := self._odd(name, gradient)):
                return wrong
            if gradient is not None and name not in due:
                return f"the gradient of {name!r} has come twice in step {self.steps + 1}"
        lacking = [name for name in wanted if name not in gradients]
        return f"step {self.steps + 1} lacks the gradients of {lacking[:3]}" if lacking else ""

    def _odd(self, name: str, gradient: Any) -> str:
        if name not in self.of:
            return f"there is no parameter {name!r}; if it was frozen when this was made, make it anew"
        if wrong := seen_through(gradient, f"the gradient of {name!r}"):
            return wrong
        shape, wanted = getattr(gradient, "shape", None), self.flat.shapes[name]
        if shape is None or tuple(shape) != wanted:
            got = f"is {kind(gradient)}" if shape is None else f"has shape {tuple(shape)}"
            return f"the gradient of {name!r} {got}, the parameter {wanted}"
        where = self.flat.elsewhere(gradient)
        return f"the gradient of {name!r} lies {where}: give it there" if where else ""

    def _tell(self, wrong: str) -> None:
        """Raise ArgumentError on all ranks that step together, if something is wrong on one.  Collective."""
        if self._around_it is not None:
            self._around_it.check_times()  # a Pipeline may have been made since
        around, bad = [self.comm, *self.axes], int(bool(wrong))
        for comm in around:
            bad = comm.allreduce(bad, "max")
        if not bad:
            return
        mesh = getattr(self.comm, "mesh", None)
        found = {wrong: {(mesh.job if mesh else self.comm).rank}} if wrong else {}
        for comm in around:
            rows = comm.share([[text, [*who]] for text, who in found.items()], "Sharded")
            for text, who in (each for row in rows for each in row):
                found.setdefault(text, set()).update(who)
        raise ArgumentError("Sharded: " + "; ".join(f"{text} (on {ranks(sorted(who))})" for text, who in found.items()))

    # --- the beginning, and checkpoints

    def _begin(self) -> None:
        """Take this rank's shard; all begin as rank 0."""
        digests = [digest(self._take(unit)) for unit in self.units]
        for unit, *of_ranks in zip(self.units, *self.comm.share(digests, "Sharded"), strict=True):
            if len(set(of_ranks)) > 1:
                self._take(unit, from_first=True)
        if self._coarse is not None:
            self._coarse[...] = self.w

    def _take(self, unit: Unit, from_first: bool = False) -> Array:
        """A unit's parameters, of which the shard gets its piece: this rank's, or on all ranks the first one's."""
        whole = self.flat.empty(unit.size)
        self.flat.read(unit.names, whole)
        if from_first:
            self.comm.broadcast(whole, 0)
            self.flat.write(unit.names, whole)
        self.w[unit.shard] = self._mine(unit, whole)
        return whole

    def _mine(self, unit: Unit, whole: Array) -> Array:
        """This rank's piece of a unit."""
        begin = sum(unit.counts[: self.inside.rank])
        return whole[begin : begin + unit.counts[self.inside.rank]]

    def _around(self, parameters: Any, units: Any, alike: Alike | None) -> Around:
        """Where the model is cut; raises on all ranks of the mesh."""
        mesh = getattr(self.comm, "mesh", None)
        found: list[Around] = []
        own: list[list[str]] = []

        def said() -> dict[str, Any]:
            self._said(parameters, units, None)
            what = type(self.optimizer).__name__ if self.clip is None else "clip="
            found.append(Around(self.comm, self.flat, alike, what, self.clip is not None))
            own.extend([[*self.flat.arrays], sorted(set[str]().union(*found[0].listed.values()))])
            axes = found[0].axes if mesh is not None else range(len(found[0].axes))
            return {"clip": self.clip, "axes that cut the model": [*axes]}

        every = agree(self.comm if mesh is None else mesh.comm, "Sharded", said, own)
        known = {name for names, _ in every for name in names}
        if unknown := sorted({name for _, listed in every for name in listed} - known):
            what = choices(unknown[0], sorted(known))
            raise ArgumentError(f"Sharded: alike= names {unknown[0]!r}, which is not a parameter; {what}")
        self.axes = [*found[0].axes.values()]
        return found[0]

    def _said(self, parameters: Any, units: Any, shards: str | None) -> dict[str, Any]:
        """Settings that have to be the same on all ranks."""
        self.flat = flat(parameters)
        refuse(self.comm, self.flat)
        if shards is not None:
            mesh = getattr(self.comm, "mesh", None)
            if mesh is None or shards not in self.comm.name.split("+"):
                how = f"give mesh.along(...) of it and others, or leave shards= out: got {self.comm!r}"
                raise ArgumentError(f"shards={shards!r} is not among the axes of these ranks: {how}")
        if not (hasattr(self.optimizer, "slots") and hasattr(self.optimizer, "apply")):
            raise ArgumentError(f"optimizer={self.optimizer!r} must be one of hocket.training's, as Adam or Lamb")
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ArgumentError(f"clip={self.clip!r} must be a number above 0: the largest norm")
        if self.order not in ORDERS:
            raise ArgumentError(f"order={self.order!r} is unknown; {choices(self.order, ORDERS)}")
        if self.order == "exact" and (self.codec is not None or getattr(self.comm, "codec", None) is not None):
            raise ArgumentError("order='exact' goes with no codec, which rounds: omit codec=, or say order='rank'")
        if self.order == "exact" and shards is not None:
            raise ArgumentError("order='exact' rounds once, over all ranks: leave shards= out, or say order='rank'")
        return {
            "stage": self.stage, "shards": shards, "optimizer": repr(self.optimizer), "clip": self.clip,
            "order": self.order, "codec": str(self.codec), "dtype": str(self.flat.dtype), "units": self._groups(units),
            "place of vectors (GPU or host)": "host" if self.flat.like is None else "GPU",
            "parameters": [[name, list(shape)] for name, shape in self.flat.shapes.items()],
        }  # fmt: skip

    @property
    def vectors(self) -> dict[str, Array]:
        """This rank's shards that a checkpoint holds."""
        return {"parameters": self.w, **self.slots}

    @in_order("w")
    def state_dict(self) -> dict[str, Any]:
        """{"kind": "sharded/1", "size", "rank", "step", "arrays": {"m/NAME": this rank's part}, "numbers"}."""
        own = {what: saved(vector) for what, vector in self.vectors.items()}
        return checkpoints.saved(self, self.inside.rank, own)

    def load_state_dict(self, saved: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Go on from `state_dict()`s that a group of any size and stage made: each rank gives those that it has.

        This rank's own, those of all ranks, or []: what a rank lacks comes from one that gives it, and no rank needs
        all.  All ranks call it.  The parameters become those of the state.  ArgumentError on all ranks, of which none
        has changed anything, if one cannot take its state, or no rank gives a part.
        """
        self._load([saved] if isinstance(saved, dict) else [*saved])

    @in_order("w")
    def _load(self, given: Sequence[dict[str, Any]]) -> None:
        said, step, wrong = {}, 0, ""
        try:
            said = checkpoints.told(self, given)
        except ArgumentError as error:
            wrong = str(error)
        self._tell(wrong)
        rows = self.comm.share(said, "Sharded")
        try:
            step, wrong = checkpoints.step_of(rows), checkpoints.lacking(self, rows)
        except ArgumentError as error:
            wrong = str(error)
        self._tell(wrong)
        for vector, where, part in checkpoints.moved(self, given, rows):
            put(vector[where], part)
        self.steps = step
        self._spread()


def _apart(comm: Any, shards: str | None) -> tuple[Any, Any]:
    """The ranks that have one shard each, along an axis of a mesh; and those with the same one, along all others."""
    if shards is None:
        return comm, None
    others = [name for name in comm.name.split("+") if name != shards]
    return comm.mesh[shards], comm.mesh.along(*others) if others else None
