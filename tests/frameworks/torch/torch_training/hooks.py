"""DistributedDataParallel's communication hooks: torch's own, and one of the user's."""

from __future__ import annotations

import copy
import io
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

from torch_training.cases import case
from torch_training.task import (
    alike,
    batch,
    close,
    gradients,
    mine,
    network,
    rank,
    ranks_gradients,
    size,
)


def hooked(hook: Any, state: Any = None) -> tuple[list[Tensor], list[list[Tensor]]]:
    """Gradients of a DDP model under a communication hook, and each rank's own."""
    model = network()
    owns = ranks_gradients(model)
    wrapped = DDP(model)
    wrapped.register_comm_hook(state, hook)
    x, y = map(mine, batch())
    nn.functional.mse_loss(wrapped(x), y).backward()
    return [each.grad for each in model.parameters()], owns  # type: ignore[misc]


def compressed(owns: list[list[Tensor]], dtype: torch.dtype) -> list[Tensor]:
    """The average of two ranks' gradients that travel as `dtype`."""
    return [((a.to(dtype) / 2) + (b.to(dtype) / 2)).float() for a, b in zip(*owns, strict=True)]


@case(2)
def ddp_fp16_compress_hook() -> None:
    """Bit by bit the sum of the halves in float16."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    got, owns = hooked(fp16_compress_hook)
    close(got, compressed(owns, torch.float16), rtol=0, atol=0)


@case(2)
def ddp_bf16_compress_hook() -> None:
    """hocket.torch's, as torch's own is refused for all but NCCL: bit by bit the sum of the halves in bfloat16."""
    from hocket.torch import bf16_compress_hook

    got, owns = hooked(bf16_compress_hook)
    close(got, compressed(owns, torch.bfloat16), rtol=0, atol=0)


@case(2, 3)
def ddp_own_hook() -> None:
    """A hook that waits for another collective in its callback, and gives another thing than the average."""
    seen: list[int] = []

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are strings
        seen.append(bucket.index())
        work: Any = dist.all_reduce(bucket.buffer(), async_op=True)

        def finish(future: Any) -> Any:
            factor = torch.tensor(float(rank() + 1))
            again: Any = dist.all_reduce(factor, op=dist.ReduceOp.MAX, async_op=True)
            again.get_future().wait()
            return future.value()[0] * state * factor

        return work.get_future().then(finish)

    got, owns = hooked(hook, 3.0)
    assert seen
    close(got, [sum(column) * 3 * size() for column in zip(*owns, strict=True)])


@case(2, 3)
def ddp_compressed() -> None:
    """By hocket.torch.compress: the average and what is owed are all that was given, in each parameter."""
    import hocket.torch

    model = network()
    wrapped = DDP(model, bucket_cap_mb=0.001)
    with pytest.raises(hocket.ArgumentError, match="takes a DistributedDataParallel .* got Sequential"):
        hocket.torch.compress(model, "topk:0.1")
    compressor = hocket.torch.compress(wrapped, "topk:0.1")
    names = [name for name, _ in model.named_parameters()]
    came, given = ([torch.zeros_like(each) for each in model.parameters()] for _ in range(2))
    for _ in range(4):
        x, y = batch()
        for total, each in zip(given, gradients(model, x, y), strict=True):
            total += each
        model.zero_grad()
        nn.functional.mse_loss(wrapped(mine(x)), mine(y)).backward()
        for total, parameter in zip(came, model.parameters(), strict=True):
            total += parameter.grad
    assert compressor.stats(names[0]).calls == 4 and compressor.stats(names[0]).ratio > 4
    state = compressor.state_dict()["entries"]
    assert sorted(state) == sorted(names)
    for total, name, right in zip(came, names, given, strict=True):
        owed = torch.tensor(state[name]["residual"])
        dist.all_reduce(owed)
        close([total + owed / size()], [right], rtol=1e-4, atol=1e-6)
    alike(each.grad for each in model.parameters())


@case(2)
def ddp_compressed_beside_other_calls() -> None:
    """The backward pass goes on meanwhile, and what it asks of the group is in no bucket's way."""
    import hocket.torch

    class Sums(torch.autograd.Function):
        @staticmethod
        def forward(context, x):  # type: ignore[no-untyped-def]
            return x.clone()

        @staticmethod
        def backward(context, gradient):  # type: ignore[no-untyped-def]
            dist.all_reduce(gradient)
            time.sleep(0.01 * dist.get_rank())
            return gradient / size()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(6)])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = Sums.apply(layer(x))
            return x

    wrapped = DDP(Model(), bucket_cap_mb=0.001)
    compressor = hocket.torch.compress(wrapped, "int8")
    for _ in range(3):
        wrapped.zero_grad()
        wrapped(torch.randn(8, 64)).square().mean().backward()
        alike(each.grad for each in wrapped.parameters())
    assert compressor.stats("layers.0.weight").calls == 3


