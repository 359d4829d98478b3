"""Training on CUDA tensors of ranks that share a GPU: hocket's optimizer, compressed DDP, outer loops, FSDP2, and
collectives with a backward.  What optimizers learn is compared with what one process learns that sees all inputs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from hocket.conformance.gpu_check.findings import Finding, Options
from hocket.conformance.gpu_check.torch.group import DEVICE, default_group, right, with_torch

WIDTH, ROWS, STEPS, RATE = 256, 16, 6, 0.01


class Task:
    """A model, and the inputs of every rank."""

    def __init__(self, rank: int, size: int) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.rank, self.size = rank, size

    def model(self) -> Any:
        nn = self.torch.nn
        self.torch.manual_seed(3)
        layers = [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, 8)]
        return nn.Sequential(*layers).to(DEVICE)

    def loss(self, model: Any, step: int, rank: int) -> Any:
        dice = self.torch.Generator().manual_seed(1000 * step + rank)
        x = self.torch.randn(ROWS, WIDTH, generator=dice).to(DEVICE)
        return (model(x) - x[:, :8]).square().mean()

    def sgd(self, model: Any) -> Any:
        return self.torch.optim.SGD(model.parameters(), RATE, momentum=0.9)

    def alone(self) -> Any:
        """The weights that one process learns from the averages of all ranks' losses."""
        model = self.model()
        optimizer = self.sgd(model)
        for step in range(STEPS):
            optimizer.zero_grad()
            (sum(self.loss(model, step, r) for r in range(self.size)) / self.size).backward()
            optimizer.step()
        return model

    def learned(self, model: Any, optimizer: Any, of: Any = None) -> Any:
        """`model`, or `of`, which is inside it, after all steps on this rank's inputs."""
        for step in range(STEPS):
            optimizer.zero_grad()
            self.loss(model, step, self.rank).backward()
            optimizer.step()
        getattr(optimizer, "finish", lambda: None)()
        return of or model

    def near(self, model: Any, within: float) -> str:
        """Why it is not what one process learns; "": it is.  `within`: in parts of what that has learned."""
        far = moved = 0.0
        for own, other, start in zip(*(each.parameters() for each in (model, self.alone(), self.model())), strict=True):
            far += float((own.detach() - other.detach()).square().sum())
            moved += float((other.detach() - start.detach()).square().sum())
        ratio = (far / moved) ** 0.5
        return "" if ratio <= within else f"off by {ratio:.3g} of what was learned, allowed is {within:g}"


def optimizer(task: Task, within: float = 1e-3, named: bool = False, **options: Any) -> str:
    hocket_torch: Any = importlib.import_module("hocket.torch")
    model = task.model()
    given = model.named_parameters() if named else model
    made = hocket_torch.DistributedOptimizer(task.sgd(model), given, barrier=named, **options)
    return task.near(task.learned(model, made), within)


def compressed(task: Task, method: str, within: float) -> str:
    hocket_torch: Any = importlib.import_module("hocket.torch")
    model = task.torch.nn.parallel.DistributedDataParallel(task.model())
    hocket_torch.compress(model, method)
    return task.near(task.learned(model, task.sgd(model), model.module), within)


def outer(task: Task, kind: str, **options: Any) -> str:
    """A round in each second step: ranks end with equal parameters, and have learned."""
    training: Any = importlib.import_module("hocket.training")
    added: Any = importlib.import_module("hocket.torch.training")
    model = task.model()
    loop = getattr(training, kind)(added.communicator(), added.parameters(model), every=2, **options)
    inner = task.sgd(model)
    before = float(task.loss(model, 0, task.rank).detach())
    for step in range(STEPS):
        inner.zero_grad()
        task.loss(model, step, task.rank).backward()
        inner.step()
        loop.step()
    loop.finish()
    after = float(task.loss(model, 0, task.rank).detach())
    return _equal(task, model) or ("" if after < before else f"the loss went from {before:.4f} to {after:.4f}")


def _equal(task: Task, model: Any) -> str:
    dist: Any = importlib.import_module("torch.distributed")
    own = task.torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()
    others = [task.torch.zeros_like(own) for _ in range(task.size)]
    dist.all_gather(others, own)
    return "" if all(bool((other == own).all()) for other in others) else "ranks have other parameters"


