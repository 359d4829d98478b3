"""Calls for users, inside jax.jit or outside.  All ranks call it, with the same shapes and dtypes.

Arguments are arrays or numbers, and where it says `tree` any tree of them, of which all together are one call.  `comm`
is a communicator of hocket's, by default that of `hocket.jax.init` or `hocket.init`.  It is fixed when the program is
traced, as are op, root, dest, source and tag.  Results are new arrays.  In costs, n and p are those of hocket's calls.

Raises ArgumentError while it is traced (dtype, shape, op or rank are wrong), on this rank.  What goes wrong when the
program runs is jax.errors.JaxRuntimeError, on all ranks, with hocket's text; `hocket.jax.cause` gives hocket's error.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hocket
from hocket import Communicator
from hocket.arguments import kind, rank_in, whole
from hocket.errors import ArgumentError
from hocket.extending import Op, PremulSum, check_op
from hocket.jax import gradients as gradients  # which makes them known
from hocket.jax.primitives import BARRIER, PRIMITIVES, RECV, SEND
from hocket.jax.running import DTYPES


def allreduce(tree: Any, op: Op = "sum", *, comm: Communicator | None = None) -> Any:
    """Combine all ranks' arrays; every rank gets the result.  op: sum, avg, prod, min, max, band, ..., premul_sum(f).

    Gradient, for sum, avg and premul_sum: the result counts once, so for sum the cotangents are passed on as they are.
    Where ranks use the result differently, write allgather(reduce_scatter(x)), whose gradient adds them up.

    >>> import jax, jax.numpy as jnp, hocket.jax
    >>> comm = hocket.jax.init()
    >>> jax.jit(hocket.jax.allreduce)({"w": jnp.ones(2)})
    {'w': Array([1., 1.], dtype=float32)}
    """
    return _each("allreduce", tree, comm, op=op)


def reduce(tree: Any, root: int = 0, op: Op = "sum", *, comm: Communicator | None = None) -> Any:
    """Combine all ranks' arrays; the root gets the result, the others zeros.  Its gradient is broadcast."""
    return _each("reduce", tree, comm, op=op, root=root)


def broadcast(tree: Any, root: int = 0, *, comm: Communicator | None = None) -> Any:
    """The root's arrays, on all ranks; the others give arrays of that shape.  Its gradient is reduce."""
    return _each("broadcast", tree, comm, root=root)


def reduce_scatter(tree: Any, op: Op = "sum", *, comm: Communicator | None = None) -> Any:
    """Combine all ranks' arrays of size * m rows; rank r gets rows r*m .. (r+1)*m.  Its gradient is allgather."""
    return _each("reduce_scatter", tree, comm, op=op)


def allgather(tree: Any, *, comm: Communicator | None = None) -> Any:
    """Concatenate all ranks' rows on axis 0, in rank order; numbers become an array.  Its gradient: reduce_scatter."""
    return _each("allgather", tree, comm)


def alltoall(tree: Any, *, comm: Communicator | None = None) -> Any:
    """Send rows d*m .. (d+1)*m to rank d; the result holds the rows from each rank in order.  Its own gradient."""
    return _each("alltoall", tree, comm)


def sendrecv(
    x: Any, dest: int, like: Any, source: int, tag: int = 0, *, comm: Communicator | None = None
) -> jax.Array:
    """Send x to `dest` and return what `source` sends here.  The gradient travels back.

    `like`: an array, or a jax.ShapeDtypeStruct, of the shape that comes; its dtype is x's.
    """
    comm = _communicator(comm)
    x = _array(x, "x")
    shape, dtype = _shape_of(like)
    if dtype != x.dtype:
        raise ArgumentError(f"like has dtype {dtype}, x has {x.dtype}; they must be the same")
    found = PRIMITIVES["sendrecv"].bind(
        _with_rows(x), comm=comm, dest=_rank(comm, dest, "dest"), source=_rank(comm, source, "source"),
        tag=whole(tag, "tag"), like=shape or (1,),
    )  # fmt: skip
    return jnp.reshape(found[0], shape)


