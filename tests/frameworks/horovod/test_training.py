"""DistributedOptimizer, and what brings a model to all ranks: two ranks learn what one process learns of all data."""

from __future__ import annotations

import pytest

from support import jobs

START = """
import os, sys, time, warnings
import torch
import hocket.horovod.torch as hvd
hvd.init()
rank, size = hvd.rank(), hvd.size()
F = torch.nn.functional

def new_model():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3), torch.nn.Linear(3, 2))

data = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
labels = data[:, :2] * 2

def train(model, optimizer, x, y, steps=4, passes=1, clip=False):
    for step in range(steps):
        optimizer.zero_grad()
        for some, wanted in zip(x.chunk(passes), y.chunk(passes)):
            F.mse_loss(model(some), wanted).div(passes).backward()
        if clip and hasattr(optimizer, "synchronize"):
            optimizer.synchronize()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        if clip and hasattr(optimizer, "synchronize"):
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

def alone(make=lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), **more):
    model = new_model()
    return train(model, make(model.parameters()), data, labels, **more)

def together(make=lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), passes=1, clip=False, **how):
    model = new_model()
    kind = make(model.parameters())
    made = hvd.DistributedOptimizer(
        kind, named_parameters=model.named_parameters(), backward_passes_per_step=passes, **how)
    assert isinstance(made, type(kind))
    got = train(model, made, data[rank::size], labels[rank::size], passes=passes, clip=clip)
    assert all(torch.equal(got, each) for each in hvd.allgather(got).view(size, -1))
    return got
"""


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.more), 2])
def test_two_ranks_learn_what_one_learns(size: int) -> None:
    source = START + """
want = alone()
assert torch.allclose(together(), want, atol=1e-6)
assert torch.allclose(together(passes=2), want, atol=1e-6)
assert torch.allclose(together(gradient_predivide_factor=2.0), want, atol=1e-6)
assert torch.allclose(together(groups=2), want, atol=1e-6)
assert torch.allclose(together(clip=True), alone(clip=True), atol=1e-6)
assert torch.allclose(together(op=hvd.Sum), alone(lambda p: torch.optim.SGD(p, 0.1 * size, momentum=0.9)), atol=1e-5)
adam = lambda p: torch.optim.AdamW(p, 0.01)
assert torch.allclose(together(adam), alone(adam), atol=1e-5)
assert torch.allclose(together(compression=hvd.Compression.fp16), want, atol=1e-2)
assert torch.allclose(together(compression=hvd.Compression.bf16), want, atol=3e-2)
model = new_model()
lists = [list(model[0].parameters()), [model[2].weight]]
made = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), model.named_parameters(), groups=lists)
assert torch.allclose(train(model, made, data[rank::size], labels[rank::size]), want, atol=1e-6)
"""
    jobs.run(size, source, 60)


def test_closures_and_schedulers() -> None:
    source = START + """
def by_closure(optimizer, model, x, y):
    def loss():
        optimizer.zero_grad()
        found = F.mse_loss(model(x), y)
        found.backward()
        return found
    for _ in range(3):
        optimizer.step(loss)
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

for make in (lambda p: torch.optim.SGD(p, 0.1), lambda p: torch.optim.LBFGS(p, 0.1, max_iter=3)):
    one, all_ranks = new_model(), new_model()
    want = by_closure(make(one.parameters()), one, data, labels)
    optimizer = hvd.DistributedOptimizer(make(all_ranks.parameters()), all_ranks.named_parameters())
    assert torch.allclose(by_closure(optimizer, all_ranks, data[rank::size], labels[rank::size]), want, atol=1e-5)

model = new_model()
optimizer = torch.optim.SGD(model.parameters(), 1.0)
torch.optim.lr_scheduler.StepLR(optimizer, 1)            # wraps the step of the first one
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
model(data).sum().backward()
optimizer.step()
scheduler.step()
assert optimizer.param_groups[0]["lr"] == 0.5
"""
    jobs.run(2, source, 60)


def test_steps_that_are_left_out_and_optimizers_that_are_made_anew() -> None:
    """A bad step is left out after synchronize(); hooks of the optimizer run once a step; the next fold begins anew."""
    source = START + """
def of_both(model, step):
    return sum(F.mse_loss(model(x + step), y) for x, y in zip(halves(data), halves(labels))) / size

halves = lambda x: [x[r::size] for r in range(size)]
one, ours = new_model(), new_model()
for fold in range(2):
    plain, kind = (torch.optim.SGD(each.parameters(), 0.1, momentum=0.9) for each in (one, ours))
    calls = []
    kind.register_step_post_hook(lambda *_: calls.append(1))
    optimizer = hvd.DistributedOptimizer(kind, ours.named_parameters())
    for step in range(5):
        for model, each, bad in ((one, plain, lambda: None), (ours, optimizer, optimizer.synchronize)):
            model.zero_grad()
            own = F.mse_loss(model(data[rank::size] + step), labels[rank::size])
            (of_both(model, step) if model is one else own).backward()
            bad() if step == 2 else each.step()
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(one.parameters(), ours.parameters())), (fold, step)
    assert len(calls) == 4
    ours(data).sum().backward()             # what is sent is forgotten
one.zero_grad()
del optimizer, kind, each, bad
torch.optim.SGD(ours.parameters(), 0.1).zero_grad()
for _ in range(2):
    ours(data).sum().backward()             # no hook is left that would reduce it
assert not any(p._post_accumulate_grad_hooks for p in ours.parameters())
"""
    jobs.run(2, source, 60)


