"""After every step a user sees what one process without hocket would show: all of torch's optimizers, others,
schedules, groups, hooks; and the ends of steps and optimizers that go another way."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
import torch
from torch.nn.utils import parameters_to_vector, prune, spectral_norm, weight_norm
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, StepLR

from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import ArgumentError
from hocket.torch import DistributedOptimizer
from support.worlds import spread

STEPS = 4


class Counted(torch.optim.SGD):
    """Counts in its groups, as Prodigy, schedule-free and fused optimizers do."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad, alpha=group["lr"] / group["k"])


class Summed(torch.optim.SGD):
    """Adds up over all parameters, as Prodigy, D-Adaptation and LARS' relatives do."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        every = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in every]).norm()
        for p in every:
            p.sub_(p.grad / norm, alpha=self.param_groups[0]["lr"])


def torchs() -> dict[str, Callable[..., Any]]:
    """All of torch's optimizers that step without a closure and take dense gradients of any shape."""
    out = {torch.optim.LBFGS, torch.optim.SparseAdam, getattr(torch.optim, "Muon", None)}
    kinds = (kind for kind in vars(torch.optim).values() if isinstance(kind, type))
    return {
        kind.__name__: kind for kind in kinds
        if issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer and kind not in out
    }  # fmt: skip


def model(*changes: Callable[[Any], object]) -> torch.nn.Sequential:
    torch.manual_seed(3)
    made = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 5), torch.nn.Linear(5, 2))
    for change in changes:
        change(made[2])
    return made


def grouped(made: Any) -> list[dict[str, Any]]:
    return [{"params": list(made[0].parameters()), "lr": 0.03}, {"params": list(made[2:].parameters())}]


def hooked(made: Any, optimizer: Any) -> None:
    """Clipping before the step, an average of the weights after it."""
    optimizer.register_step_pre_hook(lambda *_: torch.nn.utils.clip_grad_norm_(made.parameters(), 0.1) and None)
    average = [p.detach().clone() for p in made.parameters()]
    made.average = average

    def follow(*_: Any) -> None:
        for mean, p in zip(average, made.parameters(), strict=True):
            mean.lerp_(p.detach(), 0.5)

    optimizer.register_step_post_hook(follow)


def reading(module: Any) -> None:
    """A forward pre-hook that makes of a weight what the forward pass adds."""
    module.scale = torch.ones(())
    module.register_forward_pre_hook(lambda m, _: setattr(m, "scale", m.weight.detach().norm()))
    module.register_forward_hook(lambda m, _, y: y * m.scale)


CASES: dict[str, dict[str, Any]] = {
    **{name: {"kind": kind} for name, kind in torchs().items()},
    **{
        f"{name}, {how}": {"kind": torchs()[name], "options": {how: True}}
        for name, how in [("SGD", "foreach"), ("SGD", "fused"), ("Adam", "foreach"), ("AdamW", "fused"),
                          ("Adam", "amsgrad"), ("RMSprop", "centered"), ("SGD", "maximize")]
    },
    "momentum": {"kind": torch.optim.SGD, "options": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}},
    "groups": {"kind": torch.optim.AdamW, "params": grouped, "rates": lambda o: StepLR(o, 2, 0.5)},
    "a cycle": {"kind": torch.optim.Adam, "rates": lambda o: OneCycleLR(o, 0.1, total_steps=STEPS)},
    "a rate that is a tensor": {
        "kind": torch.optim.Adam, "options": {"lr": torch.tensor(0.05), "foreach": False},
        "rates": lambda o: LambdaLR(o, lambda step: 0.5**step),
    },
    "counted": {"kind": Counted}, "summed": {"kind": Summed}, "hooks": {"kind": torch.optim.SGD, "after": hooked},
    "pruned": {"kind": torch.optim.SGD, "changes": [lambda m: prune.l1_unstructured(m, "weight", 0.3)]},
    "weight_norm": {"kind": torch.optim.SGD, "changes": [weight_norm]},
    "spectral_norm": {"kind": torch.optim.SGD, "changes": [spectral_norm]},
    "parametrized": {"kind": torch.optim.SGD, "changes": [torch.nn.utils.parametrizations.weight_norm]},
    "a pre-hook that reads": {"kind": torch.optim.SGD, "changes": [reading]},
}  # fmt: skip


def optimizer_of(case: dict[str, Any], made: Any) -> Any:
    options = {"lr": 0.05, **case.get("options", {})}
    options = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in options.items()}
    optimizer = case["kind"](case["params"](made) if "params" in case else made.parameters(), **options)
    if "after" in case:
        case["after"](made, optimizer)
    return optimizer