def send(x: Any, dest: int, tag: int = 0, *, comm: Communicator | None = None) -> None:
    """Send x to `dest`, whose `recv` takes it.  No gradient, no vmap."""
    comm = _communicator(comm)
    SEND.bind(_array(x, "x"), comm=comm, dest=_rank(comm, dest, "dest"), tag=whole(tag, "tag"))


def recv(like: Any, source: int, tag: int = 0, *, comm: Communicator | None = None) -> jax.Array:
    """Return what `source` sent here.  `like`: an array, or a jax.ShapeDtypeStruct, of its shape and dtype."""
    comm = _communicator(comm)
    shape, dtype = _shape_of(like)
    found: jax.Array = RECV.bind(
        comm=comm, source=_rank(comm, source, "source"), tag=whole(tag, "tag"), like=shape, dtype=dtype
    )[0]
    return found


def barrier(*, comm: Communicator | None = None) -> None:
    """Wait until all ranks have come here, in the order of hocket's calls.  Computations are not ordered by it."""
    BARRIER.bind(comm=_communicator(comm))


def _each(name: str, tree: Any, comm: Communicator | None, **params: Any) -> Any:
    comm = _communicator(comm)
    leaves, form = jax.tree.flatten(tree)
    xs = [_array(leaf, f"the argument of {name}") for leaf in leaves]
    if "root" in params:
        params["root"] = _rank(comm, params["root"], "root")
    if "op" in params:
        _check_op(params["op"], xs)
    if name in ("allgather", "reduce_scatter", "alltoall"):
        xs = [_with_rows(x) for x in xs]
    if name in ("reduce_scatter", "alltoall"):
        _check_rows(name, xs, comm)
    return jax.tree.unflatten(form, PRIMITIVES[name].bind(*xs, comm=comm, **params) if xs else [])


def _communicator(comm: Any) -> Communicator:
    if comm is None:
        return hocket.communicator()
    if not isinstance(comm, Communicator):
        raise ArgumentError(f"comm is {kind(comm)}: pass a hocket communicator")
    return comm


def _array(x: Any, what: str) -> jax.Array:
    try:
        found = jnp.asarray(x)
    except TypeError:
        raise ArgumentError(f"{what} is {kind(x)}, which JAX cannot make an array of") from None
    _check_dtype(found.dtype, what)
    return found


def _check_dtype(dtype: Any, what: str) -> None:
    if dtype not in DTYPES:
        known = ", ".join(sorted(str(each) for each in DTYPES))
        raise ArgumentError(f"{what} has dtype {dtype}; known: {known} (keys: jax.random.key_data)")


def _with_rows(x: jax.Array) -> jax.Array:
    return x if x.ndim else jnp.reshape(x, (1,))


def _shape_of(like: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    shaped = like if isinstance(like, jax.ShapeDtypeStruct) else _array(like, "like")
    _check_dtype(shaped.dtype, "like")
    return tuple(shaped.shape), np.dtype(shaped.dtype)


def _rank(comm: Communicator, value: Any, what: str) -> int:
    return rank_in(comm.size, value, what)


def _check_op(op: Op, xs: list[jax.Array]) -> None:
    """Ops by name, and premul_sum: what a compiled program can hold."""
    if not isinstance(op, str | PremulSum):
        raise ArgumentError(
            f"op is {kind(op)}: in JAX it must be a name (sum, prod, min, max, avg, ...) or premul_sum(f)"
        )
    for x in xs:
        check_op(op, np.dtype(x.dtype))


def _check_rows(name: str, xs: list[jax.Array], comm: Communicator) -> None:
    for x in xs:
        if x.shape[0] % comm.size:
            raise ArgumentError(f"{name} of shape {x.shape}: the rows of axis 0 must be a multiple of {comm.size}")
