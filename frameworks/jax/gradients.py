"""Derivatives.  Forward ones are the same call on tangents.  Reverse ones assume

- of reduce_scatter, allgather, alltoall, broadcast, reduce and sendrecv: each rank differentiates its own result, and
  what is wanted is the gradient of the sum of all ranks' results (`adjoint` of `CONTRACTS`);
- of allreduce: its result, which all ranks have, is used alike on all ranks, and counts once.  So the transpose of
  allreduce(x, "sum") is the identity, and that of this identity is the allreduce.  (mpi4jax's convention.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from hocket import Communicator
from hocket.errors import ArgumentError
from hocket.extending import ADJOINTS, REDUCING, PremulSum
from hocket.jax.primitives import PRIMITIVES, SEND

Transposed = Callable[..., Sequence[Any]]
"""(cotangents, comm, parameters): those of the arguments."""


def _factor(op: Any, comm: Communicator) -> float:
    """The factor of a linear op on each rank's contribution."""
    if isinstance(op, PremulSum):
        return op.factor
    return 1 / comm.size if op == "avg" else 1


def _times(factor: float, xs: Sequence[Any]) -> list[Any]:
    return [x if factor == 1 else (x * factor).astype(x.dtype) for x in xs]


def _of_allreduce(cts: Sequence[Any], comm: Communicator, op: Any) -> Sequence[Any]:
    found: Sequence[Any] = ADJOINT.bind(*cts, comm=comm, op=op)
    return found


def _by_adjoint(name: str) -> Transposed:
    """The derivative of a call that counts on each rank: its adjoint, times what the call multiplies with."""
    back = ADJOINTS[name]

    def transposed(cts: Sequence[Any], comm: Communicator, op: Any = "sum", **root: Any) -> Sequence[Any]:
        how = {"op": "sum", **root} if back in REDUCING else root
        return _times(_factor(op, comm), PRIMITIVES[back].bind(*cts, comm=comm, **how))

    return transposed


def _jvp(prim: Any, name: str, xs: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    op = params.get("op", "sum")
    if not (op in ("sum", "avg") or isinstance(op, PremulSum)):
        raise ArgumentError(f"{name} with op {op!r} has no derivative; use sum, avg or premul_sum")
    found = prim.bind(*xs, **params)
    live = [t for t in tangents if type(t) is not ad.Zero]
    moved = iter(prim.bind(*live, **params))
    return found, [
        ad.Zero(jax.typeof(y).to_tangent_aval()) if type(t) is ad.Zero else next(moved)
        for y, t in zip(found, tangents, strict=True)
    ]


def _transpose(rule: Transposed, cts: Sequence[Any], *xs: Any, **params: Any) -> list[Any]:
    live = [ct for ct in cts if type(ct) is not ad.Zero]
    moved = iter(rule(live, **params))
    return [
        ad.Zero(x.aval) if type(ct) is ad.Zero else next(moved) for ct, x in zip(cts, xs, strict=True)
    ]


def _of_sendrecv(cts: Sequence[Any], x: Any, *, dest: int, source: int, like: Any, **params: Any) -> Any:
    """Backward, along the message."""
    return PRIMITIVES["sendrecv"].bind(*cts, dest=source, source=dest, like=x.aval.shape, **params)


def _send(xs: Any, tangents: Any, **params: Any) -> Any:
    raise ArgumentError("send has no derivative: use sendrecv on all ranks, whose gradient travels backward")


for name, prim in PRIMITIVES.items():
    ad.primitive_jvps[prim] = functools.partial(_jvp, prim, name)
    if name in ADJOINTS:
        rule = _of_allreduce if name == "allreduce" else _by_adjoint(name)
        ad.primitive_transposes[prim] = functools.partial(_transpose, rule)
ad.primitive_transposes[PRIMITIVES["sendrecv"]] = _of_sendrecv
ad.primitive_jvps[SEND] = _send


def _adjoint() -> Any:
    """The transpose of allreduce, a primitive of its own as its own transpose is the allreduce.  Nothing is sent."""
    prim = Primitive("hocket_allreduce_adjoint")
    prim.multiple_results = True

    def bind(xs: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        return prim.bind(*xs, **params), prim.bind(*map(ad.instantiate_zeros, tangents), **params)

    def transpose(cts: Sequence[Any], *xs: Any, **params: Any) -> Sequence[Any]:
        found: Sequence[Any] = PRIMITIVES["allreduce"].bind(*map(ad.instantiate_zeros, cts), **params)
        return found

    def product(*xs: Any, comm: Communicator, op: Any) -> list[Any]:
        return _times(_factor(op, comm), xs)

    prim.def_impl(product)
    prim.def_abstract_eval(lambda *xs, **params: list(xs))
    mlir.register_lowering(prim, mlir.lower_fun(product, multiple_results=True))
    batching.primitive_batchers[prim] = lambda xs, dims, **params: (prim.bind(*xs, **params), dims)
    ad.primitive_jvps[prim] = bind
    ad.primitive_transposes[prim] = transpose
    return prim


ADJOINT = _adjoint()