def loss(made: Any, step: int, rank: int) -> torch.Tensor:
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(100 * step + rank))
    return (made(x) - x[:, :2]).square().mean()


def alone(case: dict[str, Any], rank: int) -> list[list[torch.Tensor]]:
    """After every step what rank `rank` of two sees, where one process computes both, and averages by hand."""
    ranks = [model(*case.get("changes", [])) for _ in range(2)]
    optimizers = [optimizer_of(case, each) for each in ranks]
    rates = [case["rates"](each) if "rates" in case else None for each in optimizers]
    seen = []
    for step in range(STEPS):
        for each, own in enumerate(ranks):
            optimizers[each].zero_grad()
            loss(own, step, each).backward()
        for pair in zip(*(each.parameters() for each in ranks), strict=True):
            mean = (pair[0].grad + pair[1].grad) / 2
            for p in pair:
                p.grad = mean.clone()
        for optimizer, rate in zip(optimizers, rates, strict=True):
            optimizer.step()
            if rate:
                rate.step()
        seen.append(weights(ranks[rank]))
    return seen


def weights(made: Any, state: bool = False) -> list[torch.Tensor]:
    """Values as a user reads them: from the parameters, or from the model's state, which comes first then."""
    kept = dict(made.state_dict()) if state else {}
    found = [kept[name] if state else p.detach() for name, p in made.named_parameters()]
    return [each.clone() for each in chain(found, getattr(made, "average", []))]


def every_step(comm: Communicator) -> None:
    """`barrier=False` shows states only; it waits for all in the cases where a step is no sum of parts."""
    whole = {"Adafactor", "a rate that is a tensor", "counted", "summed", "hooks"}
    for name, case in CASES.items():
        wanted = alone(case, comm.rank)
        for given, barrier in ((False, True), (True, True), (True, False)):
            made = model(*case.get("changes", []))
            plain = optimizer_of(case, made)
            of = made if given else made.named_parameters()
            optimizer = DistributedOptimizer(plain, of, group=comm, barrier=barrier)
            rates = case["rates"](optimizer) if "rates" in case else None
            for step in range(STEPS):
                optimizer.zero_grad()
                loss(made, step, comm.rank).backward()
                optimizer.step()
                parts = not barrier and name not in whole and step > 0
                assert (optimizer.barrier == "") == parts, (name, step, optimizer.barrier)
                if rates:
                    rates.step()
                seen = weights(made, state=not barrier and step % 2 == 1) if barrier or step % 2 else wanted[step]
                for i, (a, b) in enumerate(zip(seen, wanted[step], strict=True)):
                    assert torch.equal(a, b), f"{name}, {given}, {barrier}, step {step}, {i}: {(a - b).abs().max()}"


def sgd(made: Any, comm: Communicator, named: bool = False, **options: Any) -> Any:
    of = made.named_parameters() if named else made
    return DistributedOptimizer(torch.optim.SGD(made.parameters(), 0.1), of, group=comm, **options)


def backward(made: Any, comm: Communicator, *steps: int) -> None:
    for step in steps:
        loss(made, step, comm.rank).backward()


