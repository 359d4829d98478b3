"""The calls as primitives of JAX: their shapes, how each runs on NumPy arrays, and their batching.

A primitive takes any number of arrays and makes the same call for each; a tree of arrays is one equation, and one call
of XLA's.  Gradients are in gradients.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax._src import core
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir, xla

from hocket import Communicator
from hocket.errors import ArgumentError
from hocket.jax import order, running

Shape = tuple[int, ...]
Step = Callable[[Any, Any], object]
"""One call: the NumPy array to read, the one to write."""


class CollectiveRule(NamedTuple):
    """A collective: what its parameters (beside `comm`) make of it."""

    shape: Callable[..., Shape]
    """(shape, comm, parameters): the result's shape."""
    step: Callable[..., Step]
    """(comm, parameters): how one array is carried out."""
    rows: bool = True
    """Does axis 0 count ranks' rows?  If not, elements are all alike."""


def _same(shape: Shape, comm: Communicator, **params: Any) -> Shape:
    return shape


def _gathered(shape: Shape, comm: Communicator) -> Shape:
    return (shape[0] * comm.size, *shape[1:])


def _scattered(shape: Shape, comm: Communicator, op: Any) -> Shape:
    return (shape[0] // comm.size, *shape[1:])


def _broadcast(comm: Communicator, root: int) -> Step:
    def step(x: Any, y: Any) -> None:
        if comm.rank == root:
            comm.broadcast(x, root)
            y[...] = x
        else:
            comm.broadcast(y, root)

    return step


def _reduce(comm: Communicator, op: Any, root: int) -> Step:
    def step(x: Any, y: Any) -> None:
        if comm.rank == root:
            comm.reduce(x, root, op, y)
        else:
            comm.reduce(x, root, op)
            y[...] = 0

    return step


KINDS = {
    "allreduce": CollectiveRule(_same, lambda comm, op: lambda x, y: comm.allreduce(x, op, y), rows=False),
    "reduce": CollectiveRule(_same, _reduce, rows=False),
    "broadcast": CollectiveRule(_same, _broadcast, rows=False),
    "reduce_scatter": CollectiveRule(_scattered, lambda comm, op: lambda x, y: comm.reduce_scatter(x, op, y)),
    "allgather": CollectiveRule(_gathered, lambda comm: lambda x, y: comm.allgather(x, y)),
    "alltoall": CollectiveRule(_same, lambda comm: lambda x, y: comm.alltoall(x, y)),
    "sendrecv": CollectiveRule(
        lambda shape, comm, like, **params: like,
        lambda comm, dest, source, tag, like: lambda x, y: comm.sendrecv(x, dest, y, source, tag),
    ),
}


def _ordered(prim: Any, rule: Callable[..., Sequence[Any]], run: Callable[..., Callable[..., object]]) -> Any:
    """Give a primitive its shapes (`rule`) and its call (`run`: comm and parameters to a function of arrays)."""

    def text(comm: Communicator, **params: Any) -> str:
        said = ", ".join(f"{key}={value}" for key, value in sorted(params.items()))
        return running.add(comm, f"{prim.name}({said})", run(comm, **params))

    prim.multiple_results = True
    prim.def_impl(functools.partial(xla.apply_primitive, prim))
    prim.def_effectful_abstract_eval(lambda *xs, **params: (rule(*xs, **params), {order.ORDERED}))
    mlir.register_lowering(prim, order.lowering(running.TARGET, text), platform="cpu")
    return prim


def _collective(name: str, kind: CollectiveRule) -> Any:
    def shapes(*xs: Any, comm: Communicator, **params: Any) -> list[Any]:
        return [core.ShapedArray(kind.shape(x.shape, comm, **params), x.dtype) for x in xs]

    def run(comm: Communicator, **params: Any) -> Callable[..., None]:
        step = kind.step(comm, **params)

        def together(xs: Sequence[Any], ys: Sequence[Any]) -> None:
            """One call for all: ranks wait for each other once, and small arrays go as one message."""
            for x, y in zip(xs, ys, strict=True):
                np.copyto(y, x)
            comm.allreduce(list(ys), params["op"])

        def each(xs: Sequence[Any], ys: Sequence[Any]) -> None:
            for x, y in zip(xs, ys, strict=True):
                step(x, y)

        return lambda xs, ys: together(xs, ys) if name == "allreduce" and len(xs) > 1 else each(xs, ys)

    prim = _ordered(Primitive(f"hocket_{name}"), shapes, run)

    def batch(xs: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        """The batch goes to the last axis where axis 0 counts rows."""
        if not kind.rows:
            return prim.bind(*xs, **params), dims
        moved = [x if d is None else jnp.moveaxis(x, d, -1) for x, d in zip(xs, dims, strict=True)]
        if "like" in params:
            params["like"] = (*params["like"], moved[0].shape[-1])
        found = prim.bind(*moved, **params)
        return found, [d if d is None else y.ndim - 1 for d, y in zip(dims, found, strict=True)]

    batching.primitive_batchers[prim] = batch
    return prim


PRIMITIVES = {name: _collective(name, kind) for name, kind in KINDS.items()}
SEND = _ordered(
    Primitive("hocket_send"),
    lambda x, **params: [],
    lambda comm, dest, tag: lambda xs, ys: comm.send(xs[0], dest, tag),
)
RECV = _ordered(
    Primitive("hocket_recv"),
    lambda like, dtype, **params: [core.ShapedArray(like, dtype)],
    lambda comm, source, tag, like, dtype: lambda xs, ys: comm.recv(ys[0], source, tag),
)
BARRIER = _ordered(Primitive("hocket_barrier"), lambda **params: [], lambda comm: lambda xs, ys: comm.barrier())


def _send_batched(xs: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
    raise ArgumentError("send has no vmap, as recv cannot know of it: send the whole batch, or use sendrecv everywhere")


batching.primitive_batchers[SEND] = _send_batched
