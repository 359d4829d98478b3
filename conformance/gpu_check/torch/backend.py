"""torch.distributed with hocket as its backend, on CUDA tensors of ranks that share a GPU: the order of streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hocket.conformance.gpu_check.findings import Finding, Options, say
from hocket.conformance.gpu_check.torch.group import default_group, right, with_torch

COUNT = 3_000_001
LATE = 20_000_000
"""Clock cycles by which values come late: some ten milliseconds, far longer than a call."""
STEPS = 5


def backend(options: Options) -> Iterator[Finding]:
    yield from with_torch("hocket under torch.distributed", {"torch.distributed": ranks}, options, 60)


def ranks(comm: Any, options: Options) -> None:
    with default_group(comm) as (torch, dist):
        for name, check in CHECKS.items():
            right(comm, name, lambda: "" if check(torch, dist, comm.rank, comm.size) else "another value")  # noqa: B023
        kept = torch.ones(COUNT, device="cuda")
        dist.all_reduce(kept, async_op=True).wait()
        if comm.rank == 0:
            gpus = dist.group.WORLD.comm.gpus
            say(Finding("they go from GPU to GPU", "yes" if gpus.why_staged == "" else "no",
                    note=gpus.why_staged or "", ok=gpus.why_staged == ""))  # fmt: skip
    del kept  # the allocator asks for the stream that it was used in
    torch.cuda.synchronize()


def _late(torch: Any, value: float) -> Any:
    """Zeros, until what is in the current stream has been done."""
    x = torch.zeros(COUNT, device="cuda")
    torch.cuda.synchronize()
    torch.cuda._sleep(LATE)
    return x.fill_(value)


def _is(x: Any, value: float) -> bool:
    """Does the current stream find this value there?"""
    return bool((x == value).all().item())


def _total(size: int) -> float:
    return sum(range(1, size + 1))


def blocking(torch: Any, dist: Any, rank: int, size: int) -> bool:
    with torch.cuda.stream(torch.cuda.Stream()):
        x = _late(torch, rank + 1)
        dist.all_reduce(x)
        return _is(x, _total(size))


def waited_elsewhere(torch: Any, dist: Any, rank: int, size: int) -> bool:
    x = _late(torch, rank + 1)
    work = dist.all_reduce(x, async_op=True)
    right = []
    for _ in range(2):
        with torch.cuda.stream(torch.cuda.Stream()):
            work.wait()
            right.append(_is(x, _total(size)))
    return all(right)


def by_a_future(torch: Any, dist: Any, rank: int, size: int) -> bool:
    x = _late(torch, rank + 1)
    half = dist.all_reduce(x, async_op=True).get_future().then(lambda done: [each / 2 for each in done.value()])
    return _is(half.wait()[0], _total(size) / 2)


def looked_for(torch: Any, dist: Any, rank: int, size: int) -> bool:
    x = _late(torch, rank + 1)
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        pass
    with torch.cuda.stream(torch.cuda.Stream()):  # follows nothing
        return _is(x, _total(size))


def lists(torch: Any, dist: Any, rank: int, size: int) -> bool:
    x = _late(torch, rank + 1)
    parts = [torch.zeros_like(x) for _ in range(size)]
    work = dist.all_gather(parts, x, async_op=True)
    del x  # the allocator must not give it to others yet
    junk = [torch.full((COUNT,), -1.0, device="cuda") for _ in range(4)]
    work.wait()
    return all(_is(part, r + 1) for r, part in enumerate(parts)) and len(junk) == 4


def ddp(torch: Any, dist: Any, rank: int, size: int) -> bool:
    """The gradients of a model on all ranks are those of one process that sees all their inputs."""
    def made() -> Any:
        torch.manual_seed(3)
        layers = [torch.nn.Linear(512, 512) for _ in range(4)]
        return torch.nn.Sequential(*layers).cuda()

    alone, model = made(), torch.nn.parallel.DistributedDataParallel(made(), bucket_cap_mb=1)
    for step in range(STEPS):
        xs = [torch.full((8, 512), 0.01 * (r + 1) * (step + 1), device="cuda") for r in range(size)]
        for each in (alone, model):
            each.zero_grad()
        model(xs[rank]).square().sum().backward()
        (sum(alone(x).square().sum() for x in xs) / size).backward()
        pairs = zip(model.module.parameters(), alone.parameters(), strict=True)
        if not all(torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-6) for a, b in pairs):
            return False
    return True


CHECKS: dict[str, Callable[[Any, Any, int, int], bool]] = {
    "all_reduce in a stream that is late": blocking,
    "async_op, waited for in two other streams": waited_elsewhere,
    "a future, and what then makes of it": by_a_future,
    "is_completed when the GPU has done it": looked_for,
    "all_gather into a list, its input dropped at once": lists,
    "the gradients of DDP": ddp,
}
