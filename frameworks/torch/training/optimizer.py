"""`DistributedOptimizer`: an optimizer that steps by the averages of all ranks' gradients."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch

import hocket
from hocket.arguments import whole
from hocket.errors import Error
from hocket.torch.errors import ArgumentError, MismatchError
from hocket.torch.training.factored import Factored
from hocket.torch.training.forward import Forward
from hocket.torch.training.gradients import Averages, Gradients
from hocket.torch.training.hooks import Hook, owners, remove
from hocket.torch.training.parameters import communicator
from hocket.torch.training.parts import why_whole
from hocket.training import Scheduler, Timing

Tensor = torch.Tensor
BEHIND = (
    "{}: the backward pass has used it before its last step was applied, as the module that it was needed in is not "
    "called by forward(): leave barrier=False out, then step() waits for all"
)
COPIED = (
    "a DistributedOptimizer holds connections to the other ranks, so it cannot be copied or pickled: keep its "
    "state_dict(), which is the optimizer's"
)


class Distributed:
    """The methods that are added to the optimizer's class."""

    _gradients: Gradients
    _forward: Forward | None
    _pending: dict[Tensor, list[dict[str, Any]]]
    """Parameters whose step waits for their forward pass, and the options of the groups when step() was called."""
    _synchronized: bool
    _asked = False
    """Was it a GradScaler's step that waited for the averages?"""
    _stepped: set[Tensor]
    """Parameters that had gradients in a step in parts, which has set these to None."""
    _barrier: str
    _verify: Callable[[Distributed], None] | None = None
    _kind: type
    """The optimizer's class without what is added."""
    param_groups: list[dict[str, Any]]

    def synchronize(self) -> None:
        """Wait until the gradients are the averages: to clip them by their norm, or before `GradScaler.unscale_`.

        The next `step` then steps at once, unless a backward pass or `zero_grad` comes first.
        """
        self.finish()
        self._gradients.end()
        self._gradients.take_all()
        self._synchronized, self._barrier = True, "synchronize() was called"

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """A GradScaler's step() asks this of its optimizer, before it unscales the gradients: let it find averages."""
        if self._gradients.sent:
            self.synchronize()
            self._asked, self._barrier = True, "a gradient scaler unscales"
        return bool(vars(self).get("_step_supports_amp_scaling", False))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step by the averages.  With barrier=False modules wait for theirs, and this returns at once."""
        result = self._step(closure)
        if self._verify is not None:
            self._verify(self)
        return result

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        above: Any = super()
        if closure is not None:
            result = above.step(self._averaged(closure))
            self._barrier = "step() had a closure"
            return result
        why = "" if self._synchronized else self._why_whole()
        if self._synchronized or why:
            if not self._synchronized:
                self.synchronize()
                self._barrier = why
            self._synchronized = False
            result = above.step()
            if self._forward is not None:
                self._forward.settle()
            return result
        self.finish()
        self._gradients.end()
        self._barrier = ""
        options = [{key: value for key, value in group.items() if key != "params"} for group in self.param_groups]
        self._pending, self._stepped = dict.fromkeys(self._gradients.params, options), set()
        for p in self._pending:
            p.grad = None  # the scheduler has it
        return None

    def _why_whole(self) -> str:
        if self._forward is None:
            return "barrier=False was not given"
        if not self._forward.settled:
            return "the first step is watched"
        if self._gradients.sparse:
            return "gradients are sparse"
        return why_whole(self, self._kind, self._forward)

    def _averaged(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def call() -> Any:
            with torch.enable_grad():
                loss = closure()
            self.synchronize()
            self._synchronized = False
            return loss

        return call

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """The optimizer's.  After a backward pass, in place of `step`: this step is left out, on all ranks."""
        self._leave_out()
        self._synchronized = False
        above: Any = super()
        zeros = not (args[0] if args else kwargs.get("set_to_none", True))
        if zeros:
            self.finish()
        above.zero_grad(*args, **kwargs)
        for p in self._stepped if zeros else ():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        self._stepped = set()

    def _leave_out(self) -> None:
        """Drop the gradients that the backward pass has sent."""
        self._gradients.drop()

    def finish(self) -> None:
        """Apply what waits for a forward pass: before parameters are read outside of the model's forward pass."""
        self.apply(list(self._pending))

    @torch.no_grad()
    def apply(self, params: list[Tensor]) -> None:
        """Step those of these parameters that wait, by the options that the groups had when step() was called."""
        due = [p for p in params if p in self._pending]
        if not due:
            return
        options = self._pending[due[0]]
        kept = {p: p.grad for p in due}
        for p in due:
            p.grad = None
            del self._pending[p]
        self._gradients.take(due)
        here = set(due)
        groups = self.param_groups
        parts = [[p for p in group["params"] if p in here] for group in groups]
        self.param_groups = [
            {**option, "params": part} for option, part in zip(options, parts, strict=True) if part
        ]
        step: Any = self._kind.step  # type: ignore[attr-defined]
        try:
            getattr(step, "__wrapped__", step)(self)  # without the hooks that were registered since step()
        finally:
            self.param_groups = groups
            self._stepped.update(p for p in due if p.grad is not None)
            for p in due:
                p.grad = kept[p]

    def _made(self, p: Tensor) -> None:
        """backward() has added to its gradient."""
        if p in self._pending:
            raise ArgumentError(BEHIND.format(self._gradients.names[p]))
        self._synchronized = False
        self._gradients.made(p)

    def state_dict(self) -> Any:
        """The optimizer's state when all steps are applied."""
        self.finish()
        above: Any = super()
        return above.state_dict()

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """The optimizer's, when all steps are applied.  Schedulers that were made of the first one follow it."""
        self.finish()
        above: Any = super()
        groups = self.param_groups
        above.load_state_dict(*args, **kwargs)
        groups[:] = self.param_groups
        self.param_groups = groups

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Refused: all ranks have declared their gradients."""
        raise ArgumentError("add_param_group() comes too late: add the group to the optimizer before you wrap it")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise ArgumentError(COPIED)

    def close(self) -> None:
        """End: apply what waits, leave out what was not stepped, and take the hooks off.  All ranks together."""
        self.release()
        self._gradients.averages.close()

    def release(self) -> None:
        """Let go as `close` does, but keep the scheduler's lanes and threads."""
        if self._gradients.closed:
            return
        try:
            self.finish()
            self._leave_out()
        finally:
            self._gradients.closed, self._pending = True, {}
            remove(self._handles)

    _handles: list[Any]
    """Handles of all hooks."""

    def report(self) -> list[Timing]:
        """The scheduler's: for each parameter what its average took."""
        return self._gradients.averages.report()

    @property
    def barrier(self) -> str:
        """Why the last step waited for all averages; "": it did not."""
        return self._barrier