def test_sparse_gradients_that_a_rank_does_not_have() -> None:
    source = START + """
uses = [[{"early": [1, 2]}, {}], [{}, {"early": [3]}], [{"late": [0]}, {"early": [1]}],
        [{}, {"late": [4, 4]}], [{}, {}]]
for dense in (False, True):
    torch.manual_seed(3)
    makes = lambda: torch.nn.ModuleDict({n: torch.nn.Embedding(5, 2, sparse=True) for n in ("early", "late")})
    one, ours = makes(), makes()
    ours.load_state_dict(one.state_dict())
    plain, kind = (torch.optim.Adagrad(each.parameters(), 0.1) for each in (one, ours))
    optimizer = hvd.DistributedOptimizer(kind, ours.named_parameters(), sparse_as_dense=dense)
    for step in uses:
        plain.zero_grad()
        optimizer.zero_grad()
        for name, ids in step[rank].items():
            ours[name](torch.tensor(ids)).square().sum().backward()
        optimizer.step()
        for each in step:
            for name, ids in each.items():
                (one[name](torch.tensor(ids)).square().sum() / 2).backward()
        plain.step()
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(one.parameters(), ours.parameters())), (dense, step)
        assert dense or step == uses[-1] or all(ours[name].weight.grad.is_sparse for each in step for name in each)
"""
    jobs.run(2, source, 60)


def test_what_is_owed_follows_the_learning_rate() -> None:
    """The steps that moved the parameters, and those that move them once all is sent, are all that was given."""
    source = START + """
w, v = (torch.nn.Parameter(torch.zeros(50)) for _ in range(2))
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD([{"params": [w], "lr": 1.0}, {"params": [v], "lr": 0.5}]), [("w", w), ("v", v)],
    compression=hvd.Compression.method("threshold:1"))
given = torch.zeros(50)
for step in range(7):
    if step == 5:
        optimizer.load_state_dict(optimizer.state_dict())
    for group in optimizer.param_groups:
        group["lr"] *= 0.1 if step == 4 else 1
    each = [torch.randn(50, generator=torch.Generator().manual_seed(10 * step + r)) for r in range(size)]
    if step == 6:  # large enough that nothing is owed after it
        each = [(x.sign() + x) * 1000 for x in each]
    optimizer.zero_grad()
    ((w + v) * each[rank]).sum().backward()
    optimizer.step()
    given += optimizer.param_groups[0]["lr"] * sum(each) / size
assert torch.allclose(w, -given, rtol=1e-5, atol=1e-4), (w + given).abs().max()
assert torch.allclose(v, -given / 2, rtol=1e-5, atol=1e-4), (v + given / 2).abs().max()
"""
    jobs.run(2, source, 60)


def test_what_is_told_of_wrong_use() -> None:
    source = START + """
def refused(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("not refused")

model = new_model()
make = lambda: torch.optim.SGD(model.parameters(), 0.1)
named = list(model.named_parameters())
assert "more than once" in refused(ValueError, lambda: hvd.DistributedOptimizer(make(), [*named, named[0]]))
assert "lacks 1" in refused(ValueError, lambda: hvd.DistributedOptimizer(make(), named[1:]))
refused(ValueError, lambda: hvd.DistributedOptimizer(make(), model.parameters()))
refused(ValueError, lambda: hvd.DistributedOptimizer(make(), backward_passes_per_step=0))
refused(ValueError, lambda: hvd.DistributedOptimizer(make(), op=hvd.Sum, gradient_predivide_factor=2.0))
refused(ValueError, lambda: hvd.DistributedOptimizer(make(), groups=[["0.weight"]]))
optimizer = hvd.DistributedOptimizer(make(), named)
model(data).sum().backward()
refused(AssertionError, optimizer.zero_grad)
assert "backward_passes_per_step" in refused(AssertionError, lambda: model(data).sum().backward())
optimizer.synchronize()
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    optimizer.step()
assert len(told) == 1 and "skip_synchronize" in str(told[0].message)
"""
    jobs.run(2, source, 60)