class Two(nn.Module):
    """Two parameters whose gradients are what it is called with; without a second one it has not used "b"."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.zeros(8, 20)) for _ in range(2))

    def forward(self, a: Tensor, b: Tensor | None) -> Tensor:
        return (self.a * a).sum() + (0 if b is None else (self.b * b).sum())


@case(2)
def ddp_compressed_steps_that_are_skipped() -> None:
    """The steps that moved the parameters and what is owed are all that was given: also where steps are skipped for a
    NaN in one gradient, where no rank has used a parameter, and where the learning rate changes."""
    import hocket.torch

    def gradient(step: int, who: int, name: str) -> Tensor:
        return torch.randn(8, 20, generator=torch.Generator().manual_seed(1000 * step + 10 * who + ord(name)))

    for method in ("topk:0.1", "doublesqueeze:int8", "powersgd:1"):
        wrapped = DDP(Two(), find_unused_parameters=True, bucket_cap_mb=0.0001)
        optimizer = torch.optim.SGD(wrapped.parameters(), 1.0)
        compressor = hocket.torch.compress(wrapped, method, lr=optimizer)
        right, skipped = {name: torch.zeros(8, 20) for name in "ab"}, 0
        for step in range(12):
            optimizer.param_groups[0]["lr"] = rate = 1.0 if step < 6 else 0.1
            used = "a" if step % 4 == 1 else "ab"
            given = {name: [gradient(step, r, name) for r in range(size())] for name in used}
            if step % 4 == 3:
                given["ab"[step % 8 == 3]][step % size()][2, 3] = float("nan")
            optimizer.zero_grad()
            wrapped(given["a"][rank()], given["b"][rank()] if "b" in given else None).backward()
            got = [p.grad for p in wrapped.parameters() if p.grad is not None]
            assert len(got) == len(given)
            if step % 4 == 3:
                assert all(each.isnan().all() for each in got)
                skipped += 1
                continue
            optimizer.step()
            for name, each in given.items():
                right[name] -= rate * sum(each) / size()
        assert skipped == 3
        for name, parameter in wrapped.module.named_parameters():
            entry = compressor.state_dict()["entries"][name]
            owed = torch.tensor(entry["residual"])
            dist.all_reduce(owed)
            owed /= size()
            if "owned" in entry["kept"]:
                every = [torch.zeros(entry["kept"]["owned"].size) for _ in range(size())]
                dist.all_gather(every, torch.tensor(entry["kept"]["owned"]))
                owed += torch.cat(every)[:160].view(8, 20)
            close([parameter - rate * owed], [right[name]], rtol=1e-4, atol=1e-4)
        alike(wrapped.parameters())


@case(2)
def ddp_compressed_rates() -> None:
    """They are read in each backward pass, once for all its buckets."""
    import hocket.torch

    rates = {"0.weight": 0.5, "0.bias": 0.25}
    read: list[str] = []

    class Optimizer:
        @property
        def param_groups(self) -> list[dict[str, Any]]:
            read.append("groups")
            named = wrapped.module.named_parameters()
            return [{"params": [p], "lr": rates[name]} for name, p in named if name in rates]

    def rate() -> float:
        read.append("function")
        return rates["0.bias"]

    for lr, what in ((Optimizer(), "groups"), (rate, "function")):
        wrapped = DDP(network(), bucket_cap_mb=0.001)
        compressor = hocket.torch.compress(wrapped, "topk:0.1", lr=lr)
        for passes in (1, 2):
            rates["0.bias"], read[:] = 0.1 * passes, []
            nn.functional.mse_loss(wrapped(mine(batch()[0])), mine(batch()[1])).backward()
            assert read == [what]
            found = {name: entry["lr"] for name, entry in compressor.state_dict()["entries"].items()}
            assert found["0.bias"] == rates["0.bias"]
            assert (found["0.weight"], found["2.weight"]) == (
                (0.5, None) if what == "groups" else (rates["0.bias"], rates["0.bias"])
            )


@case(2)
def ddp_compressed_wrongly() -> None:
    """A model that cannot be compressed is refused at once; an error in the thread comes out of the backward pass."""
    import hocket.torch

    for model, text in (
        (network().double(), "parameters of torch.float32 on CPUs and GPUs, but '0.weight' is torch.float64 on cpu"),
        (network().bfloat16(), "'0.weight' is torch.bfloat16"),
        (nn.Sequential(nn.Embedding(5, 3, sparse=True)), "those of '0' are sparse: make it with sparse=False"),
    ):
        with pytest.raises(hocket.ArgumentError, match=text):
            hocket.torch.compress(DDP(model), "int8")
    with pytest.raises(hocket.ArgumentError, match="lr=0.1 must be the optimizer, or a function"):
        hocket.torch.compress(DDP(network()), "int8", lr=0.1)

    wrapped = DDP(network(), bucket_cap_mb=0.001)
    compressor = hocket.torch.compress(wrapped, "topk:0.1")
    x, y = batch()
    with pytest.raises(RuntimeError, match="ArgumentError: a backward pass is a step .* outside"), compressor.step():
        nn.functional.mse_loss(wrapped(mine(x)), mine(y)).backward()
    nn.functional.mse_loss(wrapped(mine(x)), mine(y)).backward()

    name = next(name for name, _ in wrapped.module.named_parameters())
    compressor.forget(name)
    compressor.allreduce(torch.zeros(3), name)
    with pytest.raises(RuntimeError, match=f"ArgumentError: key '{name}' was used for shape"):
        nn.functional.mse_loss(wrapped(mine(x)), mine(y)).backward()


@case(2)
def ddp_compressed_saved() -> None:
    """A copy averages in full, as a copy of a module with one of torch's hooks does, until it is compressed itself."""
    import hocket.torch

    wrapped = DDP(network())
    hocket.torch.compress(wrapped, "topk:0.1")
    file = io.BytesIO()
    torch.save(wrapped, file)
    file.seek(0)
    x, y = batch()
    right = gradients(wrapped.module, x, y)
    for made in (copy.deepcopy(wrapped), torch.load(file, weights_only=False)):
        nn.functional.mse_loss(made(mine(x)), mine(y)).backward()
        close([each.grad for each in made.parameters()], right)
        made.zero_grad()
        compressor = hocket.torch.compress(made, "topk:0.1")
        nn.functional.mse_loss(made(mine(x)), mine(y)).backward()
        assert compressor.stats("0.weight").calls == 1


@case(2, 3)
def ddp_powersgd_hook() -> None:
    """Gradients of rank at most the number of ranks, approximated with that rank: the average, from fewer bytes."""
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 40), nn.Tanh(), nn.Linear(40, 48)).double()
    made = torch.Generator().manual_seed(5)
    wrapped = DDP(model)
    state = PowerSGDState(None, matrix_approximation_rank=size(), start_powerSGD_iter=2)
    wrapped.register_comm_hook(state, powerSGD_hook)
    for _ in range(5):
        x, y = torch.randn(2, size(), 48, generator=made).double()
        wanted = gradients(model, x, y)
        model.zero_grad()
        nn.functional.mse_loss(wrapped(mine(x)), mine(y)).backward()
        close([each.grad for each in model.parameters()], wanted, rtol=1e-5, atol=1e-8)
    _, before, after = state.compression_stats()
    assert after < before / 2
    alike(each.grad for each in model.parameters())
