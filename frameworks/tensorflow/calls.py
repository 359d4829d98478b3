"""Calls for users, in tf.function or outside.  All ranks call them, with the same shapes and dtypes.

Arguments are tensors, variables, arrays or numbers, or trees of them, whose parts are one call; IndexedSlices become
dense.  `comm` is a communicator of hocket's, by default that of `hocket.init`, fixed when a function is traced, as are
op and root.  Results are new tensors.  In tf.function each call is one stateful tf.py_function, so calls keep the order
of the program; XLA (`jit_compile=True`) has no such function, and refuses it.  Calls run on the CPU.

Errors are hocket's; out of a tf.function they come as tf.errors.UnknownError, with hocket's text: `cause` finds them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import hocket
from hocket import Communicator
from hocket.arguments import kind, rank_in
from hocket.errors import ArgumentError
from hocket.extending import Op, pass_over
from hocket.tensorflow.arrays import Array, ArrayPool, handed, read
from hocket.tensorflow.causes import kept

Run = Callable[[Sequence[Any]], list[Array]]
"""From eager tensors to arrays of the results."""
_pools: weakref.WeakKeyDictionary[Communicator, ArrayPool] = weakref.WeakKeyDictionary()

pass_over(__file__)


def allreduce(tree: Any, op: Op = "sum", *, comm: Communicator | None = None, codec: str | None = None) -> Any:
    """Combine all ranks' tensors; every rank gets the result.  op: sum, avg, prod, min, max.  `codec`: for float32.

    Gradient, for avg and sum: the same call on the gradients.

    >>> import tensorflow as tf, hocket.tensorflow
    >>> comm = hocket.init()
    >>> hocket.tensorflow.allreduce({"w": tf.ones(2)})["w"].numpy()
    array([1., 1.], dtype=float32)
    """
    comm = communicator(comm)
    pool = pool_of(comm)

    def run(tensors: Sequence[Any]) -> list[Array]:
        arrays = pool.copies(tensors)
        coded = [each for each in arrays if codec is not None and each.dtype == np.float32]
        for each in coded:
            comm.allreduce(each, op, codec=codec)
        rest = arrays if not coded else [each for each in arrays if each.dtype != np.float32]
        if rest:
            comm.allreduce(rest, op)
        return arrays

    def back(*gradients: Any) -> Any:
        if op not in ("avg", "sum"):
            raise ArgumentError(f"allreduce with op {op!r} has no derivative; use avg or sum")
        return allreduce(list(gradients), op, comm=comm, codec=codec)

    return _each(tree, run, back)


def broadcast(tree: Any, root: int = 0, *, comm: Communicator | None = None) -> Any:
    """The root's tensors, on all ranks; the others give tensors of that shape.  Gradient: the sum, at the root."""
    comm = communicator(comm)
    pool, root = pool_of(comm), rank_in(comm.size, root, "root")

    def run(tensors: Sequence[Any]) -> list[Array]:
        arrays = pool.copies(tensors)
        comm.broadcast(arrays, root)
        return arrays

    def back(*gradients: Any) -> Any:
        sums = allreduce(list(gradients), "sum", comm=comm)
        return sums if comm.rank == root else [tf.zeros_like(each) for each in sums]

    return _each(tree, run, back)


def allgather(tree: Any, *, comm: Communicator | None = None) -> Any:
    """Concatenate all ranks' rows on axis 0, in rank order; ranks may have other numbers of rows.

    Gradient: the sum, of which each rank gets its own rows.
    """
    comm = communicator(comm)

    def run(tensors: Sequence[Any]) -> list[Array]:
        return gathered(tensors, comm)

    def back(*gradients: Any) -> Any:
        sums = allreduce(list(gradients), "sum", comm=comm)
        rows = [tf.shape(tf.convert_to_tensor(each))[:1] for each in tf.nest.flatten(tree)]
        before = [tf.reduce_sum(each[: comm.rank]) for each in allgather(rows, comm=comm)]
        return [each[start : start + n[0]] for each, start, n in zip(sums, before, rows, strict=True)]

    return _each(tree, run, back, rows=True)


def gathered(tensors: Sequence[Any], comm: Communicator) -> list[Array]:
    """All ranks' rows of each of these eager tensors."""
    arrays = [read(each) for each in tensors]
    if any(not each.ndim for each in arrays):
        raise ArgumentError("allgather: a tensor without dimensions has no rows; pass tf.reshape(x, [1])")
    counts = comm.allgather(np.array([len(each) for each in arrays], np.int64)).reshape(comm.size, -1)
    return [comm.allgatherv(each, counts[:, i].tolist()) for i, each in enumerate(arrays)]


def pool_of(comm: Communicator) -> ArrayPool:
    """The arrays of this communicator's results."""
    return _pools.setdefault(comm, ArrayPool(comm))


def communicator(comm: Any) -> Communicator:
    """`comm`, or that of hocket.init."""
    if comm is None:
        return hocket.communicator()
    if not isinstance(comm, Communicator):
        raise ArgumentError(f"comm is {kind(comm)}: pass a hocket communicator")
    return comm


def carried(tensors: list[Any], run: Run, results: list[Any]) -> list[Any]:
    """run(eager tensors) as tensors: at once, or when the graph runs, in the order of the program.

    `results`: the dtype and shape of each (tf.TensorSpec); lengths that a rank cannot know are None.
    """

    @kept
    def call(*eager: Any) -> list[Any]:
        return [handed(each) for each in run(eager)]

    if not tensors:
        return []
    found: list[Any]
    if tf.executing_eagerly():
        found = call(*tensors)
        return found
    if not hasattr(tf.compat.v1.get_default_graph(), "captures"):  # of a tf.function, which keeps the order
        raise ArgumentError("a graph of TensorFlow 1 runs calls in any order: call hocket in a tf.function, or eagerly")
    with tf.device("CPU:0"):
        found = list(tf.py_function(call, tensors, [each.dtype for each in results]))
    for made, spec in zip(found, results, strict=True):
        made.set_shape(spec.shape)
    return found


def _each(tree: Any, run: Run, back: Callable[..., Any], rows: bool = False) -> Any:
    """`carried` for the leaves of a tree, with the derivative `back`."""
    leaves = [tf.convert_to_tensor(each) for each in tf.nest.flatten(tree)]

    @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow is not looked at
    def call(*tensors: Any) -> Any:
        shapes = [each.shape if not rows else [None, *each.shape[1:]] for each in tensors]
        specs = [tf.TensorSpec(shape, each.dtype) for shape, each in zip(shapes, tensors, strict=True)]
        return carried(list(tensors), run, specs), back

    return tf.nest.pack_sequence_as(tree, tf.nest.flatten(call(*leaves))) if leaves else tree
