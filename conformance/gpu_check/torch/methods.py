"""Methods of compression on CUDA tensors of two ranks: NumPy's results, no wait and no byte to the host, and the times.

On a GPU torch itself raises where something waits (`torch.cuda.set_sync_debug_mode`), and its profiler counts copies.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from hocket.compression import Compressor
from hocket.conformance.gpu_check.findings import Finding, Options, at_least, at_most, say
from hocket.conformance.gpu_check.torch import group
from hocket.conformance.gpu_check.torch.group import DEVICE, with_torch

METHODS: dict[str, float | None] = {
    "int8": 0.7, "fp8": 0.7, "sign": 0.7, "topk:0.01": 0.4, "powersgd:4": None, "doublesqueeze:int8": None,
    "dgc:0.01": None, "ef21:topk:0.01": None, "randomk:0.01": None,
}  # fmt: skip
"""By name, the part of the rate of a device copy that a call of one rank alone should reach."""
NEAR = ("powersgd",)
SHAPES = ((300, 70), (1000,), (64, 3, 3, 3))
SIDE = 4096
"""64 MiB of float32: a square."""
CALLS = 10


class TensorPlace:
    """Tensors on the GPU; or, to try this file, on the CPU."""

    def __init__(self) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.on_gpu = DEVICE == "cuda"

    def put(self, x: Any) -> Any:
        return self.torch.from_numpy(x.copy()).to(DEVICE)

    def settle(self) -> None:
        if self.on_gpu:
            self.torch.cuda.synchronize()

    def without_waits(self, call: Callable[[], object]) -> None:
        """RuntimeError where it waits for the GPU."""
        mode = self.torch.cuda.set_sync_debug_mode if self.on_gpu else lambda _: None
        mode("error")
        try:
            call()
        finally:
            mode("default")

    def copies(self, call: Callable[[], object]) -> int:
        """Copies to the host in a call."""
        if not self.on_gpu:
            return 0
        with self.torch.profiler.profile(activities=[self.torch.profiler.ProfilerActivity.CUDA]) as profile:
            call()
            self.settle()
        return sum("DtoH" in event.name for event in profile.events())

    def seconds(self, call: Callable[[], object], calls: int) -> float:
        call()
        self.settle()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        self.settle()
        return (time.perf_counter() - began) / calls


def right(comm: Any, place: TensorPlace, method: str) -> str:
    """Three steps beside NumPy's; why they differ, "": they do not."""
    host, there = Compressor(comm, method), Compressor(comm, method)
    keys = [str(i) for i in range(len(SHAPES))]
    for turn in range(3):
        dice = np.random.default_rng([comm.rank, turn])
        given = [dice.standard_normal(shape, np.float32) for shape in SHAPES]
        xs = [place.put(x) for x in given]
        call = partial(there.allreduce_all, xs, keys, lr=0.1 / (turn + 1))
        if turn:
            place.without_waits(call)
        else:
            call()  # tries what the GPU can do
        host.allreduce_all(given, keys, lr=0.1 / (turn + 1))
        for shape, x, want in zip(SHAPES, xs, given, strict=True):
            got, near = x.cpu().numpy(), method.startswith(NEAR)
            if not (np.allclose(got, want, 1e-3, 1e-4) if near else np.array_equal(got, want)):
                return f"step {turn}, {shape}: off by {np.abs(got - want).max():.3g}"
    return ""


def timed(comm: Any, place: TensorPlace, method: str, options: Options) -> Iterator[Finding]:
    side = 256 if options.quick or not place.on_gpu else SIDE
    host = np.random.default_rng(comm.rank).standard_normal((side, side), np.float32)
    x, there, beside = place.put(host), Compressor(comm, method), Compressor(comm, method)
    own = place.seconds(lambda: there.allreduce(x, "x"), CALLS)

    def through_the_host() -> None:
        beside.allreduce(x.cpu().numpy() if place.on_gpu else host, "x")
        x.copy_(place.put(host))

    other = place.seconds(through_the_host, 2)
    copies = place.copies(lambda: there.allreduce(x, "x"))
    note = "ratio: to the way through the host"
    yield Finding(f"{method}, {side * side * 4 >> 10} KiB", own * 1e3, "ms", ratio=own / other, note=note)
    yield at_most(f"{method}: copies to the host", copies, "", 0)


def alone(place: TensorPlace, method: str, target: float, options: Options) -> Finding:
    """Encoding, decoding and what is owed, without another rank, beside a device copy of as many bytes."""
    import hocket

    side = 256 if options.quick or not place.on_gpu else SIDE
    x = place.put(np.random.default_rng(1).standard_normal((side, side), np.float32))
    y = x.clone()
    copy = place.seconds(lambda: y.copy_(x), CALLS)
    with hocket.local_world(1) as world:  # its one rank is a thread, which reaches nobody
        took = world.run(lambda comm: _alone(comm, place, method, x))[0]
    return at_least(f"{method}, one rank: rate / that of a device copy", copy / took, "", target if place.on_gpu else 0)


def _alone(comm: Any, place: TensorPlace, method: str, x: Any) -> float:
    compressor = Compressor(comm, method)
    return place.seconds(lambda: compressor.allreduce(x, "x"), CALLS)


def ranks(comm: Any, options: Options) -> None:
    place = TensorPlace()
    for method, target in METHODS.items():
        ok = group.right(comm, f"{method}: as NumPy's, and nothing waits", partial(right, comm, place, method))
        for row in timed(comm, place, method, options) if ok else ():
            if comm.rank == 0:
                say(row)
        if comm.rank == 0 and target is not None and ok:
            say(alone(place, method, target, options))
        comm.barrier()


def methods(options: Options) -> Iterator[Finding]:
    yield from with_torch("methods of compression with torch", {"methods": ranks}, options, 110)
