"""What rank 0 has ordered, carried out on torch tensors: in the thread of the process set, on its communicator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy
import torch
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from hocket import Communicator
from hocket.compression import AdaSum, Compressor
from hocket.compression.sparse.coo import allreduce_coo
from hocket.horovod.agreeing.order import Order
from hocket.horovod.agreeing.request import AUTO, Request
from hocket.horovod.pending import Pending
from hocket.horovod.torch.tensors import Tensor, Tensors, flat, row_unit, scaled_

_flatten: Any = _flatten_dense_tensors
_unflatten: Any = _unflatten_dense_tensors
METHOD = "method:"
"""How the codec of a request begins that names a method with state."""


class Performer:
    """The tensors' part of one process set.  It keeps what methods of compression remember."""

    def __init__(self) -> None:
        self._memories: dict[str, _Memory] = {}
        """By method."""
        self._ways: dict[str, Callable[..., list[Any]]] = {
            "allgather": _allgather, "broadcast": _broadcast, "alltoall": _alltoall, "reducescatter": _reducescatter,
            "sparse_allreduce": _sparse_allreduce,
        }  # fmt: skip

    @torch.no_grad()
    def __call__(self, comm: Communicator, order: Order, mine: list[Pending | None]) -> list[Any]:
        """The results, one for each name of the order."""
        requests = order.like or tuple(each.request for each in mine if each is not None)
        kind = requests[0].kind
        if kind == "barrier":
            return [None] * len(mine)
        payloads: list[Tensors | None] = [None if each is None else each.payload for each in mine]
        there = [each for each in payloads if each is not None]
        for each in there:
            if each.event is not None:
                each.event.synchronize()
        if kind == "allreduce":
            results = self._allreduce(comm, requests, payloads)
        else:
            assert there, "ranks that have joined take part in allreduces only"
            results = [there[0].result(self._ways[kind](comm, requests[0], there[0], order.counts))]
        if any(each.event is not None for each in there):
            torch.cuda.current_stream().synchronize()
        return results

    # --- allreduce

    def _allreduce(
        self, comm: Communicator, requests: Sequence[Request], payloads: Sequence[Tensors | None]
    ) -> list[Any]:
        model = requests[0]
        outputs, flats, rates = [], [], list[float | None]()
        for request, payload in zip(requests, payloads, strict=True):
            made = _zeros(request) if payload is None else payload
            outputs.append(made.outputs)
            flats += list(zip(made.inputs, made.outputs, strict=True))
            rates += made.rates or [None] * len(made.inputs)
        keys = [f"{request.name}.{i}" for request in requests for i in range(len(request.parts))]
        if model.codec.startswith(METHOD) or model.op == "adasum":
            self._by_method(comm, model, flats, keys, rates)
        else:
            for dtype in dict.fromkeys(x.dtype for x, _ in flats):
                self._dense(comm, model, [pair for pair in flats if pair[0].dtype == dtype])
        return [None if p is None else p.result(made) for p, made in zip(payloads, outputs, strict=True)]

    def _dense(self, comm: Communicator, model: Request, pairs: Sequence[tuple[Tensor, Any]]) -> None:
        """Tensors of one dtype, in one call."""
        codec = model.codec or None
        if len(pairs) == 1:
            x, out = pairs[0]
            if x is not out:
                out.copy_(x)
            whole = out.detach()
            scaled_(whole, model.prescale)
            if whole.numel():
                comm.allreduce(whole, model.op, codec=codec)
            scaled_(whole, model.postscale)
            return
        outs = [out for _, out in pairs]
        whole = _flatten([x for x, _ in pairs])  # one call in C++ for all of them, as is the next
        scaled_(whole, model.prescale)
        if whole.numel():
            comm.allreduce(whole, model.op, codec=codec)
        scaled_(whole, model.postscale)
        torch._foreach_copy_(outs, _unflatten(whole, outs))

    def _by_method(
        self, comm: Communicator, model: Request, pairs: Sequence[tuple[Tensor, Any]], keys: list[str],
        rates: list[float | None],
    ) -> None:  # fmt: skip
        """With state, or by AdaSum: vectors of float32 on the host."""
        vectors = [x.detach().to("cpu", torch.float32, copy=True).reshape(-1) for x, _ in pairs]
        for each in vectors:
            scaled_(each, model.prescale)
        if model.op == "adasum":
            for each in vectors:
                if each.numel():
                    result = numpy.empty(each.numel(), numpy.float32)
                    AdaSum().average(comm, each.numpy(), result, {}, 0)
                    each.copy_(torch.from_numpy(result))
        else:
            shapes = [tuple(x.shape) for x, _ in pairs]
            self._memory(comm, model.codec).allreduce(vectors, keys, shapes, model.op, rates)
        for each, (_, out) in zip(vectors, pairs, strict=True):
            scaled_(each, model.postscale)
            out.copy_(each.view(out.shape))

    def _memory(self, comm: Communicator, codec: str) -> _Memory:
        found = self._memories.get(codec)
        if found is None:
            found = self._memories[codec] = _Memory(Compressor(comm, codec.removeprefix(METHOD)))
        return found


