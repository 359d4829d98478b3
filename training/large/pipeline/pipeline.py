"""`Pipeline`: each rank has a stage of the model, or several, and passes micro-batches on.

Law: gradients are those of all micro-batches on one rank, in their order, bit for bit, by each schedule but
"pipedream" (orders.py: order of passes, bubbles, what is kept).  "pipedream" updates a stage after each backward pass,
whose gradient is that of the weights of its forward pass (versions.py): with all of M micro-batches in one step, those
of rank k after update max(0, m - (K-k-1)) at micro-batch m.  With `drain=False` the micro-batches of all steps count
on, and the pipeline stays full.

Bytes of a rank in a step, for each of its stages: its activations to the next stage, and as many gradients to the one
before.  passing.py says how they travel; cut.py which layers make a stage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hocket.arguments import choices, kind, whole
from hocket.compression.memory import alike, dtype_of, is_array
from hocket.errors import ArgumentError, MismatchError
from hocket.extending import on_host
from hocket.training.flat import Array
from hocket.training.large.agreeing import agree
from hocket.training.large.pipeline.orders import BACKWARD, FORWARD, ORDERS, Pass, steady
from hocket.training.large.pipeline.passing import Passing
from hocket.training.large.pipeline.versions import Versions
from hocket.training.large.stage import Recomputed, Stage
from hocket.training.large.told import tell_all

Loss = Callable[[Array, int], tuple[float, Array]]
"""(the last stage's result, number of the micro-batch): the loss, and its gradient."""


class _SavedPass(NamedTuple):
    """The rest of a forward pass that its backward pass needs."""

    needed: Any
    gradient: Array | None
    """The gradient of the loss, behind the last stage; elsewhere it comes as a message ..."""
    shape: tuple[int, ...]
    like: Array
    """... of this shape; no elements, of its dtype and place."""


class Pipeline:
    """The stages of `comm`'s ranks, rank 0's first.

    `stage`: this rank's; with `schedule="interleaved"` a list of stages, as many on each rank: number `rank`, number
    `rank + size`, ...  `like`: an array of the shape and dtype of one micro-batch's input to this stage, and to each of
    several; the model's first stage needs none.  Arrays are NumPy's, or on a GPU.  `micro`: micro-batches in a step.
    `schedule`: "1f1b", "gpipe", "interleaved", or "pipedream": then `update()` changes the arrays of `stage.parameters`
    in place, by the gradient of one micro-batch, and forgets it.  `recompute`: stages keep their inputs alone
    (`Recomputed`).  `drain=False`, with "pipedream": a step ends when its forward passes have; the last backward passes
    of a rank come with the next step, or with `finish()`, which goes before weights are read or saved.

    `most`: how many passes were kept at once; `versions`: "pipedream"'s.  All ranks make it together; ArgumentError and
    MismatchError name what is wrong, on all of them.
    """

    def __init__(
        self, stage: Stage | Sequence[Stage], comm: Any, like: Any = None, *, micro: int = 8, schedule: str = "1f1b",
        update: Callable[[], object] | None = None, recompute: bool = False, drain: bool = True,
    ) -> None:  # fmt: skip
        self.recompute, self.drain = recompute, drain
        self.comm, self.like, self.micro, self.schedule, self._update = comm, like, micro, schedule, update
        self.stages: list[Any] = [*stage] if isinstance(stage, Sequence) else [stage]
        likes = [_form(each) if is_array(each) else None for each in self._likes()]
        self._takes = agree(comm, "Pipeline", self._said, likes)
        """Stages were promised these: dtype and shape, by rank and by its stages."""
        if (mesh := getattr(comm, "mesh", None)) is not None:
            mesh.staged.update(mesh.axes_of(comm))
            mesh.apart.update(mesh.axes_of(comm) if update else ())
        tell_all(self.stages, comm)
        if recompute:
            self.stages = [Recomputed(each) for each in self.stages]
        self.first, self.last = comm.rank == 0, comm.rank == comm.size - 1
        self.order = [*ORDERS[schedule](comm.rank, comm.size, micro, len(self.stages))]
        self._begun = 0
        """Micro-batches of earlier steps, if it does not drain."""
        self._kept: dict[tuple[int, int], _SavedPass] = {}
        self._messages: Passing | None = None
        self.most = 0
        self.versions = Versions(self.stages[0].parameters, update) if update else None

    def _said(self) -> dict[str, Any]:
        if whole(self.micro, "micro") < 1:
            raise ArgumentError(f"micro={self.micro} must be at least 1: the micro-batches of a step")
        if self.schedule not in ORDERS:
            raise ArgumentError(f"schedule={self.schedule!r} is unknown; {choices(self.schedule, ORDERS)}")
        for stage in self.stages:
            if not (hasattr(stage, "forward") and hasattr(stage, "backward")):
                raise ArgumentError(f"stage={stage!r} must have forward(x) and backward(dy, kept)")
        if self.schedule == "interleaved" and self.micro % self.comm.size:
            raise ArgumentError(f"micro={self.micro} must be a multiple of the {self.comm.size} ranks of this axis")
        if not self.stages or (self.schedule != "interleaved" and len(self.stages) > 1):
            what = f'{len(self.stages)} stages on this rank; expected 1, or with schedule="interleaved" several'
            raise ArgumentError(what)
        if (self.schedule == "pipedream") != (self._update is not None):
            raise ArgumentError('update= goes with schedule="pipedream", which needs it')
        if not self.drain and self.schedule != "pipedream":
            raise ArgumentError(f'drain=False goes with schedule="pipedream", not with {self.schedule!r}')
        if self._update is not None and not hasattr(self.stages[0], "parameters"):
            raise ArgumentError(f"stage={self.stages[0]!r} must have parameters: arrays by name")
        if self.comm.rank or len(self.stages) > 1:
            likes = self._likes()
            needed = likes[not self.comm.rank :]
            if len(likes) != len(self.stages) or not all(map(is_array, needed)):
                what = "like must be a NumPy array, or a GPU's, of the shape of a micro-batch's input to this stage"
                raise ArgumentError(what)
        return {
            "micro": self.micro, "schedule": self.schedule, "number of stages": len(self.stages),
            "recompute": bool(self.recompute), "drain": bool(self.drain),
        }  # fmt: skip

    def _likes(self) -> list[Any]:
        return [*self.like] if isinstance(self.like, (list, tuple)) else [self.like] * len(self.stages)

    def _check(self, each: Pass, y: Array) -> None:
        """Messages carry bytes alone: as many of another shape would be taken for what the next stage was promised."""
        following = each.chunk * self.comm.size + self.comm.rank + 1
        chunk, rank = divmod(following, self.comm.size)
        takes = self._takes[rank][chunk] if chunk < len(self.stages) else None
        if takes is None:
            return
        gives, where = _form(y), self.comm.members[rank]
        if takes != gives:
            raise MismatchError(
                f"Pipeline: stage {following - 1} gives {_words(gives)}, and stage {following}, on rank {where}, was "
                f"made with like of {_words(takes)}; they must be the same"
            )

    def _check_back(self, each: Pass, dx: Array, kept: _SavedPass) -> None:
        """Check the gradient for the stage before, which waits for one like what it gave."""
        number = each.chunk * self.comm.size + self.comm.rank
        takes, gives = self._takes[self.comm.rank][each.chunk], _form(dx)
        if number == 0 or takes == gives:
            return
        why, result = "", [dtype_of(kept.like), [*kept.shape]]
        if kept.gradient is not None and (made := _form(kept.gradient)) != result:
            why = f"; the loss has given {_words(made)} as the gradient of {_words(result)}"
        raise MismatchError(
            f"Pipeline: the backward pass of stage {number} gives {_words(gives)}, and stage {number - 1} waits for "
            f"{_words(takes)}, that of its result; they must be the same{why}"
        )

    def step(self, batch: Array | None = None, loss: Loss | None = None) -> float | None:
        """Both passes of all micro-batches.  The last stage returns the sum of their losses, the others None.

        `batch`: on the first rank; its rows are cut into micro-batches.  `loss`: on the last one.  ArgumentError, on
        all ranks, if either is wrong; MismatchError, on one rank, if its stage gives another shape or dtype, or its
        backward pass another than that of its input: end the job then.  Cost: an allreduce of one number, besides the
        messages.  With `drain=False` there is none: what is wrong on a rank is raised there, and the others lose it.
        """
        why = self._refusal(batch, loss)
        if not self.drain and why:
            error = ArgumentError(f"Pipeline: {why}")
            self.comm.abort(error)
            raise error
        if self.drain and self.comm.allreduce(int(bool(why)), "max"):
            agree(self.comm, "Pipeline", lambda: _raise(why))
        inputs = []
        if self.first and batch is not None:
            rows = len(batch) // self.micro
            inputs = [batch[begin : begin + rows] for begin in range(0, len(batch), rows or 1)]
        with getattr(self.comm, "noting", contextlib.nullcontext)():
            if self.drain:
                self._kept.clear()  # of a step that raised
                found = self._run(self.order, inputs, loss)
                self._end()
                return found
            order = [*steady(self.comm.rank, self.comm.size, self._begun, self.micro)]
            found = self._run(order, inputs, loss)
            self._begun += self.micro
            return found

    def finish(self) -> None:
        """Make the backward passes that are left, if it does not drain.  All ranks call it."""
        left = [Pass(BACKWARD, micro, chunk) for micro, chunk in sorted(self._kept)]
        with getattr(self.comm, "noting", contextlib.nullcontext)():
            self._run(left, [], None)
            self._end()
        self._begun = 0

    def _end(self) -> None:
        if self._messages is not None:
            self._messages.end()
            self._messages = None

    def _refusal(self, batch: Array | None, loss: Loss | None) -> str:
        shape = getattr(batch, "shape", ())
        if self.first and (not shape or shape[0] % self.micro):
            rows = "no batch" if batch is None else f"{shape[0]} rows" if shape else f"{kind(batch)} without rows"
            return f"{rows} cannot be cut into {self.micro} micro-batches"
        return "the last stage needs loss=" if self.last and loss is None else ""

    def _room(self) -> Callable[[Pass], Array | None]:
        kept, likes = self._kept, self._likes()

        def room(each: Pass) -> Array | None:
            if each.way == FORWARD:
                return alike(likes[each.chunk], tuple(likes[each.chunk].shape))
            entry = kept.get((each.micro, each.chunk))
            return None if entry is None else alike(entry.like, entry.shape)

        return room

    def _run(self, order: Sequence[Pass], inputs: Sequence[Array], loss: Loss | None) -> float | None:
        kept: dict[tuple[int, int], _SavedPass] = self._kept
        total: Any = 0.0
        if self._messages is None:
            self._messages = Passing(self.comm, order, len(self.stages), self._room())
        else:
            self._messages.follow(order)
        messages = self._messages
        for each in order:
            given = messages.source(each) is not None
            stage, key = self.stages[each.chunk], (each.micro, each.chunk)
            if each.way == FORWARD:
                y, needed = stage.forward(messages.take(each) if given else inputs[each.micro - self._begun])
                if self.versions:
                    self.versions.begin(each.micro)
                self._check(each, y)
                messages.send(each, y)
                gradient = None
                if messages.number(each) == messages.last and loss is not None:
                    one, gradient = loss(y, each.micro - self._begun)
                    total = total + (float(one) if on_host(one) else one)  # a number there: nobody waits for it
                kept[key] = _SavedPass(needed, gradient, tuple(y.shape), alike(y, 0))
                del needed  # else it lives until the next forward pass has another
                self.most = max(self.most, len(kept))
            else:
                dy: Any = messages.take(each) if given else kept[key].gradient
                entry = kept.pop(key)
                with self.versions.backward(each.micro) if self.versions else contextlib.nullcontext():
                    dx = stage.backward(dy, entry.needed)
                self._check_back(each, dx, entry)
                messages.send(each, dx)
                del entry
        return total if self.last else None


def _form(x: Any) -> list[Any]:
    """The dtype and the shape, for other ranks."""
    x = x if is_array(x) else np.asarray(x)
    return [dtype_of(x), [*x.shape]]


def _words(form: Any) -> str:
    return f"shape {tuple(form[1])} and dtype {form[0]}"


def _raise(why: str) -> dict[str, Any]:
    if why:
        raise ArgumentError(why)
    return {}
