"""Steps whose averages come one step late, so that a whole step of computation hides them.

`Delayed` is OD-SGD: while the average of a step's gradients travels, each rank goes on from its own guess, the last
weights that arrived, moved by its own gradient.  With local_lr=0 it goes on from these weights themselves: one-step
delayed averaging.

Source: Xu et al., "OD-SGD: One-step Delay Stochastic Gradient Descent for Distributed Training", arXiv 2005.06728.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hocket.arguments import seen_through, whole
from hocket.compression.memory import copied, dtype_of, namespace, put, saved, zeros
from hocket.errors import ArgumentError, MismatchError
from hocket.extending import InOrder, gpu_of, in_order, on_host, place
from hocket.training.flat import digest
from hocket.training.held import Held
from hocket.training.overlap.arrays import described, host
from hocket.training.overlap.scheduler import Scheduler

KIND = "Delayed"
"""The kind of the states that it takes."""
SAME = ("lr", "local_lr", "momentum", "warmup", "the digest of the parameters and the momentum")
"""Settings that have to be the same on all ranks."""
CHANGED = (
    "Delayed.step(): {!r} was changed since the last step, which this one would undo: say state = delayed.state_dict() "
    "before such a change, and delayed.load_state_dict(state) after it, on all ranks"
)


class Delayed:
    """SGD, one step delayed.

    Step t: the rank computes its gradient g_i at x_i, and calls `step`.  The global weights W move by the average of
    the step before, which has arrived: W_t = W_{t-1} - lr * (momentum of) mean g(t-1).  The rank goes on at
    x_i = W_t - local_lr * g_i(t), while the average of g(t) travels.  So a gradient is taken at weights that lack the
    others' part of one step: the staleness is 1, and a step takes the longer of computation and communication.

    `parameters`: arrays by name, NumPy's, CuPy's or torch's, in the order of the forward pass, equal on all ranks; they
    are x_i, and change in place.  Who else changes them after the first step puts `state_dict` before that, and
    `load_state_dict` behind it; on a GPU that is not checked, as nothing waits there after the first step but
    `Scheduler(finite=True)`.  All that it keeps lies beside them: W, the gradients, and the momentum.  `lr`, `local_lr`
    and `momentum` may be changed between steps, alike on all ranks: a step has those that it was sent with.
    `local_lr`: None: `lr`, without momentum.  `warmup`: steps at the beginning that wait for their own average, as
    synchronous SGD does; the source takes 200.  The first step raises MismatchError, on all ranks, where these differ.
    Where an average is not finite, the next call raises the scheduler's ArgumentError on all ranks, and W has not moved
    by any of that step: `finish` makes the parameters W, with which all go on.

    On one rank, or where all ranks have equal gradients, without momentum, it is SGD bit for bit.

    >>> import hocket, numpy as np
    >>> from hocket.training import Delayed, Scheduler
    >>> def train(comm):
    ...     w = {"w": np.zeros(1)}
    ...     delayed = Delayed(Scheduler(comm), w, lr=0.5)
    ...     for _ in range(20):
    ...         delayed.step({"w": w["w"] - comm.rank})     # of (w - rank)^2 / 2: the mean is the best for all
    ...     delayed.finish()
    ...     return round(float(w["w"][0]), 3)
    >>> hocket.local_world(2).run(train)
    [0.5, 0.5]
    """

    def __init__(
        self, scheduler: Scheduler, parameters: Mapping[str, Any], lr: float, *, local_lr: float | None = None,
        momentum: float = 0.0, warmup: int = 0,
    ) -> None:  # fmt: skip
        if whole(warmup, "warmup") < 0:
            raise ArgumentError(f"warmup={warmup} must be a number of steps, 0 or more")
        self.scheduler, self.parameters = scheduler, {name: _array(name, x) for name, x in parameters.items()}
        self._held = Held(parameters)
        self.lr, self.local_lr, self.momentum, self.warmup = lr, local_lr, momentum, warmup
        self.weights = {name: copied(x) for name, x in self.parameters.items()}
        """W: equal on all ranks."""
        self._means = {name: copied(x) for name, x in self.parameters.items()}
        """The gradients of the last step, which become their averages."""
        self._velocity = self._zeros() if momentum else {}
        self._sent: list[str] = []
        """Names of those that travel."""
        self._rates = (lr, momentum)
        """Rates of the step that was sent: a schedule may have set others when its average arrives."""
        self._steps, self._agreed = 0, False
        self._written: dict[str, int] = {}
        """Digests of the parameters, as the last step left them."""
        self._calls = InOrder("Delayed")
        self._calls.mark(next(iter(self.parameters.values()), None))
        for name, x in self.parameters.items():  # when all memory is there
            scheduler.declare(name, x)

    @in_order("weights")
    def step(self, gradients: Mapping[str, Any]) -> None:
        """This rank's gradients at `parameters`, which then are where it goes on.  All ranks call it."""
        if gradients.keys() != self.parameters.keys():
            odd = sorted(gradients.keys() ^ self.parameters.keys())
            raise ArgumentError(f"step(): gradients and parameters differ in names: {', '.join(map(str, odd[:3]))}")
        self._held.check()
        gradients = {name: _array(name, gradients[name], x) for name, x in self.parameters.items()}
        if self.momentum and not self._velocity:  # it was set since
            self._velocity = self._zeros()
        if not self._agreed:
            self.scheduler.seal()  # takes memory, as long as nothing has changed
            self._begin()
            self._agree()
        elif (changed := [name for name, was in self._written.items() if digest(self.parameters[name]) != was]):
            raise ArgumentError(CHANGED.format(changed[0]))
        self._arrive()
        self._rates = (self.lr, self.momentum)
        local = self.lr if self.local_lr is None else self.local_lr
        for name in reversed(self.parameters):
            self._means[name][...] = gradients[name]
            self.scheduler.ready(name, self._means[name])
            self._sent.append(name)
            x, xp = self.parameters[name], namespace(self.parameters[name])
            xp.multiply(gradients[name], local, out=x)
            xp.subtract(self.weights[name], x, out=x)
        self.scheduler.step()
        self._steps += 1
        if self._steps <= self.warmup:
            self.finish()
        else:
            self._write_down()

    @in_order("weights")
    def finish(self) -> None:
        """Wait for the last average; `parameters` are the global weights then.  All ranks call it."""
        self._arrive()
        for name, x in self.parameters.items():
            x[...] = self.weights[name]
        self._write_down()

    @in_order("weights")
    def state_dict(self) -> dict[str, Any]:
        """For any checkpoint, which saves `parameters` beside it: the momentum, and the steps that were made.

        All ranks call it: like `finish` it waits for the last average, so what is saved is equal on all ranks.
        """
        self.finish()
        velocity = {name: saved(v) for name, v in self._velocity.items()}
        return {"kind": KIND, "steps": self._steps, "velocity": velocity}

    @in_order("weights")
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`, on any number of ranks.  `parameters` hold what was saved with it, already.

        Raises ArgumentError if it is another state, or if its momenta have other names or shapes.
        """
        if not isinstance(state, dict) or state.get("kind") != KIND or not {"steps", "velocity"} <= state.keys():
            raise ArgumentError("Delayed.load_state_dict(): expected what Delayed.state_dict() gave")
        velocity = state["velocity"]
        for name in sorted(self._velocity.keys() | velocity.keys()):
            shapes = [tuple(each[name].shape) if name in each else None for each in (self._velocity, velocity)]
            if shapes[0] != shapes[1]:
                own, saved = ("none" if shape is None else f"of shape {shape}" for shape in shapes)
                differ = f"the momentum of {name!r} is {own}, the saved one {saved}"
                raise ArgumentError(f"Delayed.load_state_dict(): {differ}")
        self._waited()  # a NaN is forgotten with it
        for name, v in self._velocity.items():
            put(v, velocity[name])
        self._begin()
        self._steps, self._agreed = int(state["steps"]), False

    def _agree(self) -> None:
        """Ranks that begin apart, or move otherwise, would stay apart: raise MismatchError on all of them."""
        start = digest(*self.weights.values(), *self._velocity.values())
        own = [float(self.lr), str(self.local_lr), float(self.momentum), self.warmup, start]
        comm = self.scheduler.comm
        rows = comm.share(own, "Delayed: the first step()")
        for rank, row in zip(comm.members, rows, strict=True):
            for what, value, other in zip(SAME, row, rows[0], strict=True):
                if value != other:
                    differ = f"{what} is {value} on rank {rank}, {other} on rank {comm.members[0]}"
                    raise MismatchError(f"Delayed: {differ}; give all ranks the same, and broadcast the parameters")
        self._agreed = True

    def _write_down(self) -> None:
        self._written = {name: digest(x) for name, x in self.parameters.items() if on_host(x)}

    def _begin(self) -> None:
        """W is what the parameters are."""
        for name, x in self.parameters.items():
            self.weights[name][...] = x

    def _arrive(self) -> None:
        """The global weights move by what was sent last; by nothing of it, where an average is not finite."""
        if not self._sent:
            return
        if (error := self._waited()) is not None:
            raise error
        lr, momentum = self._rates
        for name, w in self.weights.items():
            mean, xp = self._means[name], namespace(w)
            if momentum:
                velocity = self._velocity[name]
                velocity *= momentum
                velocity += mean
                xp.multiply(velocity, lr, out=mean)
            else:
                mean *= lr
            w -= mean

    def _waited(self) -> ArgumentError | None:
        """Wait for all that was sent, once, be it finite or not; what the scheduler says of an average that is not."""
        wrong = None
        while self._sent:
            try:
                self.scheduler.wait(self._sent[0])
            except ArgumentError as error:
                wrong = wrong or error
            del self._sent[0]
        return wrong

    def _zeros(self) -> dict[str, Any]:
        return {name: zeros(x, x.shape, dtype_of(x)) for name, x in self.parameters.items()}


def _array(name: str, x: Any, like: Any = None) -> Any:
    """A parameter, or a gradient where its parameter lies, `like`: of the same memory, in the host's as NumPy's."""
    here = on_host(x)
    if gpu_of(x) < 0 and (not here or dtype_of(x) == "bfloat16") or seen_through(x, name):
        what = "must be on a GPU, or in host memory and of a dtype that NumPy has"
        raise ArgumentError(f"{name!r} {what}; got {described(x)}")
    if like is not None and gpu_of(x) != gpu_of(like):
        raise ArgumentError(f"the gradient of {name!r} lies {place(x)}, the parameter {place(like)}: give it there")
    if not hasattr(x, "detach"):
        return x  # what is no array is refused by the scheduler
    return host(x) if here else x.detach()