def functions(task: Task) -> str:
    """Collectives with a backward give, on CUDA tensors, what they give on those of the host."""
    found: Any = importlib.import_module("hocket.torch.functions")
    added: Any = importlib.import_module("hocket.torch.training")
    torch, comm, size = task.torch, added.communicator(), task.size
    after, before = (task.rank + 1) % size, (task.rank - 1) % size
    counts = [r + 1 for r in range(size)]
    calls: dict[str, Callable[[Any], Any]] = {
        "allreduce": lambda x: found.allreduce(x, comm, "avg"), "summed": lambda x: found.summed(x, comm),
        "shared": lambda x: found.shared(x, comm), "reduce_scatter": lambda x: found.reduce_scatter(x, comm),
        "reduce_scatter, counts": lambda x: found.reduce_scatter(x[: sum(counts)], comm, counts=counts),
        "allgather": lambda x: found.allgather(x, comm),
        "allgather, counts": lambda x: found.allgather(x[: task.rank + 1], comm, counts=counts),
        "reduce": lambda x: found.reduce(x, 0, comm), "broadcast": lambda x: found.broadcast(x, size - 1, comm),
        "alltoall": lambda x: found.alltoall(x, comm), "sendrecv": lambda x: found.sendrecv(x, after, x, before, comm),
    }  # fmt: skip
    wrong = []
    for name, call in calls.items():
        results = []
        for device in ("cpu", DEVICE):
            x = (torch.arange(24.0).reshape(8, 3) + task.rank).to(device).requires_grad_(True)
            y = call(x)
            (y * y).sum().backward()
            results.append((y.detach().cpu(), x.grad.cpu()))
        if not all(torch.equal(a, b) for a, b in zip(*results, strict=True)):
            wrong.append(name)
    return ", ".join(wrong)


def fsdp(task: Task) -> str:
    """torch's FSDP2."""
    sharded: Any = importlib.import_module("torch.distributed.fsdp")
    mesh: Any = importlib.import_module("torch.distributed.device_mesh")
    model = task.model()
    devices = mesh.init_device_mesh(DEVICE, (task.size,))
    for layer in (model[0], model[2], model):
        sharded.fully_shard(layer, mesh=devices)
    task.learned(model, task.sgd(model))
    whole = task.model()
    with task.torch.no_grad():
        for own, part in zip(whole.parameters(), model.parameters(), strict=True):
            own.copy_(part.full_tensor())
    return task.near(whole, 1e-3)


def messages(task: Task) -> str:
    dist: Any = importlib.import_module("torch.distributed")
    x, y = (task.torch.full((1000,), float(task.rank + i), device=DEVICE) for i in (0, 7))
    after, before = (task.rank + 1) % task.size, (task.rank - 1) % task.size
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, after), dist.P2POp(dist.irecv, y, before)]):
        work.wait()
    return "" if bool((y == before).all()) else f"received {y[0]}, not {before}"


CASES: dict[str, dict[str, Callable[[Task], str]]] = {
    "hocket's optimizer": {
        "its parameters by name": partial(optimizer, named=True),
        "its model": optimizer,
        "slices of 4 KiB, two lanes": partial(optimizer, slice=4096, lanes=2, fuse=1024),
        "order agreed": partial(optimizer, order="agreed"),
        "order tic": partial(optimizer, order="tic"),
        "int8": partial(optimizer, within=0.05, codec="int8"),
    },
    "DDP, compressed": {
        "int8": partial(compressed, method="int8", within=0.05),
        "int4": partial(compressed, method="int4", within=0.4),
        "powersgd:4": partial(compressed, method="powersgd:4", within=0.9),
        "topk:0.1": partial(compressed, method="topk:0.1", within=0.95),
    },
    "outer loops": {
        "LocalSGD": partial(outer, kind="LocalSGD"),
        "DiLoCo, int8": partial(outer, kind="DiLoCo", send="int8", momentum=0.5),
        "StreamingDiLoCo": partial(outer, kind="StreamingDiLoCo", fragments=2, delay=0, momentum=0.5),
    },
    "torch": {"collectives with a backward": functions, "FSDP2": fsdp, "messages": messages},
}
"""By group, a job each, and name: what says why it is wrong; "": it is right."""


def ranks(comm: Any, options: Options, group: str) -> None:
    with default_group(comm):
        for name, check in CASES[group].items():
            right(comm, f"{group}: {name}", partial(check, Task(comm.rank, comm.size)))


def training(options: Options) -> Iterator[Finding]:
    yield from with_torch("training with torch", {group: partial(ranks, group=group) for group in CASES}, options, 45)
