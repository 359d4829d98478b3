"""Keras on TensorFlow: the averages of a step are a part of its tf.function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hocket.errors import Error
from hocket.tensorflow import gradients
from hocket.tensorflow.causes import cause as found_cause

stale = True


def averages(averaging: Any, grads: list[Any], variables: Sequence[Any]) -> list[Any]:
    if averaging.compressing is None:
        return gradients.averages(averaging.comm, grads, variables)
    return gradients.averages(
        averaging.comm, grads, variables, code=averaging.compressing.average, rate=averaging.rate()
    )


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
