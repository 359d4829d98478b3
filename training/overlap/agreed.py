"""The policy of programs that declare nothing: rank 0 hears what each rank has ready, and tells all what is next.

Tensors meet by name (training/agreeing).  A step ends as a join does: a rank that has called `step` brings zeros to
what the others still send, until all have called it; only then does its next step begin.

No deadlock.  All ranks carry out one list of orders, and rank 0 orders a tensor when all have it, or have ended the
step.  A `ready` waits for the other ranks' `step`, which waits for averages of earlier steps alone.

Source: Sergeev, Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow", arXiv 1802.05799.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket import Communicator
from hocket.arguments import choices
from hocket.compression import Bucket, Compressor
from hocket.compression.memory import alike, dtype_of, put
from hocket.errors import ArgumentError, Error, TimeoutError
from hocket.extending import InOrder
from hocket.training.agreeing import Order, Pending, Request, Spec, Submitter
from hocket.training.overlap.arrays import ITEMSIZES, fit, line, one_memory, seen, zeros
from hocket.training.overlap.carrier import restore
from hocket.training.overlap.dealing import Tensor
from hocket.training.overlap.gradient import EARLY, LATE, Gradient, Timing, naming
from hocket.training.overlap.settings import Settings, agree

FUSED = 4 << 20
"""`fuse="auto"`: bytes."""
CYCLE = 1e-3
"""Seconds in which tensors that are ready are collected, unless somebody waits for one."""
LEAVING = 5.0
"""Seconds that a rank which closes its scheduler waits for the others."""


class Agreed:
    """Each method is `Scheduler`'s of this name."""

    def __init__(self, comm: Any, settings: Settings) -> None:
        self.comm, self.settings = comm, settings
        self._lock = threading.Condition()
        self._gradients: dict[str, Gradient] = {}
        self._pending: dict[str, Pending] = {}
        """The last submission of each."""
        self._likes: dict[str, Any] = {}
        """By dtype, an array of it."""
        self._member: Submitter | None = None
        self._compressor: Compressor | None = None
        self._loaded: Sequence[Any] = ()
        self._made, self._done = InOrder("a Scheduler"), InOrder("a Scheduler")
        """Where gradients were made ready, and where averages come: by whatever thread."""
        self._step: Pending | None = None
        """The end of the last step on all ranks."""

    def declare(self, name: str, like: Any) -> None:
        with self._lock:
            self._noted(name, like, "declare")

    def seal(self) -> None:
        with self._lock:
            self._seal()

    def _seal(self) -> Submitter:
        if self._member is None:
            agree(self.comm, self.settings, [])
            comm = self.comm.dup()
            if self.settings.method is not None:
                self._compressor = Compressor(comm, self.settings.method)
                restore([self._compressor], self._loaded)
            fuse = FUSED if self.settings.fuse is None else self.settings.fuse
            self._member = Submitter(comm, self._perform, fuse, CYCLE)
        return self._member

    def ready(self, name: str, grad: Any, earlier: Sequence[Any] = ()) -> None:
        """No `earlier` ones: settings.py refuses more passes than one."""
        with self._lock:
            member, gradient = self._seal(), self._noted(name, grad, "ready")
            if wrong := gradient.untaken(grad):
                raise self._ended(ArgumentError(wrong))
            self._settle()
            request = Request("allreduce", name, (Spec(dtype_of(grad), tuple(grad.shape)),), "avg")
            self._made.mark(grad)
            try:
                self._pending[name] = member.submit(request, grad)
            except Error as error:
                raise naming(error, name) from error
            gradient.take(grad, own=True)
            self._lock.notify_all()

    def step(self) -> list[str]:
        with self._lock:
            member = self._seal()
            self._settle()
            late = [gradient for gradient in self._gradients.values() if not gradient.fresh]
            for gradient in late:
                if gradient.owed:
                    raise self._ended(ArgumentError(f"step(): {gradient.owed}"))
                gradient.take(None, own=False)
            for gradient in self._gradients.values():
                gradient.fresh = False
            self._step = member.join()
            member.flush()
            self._lock.notify_all()
        return [gradient.tensor.name for gradient in late]

    def wait(self, name: str, timeout: float | None) -> Any:
        began = time.perf_counter()
        until = began + (self.comm.config.timeout if timeout is None else timeout)
        try:
            gradient = self._submitted(name, timeout, until)
            waited = self._pending[name] if gradient.own else self._step
            assert waited is not None
            if not waited.over(max(0.0, until - time.perf_counter())):
                raise TimeoutError(LATE)
            waited.wait()
        except Error as error:
            raise naming(error, name) from error
        with self._lock:
            result = gradient.array
            self._done.follow(result)
            gradient.waited(began, time.perf_counter())
        return result

    def report(self) -> list[Timing]:
        with self._lock:
            return [gradient.timing() for gradient in self._gradients.values()]

    def state(self) -> list[Any]:
        """The vectors that this rank's compressor owes, when the last step has ended."""
        with self._lock:
            self._settle()
            return [*self._loaded] if self._compressor is None else [self._compressor.state_dict()]

    def load(self, states: list[Any]) -> None:
        """Go on from `state`; before `seal`, too."""
        with self._lock:
            self._settle()
            self._loaded = states
            if self._compressor is not None:
                restore([self._compressor], states)

    def close(self) -> None:
        if self._member is not None:
            self._member.stop(LEAVING, "the scheduler was closed")
            self._member.comm.close()  # else a GPU's memory that others may map stays until the process ends

    # --- the tensors

    def _noted(self, name: str, array: Any, call: str) -> Gradient:
        tensor = fit(call, name, array, self.settings.method)
        if isinstance(tensor, str):
            raise self._ended(ArgumentError(tensor))
        self._likes[tensor.dtype] = array
        return self._named(tensor)

    def _named(self, tensor: Tensor) -> Gradient:
        gradient = self._gradients.setdefault(tensor.name, Gradient(tensor))
        gradient.tensor = tensor  # it may have another shape in each step
        return gradient

    def _settle(self) -> None:
        """Let the last step end on all ranks: what is ready for the next one must not meet what they still send."""
        if self._step is not None:
            self._step.wait()

    def _submitted(self, name: str, timeout: float | None, until: float) -> Gradient:
        """The tensor, when it is ready or left out; another thread may make it ready, within a `timeout`."""
        with self._lock:
            if name not in self._gradients and self._step is not None:
                self._settle()  # only others may have it
            while True:
                gradient = self._gradients.get(name)
                if gradient is not None and gradient.due:
                    return gradient
                if timeout is None:
                    known = f"; {choices(name, self._gradients)}" if gradient is None else ""
                    raise self._ended(ArgumentError(EARLY.format(name) + known))
                if not self._lock.wait(until - time.perf_counter()):
                    raise TimeoutError(f"wait({name!r}): it is not ready on this rank")

    # --- carrying out

    def _perform(self, comm: Communicator, order: Order, mine: list[Pending | None]) -> list[Any]:
        """Average the tensors of one order, in one call."""
        requests = order.like or tuple(each.request for each in mine if each is not None)
        if requests[0].kind != "allreduce":
            return [None] * len(mine)
        now = time.perf_counter()
        arrays = [self._zeros(r) if each is None else each.payload for r, each in zip(requests, mine, strict=True)]
        self._made.follow(arrays[0])
        counts = [int(np.prod(request.parts[0].shape, dtype=np.int64)) for request in requests]
        flat = line(arrays[0]) if len(arrays) == 1 else alike(arrays[0], sum(counts))
        bucket = Bucket.of(flat, [(n,) for n in counts], order.names)
        if len(arrays) > 1:
            for part, array in zip(bucket.parts, arrays, strict=True):
                put(part, array.reshape(-1))
        if sum(counts):
            self._average(comm, bucket, requests)
        for part, array in zip(bucket.parts, arrays, strict=True):
            if len(arrays) > 1 or not one_memory(array):
                put(array, part.reshape(tuple(array.shape)))
        for request, each, array, n in zip(requests, mine, arrays, counts, strict=True):
            if each is None:
                dtype = request.parts[0].dtype
                gradient = self._named(Tensor(request.name, n, dtype, ITEMSIZES[dtype]))
                gradient.array, gradient.due = array, True
            self._gradients[request.name].times[1] = now
        self._done.mark(arrays[0])
        return [None] * len(mine)

    def _average(self, comm: Communicator, bucket: Bucket, requests: Sequence[Request]) -> None:
        single = dtype_of(bucket.flat) == "float32"
        if self._compressor is not None and single:
            shapes = [request.parts[0].shape for request in requests]
            self._compressor.allreduce_all(Bucket.of(seen(bucket.flat), shapes, bucket.keys))
        else:
            order = "exact" if self.settings.passes else "any"
            comm.allreduce(bucket.flat, "avg", codec=self.settings.codec if single else None, order=order)

    def _zeros(self, request: Request) -> Any:
        """Zeros from this rank, which has left it out."""
        part = request.parts[0]
        count = int(np.prod(part.shape, dtype=np.int64))
        return zeros(part.dtype, count, self._likes.get(part.dtype)).reshape(part.shape)

    def _ended(self, error: Error) -> Error:
        """This rank fails: so do all others."""
        if self._member is None:
            self.comm.abort(error)
        else:
            self._member.give_up(error)
        return error
