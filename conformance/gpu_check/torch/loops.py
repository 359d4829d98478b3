"""Training above the methods on CUDA tensors of two ranks: as on NumPy's arrays; copies to the host; and the times.

A case makes a program of two places, for NumPy's arrays or for tensors on the GPU, whose step is called again and
again.  Its results are compared, and torch's profiler counts what one step copies to the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hocket.conformance.gpu_check.findings import Finding, Options, at_most, say
from hocket.conformance.gpu_check.torch import group
from hocket.conformance.gpu_check.torch.group import with_torch
from hocket.conformance.gpu_check.torch.methods import CALLS, SIDE, TensorPlace
from hocket.training import (
    Adam,
    ColumnParallel,
    Delayed,
    DiLoCo,
    Experts,
    Flat,
    Pipeline,
    RowParallel,
    Scheduler,
    Sharded,
)

SMALL, STEPS = 64, 3
Put = Callable[[Any], Any]


class Program(NamedTuple):
    """A program on one rank."""

    step: Callable[[], object]
    results: Callable[[], list[Any]]


def drawn(comm: Any, side: int, *seed: int) -> Any:
    return np.random.default_rng([*seed]).standard_normal((side, side), np.float32)


def outer(comm: Any, put: Put, side: int, keep: str = "gpu") -> Program:
    theta = {"w": put(drawn(comm, side, 1))}
    loop, change = DiLoCo(comm, Flat(theta, keep), every=1, momentum=0.5), put(drawn(comm, side, 2, comm.rank))

    def step() -> None:
        theta["w"] -= change
        loop.step()

    return Program(step, lambda: [theta["w"]])


def sharded(comm: Any, put: Put, side: int, stage: int, keep: str = "gpu", **how: Any) -> Program:
    w, gradient = {"w": put(drawn(comm, side, 1))}, put(drawn(comm, side, 2, comm.rank))
    made = Sharded(Adam(0.1), comm, Flat(w, keep), stage=stage, **how)
    return Program(lambda: made.step({"w": gradient}), lambda: [made.w])


def delayed(comm: Any, put: Put, side: int) -> Program:
    w, gradient = {"w": put(drawn(comm, side, 1))}, put(drawn(comm, side, 2, comm.rank))
    made = Delayed(Scheduler(comm.dup(), finite=False), w, 0.1, momentum=0.9)
    return Program(lambda: made.step({"w": gradient}), lambda: [w["w"]])


def layers(comm: Any, put: Put, side: int) -> Program:
    columns = ColumnParallel(put(drawn(comm, side, 1)), None, comm)
    rows, x = RowParallel(put(drawn(comm, side, 2)), None, comm), put(drawn(comm, side, 3)[:16])
    found: list[Any] = []

    def step() -> None:
        h, kept = columns.forward(x)
        y, more = rows.forward(h)
        found[:] = [y, columns.backward(rows.backward(y, more), kept)]

    return Program(step, lambda: found)


class Scaled:
    """An expert, and a stage: x times a number."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def forward(self, x: Any) -> tuple[Any, Any]:
        return x * self.factor, None

    def backward(self, dy: Any, kept: Any) -> Any:
        return dy * self.factor


def experts(comm: Any, put: Put, side: int) -> Program:
    made = Experts(comm, [Scaled(2.0), Scaled(0.5)], top=2)
    x, chances = put(drawn(comm, side, 1, comm.rank)), np.abs(drawn(comm, side, 2, comm.rank))
    gates = put(chances[:, : made.count].copy())
    found: list[Any] = []

    def step() -> None:
        y, kept = made.forward(x, gates)
        found[:] = [y, *made.backward(y, kept)]

    return Program(step, lambda: found)


def pipeline(comm: Any, put: Put, side: int) -> Program:
    x = put(drawn(comm, side, 1))
    found: list[Any] = []
    pipe = Pipeline(Scaled(0.5 + comm.rank), comm, x[: side // 4], micro=4)

    def step() -> None:
        found[:] = [pipe.step(x if pipe.first else None, lambda y, micro: ((y * y).sum(), 2 * y))]

    return Program(step, lambda: [each for each in found if each is not None])


class LoopCheck(NamedTuple):
    """`copies`: to the host, of one step at most; `host`: the same through host memory."""

    make: Callable[..., Program]
    copies: int
    host: Callable[..., Program] | None = None


CASES = {
    "DiLoCo": LoopCheck(outer, 2, partial(outer, keep="host")),
    "Sharded, stage 1": LoopCheck(partial(sharded, stage=1), 0, partial(sharded, stage=1, keep="host")),
    "Sharded, stage 2, clipped": LoopCheck(partial(sharded, stage=2, clip=1.0), 2),
    "Sharded, stage 3": LoopCheck(partial(sharded, stage=3), 0),
    "Delayed": LoopCheck(delayed, 0),
    "columns and rows": LoopCheck(layers, 0),
    "experts": LoopCheck(experts, 1),
    "a pipeline's messages": LoopCheck(pipeline, 0),
}


def putting(place: TensorPlace) -> Put:
    """To the GPU; or, to try this file, a copy."""
    return place.put if place.on_gpu else np.copy


def right(comm: Any, place: TensorPlace, case: LoopCheck) -> str:
    """Some steps beside NumPy's; why they differ, "": they do not."""
    host, there = case.make(comm.dup(), np.copy, SMALL), case.make(comm, putting(place), SMALL)
    for _ in range(STEPS):
        host.step()
        there.step()
    for want, got in zip(host.results(), there.results(), strict=True):
        found = got.cpu().numpy() if hasattr(got, "cpu") else got
        if not np.allclose(found, want, 1e-3, 1e-4):
            return f"off by {np.abs(found - want).max():.3g}"
    return ""


def timed(comm: Any, place: TensorPlace, name: str, case: LoopCheck, options: Options) -> Iterator[Finding]:
    side = 256 if options.quick or not place.on_gpu else SIDE
    put = putting(place)
    there = case.make(comm.dup(), put, side)
    own, copies = place.seconds(there.step, CALLS), place.copies(there.step)
    other = None if case.host is None else place.seconds(case.host(comm.dup(), put, side).step, 2)
    note = "" if other is None else 'ratio: to keep="host"'
    yield Finding(f"{name}, {side * side * 4 >> 10} KiB", own * 1e3, "ms", ratio=other and own / other, note=note)
    yield at_most(f"{name}: copies to the host", copies, "", case.copies)


def ranks(comm: Any, options: Options) -> None:
    place = TensorPlace()
    comm.allreduce(putting(place)(np.ones(1, np.float32)))  # tries what the GPU can do
    for name, case in CASES.items():
        ok = group.right(comm, f"{name}: as NumPy's", partial(right, comm, place, case))
        for row in timed(comm, place, name, case, options) if ok else ():
            if comm.rank == 0:
                say(row)
        comm.barrier()


def loops(options: Options) -> Iterator[Finding]:
    yield from with_torch("training above the methods with torch", {"training above the methods": ranks}, options, 110)