def left_out(comm: Communicator) -> None:
    """A step is left out, on all ranks; the next one takes its own averages."""
    def skipped(made: Any, optimizer: Any) -> None:
        optimizer.synchronize()

    def dropped(made: Any, optimizer: Any) -> None:
        optimizer.zero_grad()

    def both(made: Any, optimizer: Any) -> None:
        optimizer.synchronize()
        optimizer.zero_grad(set_to_none=False)

    def failed(made: Any, optimizer: Any) -> None:
        """An exception after the last layers' gradients are sent."""
        optimizer.zero_grad()
        hook = made[0].weight.register_hook(lambda grad: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            backward(made, comm, 8)
        hook.remove()

    def kept(made: Any, optimizer: Any) -> None:
        """The next backward pass comes without anything in between."""
        with pytest.raises(ArgumentError, match="where the last step was left out .*zero_grad.. instead"):
            backward(made, comm, 8)

    for passes in (1, 2):
        for instead in (skipped, dropped, both, failed, kept):
            if instead is failed and passes == 2:
                continue  # one of two passes: nothing is sent yet
            made, plain = model(), model()
            optimizer = sgd(made, comm, passes=passes)
            other = torch.optim.SGD(plain.parameters(), 0.1)
            for step in range(4):
                here = range(passes * step, passes * (step + 1))
                (made if instead is skipped else optimizer).zero_grad()
                backward(made, comm, *here)
                if step == 1:
                    instead(made, optimizer)
                    continue
                optimizer.step()
                other.zero_grad()
                for rank in range(2):
                    for each in here:
                        (loss(plain, each, rank) / 2).backward()
                other.step()
                for a, b in zip(made.parameters(), plain.parameters(), strict=True):
                    assert torch.allclose(a, b, atol=1e-6), (instead.__name__, passes, step)
                    assert torch.equal(comm.broadcast(a.detach().clone()), a), (instead.__name__, passes, step)


def changed(comm: Communicator) -> None:
    """A gradient that is changed, or replaced, while it is averaged is no gradient that anybody meant."""
    made = model()
    optimizer = sgd(made, comm)

    def clipped() -> None:
        torch.nn.utils.clip_grad_norm_(made.parameters(), 1.0)

    def replaced() -> None:
        made[0].weight.grad = None

    def scaled() -> None:
        for p in made.parameters():
            p.grad = p.grad * 2

    for change in (clipped, replaced, scaled):
        for synchronized in (False, True):
            optimizer.zero_grad()
            backward(made, comm, 1)
            if synchronized:
                optimizer.synchronize()
            change()
            if synchronized:
                optimizer.step()
                continue
            with pytest.raises(ArgumentError, match="was changed between backward.*synchronize"):
                optimizer.step()


def made_anew(comm: Communicator) -> None:
    """Hooks end with `close`, with the next optimizer of the parameters, and with their own."""
    for options in ({}, {"barrier": False}):
        made = model()

        def hooks(made: Any = made) -> list[Any]:
            dicts = [p._post_accumulate_grad_hooks or {} for p in made.parameters()]
            return [*chain(*dicts, *(m._forward_pre_hooks for m in made.modules()))]

        first = sgd(made, comm, **options)
        for step in range(3):
            first.zero_grad()
            backward(made, comm, step)
            first.step()
        second = sgd(made, comm, **options)
        for step in range(3):
            second.zero_grad()
            backward(made, comm, step)
            second.step()
        backward(made, comm, 3)
        with pytest.raises(ArgumentError, match="is closed"):
            first.step()
        second.zero_grad()
        del second
        assert not hooks()  # at once: there is no cycle
        third = sgd(made, comm, **options)
        backward(made, comm, 4)
        third.close()
        assert not hooks()
        third.close()
        with pytest.raises(ArgumentError, match="is closed"):
            third.step()
        before = weights(made)
        backward(made, comm, 5)
        torch.optim.SGD(made.parameters(), 0.0).step()
        assert all(torch.equal(a, b) for a, b in zip(weights(made), before, strict=True))


def copied(comm: Communicator) -> None:
    """Copies of a model are their own; an optimizer says why it has none."""
    made = model()
    optimizer = sgd(made, comm, barrier=False)
    for step in range(2):
        optimizer.zero_grad()
        backward(made, comm, step)
        optimizer.step()
    file = io.BytesIO()
    optimizer.finish()
    torch.save(made, file)
    file.seek(0)
    copies = [copy.deepcopy(made), torch.load(file, weights_only=False), pickle.loads(pickle.dumps(made))]
    optimizer.zero_grad()
    backward(made, comm, 2)
    optimizer.step()
    for each in copies:
        backward(each, comm, 3)  # neither sent nor stepped
    assert optimizer._pending and all(p.grad is not None for each in copies for p in each.parameters())
    for call in (copy.deepcopy, copy.copy, pickle.dumps):
        with pytest.raises(ArgumentError, match="state_dict"):
            call(optimizer)


def loaded(comm: Communicator) -> None:
    """Weights that are loaded stay; a state that is loaded keeps the schedules that were made before."""
    for barrier in (True, False):
        made = model()
        best = copy.deepcopy(made.state_dict())
        plain = torch.optim.SGD(made.parameters(), 0.1)
        rates = StepLR(plain, 1, 0.5)
        optimizer = DistributedOptimizer(plain, made, group=comm, barrier=barrier)
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for step in range(2):
            optimizer.zero_grad()
            backward(made, comm, step)
            optimizer.step()
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # none that it came before the optimizer's step
                rates.step()
        assert optimizer.param_groups[0]["lr"] == 0.025
        for each in (made, made[2]):
            each.load_state_dict(best if each is made else {"weight": best["2.weight"], "bias": best["2.bias"]})
            made(torch.ones(1, 4))
            kept = made.state_dict() if each is made else {"2.weight": made[2].weight}
            assert all(torch.equal(kept[name], best[name]) for name in kept), barrier
            backward(made, comm, 2)
            optimizer.step()
            optimizer.zero_grad()


def rows(comm: Communicator) -> None:
    """SparseAdam takes sparse gradients only: on ranks, and in steps, without a row, too."""
    for named in (False, True):
        for barrier in (True, False) if not named else (True,):
            torch.manual_seed(3)
            made = torch.nn.ModuleDict({each: torch.nn.Embedding(5, 2, sparse=True) for each in ("early", "late")})
            plain = copy.deepcopy(made)
            of = made.named_parameters() if named else made
            optimizer = DistributedOptimizer(
                torch.optim.SparseAdam(made.parameters(), 0.1), of, group=comm, barrier=barrier)
            other = torch.optim.SparseAdam(plain.parameters(), 0.1)
            uses = [  # of each step, by rank
                [{"early": [1, 2]}, {}], [{}, {"early": [3]}], [{"late": [0]}, {"early": [1]}], [{}, {"late": [4, 4]}],
                [{"early": [0], "late": [1]}, {"early": [0]}],
            ]  # fmt: skip
            for step in uses:
                optimizer.zero_grad()
                for name, ids in step[comm.rank].items():
                    made[name](torch.tensor(ids)).square().sum().backward()
                optimizer.step()
                other.zero_grad()
                for name, ids in chain(*(each.items() for each in step)):
                    (plain[name](torch.tensor(ids)).square().sum() / 2).backward()
                other.step()
                for a, b in zip(made.parameters(), plain.parameters(), strict=True):
                    assert torch.allclose(a, b, atol=1e-6), step
                    assert torch.equal(comm.broadcast(a.detach().clone()), a), step
                    assert a.grad is None or a.grad.is_sparse


def readers(comm: Communicator) -> None:
    """Whatever reads weights between two steps reads those of the last step; `barrier=False` needs the model."""
    made, plain = model(), None
    optimizer = sgd(made, comm)
    average = torch.optim.swa_utils.AveragedModel(made, avg_fn=lambda old, new, _: new)
    for step in range(3):
        optimizer.zero_grad()
        backward(made, comm, step)
        optimizer.step()
        average.update_parameters(made)
        plain = [parameters_to_vector(each.parameters()) for each in (made, average.module, copy.deepcopy(made))]
        assert all(torch.equal(each, comm.broadcast(plain[0].detach().clone())) for each in plain)
        with torch.no_grad():
            for p in made.parameters():
                p.clamp_(-0.2, 0.2)
    with pytest.raises(ArgumentError, match="needs the model itself"):
        sgd(made, comm, named=True, barrier=False)
    for register, why in (
        (lambda o: o.register_step_post_hook(lambda *_: None), "hooks of the optimizer"),
        (lambda o: torch.nn.modules.module.register_module_forward_pre_hook(lambda *_: None), "hooks of all modules"),
        (lambda o: made[2].register_forward_pre_hook(lambda *_: None, prepend=True), "module '2' runs before"),
    ):
        optimizer = sgd(made, comm, barrier=False)
        for step in range(2):
            optimizer.zero_grad()
            backward(made, comm, step)
            optimizer.step()
        assert optimizer.barrier == "" and optimizer._pending
        handle = register(optimizer)
        optimizer.zero_grad()
        backward(made, comm, 2)
        optimizer.step()
        assert why in optimizer.barrier and not optimizer._pending, optimizer.barrier
        handle.remove()
    gc.collect()


def zeros(comm: Communicator) -> None:
    """A layer that a step does not use moves by its momentum if its gradient is zeros, and stays if that is None."""
    ends = []
    for barrier in (None, True, False):
        made = model()
        plain = torch.optim.SGD(made.parameters(), 0.1, momentum=0.9)
        optimizer = plain if barrier is None else DistributedOptimizer(plain, made, group=comm, barrier=barrier)
        for step, none in enumerate([True, False, False, True, True, False, False, True]):
            optimizer.zero_grad(set_to_none=none)
            (made[3](torch.ones(1, 5)).square().sum() if step % 3 else loss(made, step, 0)).backward()
            optimizer.step()
        ends.append(parameters_to_vector(list(made.state_dict().values())))
    assert torch.equal(ends[0], ends[1]) and torch.equal(ends[0], ends[2])


def test_the_same_on_two_ranks() -> None:
    spread([zeros, every_step, left_out, changed, made_anew, copied, loaded, rows, readers], 2, "shm")
