"""Rank 0's orders, carried out on torch tensors: in the thread of the process set, on its communicator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy
import torch
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from hocket import Communicator
from hocket.compression import AdaSum, Bucket, Compressor
from hocket.compression.sparse.coo import allreduce_coo
from hocket.horovod.basics import shares
from hocket.horovod.torch.tensors import Tensor, Tensors, flat, row_unit, scaled_
from hocket.training.agreeing import AUTO, Order, Pending, Request

_flatten: Any = _flatten_dense_tensors
_unflatten: Any = _unflatten_dense_tensors
METHOD = "method:"
"""The codec of a request begins so where it names a method with state."""


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
                _dense(comm, model, [pair for pair in flats if pair[0].dtype == dtype])
        return [None if p is None else p.result(made) for p, made in zip(payloads, outputs, strict=True)]

    def _by_method(
        self, comm: Communicator, model: Request, pairs: Sequence[tuple[Tensor, Any]], keys: list[str],
        rates: list[float | None],
    ) -> None:  # fmt: skip
        """With state, or by AdaSum: vectors of float32 on the host."""
        if not pairs:
            return
        fused = _fused([x.detach().to("cpu", torch.float32) for x, _ in pairs])
        scaled_(fused.flat, model.prescale)
        if model.op == "adasum":
            for each in fused.parts:
                if each.numel():
                    result = numpy.empty(each.numel(), numpy.float32)
                    AdaSum().average(comm, each.numpy().reshape(-1), result, {}, 0)
                    each.copy_(torch.from_numpy(result).view(each.shape))
        else:
            bucket = Bucket.of(fused.flat.numpy(), [x.shape for x in fused.parts], keys)
            self._memory(comm, model.codec).allreduce(bucket, model.op, rates)
        scaled_(fused.flat, model.postscale)
        for part, (_, out) in zip(fused.parts, pairs, strict=True):
            out.copy_(part)

    def _memory(self, comm: Communicator, codec: str) -> _Memory:
        found = self._memories.get(codec)
        if found is None:
            found = self._memories[codec] = _Memory(Compressor(comm, codec.removeprefix(METHOD)))
        return found


class _Memory:
    """The unsent parts of a method, by the names of the tensors."""

    def __init__(self, compressor: Compressor) -> None:
        self.compressor = compressor
        self.shapes: dict[str, tuple[int, ...]] = {}

    def allreduce(self, bucket: Bucket, op: str, rates: Sequence[float | None]) -> None:
        """Add nothing owed where a name has another shape than before: it is another tensor.

        A name that was made for one call is forgotten at once, as no later tensor has it.
        """
        for key, part in zip(bucket.keys, bucket.parts, strict=True):
            shape = part.shape
            if self.shapes.setdefault(key, shape) != shape:
                self.compressor.forget(key)
                self.shapes[key] = shape
        self.compressor.allreduce_all(bucket, op=op, lr=rates)
        for key in bucket.keys:
            if AUTO in key:
                self.compressor.forget(key)
                del self.shapes[key]


def _dense(comm: Communicator, model: Request, pairs: Sequence[tuple[Tensor, Any]]) -> None:
    """Tensors of one dtype, in one call."""
    outs = [out for _, out in pairs]
    if len(pairs) == 1 and pairs[0][0] is not outs[0]:
        outs[0].copy_(pairs[0][0])
    bucket = _fused([x for x, _ in pairs]) if len(pairs) > 1 else Bucket(outs[0].detach(), outs)
    scaled_(bucket.flat, model.prescale)
    if bucket.flat.numel():
        comm.allreduce(bucket.flat, model.op, codec=model.codec or None)
    scaled_(bucket.flat, model.postscale)
    if len(pairs) > 1:
        torch._foreach_copy_(outs, bucket.parts)


def _fused(tensors: Sequence[Tensor]) -> Bucket:
    """A copy of them.  One call in C++ for all, as `Bucket.of` is one for each."""
    flat = _flatten(tensors) if len(tensors) > 1 else tensors[0].reshape(-1).clone()
    return Bucket(flat, list(_unflatten(flat, tensors)))


def _zeros(request: Request) -> Tensors:
    """The tensors of a rank that has joined: zeros."""
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


def _into(out: Tensor, call: Callable[[Tensor], Any]) -> None:
    """`call` writes into the flat memory of `out`, or into a copy that `out` becomes."""
    room = flat(out)
    call(room)
    if room.data_ptr() != out.data_ptr():
        out.detach().copy_((room if room.dtype == out.dtype else room.view(out.dtype)).view(out.shape))
