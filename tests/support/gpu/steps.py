"""Steps of training on a GPU's tensors beside the same on the CPU's, by the same ranks; all of it runs in the ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from hocket.compression import Bucket, Compressor, resolved
from hocket.system.cuda import driver
from hocket.torch.compressed.buckets import Buckets
from hocket.torch.compressed.rates import Rates
from hocket.training import Scheduler
from hocket.training.overlap.arrays import fit
from support.gpu.counted import counting
from support.gpu.counted_torch import CUDA, Stream, place, read
from support.gpu.tensors import stream

METHODS = ("int8", "topk:0.1", "powersgd:2", "dgc:0.1", "elias:4")
"""The last one works in host memory alone."""


TRIAL = {"waits": 99, "to_host": 999}
"""A communicator's first call on GPU arrays tries what the GPU can do."""


class Gradients(SimpleNamespace):
    """The bucket that DDP gives its hook."""

    def buffer(self) -> Any:
        return self.flat

    def parameters(self) -> Any:
        return self.of

    def index(self) -> int:
        return int(self.number)

    def is_last(self) -> bool:
        return self.number == 1


def drawn(rank: int, turn: int, number: int, count: int) -> Any:
    return np.random.default_rng([rank, turn, number]).standard_normal(count, np.float32)


def hooked(comm: Any) -> None:
    """`compress(ddp)`: two buckets of a backward pass, on a stream of the caller's, one of them once with a NaN."""
    net = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.Linear(30, 7))
    module = SimpleNamespace(module=net, find_unused_parameters=False)
    parameters = [*net.parameters()]
    several = parameters[2:], parameters[:2]
    names = {id(p): name for name, p in net.named_parameters()}
    for method in METHODS:
        apart = comm.dup()
        buckets = Buckets(module, Compressor(apart, method), Rates(None))
        host, near = Compressor(comm, method), method.startswith("powersgd")
        for turn in range(4):
            wanted, given, futures = [], [], []
            allowed = {} if method != "elias:4" else {"waits": 2, "to_host": 4 * 1500}
            allowed = allowed if turn else TRIAL
            with stream(Stream()), host.step():
                for number, of in enumerate(several):
                    x = drawn(comm.rank, turn, number, sum(p.numel() for p in of))
                    if turn == 2 and number == comm.rank == 1:
                        x[3] = np.nan
                    given.append(place(x))
                    wanted.append(x)
                with counting(**allowed):
                    for number, of in enumerate(several):
                        flat = given[number]
                        futures.append(buckets.average(Gradients(flat=flat, of=of, number=number)))
                    for future in futures:
                        future.wait()
                for x, of in zip(wanted, several, strict=True):
                    host.allreduce_all(Bucket.of(x, [tuple(p.shape) for p in of], [names[id(p)] for p in of]))
                got = [read(flat) for flat in given]
            for one, other in zip(got, wanted, strict=True):
                right = np.allclose(one, other, 1e-3, 1e-4, True) if near else np.array_equal(one, other, True)
                assert right, (method, turn, one, other)
        buckets._worker.close()
        apart.close()


def given_back(comm: Any) -> None:
    """Memory that a call in another stream gives back is the former stream's again: that waits for the call."""
    compressor, device = Compressor(comm, "topk:0.5"), driver.device(0)
    former, other, beside = Stream(), Stream(), Stream()
    x, word = place(np.ones(60, np.float32)), device.alloc(4096)
    device.clear(word, 4)
    for each in (former, other):
        with stream(each), compressor._calls(x):
            compressor.allreduce(x, "x")
            if each is other:
                device.wait_word(word, 1, other.cuda_stream)
    assert not device.is_done(former.cuda_stream)
    device.write_word(word, 1, beside.cuda_stream)
    device.settle()
    assert device.is_done(former.cuda_stream)
    device.free(word)


def scheduled(comm: Any) -> None:
    """`Scheduler(compressor=)`: tensors whose averages travel in threads, in whatever stream is current."""
    shapes = {"a": (40, 30), "b": (30,), "c": (7, 30)}
    for order, method in (("priority", "topk:0.1"), ("agreed", "int8")):
        apart = comm.dup(), comm.dup()
        how: dict[str, Any] = {"compressor": method, "order": order, "finite": False}
        here, there = (Scheduler(each, fuse=0, **how) for each in apart)  # else what is ready at once goes together
        if order != "agreed":
            for name, shape in shapes.items():
                here.declare(name, np.empty(shape, np.float32))
                there.declare(name, place(np.empty(shape, np.float32)))
        for turn in range(3):
            given = {
                name: drawn(comm.rank, turn, i, int(np.prod(shape))).reshape(shape)
                for i, (name, shape) in enumerate(shapes.items())
            }
            cuda = {name: place(x) for name, x in given.items()}
            with counting(**({} if turn else TRIAL)):
                for name in reversed(shapes):
                    there.ready(name, cuda[name])
                there.step()
                for name in shapes:
                    there.wait(name)
            for name in reversed(shapes):
                here.ready(name, given[name])
            here.step()
            for name in shapes:
                assert np.array_equal(here.wait(name), read(cuda[name])), (order, method, turn, name)
        for each in (here, there, *apart):
            each.close()
    said = fit("ready", "w", place(np.ones(3, np.float32)), resolved("adasum"))
    assert isinstance(said, str) and "take another" in said
    assert said.startswith(f"ready('w'): it is on {CUDA}, and 'adasum' works in host memory: ")
