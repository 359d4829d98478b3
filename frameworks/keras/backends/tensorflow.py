"""Keras on TensorFlow: one py_function for all gradients of a step, inside the tf.function of the training step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hocket.errors import Error
from hocket.keras.backends.flags import Flags
from hocket.tensorflow.arrays import Array
from hocket.tensorflow.calls import carried, pool_of
from hocket.tensorflow.causes import cause as found_cause

stale = True


def averages(averaging: Any, grads: list[Any], variables: Sequence[Any]) -> list[Any]:
    flags = Flags(grads, variables)
    dense = [
        tf.zeros(variable.shape, variable.dtype) if grad is None else tf.convert_to_tensor(grad)
        for grad, variable in zip(grads, variables, strict=True)
    ]
    rate = [] if averaging.compressing is None else [tf.cast(averaging.rate(), tf.float32)]

    def run(tensors: Sequence[Any]) -> list[Array]:
        comm = averaging.comm
        arrays: list[Array] = pool_of(comm).copies(tensors[: len(dense)])
        own = flags.values.copy()
        if not rate:
            comm.allreduce([*arrays, own], "avg")
            flags.check(own, comm)
            return arrays
        comm.allreduce([*(each for each in arrays if each.dtype != np.float32), own], "avg")
        flags.check(own, comm)
        floats = [i for i, each in enumerate(arrays) if each.dtype == np.float32]
        names = [flags.names[i] for i in floats]
        averaging.compressing.average([arrays[i] for i in floats], names, float(tensors[-1]))
        return arrays

    means = carried([*dense, *rate], run, results=len(dense))
    return [None if grad is None else mean for grad, mean in zip(grads, means, strict=True)]


def check_compress(compress: str | None) -> None:
    """All methods work."""


def problem(model: Any) -> str:
    if not tf.executing_eagerly():
        return "TensorFlow 1 graphs keep no order of calls: leave tf.compat.v1.disable_eager_execution() out"
    if tf.distribute.has_strategy() or getattr(model, "_distribute_strategy", None) is not None:
        return "the model was made under a tf.distribute strategy, which averages gradients too: make it outside"
    if model.jit_compile is True:
        return "XLA has no way to call hocket: compile the model with jit_compile=False"
    return ""


def cause(error: BaseException) -> Error | None:
    return found_cause(error)