def DistributedOptimizer(  # noqa: N802 (the name that users look for)
    optimizer: torch.optim.Optimizer, parameters: torch.nn.Module | Iterable[tuple[str, Tensor]], *,
    group: Any = None, passes: int = 1, barrier: bool = True, order: Any = "priority", lanes: int = 4,
    slice: int | str | None = "auto", fuse: int | str = "auto", codec: Any = None, compressor: Any = None,
    finite: bool = False, exact: bool = False, verify_every: int = 0, factors: Any = None, credit: int = 1,
) -> Any:  # fmt: skip
    """The same optimizer, with its parameters, options and state, that steps by the averages of all ranks' gradients.

    A gradient is sent as soon as the backward pass has made it.  `parameters`: the model, or its `named_parameters()`,
    in the order of the forward pass.  `step` waits for all averages, and is the optimizer's then, whatever that is.

    `barrier=False`, with the model: from the second step on `step` returns at once, and each module waits for its own
    before its `forward`, and steps them, so what is needed first may travel last (cross-barrier).  The model's
    state_dict() and load_state_dict() wait for all.  Call `finish()` before anything else reads or writes parameters
    outside of the model's forward pass: p.data, deepcopy, an average of the weights.  Where a step in parts would not
    be the optimizer's, it waits for all (docs/overlap.md; `optimizer.barrier` says why).

    To clip by the norm, and before `GradScaler.unscale_`: `optimizer.synchronize()` after `backward()`, then clip or
    unscale, then `step`.  `GradScaler.step(optimizer)` alone does it itself.  To leave a step out: `zero_grad()` in its
    place, on all ranks.  Closures work.  Frozen parameters are left out; one that no rank has used keeps None as
    its gradient.  Sparse gradients are sent dense.  `close()` takes its hooks off, and so does another
    DistributedOptimizer of the same parameters.

    `group`: a process group of hocket's, or a communicator; None: torch's default group, or `hocket.init()`'s.
    `passes`: backward passes whose gradients are added up first.  `exact`: each pass's gradient is an addend of its
    own, and the average over all passes of all ranks is rounded once: so the same micro-batches end in the same bits on
    any number of ranks.  It keeps `passes` gradients.  `verify_every=100`: after so many steps parameters are compared
    (`comm.check_equal`), and MismatchError names those that differ, and on which ranks; 0: never.  `factors="auto"`,
    with the model: weights of Linear modules go as the two matrices whose product their gradient is, where these are
    fewer bytes for the first step's samples and so many ranks (Poseidon, factored.py); names of such weights: these,
    whatever is cheaper.  Products have no codec; more samples than any rank had in its first step are an ArgumentError.
    The others are those of `hocket.training.Scheduler`, with its errors.  All ranks call this together, with equal
    parameters.  The first optimizer is not to be used any more.
    """
    model = parameters if isinstance(parameters, torch.nn.Module) else None
    if model is None and not barrier:
        raise ArgumentError("barrier=False needs the model itself, whose modules then wait, not its named_parameters()")
    if whole(passes, "passes") < 1:
        raise ArgumentError(f"passes={passes} must be 1 or more")
    if whole(verify_every, "verify_every") < 0:
        raise ArgumentError(f"verify_every={verify_every} must be a number of steps, or 0: never")
    if factors is not None and (model is None or order == "agreed"):
        why = "the model itself, not its named_parameters()" if model is None else 'another order than "agreed"'
        raise ArgumentError(f"factors={factors!r} needs {why}")
    if factors is not None and exact:
        raise ArgumentError(f"factors={factors!r} are products, which round: leave it out, or exact=True")
    pairs = model.named_parameters() if model is not None else parameters
    names = _named(optimizer, pairs)  # type: ignore[arg-type]
    comm = _communicator(group)

    def scheduler() -> Scheduler:
        return Scheduler(comm, order=order, lanes=lanes, slice=slice, fuse=fuse, codec=codec, compressor=compressor,
                         finite=finite, exact=exact, passes=passes if exact else 1, credit=credit)  # fmt: skip

    averages = scheduler() if factors is None or model is None else Factored(comm, model, factors, scheduler)

    def anywhere(flags: list[bool]) -> list[bool]:
        return [any(each) for each in zip(*comm.share(flags, "DistributedOptimizer.step()"), strict=True)]

    made = stepping(optimizer, Distributed, averages, names, passes, anywhere, watched=order != "agreed",
                    exact=exact and passes > 1)  # fmt: skip
    if verify_every:
        made._verify = _verifier(comm, names, verify_every)
    if model is not None and not barrier:
        made._forward = Forward(model, names, made)
        made._handles += made._forward.handles
    return made


