"""Collectives that move rows: alltoall, reducescatter, several allgathers.  In tf.function or outside, with gradients.

A process set is a communicator of hocket's, so all its ranks, and no others, make its calls in one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import hocket.tensorflow
from hocket import Communicator
from hocket.errors import ArgumentError, MismatchError
from hocket.horovod.basics import OPS, Average, Sum, shares
from hocket.horovod.exceptions import in_horovods_words
from hocket.horovod.process_sets import ProcessSet, global_process_set
from hocket.horovod.tensorflow.basics import of_set
from hocket.horovod.tensorflow.compression import Compression
from hocket.tensorflow.arrays import Array, read
from hocket.tensorflow.calls import carried, pool_of


@in_horovods_words()
def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:  # fmt: skip
    """All ranks' rows of each of these tensors, as one call."""
    comm = of_set(process_set)
    return [slanted(each, 1 / comm.size) for each in hocket.tensorflow.allgather(list(tensors), comm=comm)]


@in_horovods_words()
def alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """splits[r] rows go to rank r of the process set; the rows for this rank come back, in rank order.

    Without splits equal parts go, and the rows alone are returned; else (rows, how many came from each rank).
    Gradient: the rows go back.  Cost: the counts are exchanged first, a call of 8 bytes for each rank.
    """
    comm = of_set(process_set)
    given = tf.zeros([0], tf.int32) if splits is None else tf.convert_to_tensor(splits)
    if not given.dtype.is_integer:
        raise ArgumentError(f"hvd.alltoall: splits must be integers, not {given.dtype.name}")
    found, received = _exchange(tf.convert_to_tensor(tensor), given, comm)
    return found if splits is None else (found, received)


def _exchange(x: Any, splits: Any, comm: Communicator) -> Any:
    def run(tensors: Sequence[Any]) -> list[Array]:
        rows, send = read(tensors[0]), read(tensors[1])
        counts, wrong = _counts(send.tolist(), len(rows) if rows.ndim else 0, comm.size)
        every = comm.allgather(np.array(counts, np.int64)).reshape(comm.size, -1)
        if wrong:
            raise ArgumentError(wrong)
        if (every < 0).any():
            raise MismatchError(f"hvd.alltoall: rank {int(every.min(1).argmin())} has splits that it cannot send")
        come = every[:, comm.rank]
        return [comm.alltoallv(rows[: sum(counts)], counts, come.tolist()), come.astype(send.dtype)]

    @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow is not looked at
    def call(x: Any, splits: Any) -> Any:
        specs = [tf.TensorSpec([None, *x.shape[1:]], x.dtype), tf.TensorSpec([comm.size], splits.dtype)]
        found, received = carried([x, splits], run, specs)

        def back(grad: Any, _: Any) -> Any:
            sent, _ = _exchange(tf.cast(grad, x.dtype), received, comm)
            unsent = tf.zeros_like(x[tf.shape(sent)[0] :])  # rows that no split has
            return tf.concat([sent, unsent], 0), None

        return (found, received), back

    return call(x, splits)


def _counts(splits: list[int], rows: int, size: int) -> tuple[list[int], str]:
    """Numbers of rows, or -1 for each rank, which tells the others, and why."""
    if not splits and rows % size:
        return [-1] * size, f"hvd.alltoall: {rows} rows are not a multiple of {size} ranks; pass splits="
    found = splits or [rows // size] * size
    if len(found) != size or min(found) < 0 or sum(found) > rows:
        return [-1] * size, f"hvd.alltoall: splits={found} must be {size} numbers of rows, of {rows} together"
    return found, ""


@in_horovods_words()
def reducescatter(
    tensor: Any, device_dense: str = "", compression: Any = Compression.none, op: int = Average,
    name: str | None = None, process_set: ProcessSet = global_process_set, ignore_name_scope: bool = False,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> Any:  # fmt: skip
    """Average or Sum all ranks' tensors; each rank gets its share of the rows, the first ones one more."""
    how = process_set, ignore_name_scope, prescale_factor, postscale_factor
    return grouped_reducescatter([tensor], device_dense, compression, op, name, *how)[0]


@in_horovods_words()
def grouped_reducescatter(
    tensors: Sequence[Any], device_dense: str = "", compression: Any = Compression.none, op: int = Average,
    name: str | None = None, process_set: ProcessSet = global_process_set, ignore_name_scope: bool = False,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> list[Any]:  # fmt: skip
    """Several together.  Gradients are gathered; with op Sum times the ranks, as in Horovod."""
    comm = of_set(process_set)
    if op not in (Average, Sum):
        raise ArgumentError(f"hvd.reducescatter: op={op!r} must be hvd.Average or hvd.Sum")
    packed = [compression.compress(tf.convert_to_tensor(each)) for each in tensors]
    if any(not sent.shape.rank for sent, _ in packed):
        raise ArgumentError("hvd.reducescatter: a tensor without dimensions has no rows; pass tf.reshape(x, [1])")
    factors = prescale_factor, postscale_factor
    found = _scattered([sent for sent, _ in packed], op, factors, comm)
    return [compression.decompress(each, context) for each, (_, context) in zip(found, packed, strict=True)]


def _scattered(tensors: list[Any], op: int, factors: tuple[float, float], comm: Communicator) -> list[Any]:
    def run(eager: Sequence[Any]) -> list[Array]:
        arrays = pool_of(comm).copies(eager)
        return [comm.reduce_scatterv(each, shares(len(each), comm.size), OPS[op]) for each in arrays]

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def call(*own: Any) -> Any:
        specs = [tf.TensorSpec([None, *each.shape[1:]], each.dtype) for each in own]
        found = carried([scaled(each, factors[0]) for each in own], run, specs)

        def back(*grads: Any) -> Any:
            factor = factors[0] * factors[1] * (comm.size if op == Sum else 1)
            return hocket.tensorflow.allgather([scaled(each, factor) for each in grads], comm=comm)

        return [scaled(each, factors[1]) for each in found], back

    found = call(*tensors) if tensors else []
    return list(found) if isinstance(found, (list, tuple)) else [found]


def slanted(tensor: Any, factor: float) -> Any:
    """The tensor; its gradient is multiplied by a factor."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def call(x: Any) -> Any:
        return tf.identity(x), lambda grad: scaled(tf.convert_to_tensor(grad), factor)

    return call(tensor)


def scaled(tensor: Any, factor: float) -> Any:
    """The tensor times a factor, as in Horovod: integers in float64, rounded toward zero; short floats in float32."""
    if factor == 1:
        return tensor
    small = tensor.dtype.is_floating and tensor.dtype.size < 4
    wide = tf.float64 if tensor.dtype.is_integer else tf.float32 if small else tensor.dtype
    return tf.cast(tf.cast(tensor, wide) * tf.cast(factor, wide), tensor.dtype)
