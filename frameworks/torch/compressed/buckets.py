"""DDP's buckets, averaged by a `Compressor`: those of a backward pass count together, or not at all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from hocket.errors import ArgumentError
from hocket.torch.calls.works import ErrorValue, unpacked
from hocket.torch.compressed.copies import HostCopy, InPlace
from hocket.training.worker import Worker

if TYPE_CHECKING:
    from hocket.compression import Bucket, Compressor, Step
    from hocket.compression.entries import Rate
    from hocket.torch.compressed.rates import Rates


def checked(module: Any) -> Any:
    """`module`, a DistributedDataParallel, if a Compressor can average its gradients."""
    for name, p in module.module.named_parameters():
        if p.requires_grad and (p.dtype != torch.float32 or p.device.type not in ("cpu", "cuda")):
            got = f"{p.dtype} on {p.device}"
            raise ArgumentError(f"compress takes parameters of torch.float32 on CPUs and GPUs, but {name!r} is {got}")
    for name, part in module.module.named_modules():
        if isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and part.sparse:
            raise ArgumentError(
                f"compress takes dense gradients, but those of {name or type(part).__name__!r} are sparse: "
                "make it with sparse=False; the method 'nonzero' sends only what a batch has touched"
            )
    return module


class Request(NamedTuple):
    """A backward pass's wish for an average."""

    bucket: Bucket
    """The parameters' gradients, by the parameters' names."""
    rates: list[Rate]
    used: np.ndarray[Any, Any] | None
    """1 where the parameter has got a gradient on this rank; None: all have."""
    whole: torch.Tensor
    """The same as DDP has it."""
    place: InPlace | None
    """Between `whole`, on a GPU, and `bucket`."""
    first: bool
    last: bool
    done: Any


class Buckets:
    """Averages buckets in a thread, in the order that all ranks have.  What DDP waits for comes with the last one."""

    def __init__(self, module: Any, compressor: Compressor, rates: Rates) -> None:
        self._compressor, self._rates = compressor, rates
        self._rate: Callable[[Any], Rate]
        self._names = {id(p): name for name, p in module.module.named_parameters()}
        there = [p for p in module.module.parameters() if p.requires_grad]
        self._used = Used(there) if module.find_unused_parameters else None
        self._worker = Worker("hocket-compress")
        self._stream: Any = None
        """The thread's, on a GPU: methods compute in it, and what they keep is used in its order."""
        self._step: Step | None = None
        self._waiting: list[Request] = []
        self._error: Exception | None = None

    def average(self, bucket: Any) -> Any:
        """DDP's hook.  Returns the future of the bucket."""
        from hocket.compression import Bucket

        whole, parameters = bucket.buffer(), bucket.parameters()
        if whole.dtype != torch.float32 or whole.is_sparse:
            got = "sparse" if whole.is_sparse else f"{whole.dtype}"
            raise ArgumentError(f"compress takes dense gradients of torch.float32, but those of a bucket are {got}")
        names = [self._names[id(p)] for p in parameters]
        if bucket.index() == 0:
            self._rate = self._rates.read()  # once for all buckets of a backward pass
        place = self._placed(whole.detach()) if whole.is_cuda else None
        seen = whole.detach().numpy() if place is None else place.seen
        done: torch.futures.Future[Any] = torch.futures.Future(devices=[whole.device] if place else None)
        self._worker.submit(self._average, Request(
            Bucket.of(seen, [tuple(p.shape) for p in parameters], names), [*map(self._rate, parameters)],
            None if self._used is None else self._used.take(parameters),
            whole, place, bucket.index() == 0, bucket.is_last(), done,
        ))  # fmt: skip
        return done.then(unpacked)  # an error that a callback raises is one for C++, too

    def _placed(self, whole: torch.Tensor) -> InPlace:
        """Where it is, or in host memory, if the method works there alone."""
        if self._stream is None:
            cuda: Any = torch.cuda
            self._stream = cuda.Stream(whole.device)
        return (HostCopy if self._compressor.method.host else InPlace)(whole, self._stream)

    def _average(self, request: Request) -> None:
        try:
            if request.first:
                self._begin()
            if self._error is None:
                self._send(request)
        except Exception as error:
            self._error = error
        self._waiting.append(request)
        if self._error is not None or request.last:
            for each in self._waiting:
                self._finish(each)
            self._waiting = []

    def _finish(self, request: Request) -> None:
        """End a request.  Its future's event is of the stream that is current then."""
        if self._error is not None:
            request.done.set_result(ErrorValue(self._error))
        elif request.place is None:
            request.done.set_result(request.whole)
        else:
            request.place.back()
            with request.place.stream():
                request.done.set_result(request.whole)

    def _begin(self) -> None:
        """A backward pass begins.  One that did not come to its end is forgotten."""
        if self._step is not None:
            self._step.drop()
        self._waiting, self._error = [], None
        try:
            self._step = self._compressor.step()
        except ArgumentError:
            raise ArgumentError(
                "a backward pass is a step of the Compressor by itself, but another step is open: call backward() "
                "outside `with compressor.step():`, and end() every other step before"
            ) from None

    def _send(self, request: Request) -> None:
        if request.place is None:
            self._sent(request)
            return
        request.place.arrived()
        with request.place.stream():
            self._sent(request)

    def _sent(self, request: Request) -> None:
        bucket = request.bucket
        used = [True] if request.used is None else self._compressor.comm.allreduce(request.used, "max").tolist()
        if all(used):
            self._compressor.allreduce_all(bucket, lr=request.rates)
        else:  # DDP drops what comes for a parameter that no rank has used
            some = (list(itertools.compress(each, used)) for each in (bucket.parts, bucket.keys, request.rates))
            parts, keys, rates = some
            self._compressor.allreduce_all(parts, keys, lr=rates)
        if request.last and self._step is not None:
            self._step.end()


class Used:
    """Which parameters have got a gradient since their bucket was sent, as DDP counts them to find the unused ones."""

    def __init__(self, parameters: Iterable[Any]) -> None:
        self._used: set[int] = set()
        self._nodes = []
        for p in parameters:
            with torch.enable_grad():
                node = p.view_as(p).grad_fn.next_functions[0][0]  # it adds to p.grad, before DDP looks
            node.register_prehook(partial(self._mark, p))
            self._nodes.append(node)

    def _mark(self, p: Any, gradients: Sequence[Any]) -> None:
        if gradients[0] is not None or p.grad is not None:
            self._used.add(id(p))

    def take(self, parameters: Sequence[Any]) -> np.ndarray[Any, Any]:
        """1 for each parameter that has got a gradient.  They are forgotten then."""
        found = np.array([id(p) in self._used for p in parameters], np.uint8)
        self._used.difference_update(map(id, parameters))
        return found