def _verifier(comm: hocket.Communicator, names: dict[Tensor, str], every: int) -> Callable[[Distributed], None]:
    """A comparison of all ranks' parameters, every so many steps."""
    steps = itertools.count(1)

    def verify(made: Distributed) -> None:
        if (step := next(steps)) % every:
            return
        made.finish()
        if found := comm.check_equal({name: p.detach() for p, name in names.items()}):
            parts = ", ".join(f"{name[3:-2]} on ranks {groups}" for name, groups in list(found.items())[:5])
            text = f"parameters differ after step {step}: {parts}: a rank's program, memory or network changed them"
            alike = next(iter(found.values()))
            raise MismatchError(text, {rank: f"as ranks {list(ranks)}" for ranks in alike for rank in ranks})

    return verify


def stepping(
    optimizer: torch.optim.Optimizer, added: type[Distributed], averages: Averages, names: dict[Tensor, str],
    passes: int, anywhere: Callable[[list[bool]], list[bool]] | None, watched: bool = False, exact: bool = False,
) -> Any:  # fmt: skip
    """The same optimizer, of its class with `added`, that steps by what `averages` makes of these gradients."""
    for p in names:
        for old in owners(p._post_accumulate_grad_hooks):
            with contextlib.suppress(Error):  # its ranks may be gone
                old.release()
    made = derived(optimizer, added)
    made._pending, made._synchronized, made._barrier, made._forward = {}, False, "", None
    made._stepped = set()
    made._kind, made._gradients = type(optimizer), Gradients(averages, names, passes, anywhere, watched, exact)
    params: Iterable[Any] = made._gradients.params
    made._handles = [p.register_post_accumulate_grad_hook(Hook(made, "_made")) for p in params]
    weakref.finalize(made, remove, made._handles).atexit = False
    return made


def derived(optimizer: torch.optim.Optimizer, added: type) -> Any:
    """The same optimizer, of its class with `added`."""
    kind: Any = type(type(optimizer).__name__, (added, type(optimizer)), {})
    made = kind.__new__(kind)
    vars(made).update({key: value for key, value in vars(optimizer).items() if key != "step"})  # a scheduler's wrapper
    vars(optimizer)["_opt_called"] = True  # a scheduler that was made of it would warn that it does not step
    return made


def _communicator(group: Any) -> Any:
    if isinstance(group, hocket.Communicator):
        return group
    return communicator(group) if group is not None or torch.distributed.is_initialized() else hocket.init()


def _named(optimizer: torch.optim.Optimizer, pairs: Iterable[tuple[str, Tensor]]) -> dict[Tensor, str]:
    """The optimizer's parameters with their names, in the order of these."""
    there = {p for group in optimizer.param_groups for p in group["params"]}
    found = [(name, p) for name, p in pairs if p in there]
    twice = [name for name, times in Counter(name for name, _ in found).items() if times > 1]
    if twice:
        raise ArgumentError(f"parameters has the name {twice[0]!r} twice")
    names = {p: name for name, p in reversed(found)}
    lacking = [tuple(p.shape) for p in there if p not in names]
    if lacking:
        raise ArgumentError(f"parameters lacks {len(lacking)} of the optimizer's parameters, of shapes {lacking[:3]}")
    return dict(reversed(names.items()))