class _Memory:
    """What a method has not sent, by the names of the tensors."""

    def __init__(self, compressor: Compressor) -> None:
        self.compressor = compressor
        self.shapes: dict[str, tuple[int, ...]] = {}

    def allreduce(
        self, vectors: Sequence[Tensor], keys: Sequence[str], shapes: Sequence[tuple[int, ...]], op: str,
        rates: Sequence[float | None],
    ) -> None:  # fmt: skip
        """Of a name that has another shape than before nothing is added: it is another tensor.

        A name that was made for one call is forgotten at once, as no later tensor has it.
        """
        for key, shape in zip(keys, shapes, strict=True):
            if self.shapes.setdefault(key, shape) != shape:
                self.compressor.forget(key)
                self.shapes[key] = shape
        self.compressor.allreduce_all(vectors, keys, op, rates)
        for key in keys:
            if AUTO in key:
                self.compressor.forget(key)
                del self.shapes[key]


def _zeros(request: Request) -> Tensors:
    """What a rank that has joined brings."""
    made = [torch.zeros(part.shape, dtype=getattr(torch, part.dtype)) for part in request.parts]
    return Tensors(made, list(made), True)


# --- the others, each of one request


def _allgather(comm: Communicator, request: Request, of: Tensors, counts: Sequence[Any]) -> list[Tensor]:
    made = []
    for x, rows in zip(of.inputs, counts, strict=True):
        out = x.new_empty((sum(rows), *x.shape[1:]))
        if out.numel():
            lengths = [n * row_unit(x) for n in rows]
            _into(out, partial(comm.allgatherv, flat(x), lengths))
        made.append(out)
    return made


def _broadcast(comm: Communicator, request: Request, of: Tensors, counts: Sequence[Any]) -> list[Any]:
    for x, out in zip(of.inputs, of.outputs, strict=True):
        assert out is not None
        if x is not out and comm.rank == request.root:
            out.copy_(x)
        if out.numel():
            _into(out, lambda room: comm.broadcast(room, request.root))
    return of.outputs


def _alltoall(comm: Communicator, request: Request, of: Tensors, counts: Sequence[Any]) -> list[Any]:
    x, me = of.inputs[0], comm.rank
    send, recv = list(counts[me]), [splits[me] for splits in counts]
    out = x.new_empty((sum(recv), *x.shape[1:]))
    step = row_unit(x) if len(x.shape) > 1 or x.numel() else row_unit(x.new_empty(1))
    if step and any(map(any, counts)):
        _into(out, lambda room: comm.alltoallv(flat(x), [n * step for n in send], [n * step for n in recv], room))
    return [(out, recv)]


def _reducescatter(comm: Communicator, request: Request, of: Tensors, counts: Sequence[Any]) -> list[Tensor]:
    made = []
    for x in of.inputs:
        rows = shares(x.shape[0], comm.size)
        out = x.new_empty((rows[comm.rank], *x.shape[1:]))
        if x.numel():
            whole = x.detach().contiguous().clone()
            scaled_(whole, request.prescale)
            step = row_unit(x)
            comm.reduce_scatterv(whole.reshape(-1), [n * step for n in rows], request.op, out.reshape(-1))
            scaled_(out, request.postscale)
        made.append(out)
    return made


def _sparse_allreduce(comm: Communicator, request: Request, of: Tensors, counts: Sequence[Any]) -> list[Tensor]:
    return [allreduce_coo(comm, x, request.op) for x in of.inputs]


def shares(rows: int, size: int) -> list[int]:
    """Of so many rows, how many each rank gets: the first ones one more.

    >>> shares(5, 3)
    [2, 2, 1]
    """
    return [rows // size + (rank < rows % size) for rank in range(size)]


def _into(out: Tensor, call: Callable[[Tensor], Any]) -> None:
    """`call` writes into the flat memory of `out`, or into a copy that `out` becomes."""
    room = flat(out)
    call(room)
    if room.data_ptr() != out.data_ptr():
        out.detach().copy_((room if room.dtype == out.dtype else room.view(out.dtype)).view(out.shape))