def test_a_scaler_finds_averages() -> None:
    source = START + """
for op, rate in ((hvd.Average, 0.1), (hvd.Sum, 0.1 / size)):
    model, scaler = new_model(), torch.amp.GradScaler("cpu", init_scale=4.0)
    made = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), rate, momentum=0.9),
                                    model.named_parameters(), op=op)
    for step in range(4):
        made.zero_grad()
        scaler.scale(F.mse_loss(model(data[rank::size]), labels[rank::size])).backward()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # none that they are reduced twice
            scaler.step(made)
        scaler.update()
    got = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    assert torch.allclose(got, alone(), atol=1e-6), op
"""
    jobs.run(2, source, 60)


def test_gradients_that_only_some_ranks_have() -> None:
    source = START + """
model = new_model()
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
(model[0](data) if rank else model(data)).sum().backward()
optimizer.step()
got = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
assert all(torch.equal(got, each) for each in hvd.allgather(got).view(size, -1))
"""
    jobs.run(2, source, 60)


def test_adasum() -> None:
    source = START + """
w = torch.nn.Parameter(torch.zeros(2))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], 1.0), [("w", w)], op=hvd.Adasum)
(w * torch.tensor([1.0, 0.0] if rank else [0.0, 2.0])).sum().backward()
optimizer.step()
assert w.tolist() == [-1.0, -2.0], w       # at right angles: both steps are taken
optimizer.zero_grad()
(w * torch.tensor([3.0, 1.0])).sum().backward()
optimizer.step()
assert torch.allclose(w, torch.tensor([-4.0, -3.0])), w      # the same on both: taken once
"""
    jobs.run(2, source, 60)


def test_all_ranks_begin_with_the_roots_model_and_state() -> None:
    source = START + """
torch.manual_seed(rank)
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
optimizer = torch.optim.Adam(model.parameters(), 0.1 * (rank + 1), betas=(0.5, 0.6 + rank / 10))
if rank == 1:                                  # only the root has a state
    model(torch.randn(4, 2)).sum().backward()
    optimizer.step()
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=1)
hvd.broadcast_optimizer_state(optimizer, root_rank=1)
assert optimizer.param_groups[0]["lr"] == 0.2 and optimizer.param_groups[0]["betas"] == (0.5, 0.7)
state = optimizer.state_dict()["state"]
assert len(state) == 4 and all(float(each["step"]) == 1 for each in state.values())
flat = torch.cat([v.reshape(-1).double() for each in [*state.values(), model.state_dict()] for v in each.values()])
assert flat.abs().sum() > 0 and all(torch.equal(flat, each) for each in hvd.allgather(flat).view(size, -1))
model(torch.randn(4, 2)).sum().backward()
optimizer.step()
try:
    hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), 0)
except ValueError as error:
    assert "LBFGS" in str(error)
"""
    jobs.run(2, source, 60)


@pytest.mark.parametrize("dims", [0, pytest.param(2, marks=pytest.mark.more)])
def test_batch_normalization_over_all_ranks(dims: int) -> None:
    source = START + f"dims = {dims}\n" + """
x = torch.randn(7, 3, *[4] * dims, generator=torch.Generator().manual_seed(3)) * 5 + 100
mine = x[:3] if rank == 0 else x[3:]            # of different lengths
kind = torch.nn.BatchNorm2d if dims else torch.nn.BatchNorm1d
whole, norm = kind(3, momentum=None), hvd.SyncBatchNorm(3, momentum=None)
for each in (whole, norm):
    with torch.no_grad():
        each.weight.copy_(torch.tensor([1.0, 2, 3])), each.bias.copy_(torch.tensor([3.0, 2, 1]))
weigh = torch.randn(x.shape, generator=torch.Generator().manual_seed(4))
x.requires_grad_()
mine = mine.detach().requires_grad_()
for _ in range(2):
    (whole(x) * weigh).sum().backward()
    (norm(mine) * (weigh[:3] if rank == 0 else weigh[3:])).sum().backward()
assert torch.allclose(norm(mine), (whole(x)[:3] if rank == 0 else whole(x)[3:]), atol=1e-4)
assert torch.allclose(mine.grad, x.grad[:3] if rank == 0 else x.grad[3:], atol=1e-4)
assert torch.allclose(hvd.allreduce(norm.weight.grad, op=hvd.Sum), whole.weight.grad, atol=1e-3)
assert torch.allclose(norm.running_mean, whole.running_mean, atol=1e-4)
assert torch.allclose(norm.running_var, whole.running_var, atol=1e-3)
norm.eval(), whole.eval()
assert torch.allclose(norm(mine), (whole(x)[:3] if rank == 0 else whole(x)[3:]), atol=1e-4)
"""
    jobs.run(2, source, 60)
